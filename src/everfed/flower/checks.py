"""Replies are judged before they touch the model: a bad one is refused, named and counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from everfed.arrays import Floats
from everfed.flower.messages import ARRAYS, METRICS, Answer, Vector


class RefusedError(ValueError):
    """A reply that must not count; the message says why, after the client's name."""


class Update(NamedTuple):
    """A trained client's reply that may count."""

    client: int
    scale: float
    delta: Vector  # flat: local parameters minus the server's
    loss: float


def check_answer(answer: Answer, round: int, most: Floats) -> None:
    """most: the largest scale of each client."""
    if answer.round != round:
        raise RefusedError(f"answers for round {answer.round} instead of {round}")
    if not 0 <= answer.client < len(most):
        raise RefusedError(f"there is no client {answer.client} in this fleet")
    if not (math.isfinite(answer.scale) and answer.scale >= 0.0):
        raise RefusedError(f"its scale is {answer.scale}, not a number of at least 0")
    if answer.scale > most[answer.client] * (1.0 + 1e-9):
        raise RefusedError(f"its scale is {answer.scale:g}, above its fair {most[answer.client]:g}")


def read_update(
    content: RecordDict, answer: Answer, shapes: Mapping[str, tuple[int, ...]], sent: Vector, max_norm: float
) -> Update:
    """The update in a reply, or RefusedError. shapes: of the model's parameters, in the flat vector's order."""
    arrays = content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord):
        raise RefusedError("the reply holds no model")
    if set(arrays) != set(shapes):
        odd = sorted(set(arrays) ^ set(shapes))
        raise RefusedError(f"the reply's parameters are not the model's ('{odd[0]}')")
    flat = np.concatenate([_values(name, arrays[name], shape) for name, shape in shapes.items()])
    if not np.isfinite(flat).all():
        raise RefusedError("its parameters are not finite")
    delta = flat - sent
    length = float(np.linalg.norm(delta.astype(np.float64)))
    if not math.isfinite(length):
        raise RefusedError("its update is not finite")
    if max_norm and length > max_norm:
        raise RefusedError(f"its update has length {length:.3g}, above the bound of {max_norm:g}")
    return Update(answer.client, answer.scale, delta, _loss(content))


def _values(name: str, array: Array, shape: tuple[int, ...]) -> Vector:
    # What the header says first, before anything is unpacked; then what was really in it.
    if array.dtype != "float32" or tuple(array.shape) != shape:
        raise RefusedError(
            f"'{name}' is {array.dtype} of shape {tuple(array.shape)}; the model's is float32 of shape {shape}"
        )
    try:
        values = array.numpy()
    except Exception as error:  # whatever a hostile payload makes the decoder raise
        raise RefusedError(f"'{name}' cannot be read ({type(error).__name__})") from None
    if values.dtype != np.float32 or values.shape != shape:
        raise RefusedError(f"'{name}' holds {values.dtype} of shape {values.shape}, not what its header says")
    return values.reshape(-1)


def _loss(content: RecordDict) -> float:
    """The mean loss that the client reports, for the records only; 0 if it reports none."""
    metrics = content.get(METRICS)
    value = metrics.get("train_loss", 0.0) if isinstance(metrics, MetricRecord) else 0.0
    if isinstance(value, list) or not math.isfinite(value):
        raise RefusedError(f"its loss is {value}, not a finite number")
    return float(value)
