"""Read run folders. Every file is compared with its digest first; what can be taken from other files is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from everfed.arrays import part_of
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, first_line, warn
from everfed.run import config
from everfed.run.early_stopping import course_of
from everfed.run.experiment import Experiment
from everfed.run.fingerprint import fingerprint
from everfed.run.history import History, RoundRecord
from everfed.run.live import Live
from everfed.run.setup import resolve_device
from everfed.showing.card import Card
from everfed.store import legacy
from everfed.store.checkpoint import Checkpoint, load_checkpoints
from everfed.store.digests import FORMAT, Digests
from everfed.store.files import (
    DamagedError,
    ForeignError,
    StoreError,
    check_plain,
    digest,
    digest_of,
    read_json,
    read_sealed,
)
from everfed.store.fleet_file import NAME as FLEET_FILE, load_fleet
from everfed.store.lock import is_running
from everfed.store.rebuild import rebuilt
from everfed.store.records import whole_records

_SLOW_S = 5.0
AGAIN = "the command that made the run makes it again"


@dataclass(frozen=True, eq=False, repr=False)
class StoredRun(History):
    """A History read from a run folder; `rounds` ends where the records do.

    rounds: the records read so far.
    params: the trained model, a state_dict.
    path: the folder.
    experiment: what was run.
    state: done, running, stopped or diverged.
    environment: machine and versions that ran it.
    model_round: rounds that the model has seen.

    >>> import tempfile, everfed as ef
    >>> data = ef.from_arrays([([[0.0], [1.0]], [0, 1])] * 2, test=([[0.0], [1.0]], [0, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = ef.simulate("logistic", data, ef.Fleet.from_cycles([1, 2]), rounds=4, batch_size=2, out=folder)
    >>> run.state, len(run.rounds)
    ('done', 4)
    """

    path: Path = Path()
    experiment: Experiment = field(default_factory=Experiment)
    state: str = "done"  # done, running, stopped or diverged
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name

    def _said(self) -> str:
        return f": {self.experiment.title}, seed {self.experiment.seed}"

    def _energy_unit(self) -> str:
        return f" {self.experiment.fleet.energy_unit}"

    def _card(self) -> Card:
        e = self.experiment
        done = f"{len(self.rounds):,} of {e.rounds:,} rounds" if len(self.rounds) < e.rounds else f"{e.rounds:,} rounds"
        title = f"StoredRun, {self.state}: {e.title} on {e.data_name}, {done}, seed {e.seed}"
        return Card(title, [("folder", str(self.path)), *self._facts()], self._grid(), self._picture)

    def trained(self) -> dict[str, Tensor]:
        """The state_dict of the trained model; an error if the run is not done."""
        if self.state != "done":
            raise InputError(
                f"the run in '{self.path}' is not done ({self.state} after round {len(self.rounds)} of "
                f"{self.experiment.rounds}); finish it with the command that started it."
            )
        return self.params

    def model(self, module: nn.Module | None = None, *, device: str | torch.device = "cpu") -> nn.Module:
        """The trained model, ready for inference: in eval mode, without gradients.

        module: one like the trained one, if that was an object, of which the folder holds the weights alone; a copy of
        it is returned. Inputs are samples as the model saw them, images scaled and cropped.
        """
        found = rebuilt(self.experiment, self.environment, self.trained(), module)
        return found.to(resolve_device(device))

    def ending(self) -> dict[str, Any]:
        """What early stopping made of a run: whether it ended early, and which model it kept; {} without it."""
        if not self.experiment.early_stopping.part:
            return {}
        return {
            "stopped_early": self.state == "done" and len(self.rounds) < self.experiment.rounds,
            "model_round": self.model_round,
            "validation": self.validation.to_dict() if self.validation else None,
        }


def open_run(path: str | Path) -> StoredRun:
    """Read a run folder, finished or not, even during the run.

    The result is a History (rounds, params, final, curve(...)) with path, experiment, state and environment. A damaged
    file is a DamagedError, unless other files tell what it contained; then it is a warning.

    path: the folder of a run.

    >>> import tempfile, everfed as ef
    >>> data = ef.from_arrays([([[0.0], [1.0]], [0, 1])] * 2, test=([[0.0], [1.0]], [0, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = ef.simulate("logistic", data, ef.Fleet.from_cycles([1, 2]), rounds=4, batch_size=2, out=folder)
    ...     ef.open_run(folder).curve()[0] == made.curve()[0]
    True
    """
    folder = Path(path)
    if not (folder / "experiment.toml").exists():
        raise InputError(f"'{folder}' is not a run folder: it has no experiment.toml.")
    check_plain(folder)
    try:
        return _opened(folder)
    except PermissionError as error:
        raise StoreError(f"'{error.filename}' cannot be read: {error.strerror}") from error


def _opened(folder: Path) -> StoredRun:
    running = is_running(folder)
    experiment = read_experiment(folder)
    result, damage = None, ""
    try:
        result = read_result(folder)  # before the records, which may grow in between
    except DamagedError as error:
        damage = str(error)
    rounds, complete = whole_records(folder, not guarded(folder))
    if damage:
        state = "done" if is_over(experiment, rounds) else "stopped"
        warn(f"{damage}; the run counts as {state} by its records.", 2)
    else:
        state = result["state"] if result else "running" if running else "stopped"
    if state == "done":
        check_complete(folder, experiment, rounds, complete)
    elif not complete and not running:
        warn(f"the records of '{folder}' are damaged after round {len(rounds)}; they are read up to there.", 2)
    try:
        starts = read_starts(folder)
    except DamagedError as error:
        starts = []
        warn(f"{error}; it is left out.", 2)
    done = state == "done"
    params = read_params(folder, experiment, len(rounds) if done else None)
    kept = course_of(experiment.early_stopping, rounds).kept(len(rounds)) if done else None
    return StoredRun(rounds, params, folder, experiment, state, starts[-1] if starts else {}, model_round=kept)


@dataclass(frozen=True)
class Unreadable:
    """A run folder that this process cannot read, and why, in a sentence."""

    path: Path
    reason: str


def open_runs(paths: Iterable[Path]) -> tuple[list[StoredRun], list[Unreadable]]:
    """Read run folders; an unreadable one does not affect the others."""
    runs, unreadable = [], []
    for path in paths:
        try:
            runs.append(open_run(path))
        except Exception as error:  # a folder may hold anything
            unreadable.append(Unreadable(path, reason(error)))
    return runs, unreadable


def reason(error: Exception) -> str:
    """Why a folder cannot be read, as a sentence."""
    kind = "" if isinstance(error, InputError | StoreError) else f"{type(error).__name__}: "
    return f"{kind}{first_line(error)}."


def find_runs(
    root: str | Path,
    on_slow: Callable[[int], None] = lambda folders: None,
    on_error: Callable[[OSError], None] = lambda error: None,
) -> list[Path]:
    """All run folders in a folder and its subfolders, by name.

    on_slow: called every few seconds, with the number of folders seen. on_error: called for those that cannot be read.
    """
    found, told_at = [], time.monotonic()
    for seen, (folder, _, files) in enumerate(os.walk(root, onerror=on_error)):
        if "experiment.toml" in files:
            found.append(Path(folder))
        if time.monotonic() - told_at > _SLOW_S:
            told_at = time.monotonic()
            on_slow(seen)
    return sorted(found)


def read_experiment(folder: Path) -> Experiment:
    """The experiment as stored. Live objects come back as their names alone, but for fleets, which are data."""
    check_digest(folder, "experiment.toml")
    stored = config.from_dict(legacy.upgraded(config.read(folder / "experiment.toml", trusted=False)))
    if not isinstance(stored.fleet, Live):
        return stored
    if (folder / FLEET_FILE).exists():
        check_digest(folder, FLEET_FILE)
    fleet = load_fleet(folder)
    if fleet is not None and fingerprint(fleet) != stored.fleet.fingerprint:
        raise DamagedError(f"'{folder / FLEET_FILE}' is not the fleet that the run started with")
    return stored if fleet is None else replace(stored, fleet=fleet)


def traces(experiment: Experiment) -> list[tuple[str, str]]:
    """(path, SHA-256) of every file that the experiment names."""
    found: list[tuple[str, str]] = []

    def note(path: str, sha256: str) -> str:
        found.append((path, sha256))
        return path

    if not isinstance(experiment.fleet, Fleet | Live):
        experiment.fleet.with_files(note)
    return found


def damaged_traces(experiment: Experiment) -> list[Path]:
    """The copies of traces in a run's folder that are not what they were."""
    listed = [(Path(path), sha256) for path, sha256 in traces(experiment) if sha256]
    return [path for path, sha256 in listed if not path.is_file() or digest(path) != sha256]


def check_digest(folder: Path, name: str) -> None:
    """Raise an error if a file is not what was written."""
    digests = Digests(folder)
    if not digests.known and guarded(folder):
        raise DamagedError(f"'{digests.path}' is missing, so that '{name}' cannot be checked; {AGAIN}")
    if digests.known and not digests.match(name, (folder / name).read_bytes()):
        raise DamagedError(f"'{folder / name}' is damaged or was changed: its SHA-256 is not the one in 'digests'")


def guarded(folder: Path) -> bool:
    """Whether a folder was written by a version that writes digests. Older ones left JSON files without a seal."""
    if Digests(folder).known:
        return True
    try:
        left = read_result(folder) or _read_environment(folder)
    except (DamagedError, ForeignError):
        return True
    return left is None or left["format"] > 1


def read_result(folder: Path) -> dict[str, Any] | None:
    """How the run ended; None if it has not."""
    path = folder / "result.json"
    content = read_json(path)
    return content | {"format": 1} if legacy.is_result(content) else _of_this_run(path, read_sealed(path))


def read_starts(folder: Path) -> list[dict[str, Any]]:
    """What is known of each start of the run."""
    starts: list[dict[str, Any]] = (_read_environment(folder) or {"starts": []})["starts"]
    return starts


def _read_environment(folder: Path) -> dict[str, Any] | None:
    path = folder / "environment.json"
    content = read_json(path)
    if isinstance(content, list) and all(isinstance(entry, dict) for entry in content):
        return {"format": 1, "starts": content}
    return _of_this_run(path, read_sealed(path))


def _of_this_run(path: Path, content: dict[str, Any] | None) -> dict[str, Any] | None:
    if content and content["format"] > FORMAT:
        raise InputError(f"'{path}' is of format {content['format']}, but this version reads formats up to {FORMAT}.")
    known = Digests(path.parent).sha256s("experiment.toml")
    if content and known and content["experiment"] not in known:
        raise ForeignError(f"'{path}' and 'experiment.toml' are of different runs; choose another folder")
    return content


def check_complete(folder: Path, experiment: Experiment, rounds: list[RoundRecord], whole: bool) -> None:
    """Raise an error if the records of a finished run are not all there."""
    if not whole or not is_over(experiment, rounds) or any(r.round != i for i, r in enumerate(rounds)):
        raise DamagedError(
            f"'{folder / 'records.arrow'}' is damaged: {len(rounds)} of {experiment.rounds} rounds can be read; {AGAIN}"
        )


def is_over(experiment: Experiment, rounds: Sequence[RoundRecord]) -> bool:
    """Whether these are the records of a whole run: of all its rounds, or up to where it stopped early."""
    return len(rounds) == experiment.rounds or course_of(experiment.early_stopping, rounds).ended


def read_params(folder: Path, experiment: Experiment, done: int | None) -> dict[str, Tensor]:
    """The trained model of a run that is done, or that of the last checkpoint of one that is not.

    done: the rounds of one that is.
    """
    if done is None:
        return next((part_of(c.tensors, "model.") for c in _own_checkpoints(folder, experiment)), {})
    try:
        return whole_model(folder)
    except (DamagedError, FileNotFoundError) as error:
        rebuilt = model_from_checkpoint(folder, experiment, done)
        if rebuilt is None:
            raise DamagedError(f"{first_line(error)}; {AGAIN}") from error
        warn(f"'{folder / 'model.safetensors'}' is damaged or missing; the model is read from the last checkpoint.", 4)
        return rebuilt


def whole_model(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    digests = Digests(folder)
    if digests.known and digest(path) not in digests.sha256s(path.name):
        raise DamagedError(f"'{path}' is damaged or was changed: its SHA-256 is not the one in 'digests'")
    try:
        return load_file(path)
    except (ValueError, RuntimeError) as error:  # of a version that wrote no digests
        raise DamagedError(f"'{path}' is damaged: {first_line(error)}") from error


def model_from_checkpoint(folder: Path, experiment: Experiment, done: int) -> dict[str, Tensor] | None:
    """The model of a run's end, if a checkpoint has all of it (it lacks buffers and frozen parts). done: its rounds."""
    for found in _own_checkpoints(folder, experiment):
        if found.round == done and found.about.get("whole_model"):
            return part_of(found.tensors, "best.") or part_of(found.tensors, "model.")
    return None


def lineage(experiment: Experiment) -> str:
    """What checkpoints of a run share, however far it is to go."""
    endless = replace(experiment.early_stopping, patience=0)
    return digest_of(config.identity(replace(experiment, rounds=1, early_stopping=endless)).encode())


def _own_checkpoints(folder: Path, experiment: Experiment) -> Iterable[Checkpoint]:
    """Good ones of this run, newest first; those of older versions do not say whose they are."""
    mine = lineage(experiment)
    for found in load_checkpoints(folder):
        own = isinstance(found, Checkpoint) and found.about.get("experiment", mine) == mine
        if isinstance(found, Checkpoint) and own and found.round <= experiment.rounds:
            yield found
