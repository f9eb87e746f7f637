"""Run an experiment in a folder, with checkpoints and resuming."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from everfed.errors import DivergenceError, warn
from everfed.run.experiment import Experiment
from everfed.run.history import RoundRecord
from everfed.run.loop import Run
from everfed.run.start import start
from everfed.store.checkpoint import Checkpoint, checkpoints, commit, load_checkpoints, save_checkpoint
from everfed.store.environment import environment, fleet_assumptions
from everfed.store.folder import RunFolder, disk_error
from everfed.store.records import RecordsFile, read_records

DEFAULT_CHECKPOINT_S = 30.0


def stored_rounds(
    experiment: Experiment,
    path: Path,
    *,
    checkpoint_s: float = DEFAULT_CHECKPOINT_S,
    on_divergence: str = "stop",
    stop: Callable[[], bool] = lambda: False,
    make: Callable[[Experiment], Run] | None = None,
    on_start: Callable[[Run], None] = lambda run: None,
) -> Iterator[RoundRecord]:
    """Run an experiment in a folder; yields the records of the remaining rounds.

    If it is killed and called again, it ends with the same model and records, bit for bit, as an uninterrupted run.
    `stop` is called after every round; if it returns true, the state is saved and the iteration ends. A finished run
    yields nothing.

    checkpoint_s: seconds between checkpoints.
    make: sets up the run; default: on this machine.
    on_start: called with the run before its first round.
    """
    folder = RunFolder(path)
    experiment = folder.hold(experiment)
    try:
        result = folder.result()
        if result and (result["state"] == "done" or on_divergence == "stop"):
            if result["state"] == "diverged":
                raise DivergenceError(result["message"])
            return
        folder.reopen()
        writing = RunWriter(folder, experiment, checkpoint_s, on_divergence, make)
        on_start(writing.run)
        yield from writing.rounds(stop)
    except OSError as error:
        raise disk_error(path, error) from error
    finally:
        folder.release()


class RunWriter:
    """One start of a run: what is open, and when it was last saved."""

    def __init__(
        self,
        folder: RunFolder,
        experiment: Experiment,
        checkpoint_s: float,
        on_divergence: str,
        make: Callable[[Experiment], Run] | None,
    ) -> None:
        self.folder, self.path, self.checkpoint_s = folder, folder.path, checkpoint_s
        self.run = make(experiment) if make else start(experiment, on_divergence=on_divergence)
        self.records = RecordsFile(self.path / "records.arrow")
        self.unwritten: list[RoundRecord] = []
        self.saved_at = time.monotonic()
        _restore(self.run, self.records)
        kept = {"server_keeps": self.run.server.rule.explain(), "from_round": self.run.done}
        folder.add_environment({**environment(self.run), **kept, **fleet_assumptions(experiment)})

    def rounds(self, stop: Callable[[], bool]) -> Iterator[RoundRecord]:
        run, last = self.run, None
        try:
            for record in run:
                self.unwritten.append(record)
                last = record
                stopping = stop() and run.done < run.rounds
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
        finally:
            self.records.close()

    def write(self) -> None:
        """Records are readable from here on, though a kill may still cost them."""
        self.records.append(self.unwritten)
        self.unwritten = []

    def checkpoint(self) -> None:
        self.write()
        length = self.records.sync()
        save_checkpoint(self.path, self.run.done, self.run.state_dict(), {"records": str(length)})
        self.saved_at = time.monotonic()

    def finish(self, last: RoundRecord | None) -> None:
        """The model, then the word that the run is done, then no more need of checkpoints."""
        self.write()
        self.records.sync()
        _save_model(self.run.params, self.path / "model.safetensors")
        if last is None:  # cut off after the last round: its record is on the disk
            last = read_records(self.path / "records.arrow")[-1]
        metrics = last.metrics.to_dict() if last.metrics else None
        self.folder.finish(
            {"state": "done", "rounds": self.run.rounds, "metrics": metrics, "energy": last.energy.to_dict()}
        )
        for old in checkpoints(self.path):
            old.unlink(missing_ok=True)


def _restore(run: Run, records: RecordsFile) -> None:
    """Put a run where the newest good checkpoint is, and the records with it."""
    for found in load_checkpoints(records.path.parent):
        if not isinstance(found, Checkpoint):
            warn(f"the checkpoint '{found.name}' is damaged; using the one before it.")
            continue
        length = int(found.notes["records"])
        if len(read_records(records.path, length)) != found.round:
            warn(f"the records of '{found.path.name}' are incomplete; using the one before it.")
            continue
        run.load_state_dict(found.tensors)
        records.truncate(length)
        return
    records.truncate(0)


def _save_model(params: dict[str, Tensor], target: Path) -> None:
    unfinished = target.with_suffix(".unfinished")
    save_file({name: value.contiguous() for name, value in params.items()}, unfinished)
    commit(unfinished, target)
