"""A run's folder, held for writing.

experiment.toml              the experiment as run, every default written out
fleet.safetensors            a fleet of the user's own that no experiment file can describe
traces/                      the recorded supplies and weather that it names, as they were when it began
environment.json             versions, hardware and trainer, one entry for each time the run was started
records.arrow                one row per round
checkpoint-*.safetensors     the last two; when the run is done the last one, unless it is large
model.safetensors            when it is: the trained model
result.json                  when it has ended: state and final metrics
digests                      what these files must contain (`digests.Digests`)
lock                         who writes (`lock.Place`)
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from everfed.energy.fleet import Fleet
from everfed.errors import InputError, warn
from everfed.learning.optim import rate
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.live import objects, renamed, restored
from everfed.store import legacy
from everfed.store.check import repair_run
from everfed.store.checkpoint import checkpoints, is_damaged, read_notes
from everfed.store.digests import NAME as DIGESTS, Digests, write_of_run
from everfed.store.files import (
    DamagedError,
    ForeignError,
    StoreError,
    check_plain,
    digest,
    digest_of,
    disk_error,
    write_atomically,
)
from everfed.store.fleet_file import NAME as FLEET_FILE, saved_fleet
from everfed.store.lock import Place
from everfed.store.reading import damaged_traces, guarded, read_experiment, read_result, read_starts, traces
from everfed.store.records import NAME as RECORDS, whole_records


class RunFolder:
    """A run folder held for writing: one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place: Place | None = None

    def hold(self, experiment: Experiment) -> Experiment:
        """Create or reopen the folder; an error if it holds another experiment or is in use.

        Returns the experiment as stored: its traces are the copies in the folder. An experiment that differs in having
        more rounds or patience extends the stored one; one that differs otherwise replaces it if that has not trained.
        """
        pinned = experiment.pinned()
        if traces(pinned) and not (self.path / "experiment.toml").exists():
            pinned.make_fleet()  # a trace that cannot be read is refused before a folder is tied to it
        try:
            check_plain(self.path, writing=True)
            self.path.mkdir(parents=True, exist_ok=True)
            self.place = Place(self.path)
            for said in repair_run(self.path, self.place):
                warn(f"in '{self.path}': {said}")
            stored = self._stored(pinned)
            legacy.check_resumable(self.path, stored)
            _check_traces(self.path, stored, pinned)
            _mend_traces(stored, pinned)
            different = config.differences(stored, pinned)
            if different.keys() - {"rounds"}:
                stored = renamed(stored, pinned)
                different = config.differences(stored, pinned)
            if different:
                stored = self._changed(stored, pinned, different)
        except OSError as error:
            self.release()
            raise disk_error(self.path, error) from error
        except (InputError, StoreError):
            self.release()
            raise
        whole: Experiment = restored(stored, objects(pinned))
        return whole

    def _stored(self, wanted: Experiment) -> Experiment:
        """What the folder holds; the wanted experiment if it holds none, or a damaged file of this one."""
        file = self.path / "experiment.toml"
        if not file.exists():
            digests = Digests(self.path)
            if digests.entries and not digests.match(file.name, _text(wanted).encode()):
                if self._begun():
                    raise DamagedError(f"'{file}' is missing, and the rest is of another run; choose another folder")
                self.clear()
            _write_experiment(self.path, wanted)
        try:
            return read_experiment(self.path)
        except (DamagedError, InputError) as error:
            text = _text(wanted).encode()
            if not Digests(self.path).match(file.name, text):
                if isinstance(error, DamagedError):
                    raise DamagedError(f"{error}. Choose another folder, or remove this one.") from error
                raise
            _write_experiment(self.path, wanted)
            warn(f"{error}; it has been written anew.")
        return read_experiment(self.path)

    def _changed(self, stored: Experiment, wanted: Experiment, different: dict[str, tuple[Any, Any]]) -> Experiment:
        """The folder's experiment becomes the wanted one, where that loses nothing."""
        if not self._begun():
            self.clear()
            _write_experiment(self.path, wanted)
            return read_experiment(self.path)
        if _goes_on(stored, wanted, set(different)):
            _check_extendable(self.path, stored, wanted)
            self.reopen()
            _write_experiment(self.path, wanted)
            return read_experiment(self.path)
        said = "; ".join(f"{key} was {was!r}, now {now!r}" for key, (was, now) in different.items())
        raise InputError(
            f"the run folder '{self.path}' holds a different experiment: {said}. "
            "Resume it unchanged, or choose another folder."
        )

    def _begun(self) -> bool:
        """Whether anything has been trained."""
        trained = (self.path / "model.safetensors").exists() or checkpoints(self.path)
        return bool(trained or whole_records(self.path, not guarded(self.path))[0])

    def clear(self) -> None:
        """Remove an experiment that has trained nothing: it was refused, or its settings were corrected."""
        if not self._begun():
            for name in ("experiment.toml", "environment.json", "result.json", RECORDS, FLEET_FILE, DIGESTS):
                (self.path / name).unlink(missing_ok=True)
            shutil.rmtree(self.path / "traces", ignore_errors=True)

    def discard(self) -> None:
        """Leave no folder behind if nothing has been trained in it."""
        self.clear()
        if {path.name for path in self.path.iterdir()} == {"lock"}:
            self.release()
            shutil.rmtree(self.path, ignore_errors=True)

    def check(self) -> None:
        """Raise an error if another process has taken the folder over."""
        if self.place is None:
            raise StoreError(f"the run folder '{self.path}' is not held by this process.")
        self.place.check()

    def adopt(self) -> None:
        """Guard what an older version wrote, from now on."""
        digests = Digests(self.path)
        if not digests.known:
            for name in ("experiment.toml", FLEET_FILE):
                if (self.path / name).exists():
                    content = (self.path / name).read_bytes()
                    digests.replace(name, [(len(content), digest_of(content))])
            kept = [path for path in checkpoints(self.path) if not is_damaged(path)]
            lengths = sorted(int(read_notes(path).get("records", 0)) for path in kept)
            records = (self.path / RECORDS).read_bytes() if (self.path / RECORDS).exists() else b""
            digests.replace(RECORDS, [(n, digest_of(records[:n])) for n in lengths if 0 < n <= len(records)])

    def release(self) -> None:
        if self.place:
            self.place.leave()
            self.place = None

    def add_environment(self, entry: dict[str, Any]) -> None:
        self.check()
        try:
            starts = read_starts(self.path)
        except (DamagedError, ForeignError) as error:
            warn(f"{error}; what it said of earlier starts is lost.")
            starts = []
        write_of_run(self.path, "environment.json", {"starts": [*starts, entry]})

    def finish(self, result: dict[str, Any]) -> None:
        self.check()
        write_of_run(self.path, "result.json", result)

    def result(self) -> dict[str, Any] | None:
        return read_result(self.path)

    def reopen(self) -> None:
        """Take back that the run has ended: it is extended, repaired, or tried again another way."""
        self.check()
        (self.path / "result.json").unlink(missing_ok=True)


