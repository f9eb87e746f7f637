"""Apple's pfl-research: FederatedAveraging over a SimulatedBackend, timed by a callback after each round.

With --workers N the cohort is shared by N processes, as pfl's guide to fast simulation advises.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch_parts import autocast, batches, build, inputs, optimizer, probe_loss, resident, set_precision, synchronize
from workloads import CLIENTS, LOCAL_STEPS, WORKLOADS, arguments, report

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def main() -> None:
    options = arguments(__doc__, workers={"type": int, "default": 1, "help": "processes"})
    os.environ["PFL_PYTORCH_DEVICE"] = options.device
    others = start_others(options.workers) if options.workers > 1 and RANK not in os.environ else []
    torch.set_num_threads(max(1, options.threads // options.workers))
    set_precision(options.precision)
    torch.manual_seed(int(os.environ.get(RANK, 0)))
    try:
        simulate(options)
    finally:
        for process in others:
            process.wait(timeout=60)


def start_others(workers: int) -> list[subprocess.Popen[bytes]]:
    """Workers 1, 2, ... run this script again; pfl finds them by these variables."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ[ADDRESSES] = ",".join([f"localhost:{port}"] * workers)
    command = [sys.executable, *sys.argv]
    others = [subprocess.Popen(command, env=os.environ | {RANK: str(rank)}) for rank in range(1, workers)]
    os.environ[RANK] = "0"
    return others


def use_gloo() -> None:
    """pfl asks for NCCL, which refuses to have two processes on one GPU; gloo does not."""
    begin = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **rest: begin(backend="gloo", **rest)


def simulate(options: Any) -> None:
    if options.workers > 1:
        use_gloo()
    # Imported here: pfl looks at the environment, and joins the other workers, when it is imported.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    workload = WORKLOADS[options.workload]
    clients = resident(workload.name, options.device)

    class Shuffled(Dataset):
        """pfl's own in-memory data set always begins with the same samples; clients are to draw fresh ones."""

        def iter(self, batch_size: int) -> Any:
            return iter(batches(*self.raw_data, batch_size))

    class Network(torch.nn.Module):
        """The model with the methods that pfl calls."""

        def __init__(self) -> None:
            super().__init__()
            self.network, self.steps = build(workload), 0

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            with autocast(options.precision):
                return F.cross_entropy(self.network(inputs(x)), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            return {}  # nothing is evaluated

    class Clock(TrainingProcessCallback):
        """Notes when every round is done."""

        def __init__(self) -> None:
            self.ticks = [time.perf_counter()]

        def on_train_begin(self, *, model: Any) -> Metrics:
            synchronize(options.device)
            self.ticks = [time.perf_counter()]
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            synchronize(options.device)
            self.ticks.append(time.perf_counter())
            return False, Metrics()

    network = Network().to(options.device)
    model = PyTorchModel(
        model=network,
        local_optimizer_create=lambda parameters, lr: optimizer(workload, list(parameters), lr),
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),  # a step of 1 takes the average as it is
    )
    users = FederatedDataset(
        lambda user: Shuffled(clients[user]), get_user_sampler("minimize_reuse", list(range(CLIENTS)))
    )
    rounds, clock = options.warmup + options.rounds, Clock()
    before = probe_loss(network.network, workload)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=CLIENTS,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=LOCAL_STEPS,
            local_batch_size=workload.batch,
            local_learning_rate=workload.lr,
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    steps = torch.tensor(network.steps)
    if options.workers > 1:
        torch.distributed.all_reduce(steps)
    if os.environ.get(RANK, "0") == "0":
        ms = [1000 * (end - start) for start, end in itertools.pairwise(clock.ticks)]
        losses = before, probe_loss(network.network, workload)
        report("pfl-research", ["pfl", "torch"], options, ms, losses, int(steps), workers=options.workers)


if __name__ == "__main__":
    main()
