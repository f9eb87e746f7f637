"""Whether the clients of an experiment meet in rounds, and what that excludes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.learning.attacks import NoAttack
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
    if isinstance(rule, Area) and experiment.downlink != "full":
        raise InputError(
            f"downlink is '{experiment.downlink}', but AREA sends the difference of two models, and what one message "
            "rounds off would stay off for ever; remove it, or use renewal."
        )
    if rule and not isinstance(experiment.attack, NoAttack):
        raise InputError(
            f"attack is {experiment.attack}, but attackers are simulated in rounds, and these clients have none; "
            "remove it, or choose a method of rounds, such as algorithm1."
        )


def for_audit(experiment: Experiment, fleet: Fleet) -> dict[str, Any]:
    """What an audit must know of how the clients of an experiment work. fleet: the experiment's, or a part of it."""
    check_mode(experiment)
    if not experiment.asynchronous:
        return {"mode": experiment.mode, "robust": experiment.robust, "attack": experiment.attack}
    work = replace(experiment.work, duration=None)  # which is in the pace
    return {
        "mode": experiment.mode, "work": work, "local_steps": experiment.local_steps,
        "pace": experiment.make_pace(fleet),
    }  # fmt: skip
