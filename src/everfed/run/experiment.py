"""The description of a run: everything it depends on.

Each part is an instance of a registered kind (a policy, a split, an optimiser, ...), or its name, so that new kinds are
available in experiment files and on the command line. In Python it may also be a live object: a module, arrays, a
fleet, a policy, a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import nn

import everfed.trainers.choose  # noqa: F401 - its table
from everfed import plugins, registry
from everfed.checks import BelowOne, Checked, Count, CountOrZero, Seed
from everfed.data.augment import AUGMENTS, Augment
from everfed.data.dataset import CentralDataset, Dataset
from everfed.data.datasets import DATASETS, Digits, Source
from everfed.data.federated import FederatedData, from_arrays
from everfed.data.held_out import held_out_of_clients
from everfed.data.on_demand import OnDemand
from everfed.data.partition import SPLITS, ByEnergy, Natural, Split
from everfed.data.plain import Pair
from everfed.data.targets import AUTO, CLASSIFICATION, NEXT_TOKEN, REGRESSION, TASKS, classes_in, warn_of_labels
from everfed.energy.fleet import Fleet
from everfed.energy.physical import Encoding, Link
from everfed.energy.work import Pace, Work, pace_of
from everfed.errors import InputError, unknown
from everfed.learning.attacks import ATTACKS, Attack, NoAttack
from everfed.learning.compress import COMPRESSORS, Compressor, Whole
from everfed.learning.downlink import DOWNLINKS
from everfed.learning.gradients import GRADIENT_RULES, GradientRule
from everfed.learning.hooks import check_travels
from everfed.learning.measures import Metric, own_metrics
from everfed.learning.metrics import NAMES
from everfed.learning.models import MODELS, Mlp, Model
from everfed.learning.optim import OPTIMIZERS, SCHEDULES, SGD, Cosine, Optimizer, Schedule
from everfed.learning.precision import PRECISIONS
from everfed.learning.rows import Place
from everfed.learning.task import Loss
from everfed.methods import METHODS, Method, as_method
from everfed.run.early_stopping import EarlyStopping
from everfed.run.fingerprint import fingerprint
from everfed.run.fleets import FLEETS, CycleFleet, FleetSpec
from everfed.run.live import Live
from everfed.run.shown import abridged, schedule_picture
from everfed.scheduling.policies import Policy, UniformWindow
from everfed.scheduling.table import POLICIES
from everfed.server.optimizers import SERVER_OPTIMIZERS, ServerOptimizer, ServerSGD
from everfed.server.robust import DEFENCES, Defence, NoDefence
from everfed.server.rules import ServerRule, Sum
from everfed.server.table import SERVER_RULES
from everfed.showing.card import Card, Shown

# The table of each part of an experiment, and of nested parts (an optimiser's schedule).
TABLES: dict[Any, dict[str, type[Any]]] = {
    Source: DATASETS,
    Split: SPLITS,
    FleetSpec: FLEETS,
    Policy: POLICIES,
    ServerRule: SERVER_RULES,
    ServerOptimizer: SERVER_OPTIMIZERS,
    Model: MODELS,
    Optimizer: OPTIMIZERS,
    GradientRule: GRADIENT_RULES,
    Compressor: COMPRESSORS,
    Schedule: SCHEDULES,
    Augment: AUGMENTS,
    Defence: DEFENCES,
    Attack: ATTACKS,
}

# A part may be an instance of a registered kind, its name, or a live object.
DataPart = Source | CentralDataset | FederatedData | OnDemand | Sequence[tuple[Any, Any]] | str
ModelPart = Model | nn.Module | Callable[[], nn.Module] | str


class Seeds(NamedTuple):
    """The seed of each kind of random draw in a run."""

    split: int  # the split over clients, and the samples held out for validation
    init: int  # the model's initial weights
    batch: int  # minibatches, crops, dropout, and the rounding of quantised updates
    schedule: int  # energy arrivals, the cost of rounds, and the schedule


def _later(default: Any, **metadata: str) -> Any:
    """A key that files omit at its default, so that the names of older folders stay the same."""
    return field(default=default, metadata={"left_out": True, **metadata})


@dataclass(frozen=True, eq=False, repr=False)
class Experiment(Shown, Checked):
    """A run. The defaults are the preset digits with one rate for all methods: 40 clients, the paper's energy.

    The fields are the keys of experiment files; parts may be given as values, by name, or as live objects.
    `dataclasses.replace` changes one.

    >>> import everfed as ef
    >>> experiment = ef.Experiment(rounds=20, client=ef.SGD(0.1))
    >>> experiment.method, len(experiment.make_fleet())
    ('algorithm1', 40)
    """

    data: DataPart = Digits()  # the samples
    split: Split = ByEnergy()  # how clients share data that are not split yet
    fleet: FleetSpec | Fleet = CycleFleet()  # the clients and their energy
    policy: Policy = UniformWindow()  # when a client trains, and the scale of its update
    server: ServerRule = Sum()  # how updates are weighted and added up
    server_optimizer: ServerOptimizer = ServerSGD()  # how the sum of updates moves the model
    model: ModelPart = Mlp()  # what is trained
    # The optimiser of local steps. With a decaying rate, the noise of unequal participation fades.
    client: Optimizer = SGD(lr=0.2, schedule=Cosine(final=0.1))
    gradients: tuple[GradientRule, ...] = ()  # applied to gradients before the client's step, in this order
    compression: Compressor = Whole()  # how updates are made smaller before they are sent
    rounds: Count = 400  # how many rounds the run has
    local_steps: Count = 5  # T: optimiser steps of a client in a round
    batch_size: Count = 10  # samples of a local step
    keep_state: bool = True  # whether a client's optimiser state persists to its next round
    state_place: Place = "device"  # where that state is kept: device (the one that trains) or disk
    eval_every: CountOrZero = 0  # rounds between evaluations; 0: twenty times in the run
    seed: Seed = 0  # seed of all random draws
    device: Annotated[str, ("auto", "cpu", "cuda")] = "auto"  # where it trains; auto: on a GPU if there is one
    # How many GPUs of this machine the participants are divided among, from `device` on.
    gpus: Count = _later(1)
    # What computes the local steps; auto: the fastest that fits.
    trainer: str = field(default="auto", metadata={"names": "trainer"})
    # Whether to compare the trainer with plain autograd on a few of the run's samples before the run.
    check_trainer: bool = _later(True)
    precision: Annotated[str, tuple(PRECISIONS)] = "float32"  # numbers in which a GPU multiplies
    # Each kind of random draw can have its own seed.
    split_seed: Seed | None = _later(None)  # seed of the split over clients; left out: `seed`
    init_seed: Seed | None = _later(None)  # seed of the initial weights; left out: `seed`
    batch_seed: Seed | None = _later(None)  # seed of minibatches, crops and dropout; left out: `seed`
    schedule_seed: Seed | None = _later(None)  # seed of energy and of the schedule; left out: `seed`
    # The fraction of the training samples that is held out and evaluated on instead of the test set.
    validation: BelowOne = _later(0.0)
    # A validation set beside the test set, by which the run keeps its best model and may end early.
    early_stopping: EarlyStopping = _later(EarlyStopping())
    # What is to be predicted: classification, next-token, multilabel, regression; auto: it follows from the data.
    task: Annotated[str, (AUTO, *TASKS)] = _later(AUTO)
    # synchronous: clients meet in rounds; asynchronous: they begin and arrive at their own times; auto: as the server
    # rule has it.
    mode: Annotated[str, ("auto", "synchronous", "asynchronous")] = _later("auto")
    # How long the work of asynchronous clients takes, and what becomes of it when energy runs out.
    work: Work = _later(Work())
    # What the server puts in the place of the sum of updates, so that attackers cannot steer it.
    robust: Defence = _later(NoDefence())
    # Clients that send something else than their update, in a simulation.
    attack: Attack = _later(NoAttack())
    # The numbers in which clients receive the model, and train from it: full (float32) or bf16.
    downlink: Annotated[str, tuple(DOWNLINKS)] = _later("full")
    # A scalar function of (outputs, targets). None: the task's own, cross entropy or squared error.
    loss: Loss | None = field(default=None, metadata={"left_out": True, "live": True})
    # Names or functions of (outputs, targets), computed at every evaluation in addition to loss and accuracy.
    metrics: tuple[str | Metric, ...] = _later((), names="metrics")
    # The plugin modules that registered its parts, which other processes must import.
    plugins: tuple[str, ...] = _later(())

    def __post_init__(self) -> None:
        if isinstance(self.data, list | tuple):
            object.__setattr__(self, "data", from_arrays(self.data))
        device: Any = self.device
        if isinstance(device, torch.device):
            object.__setattr__(self, "device", str(device))
        super().__post_init__()
        if self.split is Experiment.split and _has_owners(self.data):  # not chosen
            object.__setattr__(self, "split", Natural())
        if self.rounds * self.local_steps >= 2**32:
            raise InputError(f"rounds x local_steps is {self.rounds * self.local_steps}; it must stay below 2**32.")
        self.early_stopping.check(own_metrics(self.metrics, NAMES))
        plugins.load(self.plugins)
        object.__setattr__(self, "plugins", tuple(sorted(registry.origins(self))))

    def __eq__(self, other: object) -> bool:
        """By content, arrays included."""
        if not isinstance(other, Experiment):
            return NotImplemented
        pairs = [(getattr(self, part.name), getattr(other, part.name)) for part in fields(self)]
        return all(_alike(one, two) for one, two in pairs)

    def __hash__(self) -> int:
        return hash((self.seed, self.rounds, self.local_steps, self.batch_size))

    def __reduce__(self) -> tuple[Callable[..., Experiment], tuple[Any, ...]]:
        check_travels(self.model)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _with_plugins, (plugins.Needed(self.plugins), values)

    @property
    def seeds(self) -> Seeds:
        """The seed of each kind of random draw."""
        own = (self.split_seed, self.init_seed, self.batch_seed, self.schedule_seed)
        return Seeds(*(self.seed if seed is None else seed for seed in own))

    def same_run(self) -> Experiment:
        """Equal for two experiments that differ only in how their seeds are written."""
        split, init, batch, schedule = self.seeds
        return replace(self, seed=0, split_seed=split, init_seed=init, batch_seed=batch, schedule_seed=schedule)

    @classmethod
    def of(
        cls, model: ModelPart, data: DataPart, fleet: FleetSpec | Fleet, method: str | Method | Policy, **settings: Any
    ) -> Experiment:
        """From the arguments of `simulate`; a method selects a policy and a server rule."""
        for name in settings:
            if name in ("policy", "server"):
                raise InputError(f"{name} is given beside the method; give method=Method(policy, server) instead.")
            if name not in cls.__dataclass_fields__:
                raise InputError(unknown("setting", name, cls.__dataclass_fields__))
        chosen = as_method(method)
        return cls(data=data, fleet=fleet, model=model, policy=chosen.policy, server=chosen.server, **settings)

    @property
    def method(self) -> str:
        """The method's name, or the names of policy and server rule if it has none."""
        for name, method in METHODS.items():
            if (method.policy, method.server) == (self.policy, self.server):
                return name
        return f"{kind_of(self.policy)}+{kind_of(self.server)}"

    @property
    def title(self) -> str:
        known = METHODS.get(self.method)
        return known.title if known else self.method

    @property
    def data_name(self) -> str:
        """The data set's name: its kind, or what the data are called."""
        named = getattr(self.data, "name", None) if isinstance(self.data, FederatedData | OnDemand | Dataset) else None
        return named or kind_of(self.data)

    @property
    def asynchronous(self) -> bool:
        """Whether its clients do not meet in rounds."""
        return self.mode == "asynchronous" or bool(getattr(self.server, "asynchronous", False))

    def make_pace(self, fleet: Fleet) -> Pace:
        """How long the work of asynchronous clients takes."""
        own = getattr(self.fleet, "pace", None)
        return pace_of(self.work, len(fleet), own(self.local_steps, self.encoding, fleet) if own else None)

    @property
    def encoding(self) -> Encoding:
        """The sizes of messages, for the energy of sending and receiving them."""
        return self.compression if self.downlink == "full" else Link(self.compression, received=0.5)

    @property
    def evaluation_interval(self) -> int:
        """Rounds between evaluations."""
        return self.eval_every or max(1, self.rounds // 20)

    def with_method(self, name: str) -> Experiment:
        return replace(self, policy=METHODS[name].policy, server=METHODS[name].server)

    def make_fleet(self) -> Fleet:
        live = isinstance(self.fleet, Fleet)
        fleet = self.fleet if isinstance(self.fleet, Fleet) else self.fleet.build(self.local_steps, self.encoding)
        if live and len(self.compression.choices()) > 1:
            raise InputError(
                "this compression chooses bits from a device's energy costs; describe the fleet by its devices "
                "(DeviceFleet) instead of a built Fleet."
            )
        fleet.check_rounds(self.rounds)
        return fleet

    def pinned(self) -> Experiment:
        """The same, fixed to the current content of its files."""
        fleet = self.fleet if isinstance(self.fleet, Fleet | Live) else self.fleet.pinned()
        data, model = _pinned(self.data, DATASETS), _pinned(self.model, MODELS)
        if data is self.data and fleet is self.fleet and model is self.model:
            return self
        return replace(self, data=data, fleet=fleet, model=model)

    def make_data(self, fleet: Fleet) -> FederatedData | OnDemand:
        return self.make_parts(fleet)[0]

    def make_parts(self, fleet: Fleet) -> tuple[FederatedData | OnDemand, Pair | None]:
        """The clients' data, and what early stopping holds out of them."""
        part, by, seed = self.early_stopping.part, self.early_stopping.by, self.seeds.split
        if isinstance(self.data, FederatedData | OnDemand):
            if self.validation:
                raise InputError(
                    "validation holds samples out before the split, but these data are already split; leave "
                    "validation at 0 and pass the validation set as the test set."
                )
            if self.split != Experiment.split:
                raise InputError(f"split is {self.split}, but these data are already split over clients; remove it.")
            given: FederatedData | OnDemand = self._with_task(self.data)
            return held_out_of_clients(given, part, by, seed) if part else (given, None)
        data: Any = self.data if isinstance(self.data, CentralDataset) else self.data.load()  # type: ignore[union-attr]
        data = self._with_task(data)
        if self.validation:
            data = data.hold_out(self.validation, seed)
        split = self.split
        if _has_owners(data) and split is Experiment.split:  # a plugin's data, say
            split = Natural()
        held = None
        if part and not (by == "sample" and isinstance(split, Natural)):
            data, held = data.without_part(part, by, seed)
        whole = data.split(split, len(fleet), fleet=fleet, seed=seed)
        # Natural clients that are not of the fleet have no part in it: held out after they are dealt.
        return held_out_of_clients(whole, part, by, seed) if part and held is None else (whole, held)

    def _card(self) -> Card:
        """Every setting that is not the default, and the parts that every experiment has."""
        always = ("data", "fleet", "model", "client", "rounds", "local_steps", "batch_size", "seed")
        facts = []
        for part in fields(self):
            value = getattr(self, part.name)
            if part.name not in ("policy", "server", "plugins") and (
                part.name in always or not _alike(value, part.default)
            ):
                facts.append((part.name, abridged(value, kind_of)))
        given = METHODS.get(self.method)
        if given is None:
            facts += [(name, abridged(getattr(self, name), kind_of)) for name in ("policy", "server")]
        title = f"Experiment: {self.title} on {self.data_name}"
        return Card(title, facts, None, lambda: schedule_picture(self))

    def _with_task(self, data: Any) -> Any:
        """The data with the task that is named here."""
        if self.task in (AUTO, getattr(data, "task", AUTO)):
            if self.task == AUTO == getattr(self.data, "task", "") and getattr(data, "task", "") == REGRESSION:
                warn_of_labels(data.y)  # a source found it out by itself
            return data
        if not isinstance(data, FederatedData | OnDemand | Dataset):
            raise InputError(f"the task '{self.task}' cannot be given to {type(data).__name__} data; leave it at auto.")
        classes = data.classes
        if not isinstance(data, OnDemand):
            known = classes if self.task in (CLASSIFICATION, NEXT_TOKEN) else 0  # more than occur, perhaps
            classes = max(known, classes_in(data.y, data.test_y, task=self.task))
        return replace(data, task=self.task, classes=classes)


def _has_owners(data: Any) -> bool:
    """Whether data have clients of their own."""
    return getattr(data, "owners", None) is not None or getattr(type(data), "natural", False)


def _pinned(part: Any, table: dict[str, type[Any]]) -> Any:
    return part.pinned() if type(part) in table.values() and hasattr(part, "pinned") else part


def _alike(one: Any, two: Any) -> bool:
    try:
        if one is two or bool(one == two):
            return True
    except (ValueError, RuntimeError):  # arrays do not compare to one truth
        pass
    return fingerprint(one) == fingerprint(two)


def _with_plugins(loaded: None, values: dict[str, Any]) -> Experiment:
    """Unpickle an experiment after its plugins have been loaded."""
    return Experiment(**values)


def kind_of(value: Any) -> str:
    """The name of a value's class in its table; of a live object, the name of its class."""
    for table in TABLES.values():
        for name, kind in table.items():
            if type(value) is kind:
                return name
    return value.name if isinstance(value, Live) else type(value).__name__
