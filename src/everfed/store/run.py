"""A stored run: its history and its experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everfed.run.experiment import Experiment
from everfed.run.history import History


@dataclass(frozen=True)
class StoredRun(History):
    """A History read from a run folder; `rounds` ends where the records do."""

    path: Path = Path()
    experiment: Experiment = field(default_factory=Experiment)
    state: str = "done"  # done, running, stopped or diverged
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name
