"""Run an experiment in a folder, with checkpoints and resuming."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from everfed.errors import DivergenceError, InputError, warn
from everfed.machine import free_memory
from everfed.run.experiment import Experiment
from everfed.run.history import RoundRecord
from everfed.run.loop import Run
from everfed.run.start import start
from everfed.store.check import damage, save_model, write_result
from everfed.store.checkpoint import Checkpoint, checkpoints, load_checkpoints, save_checkpoint
from everfed.store.digests import Digests
from everfed.store.environment import environment, fleet_assumptions
from everfed.store.files import digest_of, disk_error
from everfed.store.folder import RunFolder
from everfed.store.reading import lineage, read_starts
from everfed.store.records import NAME as RECORDS, RecordsFile, parsed
from everfed.versions import other_versions, versions

DEFAULT_CHECKPOINT_S = 30.0
# The last checkpoint of a finished run stays, so that it can be extended and repaired, unless its clients keep so much.
_LARGEST_KEPT = 256 << 20  # bytes


def stored_rounds(
    experiment: Experiment,
    path: Path,
    *,
    checkpoint_s: float = DEFAULT_CHECKPOINT_S,
    on_divergence: str = "stop",
    mixed_versions: bool = False,
    stop: Callable[[], bool] = lambda: False,
    make: Callable[[Experiment], Run] | None = None,
    on_start: Callable[[Run], None] = lambda run: None,
    **settings: Any,
) -> Iterator[RoundRecord]:
    """Run an experiment in a folder; yields the records of the remaining rounds.

    If it is killed and called again, it ends with the same model and records, bit for bit, as an uninterrupted run.
    A finished run yields nothing, unless it is damaged or the experiment has more rounds now.

    experiment: what to run.
    path: the folder, existing or new.
    on_divergence: "stop" raises DivergenceError, "skip" ignores updates that are not finite.
    stop: called after every round; if it returns true, the state is saved and the iteration ends.
    checkpoint_s: seconds between checkpoints.
    mixed_versions: go on even if the run was begun by other code, or with another version of torch or numpy.
    make: sets up the run; default: on this machine.
    on_start: called with the run before its first round.
    settings: of `start`.

    >>> import tempfile, everfed as ef
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = list(ef.stored_rounds(ef.Experiment(rounds=20, model="logistic"), Path(folder)))
    ...     again = list(ef.stored_rounds(ef.Experiment(rounds=20, model="logistic"), Path(folder)))
    >>> len(records), len(again)
    (20, 0)
    """
    folder = RunFolder(path)
    experiment = folder.hold(experiment)
    try:
        result = folder.result()
        if result and result["state"] == "done":
            _, damaged = damage(path)
            if not damaged:
                return
            warn(f"the finished run in '{path}' is damaged: {damaged[0]} It is made again as far as needed.")
        elif result and on_divergence == "stop":
            raise DivergenceError(result["message"])
        folder.reopen()
        with closing(RunWriter(folder, experiment, checkpoint_s)) as writing:
            writing.start(make, {**settings, "on_divergence": on_divergence}, mixed_versions)
            on_start(writing.run)
            yield from writing.rounds(stop)
    except InputError:
        folder.discard()
        raise
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        folder.release()


class RunWriter:
    """One start of a run: what is open, and when it was last saved."""

    run: Run

    def __init__(self, folder: RunFolder, experiment: Experiment, checkpoint_s: float) -> None:
        self.folder, self.path, self.checkpoint_s = folder, folder.path, checkpoint_s
        self.experiment = experiment
        folder.adopt()
        self.records = RecordsFile(
            self.path, folder.check, bool(experiment.early_stopping.part), experiment.asynchronous
        )
        self.unwritten: list[RoundRecord] = []
        self.saved_at = time.monotonic()

    def start(self, make: Callable[[Experiment], Run] | None, settings: dict[str, Any], mixed_versions: bool) -> None:
        """Set the run up, and put it where the checkpoint is, and the records with it."""
        found, experiment = self._newest(), self.experiment
        if found and not mixed_versions:
            self._check_versions(found)
        if make is None and found and settings.get("memory_budget") is None:
            settings = {**settings, "memory_budget": _same_budget(found)}
        self.run = make(experiment) if make else start(experiment, **settings)
        if found:
            self.run.load_state_dict(found.tensors)
        self.records.truncate(int(found.notes["records"]) if found else 0)
        self.saved_round = self.run.done if found else -1
        self.whole_model = set(self.run.setup.layout.names) == self.run.params.keys()
        kept = {"server_keeps": self.run.server.rule.explain(), "from_round": self.run.done}
        self.folder.add_environment({**environment(self.run), **kept, **fleet_assumptions(experiment)})

    def _newest(self) -> Checkpoint | None:
        """The newest checkpoint that can be gone on from; later ones are removed."""
        digests = Digests(self.path)
        try:
            records = (self.path / RECORDS).read_bytes()
        except FileNotFoundError:
            records = b""
        for found in load_checkpoints(self.path):
            if isinstance(found, Checkpoint):
                wrong = self._unusable(found, digests, records)
                if not wrong:
                    return found
                said, place = wrong, found.path
            else:
                said, place = f"the checkpoint '{found.name}' is damaged", found
            place.unlink(missing_ok=True)
            warn(f"{said}; using the one before it.")
        return None

    def _unusable(self, found: Checkpoint, digests: Digests, records: bytes) -> str:
        """What is wrong with a checkpoint that is whole, if anything."""
        if found.about.get("experiment", lineage(self.experiment)) != lineage(self.experiment):
            return f"the checkpoint '{found.path.name}' is of another experiment"
        length = int(found.notes["records"])
        told = found.about.get("files", {}).get(RECORDS)
        whole = digests.whole_part(RECORDS, records[:length]) == length
        mine = told is None or [length, digest_of(records[:length])] == told
        if not whole or not mine or len(parsed(records[:length])) != found.round:
            return f"the records of '{found.path.name}' are incomplete"
        return ""

    def _check_versions(self, found: Checkpoint) -> None:
        then = found.about.get("versions")
        if then is None:  # of an older version, which noted packages alone
            noted = (read_starts(self.path) or [{}])[-1]
            then = dict(noted.get("packages", {}))
            if "python" in noted:
                then["python"] = ".".join(noted["python"].split(".")[:2])
        if other := other_versions(then, versions()):
            raise InputError(
                f"the run in '{self.path}' was begun with {'; '.join(other)}: going on would mix them. Use those "
                "versions again, choose another folder, or allow it with --mixed-versions (mixed_versions=True)."
            )

    def rounds(self, stop: Callable[[], bool]) -> Iterator[RoundRecord]:
        run, last = self.run, None
        try:
            for record in run:
                self.unwritten.append(record)
                last = record
                stopping = stop() and not run.ended
                due = time.monotonic() - self.saved_at >= self.checkpoint_s
                if stopping or due:
                    self.checkpoint()
                elif record.metrics:
                    self.write()
                yield record
                if stopping:
                    return
            self.finish(last)
        except DivergenceError as error:
            self.write()
            self.folder.finish({"state": "diverged", "message": str(error), "rounds": run.done})
            raise

    def close(self) -> None:
        self.records.close()

    def write(self) -> None:
        """Records are readable from here on, though a kill may still cost them."""
        self.records.append(self.unwritten)
        self.unwritten = []

    def checkpoint(self) -> None:
        self.write()
        length, _ = self.records.sync()
        about = {
            "experiment": lineage(self.experiment),
            "versions": versions(),
            "memory_budget": self.run.memory_budget,
            "whole_model": self.whole_model,
            "files": {name: listed[-1] for name, listed in self.records.digests.entries.items() if listed},
        }
        notes = {"records": str(length), "about": json.dumps(about)}
        self.folder.check()
        save_checkpoint(self.path, self.run.done, self.run.state_dict(), notes)
        self.saved_at, self.saved_round = time.monotonic(), self.run.done

    def finish(self, last: RoundRecord | None) -> None:
        """A last checkpoint, the model, then the word that the run is done."""
        kept = self._keeps_little()
        if kept and self.saved_round < self.run.done:
            self.checkpoint()
        self.write()
        self.records.sync()
        records = [last] if last else []
        if self.run.watch or last is None:  # the result is told by all of them; or it was cut off after the last round
            records = parsed((self.path / RECORDS).read_bytes())
        save_model(self.path, self.run.kept)
        self.folder.check()
        write_result(self.path, self.experiment, records)
        for old in checkpoints(self.path)[int(kept) :]:
            old.unlink(missing_ok=True)

    def _keeps_little(self) -> bool:
        """Whether the last checkpoint is to stay. One that is there tells; only without it, the state is gathered."""
        there = [path.stat().st_size for path in checkpoints(self.path)[:1]]
        size = there[0] if there else sum(tensor.nbytes for tensor in self.run.state_dict().values())
        return size <= _LARGEST_KEPT


def _same_budget(found: Checkpoint) -> int | None:
    """The bytes that the run had for the clients trained at once: with other chunks, sums round otherwise."""
    budget: int | None = found.about.get("memory_budget")
    if budget is not None and free_memory() < budget:
        warn(
            f"the run was begun with {budget / 2**30:.1f} GiB for the clients trained at once, and goes on with as "
            f"much; only {free_memory() / 2**30:.1f} GiB are free."
        )
    return budget