def _write_experiment(folder: Path, experiment: Experiment) -> None:
    """The experiment, and copies of what it names. The digest of a file is there before the file is."""
    digests = Digests(folder)

    def write(name: str, content: bytes) -> None:
        entry = (len(content), digest_of(content))
        digests.replace(name, [*digests.entries.get(name, []), entry])
        write_atomically(folder / name, content)

    if isinstance(experiment.fleet, Fleet) and CycleFleet.of(experiment.fleet) is None:
        content = saved_fleet(experiment.fleet)
        if content is not None:
            write(FLEET_FILE, content)
    for path, sha256 in traces(experiment):
        place, content = folder / _place(path, sha256), Path(path).read_bytes()
        if digest_of(content) != sha256:
            raise InputError(f"the trace {path} has changed since the run was described; describe it again.")
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, content)
    write("experiment.toml", _text(experiment).encode())


# A list of files, as TOML has it.
_YEARS = re.compile(r'weather_years = \[(?:"(?:[^"\\]|\\.)*"(?:, )?)*\]')


def _text(experiment: Experiment) -> str:
    """The experiment's file. Its paths are relative to it, so that a folder can be moved."""
    text = config.to_file(experiment)
    for path, sha256 in traces(experiment):
        there, here = json.dumps(path, ensure_ascii=False), json.dumps(_place(path, sha256), ensure_ascii=False)
        for key in ("trace", "weather"):
            text = text.replace(f"{key} = {there}", f"{key} = {here}")
        text = _YEARS.sub(lambda found, there=there, here=here: found[0].replace(there, here), text)  # type: ignore[misc]
    return text


