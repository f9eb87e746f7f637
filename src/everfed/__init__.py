"""everfed: federated learning for devices that live on harvested energy.

>>> import everfed as ef
>>> fleet = ef.Fleet.from_cycles([1, 5, 10, 20] * 10)
>>> data = ef.load("digits").partition(clients=40, how="by-energy", fleet=fleet, seed=0)
>>> history = ef.simulate("mlp", data, fleet, method="algorithm1", rounds=20, client_optimizer=ef.SGD(0.1))
>>> history.participations
270
"""

from typing import TYPE_CHECKING, Any

from everfed.data import AUGMENTS, DATASETS, SPLITS, FederatedData, from_arrays, load
from everfed.energy import ARRIVALS, Books, Fleet
from everfed.errors import DivergenceError, EverfedWarning, InputError, MissingExtraError
from everfed.experiment import Experiment
from everfed.learning import (
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    SERVER_RULES,
    SGD,
    TRAINERS,
    Adam,
    Constant,
    Cosine,
    InverseTime,
    Metrics,
    Normalized,
    Sum,
    build,
)
from everfed.methods import METHODS, Method
from everfed.scheduling import (
    POLICIES,
    Always,
    Audit,
    Bernoulli,
    Greedy,
    PlanStep,
    UniformWindow,
    WaitForAll,
    audit,
    plan,
)
from everfed.simulate import History, RoundRecord, Simulation, simulate

if TYPE_CHECKING:
    from everfed.store import StoredRun, open_run, stored_rounds


def __getattr__(name: str) -> Any:
    """Runs on disk need pyarrow and safetensors; a plain simulation should not have to import them."""
    if name in ("StoredRun", "open_run", "stored_rounds"):
        from everfed import store

        return getattr(store, name)
    raise AttributeError(f"module 'everfed' has no attribute '{name}'")


__version__ = "0.1.0"

__all__ = [
    "ARRIVALS",
    "AUGMENTS",
    "DATASETS",
    "METHODS",
    "MODELS",
    "OPTIMIZERS",
    "POLICIES",
    "SCHEDULES",
    "SERVER_RULES",
    "SGD",
    "SPLITS",
    "TRAINERS",
    "Adam",
    "Always",
    "Audit",
    "Bernoulli",
    "Books",
    "Constant",
    "Cosine",
    "DivergenceError",
    "EverfedWarning",
    "Experiment",
    "FederatedData",
    "Fleet",
    "Greedy",
    "History",
    "InputError",
    "InverseTime",
    "Method",
    "Metrics",
    "MissingExtraError",
    "Normalized",
    "PlanStep",
    "RoundRecord",
    "Simulation",
    "StoredRun",
    "Sum",
    "UniformWindow",
    "WaitForAll",
    "__version__",
    "audit",
    "build",
    "from_arrays",
    "load",
    "open_run",
    "plan",
    "simulate",
    "stored_rounds",
]
