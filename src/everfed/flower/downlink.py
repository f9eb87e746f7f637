"""The model on its way to a device, in fewer bytes, and read there to the last bit.

With `downlink = "bf16"` in the experiment, the server's numbers have two bytes each; what is sent is the two. With
`differences`, a device keeps the model that it last received and says so when it is asked; the server then sends what
has changed since, without loss: the distance of two numbers in the order of all float32 numbers, small where they are
near, the first bytes of all numbers together and deflated. A device that holds nothing the server remembers is sent the
whole model: one that is new, was restarted without its state, or whose server was restarted.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from everfed.errors import InputError
from everfed.flower.node_state import Memory
from everfed.flower.payload import read
from everfed.flower.wire import ARRAYS, NAME, Shapes, Vector, as_record

SMALL = "model.small"  # in the place of the arrays
ABOUT = "model.about"  # how to read it
_HELD, _KEPT = "held", "model"  # what a device keeps: the model's name, and the model
_ROOM = 2**28  # bytes of models that a server remembers


def name_of(model: Vector) -> str:
    """A model's name, from its bits."""
    return hashlib.sha256(model.astype("<f4").tobytes()).hexdigest()[:NAME]


class Downlink:
    """A server's way of sending its model."""

    def __init__(self, way: str = "full", differences: bool = False) -> None:
        """way: of the experiment, as in `learning.downlink`; the models given to `records` are rounded by it."""
        self.way, self.differences = way, differences
        self.sent: OrderedDict[str, Vector] = OrderedDict()  # by name, the latest last
        self._latest: tuple[Vector, str] | None = None
        self._made: dict[tuple[str, str], dict[str, Any]] = {}  # records of the latest model, by way and base

    def records(self, model: Vector, shapes: Shapes, holds: str | None) -> dict[str, Any]:
        """The model for one device, as records of a message. holds: what it has kept, as in `Answer`."""
        if holds is None or (self.way == "full" and not self.differences):
            return self._once("", "", model, lambda: {ARRAYS: as_record(model, shapes)})
        if not self.differences:
            return self._once("bf16", "", model, lambda: _halved(model, shapes))
        name = self._remember(model)
        base = self.sent.get(holds)
        if base is None or base.size != model.size:
            return self._once(self.way, name, model, lambda: self._whole(model, shapes, name))
        self.sent.move_to_end(holds)
        self.sent.move_to_end(name)
        return self._once("difference", holds, model, lambda: self._changed(model, shapes, name, holds, base))

    def _once(self, way: str, base: str, model: Vector, make: Any) -> dict[str, Any]:
        """Many devices are sent the same."""
        key = way, base
        kept = self._made.get(key)
        if kept is None or kept["of"] is not model:
            self._made = {k: v for k, v in self._made.items() if v["of"] is model}
            kept = self._made[key] = {"of": model, "records": make()}
        found: dict[str, Any] = kept["records"]
        return found

    def _remember(self, model: Vector) -> str:
        if self._latest and self._latest[0] is model:
            return self._latest[1]
        name = name_of(model)
        self._latest = model, name
        self.sent[name] = model.copy()
        self.sent.move_to_end(name)
        while len(self.sent) > 1 and sum(held.nbytes for held in self.sent.values()) > _ROOM:
            self.sent.popitem(last=False)
        return name

    def _whole(self, model: Vector, shapes: Shapes, name: str) -> dict[str, Any]:
        if self.way == "full":
            return {ARRAYS: as_record(model, shapes), ABOUT: ConfigRecord({"way": "full", "keep": name})}
        halved = _halved(model, shapes)
        return {**halved, ABOUT: ConfigRecord({"way": "bf16", "keep": name})}

    def _changed(self, model: Vector, shapes: Shapes, name: str, holds: str, base: Vector) -> dict[str, Any]:
        packed = pack(model, base)
        if len(packed) >= model.nbytes * (0.5 if self.way == "bf16" else 1.0):
            return self._whole(model, shapes, name)
        about = ConfigRecord({"way": "difference", "keep": name, "base": holds})
        return {SMALL: ArrayRecord({"packed": Array(np.frombuffer(packed, np.uint8))}), ABOUT: about}


def _halved(model: Vector, shapes: Shapes) -> dict[str, Any]:
    """The upper halves of float32 numbers whose lower halves are zero."""
    bits = model.view(np.uint32)
    assert not (bits & 0xFFFF).any(), "the model is not rounded to bfloat16"
    upper = (bits >> 16).astype(np.uint16)
    return {SMALL: as_record(upper, shapes), ABOUT: ConfigRecord({"way": "bf16"})}


