"""Compressed updates as the server reads them: as the simulator does. `thinning` is the device's side."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from everfed.arrays import Ints
from everfed.flower import payload
from everfed.flower.thinning import RECORD, WANTED, Thinning, chance, unpack
from everfed.flower.wire import RefusedError, Vector
from everfed.learning.compress import FULL, AdaptiveQsgd, Compressor, Qsgd, RandK, Whole, dequantise


class Codec:
    """How the updates of an experiment travel."""

    def __init__(self, how: Compressor, bits: Ints | None, seed: int) -> None:
        """bits: of each client, if they choose; None: the compression's own."""
        self.how, self.bits, self.seed = how, bits, seed
        self.active = not isinstance(how, Whole)

    @property
    def keep(self) -> float:
        """The part of its numbers that is sent of an update."""
        return self.how.keep if isinstance(self.how, RandK) else 1.0

    def _bits(self, client: int) -> int:
        return int(self.how.choices()[0] if self.bits is None else self.bits[client])

    def thinning(self, client: int) -> Thinning | None:
        """How a client's updates travel; None: whole."""
        bits = self._bits(client)
        if isinstance(self.how, Qsgd | AdaptiveQsgd) and bits < FULL:
            return Thinning(self.seed, bits, self.how.bucket)
        if isinstance(self.how, RandK) and self.how.keep < 1.0:
            return Thinning(self.seed, keep=self.how.keep)
        return None

    def wanted(self, client: int) -> dict[str, Any]:
        """The record that tells a client so."""
        how = self.thinning(client)
        return {WANTED: how.to_record()} if how else {}

    def encode(self, delta: Tensor, client: int, round: int) -> ArrayRecord | None:
        """What a client sends of its update; None: the whole model. round: or slot."""
        how = self.thinning(client)
        return how.encode(delta.detach().cpu().numpy(), client, round) if how else None

    def decode(self, content: RecordDict, client: int, round: int, size: int) -> Vector | None:
        """The update in a reply, as the server reads it; None if the reply holds a whole model."""
        arrays = content.get(RECORD)
        if arrays is None:
            return None
        if not isinstance(arrays, ArrayRecord):
            raise RefusedError("its compressed update is no record of arrays")
        bits, made = self._bits(client), None
        if isinstance(self.how, Qsgd | AdaptiveQsgd) and bits < FULL:
            made = self._dequantised(arrays, bits, size)
        elif isinstance(self.how, RandK) and self.how.keep < 1.0:
            made = self._filled(arrays, client, round, size)
        if made is None:
            raise RefusedError("its update is compressed, and the experiment's are not")
        read: Vector = made[0].numpy()
        return read

    def _dequantised(self, arrays: ArrayRecord, bits: int, size: int) -> Tensor:
        assert isinstance(self.how, Qsgd | AdaptiveQsgd)
        bucket = self.how.bucket
        count = -(-size // bucket)
        packed = _read(arrays, "codes", np.uint8, -(-size * bits // 8))
        lengths = _read(arrays, "lengths", np.float32, count)
        if not (np.isfinite(lengths).all() and (lengths >= 0.0).all()):
            raise RefusedError("the lengths of its compressed update are not finite, or negative")
        codes = np.zeros(count * bucket, np.int64)
        codes[:size] = unpack(packed, bits, size)
        top = 2 ** (bits - 1)
        sign = torch.from_numpy(np.where(codes >= top, np.float32(-1.0), np.float32(1.0))).view(1, count, bucket)
        level = torch.from_numpy((codes % top).astype(np.float32)).view(1, count, bucket)
        length = torch.from_numpy(lengths.copy()).view(1, count, 1)
        return dequantise(sign, length, level, torch.tensor([bits]), size)

    def _filled(self, arrays: ArrayRecord, client: int, round: int, size: int) -> Tensor:
        assert isinstance(self.how, RandK)
        kept = torch.from_numpy(chance(size, client, round, self.seed) < np.float32(self.how.keep))[None]
        values = _read(arrays, "kept", np.float32, int(kept.sum()))
        made = torch.zeros((1, size))
        made[kept] = torch.from_numpy(values.copy()) / self.how.keep
        return made

    def compress(self, delta: Vector, client: int, round: int) -> Vector:
        """A whole update as if its sender had compressed it."""
        numbers = torch.tensor([self._bits(client)]), torch.tensor([client])
        read: Vector = self.how.compress(torch.from_numpy(delta)[None], *numbers, round, self.seed)[0].numpy()
        return read


def _read(arrays: ArrayRecord, name: str, dtype: Any, count: int) -> npt.NDArray[Any]:
    try:
        found = payload.read(arrays[name])
    except KeyError:
        raise RefusedError(f"its compressed update has no '{name}'") from None
    except ValueError as error:
        raise RefusedError(f"'{name}' of its compressed update cannot be read: {error}") from None
    if found.dtype != dtype or found.shape != (count,):
        said = f"{found.dtype} of shape {found.shape}"
        raise RefusedError(f"'{name}' of its compressed update is {said}, not {np.dtype(dtype)} of shape ({count},)")
    return found
