"""A run's folder: its files, its lock, and how to read it.

experiment.toml              the experiment as run, every default written out
fleet.safetensors            a fleet of the user's own that no experiment file can describe
traces/                      the recorded supplies that it names, as they were when it began
environment.json             versions, hardware and trainer, one entry for each time the run was started
records.arrow                one row per round
checkpoint-*.safetensors     until the run is done
model.safetensors            when it is: the trained model
result.json                  when it has ended: state and final metrics
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor
from safetensors.torch import load_file

from everfed.arrays import part_of
from everfed.energy.fleet import Fleet
from everfed.errors import InputError, first_line
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fingerprint import fingerprint
from everfed.run.fleets import CycleFleet
from everfed.run.history import History
from everfed.run.live import Live, objects, restored
from everfed.store import legacy
from everfed.store.checkpoint import Checkpoint, load_checkpoints, write_atomically
from everfed.store.fleet_file import NAME as FLEET_FILE, load_fleet, save_fleet
from everfed.store.records import read_records


@dataclass(frozen=True, eq=False)
class StoredRun(History):
    """A History read from a run folder; `rounds` ends where the records do."""

    path: Path = Path()
    experiment: Experiment = field(default_factory=Experiment)
    state: str = "done"  # done, running, stopped or diverged
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name


# A reader that asks whether a run is alive holds its lock for a moment; a starter waits that out, and so does
# another reader.
_STARTER_PATIENCE_S = 1.0
_READER_PATIENCE_S = 0.1
_OWNER = "process "


class StoreError(RuntimeError):
    """The disk cannot be written, or a folder is in use; the message says what to do."""


class RunFolder:
    """A run folder held for writing: one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock: IO[bytes] | None = None

    def hold(self, experiment: Experiment) -> Experiment:
        """Create or reopen the folder; an error if it holds another experiment or is in use.

        Returns the experiment as stored: its traces are the copies in the folder.
        """
        pinned = experiment.pinned()
        if _traces(pinned) and not (self.path / "experiment.toml").exists():
            pinned.make_fleet()  # a trace that cannot be read is refused before a folder is tied to it
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = _lock(self.path)
            if not (self.path / "experiment.toml").exists():
                _write_experiment(self.path, pinned)
        except OSError as error:
            self.release()
            raise disk_error(self.path, error) from error
        except InputError:
            self.release()
            raise
        stored = read_experiment(self.path)
        try:
            legacy.check_resumable(self.path, stored)
            _check_traces(self.path, stored, pinned)
        except InputError:
            self.release()
            raise
        different = config.differences(stored, pinned)
        if different:
            self.release()
            said = "; ".join(f"{key} was {was!r}, now {now!r}" for key, (was, now) in different.items())
            raise InputError(
                f"the run folder '{self.path}' holds a different experiment: {said}. "
                "Resume it unchanged, or choose another folder."
            )
        whole: Experiment = restored(stored, objects(pinned))
        return whole

    def release(self) -> None:
        if self.lock:
            self.lock.close()
            self.lock = None

    def add_environment(self, entry: dict[str, Any]) -> None:
        path = self.path / "environment.json"
        write_atomically(path, json.dumps([*_read_json(path, []), entry], indent=1) + "\n")

    def finish(self, result: dict[str, Any]) -> None:
        write_atomically(self.path / "result.json", json.dumps(result, indent=1) + "\n")

    def result(self) -> dict[str, Any] | None:
        result: dict[str, Any] | None = _read_json(self.path / "result.json", None)
        return result

    def reopen(self) -> None:
        """Take back that the run has ended (a diverged run is tried again another way)."""
        (self.path / "result.json").unlink(missing_ok=True)


def open_run(path: str | Path) -> StoredRun:
    """Read a run folder, finished or not, even during the run.

    The result is a History (rounds, params, final, curve(...)) with path, experiment, state and environment.
    """
    folder = Path(path)
    if not (folder / "experiment.toml").exists():
        raise InputError(f"'{folder}' is not a run folder: it has no experiment.toml.")
    result = _read_json(folder / "result.json", None)
    state = result["state"] if result else "running" if is_running(folder) else "stopped"
    environments = _read_json(folder / "environment.json", [])
    return StoredRun(
        rounds=read_records(folder / "records.arrow"),
        params=_params(folder),
        path=folder,
        experiment=read_experiment(folder),
        state=state,
        environment=environments[-1] if environments else {},
    )


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
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            unreadable.append(Unreadable(path, f"{kind}{first_line(error)}."))
    return runs, unreadable


