"""The keys of a run's configuration: everfed's, and the user's own, which are the apps' to read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from everfed.errors import InputError, close_to
from everfed.flower.limits import RoundLimits

log = logging.getLogger("flwr.everfed")

SERVERS = ("folder", "keys", "set", "late-joiners", "differences")
_LIMITS = tuple(field.name.replace("_", "-") for field in fields(RoundLimits))


def limits_in(run_config: Mapping[str, Any]) -> RoundLimits:
    """The limits in a run's configuration. A key that is almost one of everfed's is refused, others are the user's."""
    ours = {*SERVERS, *_LIMITS}
    named = {key: key.replace("_", "-") for key in run_config}
    own = [key for key, name in named.items() if name not in ours]
    for key in own:
        if meant := close_to(named[key], ours):
            raise InputError(f"unknown key '{key}' in the run's configuration. Did you mean '{meant}'?")
    if own:
        log.info("keys of the apps' own in the run's configuration: %s", ", ".join(sorted(own)))
    return RoundLimits.of({key: run_config[key] for key, name in named.items() if name in _LIMITS})


def flag(run_config: Mapping[str, Any], key: str) -> bool:
    """A key that is true or false, and false if it is left out."""
    value = run_config.get(key, run_config.get(key.replace("-", "_"), False))
    if not isinstance(value, bool):
        raise InputError(f"{key} is {value!r}; it must be true or false.")
    return value
