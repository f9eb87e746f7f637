"""Evaluation on the clients: what their apps' `@app.evaluate` functions say, weighed by their shares of the data.

Nobody can check what a client says of its own data, so one of them must not decide what the fleet's number is. Its
weight is the share that the server knows, not the `num-examples` that it claims. Whose value is far from what the
others say (`outliers`) is named, and what is too far is limited.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
from flwr.app import MetricRecord

from everfed.arrays import Floats
from everfed.errors import shown
from everfed.flower.outliers import far
from everfed.flower.pulling import Reply
from everfed.flower.wire import printable

log = logging.getLogger("flwr.everfed")

_WEIGHT = "num-examples"
_MOST = 1e30  # as of a loss: the mean over any number of clients stays finite
_METRICS = 100  # of one client

Said = dict[int, dict[str, float]]  # by client


def read_metrics(replies: Mapping[int, Reply], owners: Mapping[int, int]) -> tuple[Said, dict[int, str]]:
    """What clients say, and by node why others are left out. owners: the client of each node."""
    found: Said = {}
    wrong: dict[int, str] = {}
    for node, reply in replies.items():
        client = owners.get(node)
        if client is None:
            wrong[node] = "it is not known which client it is"
        elif client in found:
            wrong[node] = f"another node has spoken for client {client}"
        elif isinstance(said := _metrics(reply), str):
            wrong[node] = said
        else:
            found[client] = said
    return found, wrong


def mean_metrics(said: Said, shares: Floats) -> MetricRecord | None:
    """The clients' metrics, weighed by their shares; None without any.

    `clients` says how many there were, and `limited` how many of them said something that counts as less.
    """
    if not said:
        return None
    means: dict[str, float] = {}
    limited: set[int] = set()
    for name in dict.fromkeys(name for metrics in said.values() for name in metrics):
        clients = [client for client, metrics in said.items() if name in metrics]
        values = np.array([said[client][name] for client in clients])
        weights = np.maximum(shares[clients], np.finfo(np.float64).tiny)
        counted = values.copy()
        for i, nearest in far(values, weights):
            counted[i] = nearest
            text = f"'{printable(name, 50)}' of client {clients[i]} is {values[i]:g}, far from what the others say"
            if counted[i] != values[i]:
                limited.add(clients[i])
                text += f"; it counts as {counted[i]:g}"
            log.warning("evaluation: %s", text)
        means[name] = float(weights @ counted / weights.sum())
    return MetricRecord({**means, "clients": len(said), "limited": len(limited)})


def _metrics(reply: Reply) -> dict[str, float] | str:
    """The numbers in a reply, or why there are none."""
    if why := reply.failure():
        return why
    if reply.message is None or not reply.message.has_content():
        return reply.bad or "its reply is empty"
    records = list(reply.message.content.metric_records.values())
    if len(records) != 1:
        return f"it holds {len(records)} records of metrics, not one"
    if len(records[0]) > _METRICS:
        return f"it has {len(records[0])} metrics; {_METRICS} are the most"
    found: dict[str, float] = {}
    for name, value in records[0].items():
        if isinstance(value, list):
            continue
        if not abs(value) <= _MOST:  # false for NaN as well
            return f"its '{printable(name, 50)}' is {shown(value)}, not a number of at most {_MOST:g}"
        found[name] = float(value)
    if not found.pop(_WEIGHT, 1.0) > 0.0:
        return f"its '{_WEIGHT}' is not positive"
    return found
