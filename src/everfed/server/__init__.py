"""Server rules, and server optimisers that compose with them."""

from typing import Any

from everfed import registry
from everfed.server.aggregate import Aggregator, Outcome, Setting, Weighting
from everfed.server.control import HTScaffold, Scaffold
from everfed.server.experience import Echo, FedAU
from everfed.server.gossip import FedAWE
from everfed.server.last_updates import FedVarp, LastUpdates, Mifa, Varp
from everfed.server.optimizers import (
    SERVER_OPTIMIZERS,
    ServerAdaGrad,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerSGD,
    ServerYogi,
)
from everfed.server.rules import Normalized, ServerRule, Sum, Truncated

SERVER_RULES: dict[str, type[Any]] = {
    "sum": Sum,
    "normalized": Normalized,
    "truncated": Truncated,
    "fedau": FedAU,
    "echo": Echo,
    "fedawe": FedAWE,
    "last-updates": LastUpdates,
    "mifa": Mifa,
    "fedvarp": FedVarp,
    "ht-varp": Varp,
    "scaffold": Scaffold,
    "ht-scaffold": HTScaffold,
}
registry.table("server", SERVER_RULES, ServerRule)

__all__ = [
    "SERVER_OPTIMIZERS",
    "SERVER_RULES",
    "Aggregator",
    "Echo",
    "FedAU",
    "FedAWE",
    "FedVarp",
    "HTScaffold",
    "LastUpdates",
    "Mifa",
    "Normalized",
    "Outcome",
    "Scaffold",
    "ServerAdaGrad",
    "ServerAdam",
    "ServerMomentum",
    "ServerOptimizer",
    "ServerRule",
    "ServerSGD",
    "ServerYogi",
    "Setting",
    "Sum",
    "Truncated",
    "Varp",
    "Weighting",
]
