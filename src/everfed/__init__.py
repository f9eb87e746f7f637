"""everfed: federated learning for devices that live on harvested energy.

>>> import everfed as ef
>>> fleet = ef.Fleet.from_cycles([1, 5, 10, 20] * 10)
>>> data = ef.load("digits").partition(clients=40, how="by-energy", fleet=fleet, seed=0)
>>> history = ef.simulate("mlp", data, fleet, method="algorithm1", rounds=20, client_optimizer=ef.SGD(0.1))
>>> history.participations
270
"""

from everfed.data import DATASETS, SPLITS, FederatedData, from_arrays, load
from everfed.energy import ARRIVALS, Books, Fleet
from everfed.errors import EverfedWarning, InputError, MissingExtraError
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

__version__ = "0.1.0"

__all__ = [
    "ARRIVALS",
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
    "EverfedWarning",
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
    "Sum",
    "UniformWindow",
    "WaitForAll",
    "__version__",
    "audit",
    "build",
    "from_arrays",
    "load",
    "plan",
    "simulate",
]
