"""What is known of a trainer: how it compared with plain autograd when it was made (`compare.py`)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


class CannotTrainError(Exception):
    """The trainer does not support the task; the message gives the reason."""


@dataclass(frozen=True)
class Check:
    """How a trainer compared with plain autograd."""

    clients: tuple[int, ...] = ()  # who was trained
    difference: float | None = None  # the largest of their updates and their sum, relative; None: not compared
    tolerance: float | None = None
    failure: str = ""  # what is wrong, as the rest of a sentence about the trainer; empty if nothing is
    note: str = ""  # what was left out, and why
    rejected: tuple[str, ...] = ()  # faster trainers that failed, and how

    def to_dict(self) -> dict[str, Any]:
        """For a run's records, which are JSON and know no infinity."""
        return {name: _plain(value) for name, value in asdict(self).items() if name != "failure"}

    def said(self) -> str:
        """For people."""
        if self.difference is None:
            return f"not compared with plain autograd: {self.note}"
        who = " and ".join(map(str, self.clients))
        more = f"; {self.note}" if self.note else ""
        off, most = in_words(self.difference), in_words(self.tolerance)
        return f"{off} off plain autograd for client {who} (at most {most}){more}"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return "infinite" if isinstance(value, float) and not math.isfinite(value) else value


def in_words(part: float | None) -> str:
    """As a percentage of two digits."""
    return "infinitely far" if part is None or math.isinf(part) else f"{100.0 * part:.2g} %"