def find_runs(root: str | Path) -> list[Path]:
    """All run folders in a folder and its subfolders, by name."""
    return sorted(path.parent for path in Path(root).rglob("experiment.toml"))


def read_experiment(folder: Path) -> Experiment:
    """The experiment as stored. Live objects come back as their names alone, but for fleets, which are data."""
    stored = config.from_dict(legacy.upgraded(config.read(folder / "experiment.toml", trusted=False)))
    if not isinstance(stored.fleet, Live):
        return stored
    fleet = load_fleet(folder)
    if fleet is not None and fingerprint(fleet) != stored.fleet.fingerprint:
        raise InputError(f"'{folder / FLEET_FILE}' is not the fleet that the run started with.")
    return stored if fleet is None else replace(stored, fleet=fleet)


def _write_experiment(folder: Path, experiment: Experiment) -> None:
    """The experiment, and copies of what it names, by paths that are relative to it."""

    def copied(path: str, sha256: str) -> str:
        place = Path("traces") / sha256[:12] / Path(path).name
        content = Path(path).read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise InputError(f"the trace {path} has changed since the run was described; describe it again.")
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / place, content)
        return place.as_posix()

    if isinstance(experiment.fleet, Fleet) and CycleFleet.of(experiment.fleet) is None:
        save_fleet(experiment.fleet, folder)
    places = {path: copied(path, sha256) for path, sha256 in _traces(experiment)}
    # Paths of an experiment are absolute; those of its file are not, so that a folder can be moved.
    text = config.to_file(experiment)
    for path, place in places.items():
        text = text.replace(
            f"trace = {json.dumps(path, ensure_ascii=False)}", f"trace = {json.dumps(place, ensure_ascii=False)}"
        )
    write_atomically(folder / "experiment.toml", text)


def _traces(experiment: Experiment) -> list[tuple[str, str]]:
    """(path, SHA-256) of every file that the experiment names."""
    found: list[tuple[str, str]] = []

    def note(path: str, sha256: str) -> str:
        found.append((path, sha256))
        return path

    if not isinstance(experiment.fleet, Fleet | Live):
        experiment.fleet.with_files(note)
    return found


def _check_traces(folder: Path, stored: Experiment, now: Experiment) -> None:
    """A run goes on with the energy it began with."""
    for (kept, was), (path, is_now) in zip(_traces(stored), _traces(now), strict=False):
        if was and Path(kept).name == Path(path).name and was != is_now:
            raise InputError(
                f"the trace {path} is not the one that the run in '{folder}' started with: its SHA-256 is "
                f"{is_now[:12]}..., and that of the copy there is {was[:12]}...; put the old file back, or choose "
                "another folder."
            )


def is_running(folder: Path) -> bool:
    """Whether a live process holds the folder."""
    lock = folder / "lock"
    try:
        # Opened to be written where that is allowed: network disks lock no other file.
        with open(lock, "r+b" if os.access(lock, os.W_OK) else "rb") as file:
            return not _locked(file, _READER_PATIENCE_S)
    except OSError:  # there is no lock, or the disk knows of none
        return False


def disk_error(path: Path, error: OSError) -> StoreError:
    """One sentence for what the disk said."""
    reason = error.strerror or str(error)
    return StoreError(
        f"the run folder '{path}' cannot be written: {reason}. Everything up to the last checkpoint is kept; free "
        "some space or choose another folder, then resume with the same command."
    )


def _params(folder: Path) -> dict[str, Any]:
    if (folder / "model.safetensors").exists():
        return load_file(folder / "model.safetensors")
    for found in load_checkpoints(folder):
        if isinstance(found, Checkpoint):
            return part_of(found.tensors, "model.")
    return {}


def _lock(folder: Path) -> IO[bytes]:
    """The open file, which the system locks for as long as it is open and the process lives."""
    file = open(folder / "lock", "a+b")  # noqa: SIM115 - held for the length of a run
    if not _locked(file, _STARTER_PATIENCE_S):
        with file:
            file.seek(len(_OWNER))  # on Windows no other process can read the first byte
            owner = file.read().decode(errors="replace").strip()
        raise StoreError(
            f"the run folder '{folder}' is in use by {_OWNER + owner if owner else 'another process'}; "
            "wait for it to end, or choose another folder."
        )
    file.truncate(0)
    file.write(f"{_OWNER}{os.getpid()} on {platform.node()}".encode())
    file.flush()
    return file


def _locked(file: IO[bytes], patience_s: float) -> bool:
    """Lock an open file until it is closed; False if another process keeps holding it."""
    until = time.monotonic() + patience_s
    while not lock_descriptor(file.fileno(), blocking=False):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _read_json(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return default
