"""Runs on a cluster, through Ray: many runs side by side, or one large run over many workers.

Ray finds the machines, moves the bytes and notices what died; what is here says which client trains
where and what is done again after a loss. `connect` first; without Ray it names the extra to install.
"""

from everfed.ray.cluster import Cluster, connect
from everfed.ray.sharded import on_driver, sharded
from everfed.ray.spread import OnCluster
from everfed.ray.trainer import STATE_PLACES

__all__ = ["STATE_PLACES", "Cluster", "OnCluster", "connect", "on_driver", "sharded"]