def _place(path: str, sha256: str) -> str:
    return f"traces/{sha256[:12]}/{Path(path).name}"


def _check_traces(folder: Path, stored: Experiment, now: Experiment) -> None:
    """A run goes on with the energy it began with."""
    for (kept, was), (path, is_now) in zip(traces(stored), traces(now), strict=False):
        if was and Path(kept).name == Path(path).name and was != is_now:
            raise InputError(
                f"the trace {path} is not the one that the run in '{folder}' started with: its SHA-256 is "
                f"{is_now[:12]}..., and that of the copy there is {was[:12]}...; put the old file back, or choose "
                "another folder."
            )


def _mend_traces(stored: Experiment, now: Experiment) -> None:
    """Copy again what was damaged."""
    originals = {sha256: path for path, sha256 in traces(now)}
    for path in damaged_traces(stored):
        sha256 = next(s for p, s in traces(stored) if Path(p) == path)
        if sha256 not in originals or digest(Path(originals[sha256])) != sha256:
            raise DamagedError(f"the copied trace '{path}' is damaged or missing, and its original is not there either")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, Path(originals[sha256]).read_bytes())
        warn(f"the copied trace '{path}' was damaged or missing; it has been copied again.")


def _goes_on(stored: Experiment, wanted: Experiment, different: set[str]) -> bool:
    """Whether the wanted run begins with the stored one and may be longer: by its rounds, its patience or both."""
    longer = "rounds" not in different or wanted.rounds > stored.rounds
    patient = "early_stopping.patience" not in different or wanted.early_stopping.outlasts(stored.early_stopping)
    return longer and patient and different <= {"rounds", "early_stopping.patience"}


def _check_extendable(folder: Path, stored: Experiment, longer: Experiment) -> None:
    """Refuse more rounds where the rounds already done would have been others."""
    if not checkpoints(folder) and (folder / "model.safetensors").exists():
        raise InputError(
            f"the run in '{folder}' cannot be extended from {stored.rounds} to {longer.rounds} rounds: its last "
            "checkpoint was not kept. Choose another folder."
        )
    every = stored.evaluation_interval
    if stored.early_stopping.part and (every != longer.evaluation_interval or stored.rounds % every):
        raise InputError(
            f"the run in '{folder}' cannot be extended from {stored.rounds} to {longer.rounds} rounds: it would have "
            "been evaluated after other rounds, and early stopping depends on that. Choose another folder, and next "
            "time an eval_every that divides the rounds."
        )
    steps = stored.local_steps
    done, total = stored.rounds * steps, longer.rounds * steps
    for step in {*range(min(done, 1000)), *range(0, done, max(1, done // 1000))}:
        if rate(stored.client, step, done) != rate(longer.client, step, total):
            raise InputError(
                f"the run in '{folder}' cannot be extended from {stored.rounds} to {longer.rounds} rounds: its "
                "learning rates follow the number of rounds. Choose another folder."
            )
