"""Deployment on Flower: the simulator's client-side scheduler on real devices, over a real network.

Names are looked up when they are used: a device that is only asked whether it takes part should not
load what it needs for training.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from everfed.errors import MissingExtraError

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise MissingExtraError("everfed.flower needs Flower; install it with: pip install 'everfed[flower]'.") from error

if TYPE_CHECKING:
    from everfed.flower.client import client_app
    from everfed.flower.identity import Roster
    from everfed.flower.limits import RoundLimits
    from everfed.flower.loopback import Loopback
    from everfed.flower.meters import FromCommand, FromFile, PowerSupply
    from everfed.flower.mod import EnergyMod
    from everfed.flower.remote import remote_run
    from everfed.flower.server import server_app
    from everfed.flower.sources import Measured, Simulated
    from everfed.flower.strategy import EnergyStrategy

_HOMES = {
    "EnergyMod": "mod",
    "EnergyStrategy": "strategy",
    "FromCommand": "meters",
    "FromFile": "meters",
    "Loopback": "loopback",
    "Measured": "sources",
    "PowerSupply": "meters",
    "Roster": "identity",
    "Simulated": "sources",
    "RoundLimits": "limits",
    "client_app": "client",
    "remote_run": "remote",
    "server_app": "server",
}

__all__ = [
    "EnergyMod",
    "EnergyStrategy",
    "FromCommand",
    "FromFile",
    "Loopback",
    "Measured",
    "PowerSupply",
    "Roster",
    "RoundLimits",
    "Simulated",
    "client_app",
    "remote_run",
    "server_app",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"everfed.flower.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'everfed.flower' has no attribute '{name}'")
