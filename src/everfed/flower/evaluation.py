"""Evaluation on the clients: what their apps' `@app.evaluate` functions say, weighed by their samples."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from flwr.app import Message, MetricRecord

from everfed.flower import wire

log = logging.getLogger("flwr.everfed")

_WEIGHT = "num-examples"


def mean_metrics(replies: Iterable[Message]) -> MetricRecord | None:
    """The clients' metrics, weighed by `num-examples`; None without any. Replies that make no sense are left out."""
    totals: dict[str, float] = {}
    weights: dict[str, float] = {}
    count = 0
    for reply in replies:
        found = _metrics(reply)
        if isinstance(found, str):
            log.warning("the evaluation of node %d is left out: %s", reply.metadata.src_node_id, found)
            continue
        weight, count = found.pop(_WEIGHT, 1.0), count + 1
        for name, value in found.items():
            totals[name] = totals.get(name, 0.0) + weight * value
            weights[name] = weights.get(name, 0.0) + weight
    return (
        MetricRecord({**{name: totals[name] / weights[name] for name in totals}, "clients": count}) if count else None
    )


def _metrics(reply: Message) -> dict[str, float] | str:
    """The numbers in a reply, or why there are none."""
    if why := wire.failure(reply):
        return why
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        return f"it holds {len(records)} records of metrics, not one"
    found = {name: value for name, value in records[0].items() if isinstance(value, int | float)}
    if not all(map(math.isfinite, found.values())) or not found.get(_WEIGHT, 1.0) > 0:
        return f"its metrics are not finite, or its {_WEIGHT} is not positive"
    return {name: float(value) for name, value in found.items()}
