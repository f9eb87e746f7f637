"""What a registered node can send that it must not. Each changes an honest reply; the server's words tell it apart."""

import io
import math
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

Lie = Callable[[Message], None]


def says(key: str, value: object) -> Lie:
    """Another value in the answer."""

    def lie(reply: Message) -> None:
        reply.content["everfed"][key] = value

    return lie


def sends(change: Callable[[np.ndarray], Array | np.ndarray]) -> Lie:
    """Another array in the place of each of the model's."""

    def lie(reply: Message) -> None:
        arrays = reply.content.get("arrays")
        if isinstance(arrays, ArrayRecord):
            made = {name: change(array.numpy()) for name, array in arrays.items()}
            whole = {name: a if isinstance(a, Array) else Array(a) for name, a in made.items()}
            reply.content["arrays"] = ArrayRecord(whole)

    return lie


def under_a_right_head(data: Callable[[np.ndarray], bytes]) -> Lie:
    """Bytes of another kind in an envelope that says what the server expects."""
    return sends(lambda v: Array(dtype="float32", shape=v.shape, stype="numpy.ndarray", data=data(v)))


def packed(values: np.ndarray, save: Callable[..., None] = np.save) -> bytes:
    file = io.BytesIO()
    save(file, values)
    return file.getvalue()


def puts(name: str, record: Callable[[], ArrayRecord | ConfigRecord | MetricRecord]) -> Lie:
    def lie(reply: Message) -> None:
        reply.content[name] = record()

    return lie


def without(name: str) -> Lie:
    def lie(reply: Message) -> None:
        reply.content.pop(name, None)

    return lie


# By name: the lie, and words that the server's refusal must hold.
LIES: dict[str, tuple[Lie, str]] = {
    "violations are infinite": (says("energy.violations", math.inf), "energy.violations"),
    "brownouts are 1e300": (says("energy.brownouts", 1e300), "energy.brownouts"),
    "brownouts are 2^62": (says("energy.brownouts", 2**62), "brownouts"),
    "harvested is not a number": (says("energy.harvested", math.nan), "energy.harvested"),
    "harvested is negative": (says("energy.harvested", -1.0), "energy.harvested"),
    "spent energy from nowhere": (says("energy.spent", 1e6), "energy"),
    "stored is a text": (says("energy.stored", "full"), "energy.stored"),
    "speaks for another client": (says("client", 0), "answers for client 0"),
    "speaks for nobody": (says("client", 10**9), "no client"),
    "another round": (says("round", 99), "for round 99"),
    "joins with a text": (says("join", "yes"), "whether it joins"),
    "scale 1000": (says("scale", 1000.0), "above its limit"),
    "scale of its cycle under an unscaled policy": (says("scale", 5.0), "above its limit"),
    "scale is not a number": (says("scale", math.nan), "its scale is nan"),
    "planned more than there were rounds": (says("planned", 10**12), "planned"),
    "no answer at all": (without("everfed"), "no record"),
    "metrics in the answer's place": (puts("everfed", lambda: MetricRecord({"client": 1})), "no record"),
    "parameters are not numbers": (sends(lambda v: np.full_like(v, np.nan)), "not finite"),
    "parameters of 1e30": (sends(lambda v: np.full_like(v, 1e30)), "above the bound"),
    "parameters ten thousand away": (sends(lambda v: v + np.float32(1e4)), "above the bound"),
    "signs flipped, a hundred times": (sends(lambda v: -100.0 * v), "above the bound"),
    "wrong shape": (sends(lambda v: v.reshape(-1)[:-1]), "of shape"),
    "wrong type": (sends(lambda v: v.astype(np.float64)), "float64"),
    "no model": (without("arrays"), "holds no model"),
    "another model's names": (
        puts("arrays", lambda: ArrayRecord({"w": Array(np.zeros(3, np.float32))})),
        "not the model's",
    ),
    "an npz under a right head": (under_a_right_head(lambda v: packed(v, np.savez)), "cannot be read"),
    "other numbers under a right head": (under_a_right_head(lambda v: packed(v.reshape(-1)[:2])), "envelope"),
    "half a file under a right head": (under_a_right_head(lambda v: packed(v)[:100]), "cannot be read"),
    "loss is not a number": (puts("metrics", lambda: MetricRecord({"train_loss": math.nan})), "its loss"),
    "loss of 1e300": (puts("metrics", lambda: MetricRecord({"train_loss": 1e300})), "its loss"),
    "a hundred thousand metrics": (
        puts("metrics", lambda: MetricRecord({f"m{i}": float(i) for i in range(100_000)})),
        "bytes",
    ),
    "forty megabytes of metrics": (puts("metrics", lambda: MetricRecord({"m": [0.5] * 5_000_000})), "bytes"),
    "a text of a megabyte": (says("client", "\x1b[2J\n" * 200_000), "bytes"),
    "a text of control characters": (says("client", "\x1b[2J\n" * 5), "whole number"),
    "a model of fifty megabytes": (
        puts("arrays", lambda: ArrayRecord({"w": Array(np.zeros(12_500_000, np.float32))})),
        "bytes",
    ),
    "holds a model that has no such name": (says("holds", "\x1b[2J"), "no model's name"),
    "a compressed update that nobody asked for": (
        puts("update", lambda: ArrayRecord({"codes": Array(np.zeros(9, np.uint8))})),
        "the experiment's are not",
    ),
    "says no in its round": (says("join", False), "it is due by the experiment's fleet"),
    "an app that raises": (says("\0raise", True), "its app raised an error"),
}


def told(lies: dict[int, str]) -> str:
    """Who lies how, for a run's configuration: client:number of the lie."""
    return " ".join(f"{client}:{list(LIES).index(name)}" for client, name in lies.items())
