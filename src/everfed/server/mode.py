"""Whether clients meet in rounds, and what does not go together with that."""

from __future__ import annotations

from everfed.energy.work import Work
from everfed.errors import InputError
from everfed.scheduling.policies import Policy
from everfed.scheduling.timeline import check_policy
from everfed.server.arrivals import ArrivalRule, PlainArrivals
from everfed.server.rules import ServerRule, Sum


def arrival_rule(policy: Policy, server: ServerRule, mode: str, work: Work) -> ArrivalRule | None:
    """The rule by which updates are added as they arrive; None: clients meet in rounds.

    mode: "synchronous", "asynchronous", or "auto", as the server rule has it. Parts that do not go together are
    refused.
    """
    name = type(server).__name__
    arrives = bool(getattr(server, "asynchronous", False))
    if mode == "synchronous" and arrives:
        raise InputError(
            f"mode is 'synchronous', but the server rule {name} takes updates as they arrive; leave mode at 'auto', or "
            "choose a method of rounds, such as algorithm1."
        )
    if mode == "synchronous" and work != Work():
        raise InputError(
            f"work is {work}, but mode is 'synchronous', and rounds are as long as the work in them; remove one of "
            "them."
        )
    if not (arrives or mode == "asynchronous"):
        return None
    check_policy(policy)
    if not arrives and type(server) is not Sum:
        raise InputError(
            f"mode is 'asynchronous', but the server rule {name} needs rounds in which clients meet; choose one of "
            "renewal, renewal-discounted, fedbuff, fedasync, area or sum."
        )
    return PlainArrivals() if type(server) is Sum else server  # type: ignore[return-value]
