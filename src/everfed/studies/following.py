"""Many runs, with one line of progress for whoever waits for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from everfed.errors import counted
from everfed.showing.progress import Bars, view
from everfed.studies.sweep import Planned, Progress, Tell


@contextmanager
def followed(runs: Sequence[Planned], progress: bool | None, tell: Tell = lambda progress: None) -> Iterator[Tell]:
    """A function to call with every Progress, which also calls `tell`. progress: see `showing.progress.view`."""
    done = [0] * len(runs)
    finished: set[int] = set()
    with Bars({"rounds": sum(run.experiment.rounds for run in runs)}, view(progress)) as bars:

        def heard(told: Progress) -> None:
            done[told.run] = told.round
            if told.round >= runs[told.run].experiment.rounds:
                finished.add(told.run)
            bars.update("rounds", sum(done), f"{len(finished)} of {counted(len(runs), 'run')} done")
            tell(told)

        yield heard
