"""Runs on a Ray cluster: many runs in parallel, or one large run over many workers.

Ray schedules processes, moves data and detects failures; this package decides which client trains where and what is
repeated after a loss. Start with `connect`; without Ray it names the extra to install.
"""

from everfed.ray.cluster import Cluster, connect
from everfed.ray.sharded import on_driver, sharded
from everfed.ray.spread import OnCluster
from everfed.ray.trainer import STATE_PLACES

__all__ = ["STATE_PLACES", "Cluster", "OnCluster", "connect", "on_driver", "sharded"]
