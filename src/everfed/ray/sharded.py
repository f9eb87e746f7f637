"""One large run over a cluster: this machine plans, aggregates and evaluates; Ray workers train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from everfed.errors import InputError
from everfed.learning.attacks import NoAttack
from everfed.learning.compress import Whole
from everfed.ray.cluster import Cluster, ray
from everfed.ray.parcel import packed
from everfed.ray.pool import Pool
from everfed.ray.trainer import STATE_PLACES, ShardedTrainer
from everfed.ray.worker import actor
from everfed.run.experiment import Experiment
from everfed.run.loop import Run
from everfed.run.setup import Setup, resolve_device
from everfed.server.robust import NoDefence


def on_driver(experiment: Experiment, on_gpu: bool) -> Experiment:
    """As the driver sees it, which adds and evaluates: it may have no GPU though the workers have."""
    if experiment.gpus > 1:
        raise InputError(
            f"gpus is {experiment.gpus}, which divides a round among GPUs of one machine; a worker of Ray has one, so "
            "remove it."
        )
    device = resolve_device("auto" if on_gpu else "cpu").type
    precision = experiment.precision if device == "cuda" else "float32"
    return replace(experiment, device=device, precision=precision, check_trainer=False)  # it is workers that train


@contextmanager
def sharded(
    experiment: Experiment,
    cluster: Cluster,
    workers: int = 0,
    *,
    state: str = "worker",
    on_divergence: str = "stop",
) -> Iterator[Run]:
    """An experiment, set up over a cluster: iterate over it for one RoundRecord a round.

    workers: processes that train, one CPU each; 0: one per GPU, or one per CPU where the cluster has no GPU.
    state: where clients' optimiser state is kept, 'worker' or 'driver'.
    """
    on_gpu = cluster.on_gpu(experiment.device)
    workers = workers or (cluster.gpus if on_gpu else cluster.cpus)
    if state not in STATE_PLACES:
        raise InputError(f"the clients' state is to live with the '{state}'; choose 'worker' or 'driver'.")
    if workers < 1 or workers > cluster.cpus:
        raise InputError(
            f"workers is {workers}, and the cluster has {cluster.cpus} CPUs; each worker takes one: "
            f"give 1 to {cluster.cpus}, or add nodes."
        )
    if experiment.asynchronous:
        raise InputError("asynchronous clients are trained on one machine; run them without '--engine ray'.")
    setup = Setup(on_driver(experiment, on_gpu))
    server = setup.server(on_divergence)
    if server.rule.gradients:
        raise InputError(
            "this server rule changes the clients' gradients with what the server keeps, which workers do not have; "
            "run it without '--engine ray', or choose another rule, such as sum or ht-varp."
        )
    if server.rule.starts:
        raise InputError(
            "this server rule starts each client from a model of its own, and workers are handed the server's alone; "
            "run it without '--engine ray', or choose another rule, such as echo."
        )
    neighbours = -(-workers // (cluster.gpus if on_gpu else cluster.nodes))
    theirs = packed(replace(experiment, device="cuda" if on_gpu else "cpu"), experiment.plugins)
    needs = {"CPU": 1.0, "GPU": 1.0 / neighbours} if on_gpu else {"CPU": 1.0}
    keeps = experiment.keep_state and bool(experiment.client.init(1, 1, torch.device("cpu")))
    pool = Pool(lambda: actor(ray, theirs, on_gpu, neighbours), workers, needs)
    try:
        trainer = ShardedTrainer(
            pool,
            len(setup.data),
            state=state if keeps else None,
            whole=experiment.server.remembers
            or not isinstance(experiment.compression, Whole)
            or not isinstance(experiment.robust, NoDefence)
            or not isinstance(experiment.attack, NoAttack),
            seed=experiment.seed,
        )
        looked_ahead = setup.look_ahead(server.rule.waits)
        yield Run(setup, setup.local_rounds(trainer), server, setup.evaluator(), looked_ahead=looked_ahead)
    finally:
        pool.close()
