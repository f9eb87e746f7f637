"""The audit's verdict on the schedules behind the runs of a page, at a cost that a page may have."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everfed.auditing.audit import audit
from everfed.errors import EverfedWarning
from everfed.learning.attacks import NoAttack
from everfed.methods import Method
from everfed.report.lines import Line, fleet_key
from everfed.report.raster import sample
from everfed.run.live import Live
from everfed.run.mode import for_audit

_MOST_ROUNDS, _SEEDS, MOST_CLIENTS = 1000, 20, 2000


def verdicts(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """One row per line; lines with the same fleet, policy, server rule, work and rounds are audited once."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}
    out = []
    for line in lines:
        experiment = line.experiment
        rounds = min(experiment.rounds, _MOST_ROUNDS)
        how = (experiment.mode, experiment.work, experiment.local_steps if experiment.asynchronous else None)
        defence = (experiment.robust, experiment.attack)
        key = (fleet_key(experiment), experiment.policy, experiment.server, rounds, how, *defence)
        if key not in known:
            fleet = experiment.make_fleet()
            clients = sample(fleet, MOST_CLIENTS)
            part = fleet.part(clients) if len(clients) < len(fleet) else fleet
            if part is not fleet and not isinstance(experiment.attack, NoAttack | Live):  # numbers are of the whole
                experiment = replace(experiment, attack=NoAttack())
            chosen = (experiment.policy, experiment.server, experiment.robust, experiment.attack)
            live = [p.name for p in chosen if isinstance(p, Live)]
            if live:
                verdict = (
                    f"not audited: '{live[0]}' is not a registered kind, and the run folder contains only its name."
                )
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", EverfedWarning)  # the run itself has said it
                    method = Method(experiment.policy, experiment.server)
                    made = audit(part, method, rounds, _SEEDS, progress=False, **for_audit(experiment, part))
                    verdict = made.verdict
            known[key] = {
                "verdict": verdict,
                "rounds": rounds,
                "seeds": _SEEDS,
                "clients": len(fleet),
                "audited": len(part),
            }
        out.append(known[key])
    return out
