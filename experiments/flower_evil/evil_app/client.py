"""An honest client's app, whose replies are changed on their way out as the node's `lie` says."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from everfed.flower import client_app

honest = client_app(Path(__file__).with_name("experiment.toml"))
app = ClientApp()


@app.query("everfed")
def query(message: Message, context: Context) -> Message:
    return lie(honest(message, context), str(context.node_config.get("lie", "")))


@app.train()
def train(message: Message, context: Context) -> Message:
    return lie(honest(message, context), str(context.node_config.get("lie", "")))


def lie(reply: Message, how: str) -> Message:
    answer, arrays = reply.content["everfed"], reply.content.get("arrays")
    if how == "scale":
        answer["scale"] = 1000.0
    elif how == "another":
        answer["client"] = 0
    elif how == "always":  # a rare client that speaks in every round
        answer["join"] = True
    elif isinstance(arrays, ArrayRecord):
        reply.content["arrays"] = ArrayRecord({name: Array(changed(a.numpy(), how)) for name, a in arrays.items()})
    return reply


def changed(values: np.ndarray, how: str) -> np.ndarray:
    if how == "nan":
        return np.full_like(values, np.nan)
    if how == "shape":
        return values.reshape(-1)[:-1]
    if how == "dtype":
        return values.astype(np.float64)
    if how == "huge":
        return values + np.float32(1e4)
    return values
