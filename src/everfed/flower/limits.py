"""What a server holds its clients to: deadlines, bounds, and what becomes of those who do not keep to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from everfed.errors import InputError, unknown


@dataclass(frozen=True)
class RoundLimits:
    """Deadlines in seconds, and bounds.

    query_s, train_s: how long a round waits for answers, and for trained models, at most; nodes that usually answer
    sooner are given less. wait_s: how long the first round waits for the whole fleet to be connected, and at least for
    its answers: what a node does once, such as working its rounds out, it does when it is first asked. round_s: a
    round begins at most this often (0: as soon as the one before it is over); where energy is measured, the length of a
    round in the cycles. two_phase: ask first, and send the model only to those who said yes; False sends it to
    everybody.

    norm_factor: how many times the usual length an update may have, scaled as it will count; usual is the median over
    the clients of the latest that each sent. Longer ones are shortened, and those of ten times that are refused (0: any
    finite length). max_norm: the longest update that is taken,
    before it is scaled (0: no such bound). check_energy: hold clients to the energy of the experiment's fleet: whoever
    takes part must have harvested for it, and what it says of its energy must be possible. scale_slack: how many times
    the scale and the energy that follow from its cycle a client may claim. strikes: how many wrong replies a client may
    send before it is left out, for quarantine_rounds rounds, then twice that, and so on (0: it never is).
    """

    query_s: float = 30.0
    train_s: float = 120.0
    wait_s: float = 60.0
    round_s: float = 0.0
    two_phase: bool = True
    norm_factor: float = 20.0
    max_norm: float = 0.0
    check_energy: bool = True
    scale_slack: float = 1.0
    strikes: int = 3
    quarantine_rounds: int = 20

    def __post_init__(self) -> None:
        for name in ("query_s", "train_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; a deadline is a positive number of seconds.")
        for name in ("wait_s", "round_s", "max_norm", "strikes"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; it must be a number of at least 0.")
        if not (self.norm_factor == 0.0 or 1.0 < self.norm_factor < math.inf):
            raise InputError(f"norm_factor is {self.norm_factor}; it must be above 1, or 0 for no bound.")
        if not 1.0 <= self.scale_slack < math.inf:
            raise InputError(f"scale_slack is {self.scale_slack}; it must be at least 1.")
        if self.quarantine_rounds < 1:
            raise InputError(f"quarantine_rounds is {self.quarantine_rounds}; it must be at least 1.")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RoundLimits:
        """From a run's configuration: `query-s = 30`, with dashes as Flower likes them."""
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        given = {key.replace("-", "_"): value for key, value in config.items()}
        for key, value in given.items():
            if key not in kinds:
                raise InputError(unknown("limit", key, kinds))
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (isinstance(value, bool) if kinds[key] is bool else number):
                wanted = "true or false" if kinds[key] is bool else "a number"
                raise InputError(f"{key} is {value!r}; it must be {wanted}.")
        return cls(**{key: kinds[key](value) for key, value in given.items()})


def check_two_phase(limits: RoundLimits, coordinated: bool, differences: bool) -> None:
    """Refuse to send the model to everybody at once where clients must be asked first."""
    if limits.two_phase:
        return
    if coordinated:
        raise InputError(
            "with this policy the server decides who trains, so clients must be asked first; set two_phase to true."
        )
    if differences:
        raise InputError(
            "differences is true, but two_phase is false: what a client holds is known when it has been asked; "
            "set two_phase to true."
        )
