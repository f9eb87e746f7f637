"""What a device draws, and what a round of training costs it. Watts, joules, seconds, megabytes (10^6 bytes).

Presets are rounded from published measurements; docs/energy.md says from which. They tell an order
of magnitude: measure your own device, and give its figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from everfed.errors import InputError, lookup


def _check(name: str, value: float) -> None:
    if not (value >= 0.0 and math.isfinite(value)):
        raise InputError(f"{name} is {value}; it must be zero or a positive number.")


@dataclass(frozen=True)
class Device:
    """A computer on a battery.

    active_w: power while it trains, W. sleep_w: power while it waits for the next round, W.
    step_s: seconds of one local step; it depends on the model, so a preset's is only a start.
    """

    active_w: float
    sleep_w: float
    step_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("active_w", "sleep_w", "step_s"):
            _check(name, getattr(self, name))

    @property
    def step_j(self) -> float:
        """Energy of one local step, J."""
        return self.active_w * self.step_s


@dataclass(frozen=True)
class Radio:
    """A link to the server: joules for a megabyte, up and down."""

    up_j_per_mb: float
    down_j_per_mb: float

    def __post_init__(self) -> None:
        for name in ("up_j_per_mb", "down_j_per_mb"):
            _check(name, getattr(self, name))


DEVICES: dict[str, Device] = {
    "raspberry-pi-3b": Device(active_w=2.0, sleep_w=1.4),
    "raspberry-pi-4b": Device(active_w=3.0, sleep_w=2.2),
    "raspberry-pi-5": Device(active_w=4.0, sleep_w=2.7),
    "raspberry-pi-zero-2w": Device(active_w=1.8, sleep_w=0.6, step_s=2.0),
    "jetson-nano-5w": Device(active_w=5.0, sleep_w=1.25, step_s=0.2),
    "jetson-nano-10w": Device(active_w=10.0, sleep_w=1.25, step_s=0.1),
    "phone": Device(active_w=4.5, sleep_w=0.03, step_s=0.3),
    "esp32": Device(active_w=0.53, sleep_w=33e-6, step_s=20.0),
}

RADIOS: dict[str, Radio] = {
    "none": Radio(0.0, 0.0),
    "wifi": Radio(up_j_per_mb=5.2, down_j_per_mb=2.2),
    "lte": Radio(up_j_per_mb=5.0, down_j_per_mb=5.0),
    "lora-sf7": Radio(up_j_per_mb=434.0, down_j_per_mb=135.0),
}


def device(name: str) -> Device:
    """A preset by name; an unknown name is told with the nearest known one."""
    return lookup(DEVICES, name, "device")


def radio(name: str) -> Radio:
    return lookup(RADIOS, name, "radio")


def round_cost_j(
    computer: Device,
    link: Radio,
    *,
    local_steps: int,
    model_mb: float,
    downloads: bool = True,
    round_s: float = math.inf,
    sent: float = 1.0,
) -> float:
    """Joules that taking part in one round costs, beyond what the device draws asleep.

    local_steps steps of training, the update sent up, and the model fetched first if it `downloads`.
    round_s: the length of a round, s; training that does not fit into it is an error.
    sent: the size of the update on its way up, as a part of the model's.

    >>> round_cost_j(device("raspberry-pi-4b"), radio("wifi"), local_steps=5, model_mb=4.3)
    35.82
    """
    if local_steps < 1:
        raise InputError(f"local_steps is {local_steps}; a round has at least one.")
    _check("model_mb", model_mb)
    busy_s = local_steps * computer.step_s
    if busy_s > round_s:
        raise InputError(
            f"{local_steps} local steps of {computer.step_s:g} s take {busy_s:g} s, and a round has {round_s:g} s; "
            "give longer rounds, fewer steps or a faster device."
        )
    compute = busy_s * max(computer.active_w - computer.sleep_w, 0.0)
    traffic = model_mb * (sent * link.up_j_per_mb + (link.down_j_per_mb if downloads else 0.0))
    return round(compute + traffic, 12)
