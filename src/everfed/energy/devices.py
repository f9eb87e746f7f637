"""The power of devices and the cost of a round, in watts, joules, seconds and megabytes (10^6 bytes).

Every preset names the `source` of its values; those listed in `guessed` are estimates. docs/energy.md has the details.
Presets give an order of magnitude: measure your own device and use its values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from everfed.checks import Checked, NonNegative, Positive, check_count, check_within
from everfed.errors import InputError
from everfed.registry import lookup


@dataclass(frozen=True)
class Device(Checked):
    """A computer on a battery.

    active_w: power while it trains, W. sleep_w: power while it waits for the next round, W.
    step_s: seconds of one local step; it depends on the model, so a preset's is only a start.
    source: the published source of the powers ("": none, they are guesses). guessed: figures that are not
    from the source.
    idle_w: power while it is awake without training, W (None: as asleep): on air, and for awake_s seconds of a round
    that it takes part in.
    """

    active_w: NonNegative
    sleep_w: NonNegative
    step_s: NonNegative = 1.0
    source: str = ""
    guessed: tuple[str, ...] = ("step_s",)
    idle_w: NonNegative | None = None
    awake_s: NonNegative = 0.0

    @property
    def extra_idle_w(self) -> float:
        """What it draws awake without training, beyond sleep."""
        return 0.0 if self.idle_w is None else max(self.idle_w - self.sleep_w, 0.0)


@dataclass(frozen=True)
class Radio(Checked):
    """A link to the server: energy and time per connection and megabyte.

    up_j_per_mb, down_j_per_mb: joules per megabyte. wake_j: joules per connection, from waking the radio until it
    sleeps again.
    up_bit_s, down_bit_s: payload bits per second.
    duty_cycle: the largest fraction of a round in which either side may transmit by law.
    """

    up_j_per_mb: NonNegative
    down_j_per_mb: NonNegative
    wake_j: NonNegative = 0.0
    up_bit_s: Positive = math.inf
    down_bit_s: Positive = math.inf
    duty_cycle: Annotated[float, "(0, 1]"] = 1.0
    source: str = ""
    guessed: tuple[str, ...] = ()

    def air_s(self, up_mb: float, down_mb: float) -> tuple[float, float]:
        """Seconds of sending up and of listening."""
        return up_mb * 8e6 / self.up_bit_s, down_mb * 8e6 / self.down_bit_s


_ALL = ("active_w", "sleep_w", "step_s")
_NVIDIA = "NVIDIA, Jetson Linux developer guide, power modes of the Jetson Nano"
_HUANG = "Huang et al., A Close Examination of ... 4G LTE Networks, MobiSys 2012"

DEVICES: dict[str, Device] = {
    "raspberry-pi-3b": Device(3.7, 1.4, source="Geerling, Pi Dramble power benchmarks: 730 and 260 mA"),
    "raspberry-pi-4b": Device(5.4, 2.2, source="ChipWired, How much power a Raspberry Pi uses: high and idle load"),
    "raspberry-pi-5": Device(8.0, 2.7, guessed=_ALL),
    "raspberry-pi-zero-2w": Device(
        2.6, 0.6, 2.0,
        source="CNX Software (idle); Jacobs (1.4 W above a Zero W under load), Pi Dramble (1.2 W, a Zero)",
    ),
    "jetson-nano-5w": Device(5.0, 1.25, 0.2, _NVIDIA, ("sleep_w", "step_s")),
    "jetson-nano-10w": Device(10.0, 1.25, 0.1, _NVIDIA, ("sleep_w", "step_s")),
    "phone": Device(4.5, 0.03, 0.3, guessed=_ALL),
    "esp32": Device(0.22, 33e-6, 20.0, "Espressif, ESP32 data sheet: 68 mA at 240 MHz, 10 uA in deep sleep, 3.3 V"),
}  # fmt: skip

RADIOS: dict[str, Radio] = {
    "none": Radio(0.0, 0.0, source="nothing is sent"),
    # Power = slope x rate + base, at the medians of the study's LTE: 6 Mbit/s up and 13 down, for both.
    "wifi": Radio(2.4, 1.2, 0.04, 6e6, 13e6, source=_HUANG),
    "lte": Radio(5.2, 1.2, 12.6, 6e6, 13e6, source=_HUANG),
    # SF7, 125 kHz, coding 4/5: 242 bytes of payload take 0.4 s on air. 29 mA up (13 dBm), 11 down, 3.3 V.
    "lora-sf7": Radio(
        158.0, 60.0, 0.0, 4845.0, 4845.0, 0.01,
        "Semtech, SX1276 data sheet (currents, time on air); ETSI EN 300 220 (1 % at 868 MHz)",
    ),
}  # fmt: skip


def device(name: str) -> Device:
    """A preset by name; the error for an unknown name suggests the nearest one."""
    return lookup(DEVICES, name, "device")


def radio(name: str) -> Radio:
    return lookup(RADIOS, name, "radio")


@dataclass(frozen=True)
class RoundCost:
    """The cost of taking part in one round, in addition to sleep power."""

    joules: float
    train_s: float
    up_s: float
    down_s: float
    awake_s: float = 0.0  # before and after, without training or traffic

    @property
    def air_s(self) -> float:
        return self.up_s + self.down_s

    @property
    def busy_s(self) -> float:
        return self.train_s + self.air_s + self.awake_s


def round_cost(
    computer: Device,
    link: Radio,
    *,
    local_steps: int,
    model_mb: float,
    downloads: bool = True,
    round_s: float = math.inf,
    sent: float = 1.0,
    received: float = 1.0,
) -> RoundCost:
    """The cost of local_steps training steps, sending the update, and fetching the model if it `downloads`.

    round_s: the length of a round, s; an error if training and sending, one after the other and within the radio's duty
    cycle, do not fit.
    sent, received: the sizes of the update and of the model as it is fetched, as fractions of the model's.

    >>> round_cost(device("raspberry-pi-4b"), radio("wifi"), local_steps=5, model_mb=4.3).joules
    31.52
    """
    check_count("local_steps", local_steps)
    check_within("[0, inf)", model_mb=model_mb)
    up_mb, down_mb = model_mb * sent, model_mb * received if downloads else 0.0
    train_s, (up_s, down_s) = local_steps * computer.step_s, link.air_s(up_mb, down_mb)
    compute = train_s * max(computer.active_w - computer.sleep_w, 0.0)
    traffic = up_mb * link.up_j_per_mb + down_mb * link.down_j_per_mb + (link.wake_j if model_mb else 0.0)
    waiting = (up_s + down_s + computer.awake_s) * computer.extra_idle_w
    found = RoundCost(round(compute + traffic + waiting, 12), train_s, up_s, down_s, computer.awake_s)
    _check_fits(found, computer, link, local_steps, up_mb, down_mb, round_s)
    return found


def _check_fits(
    cost: RoundCost, computer: Device, link: Radio, local_steps: int, up_mb: float, down_mb: float, round_s: float
) -> None:
    if cost.train_s > round_s:
        raise InputError(
            f"{local_steps} local steps of {computer.step_s:g} s take {cost.train_s:g} s, and a round has {round_s:g} "
            "s; give longer rounds, fewer steps or a faster device."
        )
    for way, megabytes, rate, seconds in (
        ("up", up_mb, link.up_bit_s, cost.up_s), ("down", down_mb, link.down_bit_s, cost.down_s),
    ):  # fmt: skip
        allowed = link.duty_cycle * round_s
        if seconds > allowed:
            limit = f", of which the radio may send {link.duty_cycle:.3g}" if link.duty_cycle < 1.0 else ""
            said = f" ({allowed:.4g} s)" if limit else ""
            raise InputError(
                f"{megabytes:.4g} MB {way} at {rate:.4g} bit/s take {seconds:.4g} s on air, and a round has "
                f"{round_s:g} s{limit}{said}; give longer rounds, a smaller model, compression or a faster radio."
            )
    if cost.busy_s > round_s:
        awake = f" and {cost.awake_s:.4g} s awake" if cost.awake_s else ""
        raise InputError(
            f"{cost.train_s:.4g} s of training and {cost.air_s:.4g} s on air{awake} take {cost.busy_s:.4g} s, "
            f"and a round has {round_s:g} s; give longer rounds, fewer steps or a smaller model."
        )
