"""Run folders of older versions: how their fleets of devices were written, and what may be done with them.

In the first versions a trace was multiplied by panel_wp, numbers in a column of times were seconds,
supplies were aligned on local time and cut to the shortest one. Such a folder can be opened and
reported on; a run in it that is not done cannot go on, since its energy would change on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everfed.energy.physical import DeviceFleet
from everfed.errors import InputError
from everfed.run import config
from everfed.run.experiment import Experiment

_OF_A_PANEL = ("site", "panel_wp", "tilt_deg", "azimuth_deg", "losses")


_RESULTS = ({"state", "rounds", "metrics", "energy"}, {"state", "rounds", "message"})


def is_result(content: Any) -> bool:
    """Whether this is a result as it was written before files carried digests."""
    return isinstance(content, dict) and set(content) in _RESULTS and content["state"] in ("done", "diverged")


def is_old(raw: Mapping[str, Any]) -> bool:
    """Whether an experiment file has a fleet of devices as older versions wrote it: without a clock."""
    fleet = raw.get("fleet")
    return isinstance(fleet, Mapping) and fleet.get("kind") == "devices" and "utc_h" not in fleet


def upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """The content of a stored experiment in the keys of this version."""
    if not is_old(raw):
        return raw
    groups = [_group(group) for group in raw["fleet"].get("groups", [])]
    return {**raw, "fleet": {**raw["fleet"], "groups": groups}}


def _group(old: Mapping[str, Any]) -> dict[str, Any]:
    if not old.get("trace"):
        return dict(old)
    kept = {key: value for key, value in old.items() if key not in _OF_A_PANEL}
    return {**kept, "trace_scale": old.get("panel_wp", 10.0), "time_unit": "s", "extend": "wrap"}


def check_resumable(folder: Path, stored: Experiment) -> None:
    """Refuse to go on with a run whose fleet this version would build otherwise."""
    done = (folder / "result.json").exists()
    if (
        not done
        and isinstance(stored.fleet, DeviceFleet)
        and is_old(config.read(folder / "experiment.toml", trusted=False))
    ):
        raise InputError(
            f"the run in '{folder}' was started by an older version, which placed the energy of devices at other "
            "times; choose another folder and start again."
        )
