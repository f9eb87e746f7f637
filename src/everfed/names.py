"""Everything that `import everfed` offers, from the rooms where it lives."""

from typing import TYPE_CHECKING, Any

from everfed import theory
from everfed.auditing import Audit, audit
from everfed.data import AUGMENTS, DATASETS, SPLITS, FederatedData, OnDemand, from_arrays, load
from everfed.energy import ARRIVALS, Books, Fleet
from everfed.errors import DivergenceError, EverfedWarning, InputError, MissingExtraError
from everfed.experiment import Experiment
from everfed.learning import (
    GRADIENT_RULES,
    MODELS,
    OPTIMIZERS,
    SCHEDULES,
    SGD,
    TRAINERS,
    Adam,
    Clip,
    Constant,
    Cosine,
    InverseTime,
    Metrics,
    Proximal,
    build,
)
from everfed.methods import METHODS, Method
from everfed.scheduling import (
    POLICIES,
    Always,
    Bernoulli,
    Greedy,
    Lattice,
    PlanStep,
    UniformWindow,
    WaitForAll,
    plan,
)
from everfed.server import (
    SERVER_OPTIMIZERS,
    SERVER_RULES,
    Echo,
    FedAU,
    FedAWE,
    FedVarp,
    HTScaffold,
    LastUpdates,
    Mifa,
    Normalized,
    Scaffold,
    ServerAdaGrad,
    ServerAdam,
    ServerMomentum,
    ServerSGD,
    ServerYogi,
    Sum,
    Truncated,
    Varp,
)
from everfed.simulate import History, RoundRecord, Simulation, simulate

if TYPE_CHECKING:
    from everfed.seed_variance import seed_effects
    from everfed.store import StoredRun, open_run, stored_rounds
    from everfed.tuning import tune


def __getattr__(name: str) -> Any:
    """Runs on disk need pyarrow and safetensors; a plain simulation should not have to import them."""
    if name in ("StoredRun", "open_run", "stored_rounds"):
        from everfed import store

        return getattr(store, name)
    if name in ("seed_effects", "tune"):
        from everfed import seed_variance, tuning

        return {"seed_effects": seed_variance.seed_effects, "tune": tuning.tune}[name]
    raise AttributeError(f"module 'everfed.names' has no attribute '{name}'")


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
