"""The server rules by name."""

from __future__ import annotations

from typing import Any

from everfed import registry
from everfed.server.arrivals import Area, FedAsync, FedBuff, Renewal, RenewalDiscounted
from everfed.server.control import HTScaffold, Scaffold
from everfed.server.experience import Echo, FedAU
from everfed.server.gossip import FedAWE
from everfed.server.last_updates import FedVarp, LastUpdates, Mifa, Varp
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
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "renewal": Renewal,
    "renewal-discounted": RenewalDiscounted,
    "area": Area,
}
registry.table("server", SERVER_RULES, ServerRule)
