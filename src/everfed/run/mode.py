"""Whether the clients of an experiment meet in rounds, and what that excludes."""

from __future__ import annotations

from everfed.errors import InputError
from everfed.learning.compress import Whole
from everfed.run.experiment import Experiment
from everfed.server.arrivals import Area
from everfed.server.mode import arrival_rule


def check_mode(experiment: Experiment) -> None:
    """Refuse parts of an experiment that do not go together."""
    rule = arrival_rule(experiment.policy, experiment.server, experiment.mode, experiment.work)
    if isinstance(rule, Area) and not isinstance(experiment.compression, Whole):
        raise InputError(
            f"compression is {experiment.compression}, but AREA sends the difference of two models, and what one "
            "message rounds off would stay off for ever; remove it, or use renewal."
        )
