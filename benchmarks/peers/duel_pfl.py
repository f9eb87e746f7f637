"""pfl-research's side of the duel: its CIFAR10-IID benchmark, on the arrays and the network that everfed gets.

Its user sampler ("random"), data sets in memory and evaluation by a callback are those of that benchmark. Data lie on
the device. With --workers N the cohort and the test set are shared by N processes.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from duel_parts import BATCH, STEPS, answer, arguments, due, images, network
from torch_parts import autocast, set_precision, synchronize
from with_pfl import RANK, start_others, use_gloo

EVALUATED = 1000  # test images at a time


def main() -> None:
    options = arguments(__doc__, workers={"type": int, "default": 1, "help": "processes"})
    os.environ["PFL_PYTORCH_DEVICE"] = options.device
    others = start_others(options.workers) if options.workers > 1 and RANK not in os.environ else []
    torch.set_num_threads(max(1, torch.get_num_threads() // options.workers))
    set_precision(options.precision)
    np.random.seed(options.seed)  # noqa: NPY002 -- pfl draws users by it, and all processes must draw the same
    torch.manual_seed(options.workers * options.seed + int(os.environ.get(RANK, 0)))
    try:
        duel(options)
    finally:
        for process in others:
            process.wait(timeout=60)


def duel(options: Any) -> None:
    if options.workers > 1:
        use_gloo()
    # Imported here: pfl looks at the environment, and joins the other workers, when it is imported.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Network(torch.nn.Module):
        """The model with the methods that pfl calls."""

        def __init__(self) -> None:
            super().__init__()
            self.network, self.steps = network(), 0

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.train()
            self.steps += 1
            with autocast(options.precision):
                return F.cross_entropy(self.network(x), y)

        @torch.no_grad()
        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            self.eval()
            with autocast(options.precision):
                right = (self.network(x).argmax(1) == y).sum()
            return {"accuracy": Weighted(int(right), len(y))}

    class Judge(CentralEvaluationCallback):
        """pfl's evaluation in the rounds in which everfed has one, not before the first; notes what it finds."""

        first_at = 0.0

        def on_train_begin(self, *, model: Any) -> Metrics:
            self.accuracies: dict[int, float] = {}
            return Metrics()

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            if not self.first_at:
                synchronize(options.device)
                self.first_at = time.time()
            done = central_iteration + 1
            if not due(done, options.rounds):
                return False, Metrics()
            found = self._eval(model)
            self.accuracies[done] = found[1].to_simple_dict()["Central val | accuracy"]
            return found

    clients, test = images(options.arrays, options.clients)
    split, judged = (
        [tuple(torch.as_tensor(array, device=options.device) for array in pair) for pair in pairs]
        for pairs in (clients, [test])
    )
    module = Network().to(options.device)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, fused=True),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),  # a step of 1 takes the average as it is
    )
    users = FederatedDataset.from_slices(split, get_user_sampler("random", range(options.clients)))
    judge = Judge(Dataset(judged[0]), model_eval_params=NNEvalHyperParams(local_batch_size=EVALUATED))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=options.rounds + 1,  # of users' own data, which nobody asks for
            train_cohort_size=options.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_num_steps=None, local_batch_size=BATCH, local_learning_rate=options.rate
        ),
        callbacks=[judge],
        send_metrics_to_platform=False,
    )
    steps = torch.tensor(module.steps)
    if options.workers > 1:
        torch.distributed.all_reduce(steps)
    if int(steps) != options.rounds * options.cohort * STEPS:
        raise SystemExit(f"{int(steps)} local steps were taken, not {options.rounds * options.cohort * STEPS}")
    if os.environ.get(RANK, "0") == "0":
        more = {"workers": options.workers, "steps": int(steps)}
        answer("pfl-research", ["pfl", "torch"], judge.first_at, judge.accuracies, **more)


if __name__ == "__main__":
    main()
