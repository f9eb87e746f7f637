"""Whether the clients of an experiment meet in rounds, and what that excludes."""

from __future__ import annotations

from everfed.energy.work import Work
from everfed.errors import InputError
from everfed.learning.compress import Whole
from everfed.run.experiment import Experiment
from everfed.scheduling.timeline import check_policy
from everfed.server.arrivals import Area
from everfed.server.rules import Sum


def check_mode(experiment: Experiment) -> None:
    """Refuse parts of an experiment that do not go together."""
    rule, mode = experiment.server, experiment.mode
    name = type(rule).__name__
    arrives = bool(getattr(rule, "asynchronous", False))
    if mode == "synchronous" and arrives:
        raise InputError(
            f"mode is 'synchronous', but the server rule {name} takes updates as they arrive; leave mode at 'auto', or "
            "choose a method of rounds, such as algorithm1."
        )
    if mode == "synchronous" and experiment.work != Work():
        raise InputError(
            f"work is {experiment.work}, but mode is 'synchronous', and rounds are as long as the work in them; remove "
            "one of them."
        )
    if not experiment.asynchronous:
        return
    check_policy(experiment.policy)
    if not arrives and type(rule) is not Sum:
        raise InputError(
            f"mode is 'asynchronous', but the server rule {name} needs rounds in which clients meet; choose one of "
            "renewal, renewal-discounted, fedbuff, fedasync, area or sum."
        )
    if isinstance(rule, Area) and not isinstance(experiment.compression, Whole):
        raise InputError(
            f"compression is {experiment.compression}, but AREA sends the difference of two models, and what one "
            "message rounds off would stay off for ever; remove it, or use renewal."
        )
