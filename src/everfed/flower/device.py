"""A device's own settings: what its `node_config` says of it, such as its number, its meter and its data.

Keys that everfed reads are listed in `METERS` and `_ENERGY`; all others are the user's, and reach `samples` and
`energy` where these are functions of (client, node_config).
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from everfed.errors import InputError, close_to, unknown
from everfed.flower.energy import EnergySource, Measured
from everfed.flower.meters import FromCommand, FromFile, Meter, PowerSupply

Config = Mapping[str, Any]
Energy = EnergySource | Callable[[int, Config], EnergySource] | None


class _Keys(NamedTuple):
    """A kind of meter, and the keys of its arguments: {key: (argument, type)}."""

    make: Callable[..., Meter]
    keys: dict[str, tuple[str, type]]
    needed: str


_RESERVE = {"reserve": ("reserve", float)}
METERS = {
    "power-supply": _Keys(
        PowerSupply,
        {"cost-j": ("cost_j", float), **_RESERVE, "battery": ("name", str), "full-j": ("full_j", float)},
        "cost-j",
    ),
    "file": _Keys(FromFile, {"path": ("path", str), "cost": ("cost", float), **_RESERVE}, "path cost"),
    "command": _Keys(FromCommand, {"command": ("command", str), "cost": ("cost", float), **_RESERVE}, "command cost"),
}
_ENERGY = {"cycle": int, "offset": int, "capacity": float, "seed": int}  # of Measured
_OURS = {"client", "partition-id", "num-partitions", "state-dir", "meter", *_ENERGY}
_OURS |= {key for kind in METERS.values() for key in kind.keys}
_TYPES = {int: "a whole number", float: "a number", str: "a text"}


def client_of(node_config: Config) -> int:
    """The client that a node is: `client` of its configuration, or Flower's `partition-id`."""
    for key in ("client", "partition-id"):
        value = node_config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise InputError(
        "this node does not know which client it is; start it with --node-config 'client=0' (0 for the first)."
    )


def energy_of(energy: Energy, node_config: Config) -> EnergySource | None:
    """A node's energy: as its app says, or else the meter that its configuration names; None: neither does."""
    if energy is None:
        return metered(node_config)
    if hasattr(energy, "choose"):
        return energy
    if not callable(energy):
        raise InputError(f"energy is {energy!r}; give a source such as Measured(...), or a function that makes one.")
    made = energy(client_of(node_config), node_config)
    if made is not None and not hasattr(made, "choose"):
        raise InputError(f"energy(client, node_config) gave {made!r}; it must give a source such as Measured(...).")
    return made


def metered(node_config: Config) -> Measured | None:
    """The meter that a node's configuration names, as in `meter="power-supply" cost-j=120 cycle=20`."""
    for key in node_config:
        if key not in _OURS and (meant := close_to(key, _OURS)):
            raise InputError(f"unknown key '{key}' in the node's configuration. Did you mean '{meant}'?")
    if "meter" not in node_config:
        stray = [key for key in ("cost", "cost-j", "cycle", "capacity") if key in node_config]
        if stray:
            raise InputError(
                f"the node's configuration gives '{stray[0]}' but no meter; name one ({', '.join(METERS)}), or leave "
                "it to the experiment's fleet."
            )
        return None
    named = node_config["meter"]
    if named not in METERS:
        raise InputError(unknown("meter", named, METERS))
    kind = METERS[named]
    of_others = {key for other in METERS.values() for key in other.keys} - {*kind.keys, "path"}  # of data, perhaps
    if wrong := sorted(of_others & set(node_config)):
        raise InputError(f"the meter '{named}' takes no '{wrong[0]}'; it takes {', '.join(kind.keys)}.")
    if missing := [key for key in kind.needed.split() if key not in node_config]:
        raise InputError(f"the meter '{named}' needs '{missing[0]}' in the node's configuration.")
    given = {name: _typed(node_config, key, of) for key, (name, of) in kind.keys.items() if key in node_config}
    if "command" in given:
        given["command"] = tuple(shlex.split(given["command"]))
    settings = {key: _typed(node_config, key, of) for key, of in _ENERGY.items() if key in node_config}
    return Measured(kind.make(**given), **settings)


def _typed(node_config: Config, key: str, of: type) -> Any:
    value = node_config[key]
    if of is float and type(value) is int:
        value = float(value)
    if type(value) is not of:
        raise InputError(f"'{key}' of the node's configuration is {value!r}; it must be {_TYPES[of]}.")
    return value


def samples_of(samples: Callable[..., Any], node_config: Config) -> Any:
    """A client's own (x, y), from samples(client) or samples(client, node_config)."""
    client = client_of(node_config)
    needed = [p for p in inspect.signature(samples).parameters.values() if p.default is p.empty]
    return samples(client, node_config) if len(needed) > 1 else samples(client)
