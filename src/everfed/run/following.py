"""The rounds of a run, with progress shown to whoever waits for them."""

from __future__ import annotations

from collections.abc import Iterator

from everfed.learning.metrics import Metrics
from everfed.run.history import RoundRecord
from everfed.showing.progress import Bars, view


def followed(
    records: Iterator[RoundRecord], total: int, title: str, progress: bool | None = None
) -> Iterator[RoundRecord]:
    """Yield the same records. progress: see `showing.progress.view`."""
    with Bars({title: total}, view(progress)) as bars:
        for record in records:
            bars.update(title, record.round + 1, result_of(record.metrics) if record.metrics else None)
            yield record


def result_of(metrics: Metrics) -> str:
    """'accuracy 93.1 %', or the loss where there is no accuracy."""
    return f"loss {metrics.loss:.4g}" if metrics.accuracy is None else f"accuracy {100 * metrics.accuracy:.1f} %"
