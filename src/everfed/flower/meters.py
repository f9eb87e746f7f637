"""Meters: how a device reads the energy that it really has."""

from __future__ import annotations

import math
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from everfed.errors import InputError

_J_PER_UWH = 3600e-6  # Linux counts batteries in microwatt-hours, or in microampere-hours and microvolts


class MeterError(RuntimeError):
    """The energy cannot be read now; the client then skips the round."""


class Meter(Protocol):
    """The shape of every meter."""

    def rounds(self) -> float:
        """Rounds of training that the energy at hand pays for; MeterError if that cannot be known."""
        ...


@dataclass(frozen=True)
class PowerSupply:
    """A battery of Linux, below /sys/class/power_supply.

    cost_j: joules of one round. reserve: the part of a full battery that is never used for training.
    name: the battery's folder; empty takes the first there is. A battery that tells its energy in per
    cent alone needs full_j, its joules when full.
    """

    cost_j: float
    reserve: float = 0.2
    name: str = ""
    full_j: float = 0.0
    root: str = "/sys/class/power_supply"

    def __post_init__(self) -> None:
        _check_cost("cost_j", self.cost_j)
        if not 0.0 <= self.reserve < 1.0:
            raise InputError(f"reserve is {self.reserve}; it must be from 0 to below 1, a part of the battery.")

    def rounds(self) -> float:
        now, full = self._joules(self._folder())
        return (now - self.reserve * full) / self.cost_j

    def _folder(self) -> Path:
        root = Path(self.root)
        every = (path for path in sorted(root.glob("*")) if _text(path / "type") == "Battery")
        batteries = [root / self.name] if self.name else list(every)
        if not batteries or not batteries[0].is_dir():
            raise MeterError(f"there is no battery '{self.name or '*'}' in {root}")
        return batteries[0]

    def _joules(self, folder: Path) -> tuple[float, float]:
        """(now, when full)."""
        now, full = _number(folder / "energy_now"), _number(folder / "energy_full")
        if now is not None and full is not None:
            return now * _J_PER_UWH, full * _J_PER_UWH
        now, full = _number(folder / "charge_now"), _number(folder / "charge_full")
        volts = _number(folder / "voltage_now")
        if now is not None and full is not None and volts is not None:
            volts *= 1e-6
            return now * volts * _J_PER_UWH, full * volts * _J_PER_UWH
        part = _number(folder / "capacity")
        if part is not None and self.full_j > 0.0:
            return part / 100.0 * self.full_j, self.full_j
        raise MeterError(f"the battery {folder.name} tells neither energy nor charge; give full_j to use its per cent")


@dataclass(frozen=True)
class FromFile:
    """A file that holds one number, written by whatever measures: joules or per cent, in the unit of `cost`."""

    path: str
    cost: float  # of one round
    reserve: float = 0.0  # never used for training

    def __post_init__(self) -> None:
        _check_cost("cost", self.cost)

    def rounds(self) -> float:
        value = _number(Path(self.path))
        if value is None:
            raise MeterError(f"the file '{self.path}' does not hold a number")
        return (value - self.reserve) / self.cost


@dataclass(frozen=True)
class FromCommand:
    """A command that prints one number: joules or per cent, in the unit of `cost`."""

    command: tuple[str, ...]
    cost: float
    reserve: float = 0.0
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        _check_cost("cost", self.cost)
        if not isinstance(self.command, tuple) or not self.command:
            raise InputError(f"command is {self.command!r}; give its words, such as ('cat', '/run/joules').")

    def rounds(self) -> float:
        try:
            done = subprocess.run(
                self.command, capture_output=True, encoding="utf-8", errors="replace", check=True,
                timeout=self.timeout_s,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            raise MeterError(f"the command '{' '.join(self.command)}' failed: {error}") from None
        value = _parsed(done.stdout)
        if value is None:
            shown = done.stdout.strip()[:40]
            raise MeterError(f"the command '{' '.join(self.command)}' printed {shown!r}, not a number")
        return (value - self.reserve) / self.cost


def _check_cost(name: str, value: float) -> None:
    if not (value > 0.0 and math.isfinite(value)):
        raise InputError(f"{name} is {value}; the energy of a round must be a positive number.")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> float | None:
    return _parsed(_text(path) or "")


def _parsed(text: str) -> float | None:
    """A finite number, with or without a per cent sign or a J after it."""
    try:
        value = float(text.strip().removesuffix("%").removesuffix("J").strip())
    except ValueError:
        return None
    return value if math.isfinite(value) else None
