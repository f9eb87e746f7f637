"""The loop. It reads like Algorithm 1 and yields one record a round.

Progress bars, early stopping and storage are consumers of the iterator, not callbacks.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everfed.arrays import Floats, Ints
from everfed.data.federated import FederatedData, from_arrays
from everfed.data.on_demand import OnDemand
from everfed.energy.battery import Books
from everfed.energy.fleet import Fleet
from everfed.errors import DivergenceError, EverfedWarning, InputError, lookup, some
from everfed.learning import models
from everfed.learning.compress import Compressor, Whole, compress_all
from everfed.learning.evaluate import Evaluator, Metric, Metrics
from everfed.learning.gradients import GradientRule
from everfed.learning.layout import Layout
from everfed.learning.optim import Adam, Optimizer
from everfed.learning.precision import set_precision
from everfed.learning.rows import check_place
from everfed.learning.streamed import on_device
from everfed.learning.task import Loss, Task
from everfed.methods import METHODS, Method
from everfed.random import Purpose, check_seed, derive
from everfed.scheduling.plan import PlanStep, Schedule, check_horizon
from everfed.scheduling.silent import never_trained, warn_of_silent
from everfed.server import ServerOptimizer, ServerSGD, Setting
from everfed.trainers import choose

Model = nn.Module | Callable[[], nn.Module] | models.Model | str
Data = FederatedData | OnDemand | Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round."""

    round: int
    participants: Ints
    scales: Floats  # what each participant multiplied its update by
    round_weight: float  # W_r: the participants' coefficients summed; 1 on average if unbiased
    energy: Books  # up to and including this round
    update_norm: float  # length of the server's step
    train_loss: float | None  # mean minibatch loss of the participants; None if nobody trained
    metrics: Metrics | None  # where evaluated: after the update
    seconds: float
    dropped: tuple[int, ...] = ()  # participants whose update was not finite and was left out

    def to_dict(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "participants": self.participants.tolist(),
            "scales": self.scales.tolist(),
            "round_weight": self.round_weight,
            "energy": self.energy.to_dict(),
            "update_norm": self.update_norm,
            "train_loss": self.train_loss,
            "metrics": self.metrics.to_dict() if self.metrics else None,
            "seconds": self.seconds,
            "dropped": list(self.dropped),
        }


@dataclass(frozen=True)
class History:
    """A finished run: its records and the trained model."""

    rounds: list[RoundRecord]
    params: dict[str, Tensor]  # a state_dict

    @property
    def final(self) -> Metrics | None:
        """The last evaluation."""
        return next((r.metrics for r in reversed(self.rounds) if r.metrics), None)

    @property
    def energy(self) -> Books:
        return self.rounds[-1].energy

    @property
    def participations(self) -> int:
        return sum(len(r.participants) for r in self.rounds)

    def curve(self, metric: str = "accuracy") -> tuple[list[int], list[float]]:
        """(rounds done, values) of a metric, where it was evaluated."""
        points = [(r.round + 1, r.metrics.value(metric)) for r in self.rounds if r.metrics]
        return [x for x, _ in points], [y for _, y in points]


