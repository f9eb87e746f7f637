"""The parts of a run: fleet, data, model, server, trainer and evaluator.

A Ray worker needs a trainer but no server, a Flower server no trainer, a local run all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from everfed.arrays import each, parts
from everfed.checks import check_count
from everfed.data.federated import FederatedData
from everfed.data.on_demand import OnDemand
from everfed.data.plain import Pair
from everfed.data.targets import REGRESSION, TASKS
from everfed.errors import InputError, first_line, some, warn
from everfed.learning import models, trial
from everfed.learning.attacks import NoAttack, check_attack
from everfed.learning.calling import outputs_of
from everfed.learning.evaluate import Evaluator
from everfed.learning.generators import borrowed, undisturbed
from everfed.learning.gradients import GradientRule
from everfed.learning.layout import Layout, own_copy
from everfed.learning.measures import name_of
from everfed.learning.objectives import LOSSES
from everfed.learning.precision import set_precision
from everfed.learning.streamed import on_device
from everfed.learning.task import Starts, Task, Trainer
from everfed.random import Purpose, derive
from everfed.run import memory
from everfed.run.early_stopping import Watch
from everfed.run.experiment import Experiment
from everfed.run.live import refuse_absent
from everfed.run.mode import check_mode
from everfed.run.rounds import LocalRounds
from everfed.scheduling.plan import Schedule, check_horizon
from everfed.scheduling.silent import warn_of_silent
from everfed.scheduling.timeline import Timeline
from everfed.server.aggregate import Setting
from everfed.server.mode import arrival_rule
from everfed.server.step import Server
from everfed.trainers.several import several


class Setup:
    """An experiment's fleet, data and model, checked for consistency and moved to the device."""

    def __init__(self, experiment: Experiment, data: FederatedData | OnDemand | None = None) -> None:
        """data: overrides the experiment's data."""
        refuse_absent(experiment)
        check_mode(experiment)
        self.experiment = experiment
        self.devices = training_devices(experiment.device, experiment.gpus)
        self.device = self.devices[0]
        set_precision(experiment.precision, self.device)
        self.fleet = experiment.make_fleet()
        check_attack(experiment.attack, len(self.fleet))
        self.data, self.held = experiment.make_parts(self.fleet) if data is None else (data, None)
        if len(self.data) != len(self.fleet):
            raise InputError(
                f"the data have {len(self.data)} clients and the fleet {len(self.fleet)}; they must be the same."
            )
        _warn_of_small_clients(self.data, experiment.batch_size)
        memory.check_samples(self.data, self.device)
        memory.check_scores(self.data, experiment.batch_size, self.device)
        self.loss = experiment.loss or LOSSES[self.data.task]
        self.module = _instance(experiment.model, self.data, experiment.seeds.init, self.device)
        models.check(self.module)
        trial.check_tokens(self.module, self.data)
        self.module.to(self.device)
        self.samples = on_device(self.data, self.device)
        with memory.largest_output(self.module) as numbers:
            trial.check_fits(self.module, self.data, self.samples.inputs(2))
        if self.data.task == REGRESSION:
            trial.check_targets(self.module, self.samples.inputs(2), self.samples.targets(2), self.loss)
        self.layout = Layout(self.module)
        inputs = sum(math.prod(shape) for shape in parts(self.data.input_shape()).values())
        memory.check_training(experiment, self.layout.size, inputs, numbers[0] // 2, self.device)
        self.draws = trial.check_training(self.module, self.loss, self.samples, experiment.batch_size)

    def server(self, on_divergence: str = "stop") -> Server:
        e = self.experiment
        setting = Setting(
            self.data.shares(), self.layout.size, self.device, e.client, e.local_steps, e.rounds,
            self.layout.flatten(self.module),
        )  # fmt: skip
        rule = arrival_rule(e.policy, e.server, e.mode, e.work) or e.server
        made = Server(rule, e.server_optimizer, setting, on_divergence, e.robust)
        if e.downlink != "full" and made.rule.starts:
            raise InputError(
                f"downlink is '{e.downlink}', but the rule {type(e.server).__name__} starts each client from a model "
                "of its own; remove one of them."
            )
        return made

    def trainer(
        self,
        gradients: Sequence[GradientRule] = (),
        starts: Starts | None = None,
        memory_budget: int | None = None,
        slots: int = 1,
    ) -> Trainer:
        """gradients, starts: required by the server rule. memory_budget: bytes for those trained at once. slots: how
        often a client may begin within a round."""
        if memory_budget is not None:
            check_count("memory_budget", memory_budget)
        e = self.experiment
        task = Task(
            self.module, self.layout, self.samples, self.loss, e.client, e.local_steps, e.batch_size, e.keep_state,
            e.rounds, e.seeds.batch, memory_budget, e.precision, (*e.gradients, *gradients), e.state_place,
            starts=starts, slots=slots, fewer_steps=e.asynchronous and e.work.fewer_steps,
            draws=self.draws,
        )  # fmt: skip
        return several(e.trainer, task, e.check_trainer, self.devices, partial(on_device, self.data))

    def schedule(self) -> Schedule:
        return Schedule(self.fleet, self.experiment.policy, self.experiment.seeds.schedule)

    def local_rounds(self, trainer: Trainer) -> LocalRounds:
        """Rounds of simulated clients, attackers among them."""
        e = self.experiment
        attack = None if isinstance(e.attack, NoAttack) else e.attack
        return LocalRounds(self.schedule(), trainer, attack, e.seeds.batch)

    def timeline(self) -> Timeline:
        """Of asynchronous clients."""
        e = self.experiment
        made = Timeline(
            self.fleet, e.policy, e.seeds.schedule, e.make_pace(self.fleet), e.work, e.local_steps
        )  # fmt: skip
        if e.rounds * made.slots * e.local_steps >= 2**32:
            raise InputError(
                f"{e.rounds} rounds of up to {made.slots} works of {e.local_steps} local steps are more than 2**32; "
                "give fewer rounds or longer work."
            )
        return made

    def evaluator(self, test: Pair | None = None) -> Evaluator:
        """test: samples and targets to evaluate on; None: the test set."""
        e = self.experiment
        if test is None and e.metrics and not len(self.data.test_y) and self.held is None:
            named = ", ".join(metric if isinstance(metric, str) else name_of(metric) for metric in e.metrics)
            warn(f"metrics has {named}, but there is no test set to compute it on; give one, or leave metrics out.", 4)
        return Evaluator(
            self.module, self.layout, self.data, self.fleet, self.loss, self.device, e.precision, e.metrics, test
        )

    def watch(self) -> Watch | None:
        """What follows the run on its validation set, if it has one."""
        if self.held is None:
            return None
        with undisturbed(self.device):
            first = self.layout.flatten(self.module)
            return Watch(self.experiment.early_stopping, self.evaluator(self.held), first)

    def look_ahead(self, waits: bool = False, strict_horizon: bool = False) -> bool:
        """Warn about cut windows and clients that never train; False: the run is too large to look ahead.

        waits: whether the model does not move until every client has taken part.
        """
        rounds, seed = self.experiment.rounds, self.experiment.seeds.schedule
        if self.experiment.asynchronous:  # who have no windows to cut short
            return warn_of_silent(self.timeline(), rounds, seed)
        check_horizon(self.fleet, rounds, strict_horizon)
        waiting = "The server waits for them, so the model never moves." if waits else ""
        return warn_of_silent(self.schedule(), rounds, seed, waiting)

    def state_dict(self, params: Tensor) -> dict[str, Tensor]:
        """Flat parameters as a state_dict of the model on the CPU, buffers and frozen parameters included."""
        self.layout.load(params, self.module)  # through the module, so that tied weights stay tied
        return {name: value.detach().cpu().clone() for name, value in self.module.state_dict().items()}


def resolve_device(name: str | torch.device) -> torch.device:
    """auto uses a GPU if there is one; cuda without a GPU is an error."""
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name != "cpu" and not name.startswith("cuda"):
        raise InputError(f"the device is '{name}'; it must be auto, cpu or cuda.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"the device '{name}' was requested, but torch finds no GPU; use device 'cpu' or 'auto'.")
    return torch.device(name)


def training_devices(name: str | torch.device, gpus: int) -> list[torch.device]:
    """Where participants are trained; the first also aggregates and evaluates."""
    first = resolve_device(name)
    if gpus == 1:
        return [first]
    if first.type != "cuda":
        other = ", or use device 'cuda'" if torch.cuda.is_available() else ""
        raise InputError(f"gpus is {gpus}, but this run trains on the CPU; remove it{other}.")
    index, there = first.index or 0, torch.cuda.device_count()
    if index + gpus > there:
        raise InputError(
            f"gpus is {gpus} from device '{name}' on, but torch finds {there}; give at most {there - index}."
        )
    return [torch.device("cuda", index + place) for place in range(gpus)]


def _instance(
    model: models.Model | nn.Module | Callable[[], nn.Module] | str,
    data: FederatedData | OnDemand,
    seed: int,
    device: torch.device,
) -> nn.Module:
    """The initial model: a copy of the user's, or a new one initialised with the seed."""
    if isinstance(model, nn.Module):
        return own_copy(model, device)
    with borrowed(derive(seed, Purpose.INIT)):
        if isinstance(model, str) or hasattr(model, "build"):
            kind = models.MODELS[model]() if isinstance(model, str) else model
            return _built(kind, data, device)
        if not callable(model):
            raise InputError(f"the model is {model!r}; give a module, a function that returns one, or a name.")
        try:
            made = model()
        except TypeError as error:
            raise InputError(f"the model {model!r} cannot be called without arguments: {first_line(error)}.") from error
        if not isinstance(made, nn.Module):
            raise InputError(f"the model factory returned {type(made).__name__}; it must return a torch.nn.Module.")
        if any(isinstance(p, nn.UninitializedParameter) for p in made.parameters()):
            # Lazy layers get their weights now, under the seed.
            first_samples = data.alone(0)[0] if isinstance(data, OnDemand) else data.x
            outputs_of(made, each(lambda part: data.augment.evaluate(torch.tensor(part[:1])), first_samples))
    return made


def _built(model: models.Model, data: FederatedData | OnDemand, device: torch.device) -> nn.Module:
    """A model of the table, with as many outputs as the task has."""
    tasks = getattr(model, "tasks", TASKS)
    if data.task not in tasks:
        raise InputError(
            f"the model {type(model).__name__} is for {' and '.join(tasks)}, with a target at each position, but the "
            f"task of these data is {data.task}; choose another model."
        )
    shape, outputs = data.input_shape(), data.classes or math.prod(data.target_shape())
    if isinstance(shape, dict):
        raise InputError(
            f"the samples have several inputs ({', '.join(shape)}), and the models by name take one; give a "
            "torch.nn.Module whose forward has these arguments."
        )
    memory.check_model(model, shape, outputs, device)
    return built(model, shape, data.classes, data.task, data.target_shape())


def built(model: models.Model, shape: tuple[int, ...], classes: int, task: str, target: tuple[int, ...]) -> nn.Module:
    """A model of the table for samples and targets of these shapes."""
    made = model.build(shape, classes or math.prod(target))
    if task != REGRESSION or len(target) == 1:
        return made
    return nn.Sequential(made, nn.Unflatten(1, target) if target else nn.Flatten(0))


def _warn_of_small_clients(data: FederatedData | OnDemand, batch_size: int) -> None:
    small = np.flatnonzero(data.sizes() < batch_size)
    if len(small):
        warn(
            f"the batch of {batch_size} is larger than the data of client {some(small, 3)}; "
            "minibatches are drawn with replacement, so samples repeat within a batch.",
            4,
        )
