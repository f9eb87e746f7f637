"""Which experiment a run is of: a file's, with the changes of the run's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everfed.run import config
from everfed.run.experiment import Experiment

Described = Experiment | Path | str


def load_experiment(experiment: Described, run_config: Mapping[str, Any]) -> Experiment:
    """The experiment with the changes of the run's configuration: `set = "method=greedy rounds=20"`."""
    raw = config.read(Path(experiment)) if isinstance(experiment, Path | str) else config.to_dict(experiment)
    for text in str(run_config.get("set") or "").split():
        config.change(raw, *config.parse_setting(text))
    return config.from_dict(raw)