class Simulation:
    """A run, set up and ready: iterate over it for one RoundRecord a round.

    `params` holds the server's parameters as they are now, so that a consumer may look at them,
    or stop early with `break` and keep what was learnt.
    """

    def __init__(
        self,
        model: Model,
        data: Data,
        fleet: Fleet,
        method: str | Method = "algorithm1",
        *,
        rounds: int = 400,
        local_steps: int = 5,
        batch_size: int = 10,
        client_optimizer: Optimizer | None = None,
        gradients: Sequence[GradientRule] = (),
        compression: Compressor | None = None,
        server_optimizer: ServerOptimizer | None = None,
        keep_optimizer_state: bool = True,
        state_place: str = "device",
        eval_every: int | None = None,
        seed: int = 0,
        init_seed: int | None = None,
        batch_seed: int | None = None,
        schedule_seed: int | None = None,
        device: str | torch.device = "auto",
        trainer: str = "auto",
        check_trainer: bool = True,
        precision: str = "float32",
        metrics: Sequence[str | Metric] = (),
        loss: Loss | None = None,
        memory_budget: int | None = None,
        strict_horizon: bool = False,
        on_divergence: str = "stop",
    ) -> None:
        self.method = method if isinstance(method, Method) else lookup(METHODS, method, "method")
        self.device = resolve_device(device)
        set_precision(precision, self.device)
        self.data = data if isinstance(data, FederatedData | OnDemand) else from_arrays(data)
        _check_sizes(self.data, fleet, rounds, local_steps, batch_size)
        check_seed(seed)
        init_seed, batch_seed, schedule_seed = (
            _own_seed(own, seed, name)
            for own, name in ((init_seed, "init_seed"), (batch_seed, "batch_seed"), (schedule_seed, "schedule_seed"))
        )
        check_place(state_place, "state_place", "the clients' optimiser state is")
        self.eval_every = max(1, rounds // 20) if eval_every is None else eval_every
        check_count("eval_every", self.eval_every)
        if memory_budget is not None:
            check_count("memory_budget", memory_budget)
        if client_optimizer is not None and not hasattr(client_optimizer, "as_torch"):
            raise InputError(f"client_optimizer is {client_optimizer!r}; it must be a value such as SGD(0.1).")
        if hasattr(gradients, "adjust"):
            raise InputError(f"gradients is {gradients!r}; it must be a list of such rules, as in [Clip(1.0)].")
        if server_optimizer is not None and not hasattr(server_optimizer, "linear"):
            raise InputError(f"server_optimizer is {server_optimizer!r}; it must be a value such as ServerSGD(1.0).")
        loss = loss or (F.cross_entropy if self.data.classes else F.mse_loss)
        self.module = _instance(model, self.data, init_seed).to(self.device)
        models.check(self.module)
        device_data = on_device(self.data, self.device)
        models.check_fits(self.module, device_data.inputs(2), self.data.classes)
        if loss is F.mse_loss:
            models.check_targets(self.module, device_data.inputs(2), device_data.targets(2))
        self.layout = Layout(self.module)
        self.flat = self.layout.flatten(self.module)
        optimizer = client_optimizer or Adam(1e-3)
        setting = Setting(
            self.data.shares(), self.layout.size, self.device, optimizer, local_steps, int(rounds), self.flat
        )
        self.aggregator = self.method.server.start(setting)
        self.server_optimizer = server_optimizer or ServerSGD()
        if self.aggregator.starts and self.server_optimizer != ServerSGD():
            raise InputError(
                f"server_optimizer is {self.server_optimizer!r}, and this server rule sends clients models of its own, "
                "which no server optimiser moves; leave it out, and set the rule's rate instead."
            )
        self.server_state = self.server_optimizer.init(self.layout.size, self.device)
        task = Task(
            self.module, self.layout, device_data, loss, optimizer, local_steps, batch_size,
            keep_optimizer_state, rounds, batch_seed, memory_budget, precision,
            (*gradients, *self.aggregator.gradients), state_place, starts=self.aggregator.starts,
        )  # fmt: skip
        self.compression = compression or Whole()
        self.trainer = choose.trainer(trainer, task, check_trainer)
        self.evaluate = Evaluator(self.module, self.layout, self.data, fleet, loss, self.device, precision, metrics)
        if on_divergence not in ("stop", "skip"):
            raise InputError(f"on_divergence is '{on_divergence}'; it must be 'stop' or 'skip'.")
        self.skips = on_divergence == "skip"
        self.rounds, self.done, self.batch_seed = int(rounds), 0, batch_seed
        check_horizon(fleet, self.rounds, strict_horizon)
        self.schedule = Schedule(fleet, self.method.policy, schedule_seed)
        waiting = "The server waits for them, so the model never moves." if self.aggregator.waits else ""
        ahead = Schedule(fleet, self.method.policy, schedule_seed)
        self.looked_ahead = warn_of_silent(ahead, self.rounds, schedule_seed, waiting)

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[RoundRecord]:
        """Goes on where the run is: at its start, or where `load_state_dict` put it."""
        began = time.perf_counter()
        for step in self.schedule.rounds(self.done, self.rounds):
            record = self._round(step)
            self.done = step.round + 1
            if (step.round + 1) % self.eval_every == 0 or step.round + 1 == self.rounds:
                record = replace(record, metrics=self.evaluate(self.flat))
            yield replace(record, seconds=time.perf_counter() - began)
            began = time.perf_counter()

    def _round(self, step: PlanStep) -> RoundRecord:
        """One round of Algorithm 1: participants train, the server adds their weighed updates."""
        results = self.trainer.train(self.flat, step.clients, step.round)
        results = compress_all(results, self.compression, self.schedule.fleet.message_bits, step.round, self.batch_seed)
        update, weight, losses, good = self.aggregator.round(step.round, step.clients, step.scales, results, self.skips)
        if update is None and not self.server_state:
            return RoundRecord(step.round, step.clients, step.scales, 0.0, step.energy, 0.0, None, None, 0.0)
        # A server optimiser with momentum goes on moving when nobody trains.
        update = torch.zeros_like(self.flat) if update is None else update
        change = self.server_optimizer.step(update, self.server_state)
        flat = self.flat + change
        if losses is None or good is None:
            losses, good = self.flat.new_zeros(0), torch.zeros(0, dtype=torch.bool, device=self.device)
        kept = torch.where(good, losses, 0.0).sum()
        # One transfer for all numbers of a round: each would wait for the device.
        numbers = torch.stack([change.norm(), flat.norm(), kept, good.sum().to(kept.dtype)])
        length, overflow, loss, count = numbers.tolist()
        dropped = self._non_finite(step, math.isfinite(overflow), good if count < len(step.clients) else None)
        self.flat = flat
        return RoundRecord(
            step.round,
            step.clients,
            step.scales,
            weight,
            step.energy,
            length,
            loss / count if count else None,
            None,
            0.0,
            dropped,
        )

    def _non_finite(self, step: PlanStep, fits: bool, good: Tensor | None) -> tuple[int, ...]:
        """The participants whose updates are not finite; unless they are to be skipped, the run ends.

        fits: the server's parameters are finite; good: which participants' are, None if all.
        """
        bad = () if good is None else tuple(step.clients[~good.cpu().numpy()].tolist())
        if bad and not self.skips:
            raise DivergenceError(
                f"training diverged in round {step.round}: the updates of client {some(bad)} are not finite. "
                "Lower the learning rate, or drop such updates with on_divergence='skip'."
            )
        if not fits:
            raise DivergenceError(
                f"training diverged in round {step.round}: the server's parameters overflow, "
                f"though every update is finite (clients {some(step.clients)}). Lower the learning rate."
            )
        return bad

    def state_dict(self) -> dict[str, Tensor]:
        """All that the rest of the run depends on. Chance needs no state: it is a function of the round."""
        schedule = {name: torch.from_numpy(np.asarray(v)) for name, v in self.schedule.state_dict().items()}
        trainer = {f"trainer.{name}": value for name, value in self.trainer.state_dict().items()}
        server = {f"server.{name}": value for name, value in self.aggregator.state_dict().items()}
        server |= {f"step.{name}": value.clone() for name, value in self.server_state.items()}
        # Copies: tensors that share memory cannot be written side by side.
        model = {f"model.{name}": value.clone() for name, value in self.layout.unflatten(self.flat).items()}
        return {**model, "round": torch.tensor(self.done), **schedule, **trainer, **server}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a state of a run with the same settings, bit for bit."""
        model = [state[f"model.{name}"].reshape(-1) for name in self.layout.names]
        self.flat = torch.cat(model).to(self.device)
        self.done = int(state["round"])
        self.schedule.load_state_dict({name: value.cpu().numpy() for name, value in state.items()})
        self.trainer.load_state_dict(_part(state, "trainer."))
        self.aggregator.load_state_dict(_part(state, "server."))
        self.server_state = {name: value.clone().to(self.device) for name, value in _part(state, "step.").items()}

    @property
    def params(self) -> dict[str, Tensor]:
        """The server's model now, as a state_dict on the CPU (buffers and frozen parameters included)."""
        self.layout.load(self.flat, self.module)  # through the module, so that tied weights stay tied
        return {name: value.detach().cpu().clone() for name, value in self.module.state_dict().items()}


def simulate(model: Model, data: Data, fleet: Fleet, method: str | Method = "algorithm1", **settings: Any) -> History:
    """Run a whole simulation and return its history.

    model: a torch.nn.Module (its weights are the start and are left as they are), a function
        without arguments that makes one (called under the seed), or a name such as "mlp".
    data: from `load(...).partition(...)` or `from_arrays(...)`, a list of (x, y), one a client, or
        `OnDemand(...)` for samples that are read when they are needed.
    method: a name of `METHODS` or a Method of your own.
    settings, with their defaults: rounds=400, local_steps=5, batch_size=10,
        client_optimizer=Adam(1e-3), gradients=() (such as Proximal or Clip), compression=Whole(),
        server_optimizer=ServerSGD(1.0), keep_optimizer_state=True, state_place="device" (or "disk": the
        clients' optimiser state in temporary files), eval_every=rounds // 20, seed=0, device="auto",
        init_seed, batch_seed and schedule_seed=seed (initial weights; minibatches, crops, dropout and rounding;
        energy and who trains when: to vary one of them alone, or to hold it still),
        trainer="auto", check_trainer=True (compare it with plain autograd before the run, docs/engine.md),
        precision="float32" (or "tf32", "bf16" on a GPU),
        metrics=() (functions of all test outputs and targets, or names of `METRICS`),
        loss=cross entropy (squared error for float targets),
        memory_budget=bytes for the clients trained at once, strict_horizon=False,
        on_divergence="stop" (raise DivergenceError) or "skip" (leave non-finite updates out).
        A loss of your own takes (outputs, targets) and returns a scalar; the metrics of a
        classification still report cross entropy, so that runs can be compared.

    To watch a run, or to stop it early, iterate over `Simulation` with the same arguments.
    """
    run = Simulation(model, data, fleet, method, **settings)
    records = list(run)
    if not run.looked_ahead:
        silent = np.ones(len(fleet), np.bool_)
        silent[np.concatenate([record.participants for record in records])] = False
        if silent.any():
            said = never_trained(fleet, run.method.policy, silent, run.rounds, int(np.asarray(run.schedule.seed)))
            warnings.warn(said, EverfedWarning, stacklevel=2)
    return History(records, run.params)


def resolve_device(name: str | torch.device) -> torch.device:
    """auto takes a GPU if there is one; cuda asked for and absent is an error."""
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name != "cpu" and not name.startswith("cuda"):
        raise InputError(f"the device is '{name}'; it must be auto, cpu or cuda.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"the device '{name}' was asked for, but torch sees no GPU here; use device 'cpu' or 'auto'.")
    return torch.device(name)


def _instance(model: Model, data: FederatedData | OnDemand, seed: int) -> nn.Module:
    """The initial model: a copy of the user's, or a new one made under the seed."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, Purpose.INIT))
        if data.classes == 0 and (isinstance(model, str) or not callable(model)):
            raise InputError("the built-in models are for classification; for float targets give a torch.nn.Module.")
        if isinstance(model, str):
            return models.build(model, data.input_shape(), data.classes)
        if not callable(model) and not hasattr(model, "build"):
            raise InputError(f"the model is {model!r}; give a module, a function that makes one, or a name.")
        made = model() if callable(model) else model.build(data.input_shape(), data.classes)
        if not isinstance(made, nn.Module):
            raise InputError(f"the model factory returned {type(made).__name__}; it must return a torch.nn.Module.")
        if any(isinstance(p, nn.UninitializedParameter) for p in made.parameters()):
            made(torch.zeros(1, *data.input_shape()))  # lazy layers get their weights now, under the seed
    return made


def _own_seed(own: int | None, seed: int, name: str) -> int:
    """The seed of one kind of chance: its own, or that of the run."""
    if own is None:
        return int(seed)
    check_seed(own, name)
    return int(own)


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1.")


def _check_sizes(data: FederatedData | OnDemand, fleet: Fleet, rounds: int, local_steps: int, batch_size: int) -> None:
    if not isinstance(fleet, Fleet):
        raise InputError(f"the fleet is a {type(fleet).__name__}; make one with Fleet.from_cycles.")
    if len(data) != len(fleet):
        raise InputError(f"the data have {len(data)} clients and the fleet {len(fleet)}; they must be the same.")
    for name, value in (("rounds", rounds), ("local_steps", local_steps), ("batch_size", batch_size)):
        check_count(name, value)
    if rounds * local_steps >= 2**32:
        raise InputError(f"rounds x local_steps is {rounds * local_steps}; it must stay below 2**32.")
    small = np.flatnonzero(data.sizes() < batch_size)
    if len(small):
        warnings.warn(
            f"the batch of {batch_size} is larger than the data of client {some(small, 3)}; "
            "minibatches are drawn with replacement, so samples repeat within a batch.",
            EverfedWarning,
            stacklevel=4,
        )
