"""Progress of an audit, which steps through all rounds once for each batch of seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everfed.showing.progress import Bars, view

_LABEL = "audit"


@contextmanager
def counted_rounds(rounds: int, batches: int, progress: bool | None) -> Iterator[Callable[[], None]]:
    """A function to call after every round of every batch. progress: see `showing.progress.view`."""
    done = 0
    with Bars({_LABEL: rounds * batches}, view(progress)) as bars:

        def tell() -> None:
            nonlocal done
            done += 1
            bars.update(_LABEL, done)

        yield tell