def pack(model: Vector, base: Vector) -> bytes:
    """What has changed from base to model."""
    far = _ordered(model) - _ordered(base)  # wraps where it must
    zigzag = ((far << 1) ^ (far >> 31)).view(np.uint32)
    planes = np.ascontiguousarray(zigzag.astype(">u4").view(np.uint8).reshape(-1, 4).T)
    return zlib.compress(planes.tobytes(), 6)


def unpack(packed: bytes, base: Vector) -> Vector:
    """The model again; ValueError if that is no difference to this base."""
    unpacker = zlib.decompressobj()
    try:
        planes = unpacker.decompress(packed, base.nbytes + 1)
    except zlib.error as error:
        raise ValueError(f"the difference cannot be unpacked: {error}") from None
    if len(planes) != base.nbytes:
        raise ValueError(f"the difference is not one of {base.size} numbers")
    zigzag = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(4, -1).T).view(">u4").reshape(-1)
    zigzag = zigzag.astype(np.uint32)
    far = (zigzag >> 1).view(np.int32) ^ -(zigzag & 1).view(np.int32)
    return _floats(_ordered(base) + far)


def _ordered(model: Vector) -> npt.NDArray[np.int32]:
    """Whole numbers in the order of the float32 numbers, neighbours next to each other."""
    bits = np.ascontiguousarray(model, np.float32).view(np.int32)
    return np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)


def _floats(ordered: npt.NDArray[np.int32]) -> Vector:
    return np.where(ordered < 0, ordered ^ np.int32(0x7FFFFFFF), ordered).view(np.float32)


# On the device


def held(memory: Memory) -> str:
    """The name of the model that this device has kept; "": none."""
    kept = memory.load(_HELD)
    name = kept.get("name") if kept else None
    return name.tobytes().decode("ascii", "ignore") if name is not None and name.size == NAME else ""


def restore(content: RecordDict, memory: Memory) -> None:
    """Put the model that came in fewer bytes into a message's arrays, and keep it if the server wants that."""
    about = content.get(ABOUT)
    if not isinstance(about, ConfigRecord):
        return
    way, small = about.get("way"), content.get(SMALL)
    base = _base(memory, str(about.get("base"))) if way == "difference" else {}
    if way != "full":
        if not isinstance(small, ArrayRecord):
            raise InputError("the message holds no model.")
        found = _widened(small) if way == "bf16" else _moved(small, base)
        content[ARRAYS] = ArrayRecord({key: Array(value) for key, value in found.items()})
        content.pop(SMALL)
    if keep := about.get("keep"):
        arrays = content[ARRAYS]
        assert isinstance(arrays, ArrayRecord)
        _keep({key: read(value) for key, value in arrays.items()}, str(keep), memory)


def _widened(small: ArrayRecord) -> dict[str, Vector]:
    return {key: np.asarray(read(value).astype(np.uint32) << 16).view(np.float32) for key, value in small.items()}


def _base(memory: Memory, name: str) -> dict[str, Vector]:
    """The model that was kept, by parameter, in order."""
    kept = memory.load(_KEPT)
    if not kept or name_of(_flat(kept)) != name:
        memory.drop(_HELD)
        raise InputError("the model that the server's is different from is lost; the next one will be sent as a whole.")
    return {key.partition(":")[2]: kept[key] for key in sorted(kept)}


def _moved(small: ArrayRecord, base: Mapping[str, Vector]) -> dict[str, Vector]:
    before = np.concatenate([value.reshape(-1) for value in base.values()])
    after, at, found = unpack(read(small["packed"]).tobytes(), before), 0, {}
    for key, value in base.items():
        found[key] = after[at : at + value.size].reshape(value.shape)
        at += value.size
    return found


def _keep(arrays: Mapping[str, Any], name: str, memory: Memory) -> None:
    numbered = {f"{number:06d}:{key}": value for number, (key, value) in enumerate(arrays.items())}
    if name_of(_flat(numbered)) != name:
        memory.drop(_HELD)
        raise InputError("the model that came is not the one that the server sent; the next one is asked for whole.")
    memory.drop(_HELD)  # a power cut between the two leaves a model without a name, which is not used
    memory.save(_KEPT, dict(numbered))
    memory.save(_HELD, {"name": np.frombuffer(name.encode("ascii"), np.uint8)})


def _flat(numbered: Mapping[str, Any]) -> Vector:
    return np.concatenate([numbered[key].reshape(-1) for key in sorted(numbered)])
