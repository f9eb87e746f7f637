"""everfed: federated learning for devices that live on harvested energy.

>>> import everfed as ef
>>> fleet = ef.Fleet.from_cycles([1, 5, 10, 20] * 10)
>>> data = ef.load("digits").partition(clients=40, how="by-energy", fleet=fleet, seed=0)
>>> history = ef.simulate("mlp", data, fleet, method="algorithm1", rounds=20, client_optimizer=ef.SGD(0.1))
>>> history.participations
270
"""

# ruff: noqa: F403, F405 - the names of this package are listed once, in everfed.names

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everfed.names import *

__version__ = "0.1.0"

__all__ = [
    "ARRIVALS",
    "AUGMENTS",
    "DATASETS",
    "GRADIENT_RULES",
    "METHODS",
    "MODELS",
    "OPTIMIZERS",
    "POLICIES",
    "SCHEDULES",
    "SERVER_OPTIMIZERS",
    "SERVER_RULES",
    "SGD",
    "SPLITS",
    "TRAINERS",
    "Adam",
    "Always",
    "Audit",
    "Bernoulli",
    "Books",
    "Clip",
    "Constant",
    "Cosine",
    "DivergenceError",
    "Echo",
    "EverfedWarning",
    "Experiment",
    "FedAU",
    "FedAWE",
    "FedVarp",
    "FederatedData",
    "Fleet",
    "Greedy",
    "HTScaffold",
    "History",
    "InputError",
    "InverseTime",
    "LastUpdates",
    "Lattice",
    "Method",
    "Metrics",
    "Mifa",
    "MissingExtraError",
    "Normalized",
    "OnDemand",
    "PlanStep",
    "Proximal",
    "RoundRecord",
    "Scaffold",
    "ServerAdaGrad",
    "ServerAdam",
    "ServerMomentum",
    "ServerSGD",
    "ServerYogi",
    "Simulation",
    "StoredRun",
    "Sum",
    "Truncated",
    "UniformWindow",
    "Varp",
    "WaitForAll",
    "__version__",
    "audit",
    "build",
    "from_arrays",
    "load",
    "open_run",
    "plan",
    "seed_effects",
    "simulate",
    "stored_rounds",
    "theory",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Names are looked up when they are used: most rooms do not need PyTorch, and it takes seconds to load."""
    if name in __all__:
        return getattr(import_module("everfed.names"), name)
    raise AttributeError(f"module 'everfed' has no attribute '{name}'")


class _Package(ModuleType):
    """The module everfed.simulate must not hide the function of that name when it is imported."""

    @property
    def simulate(self) -> Any:
        return import_module("everfed.names").simulate

    @simulate.setter
    def simulate(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
