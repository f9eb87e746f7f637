"""The client's side of a round: decide from one's own energy, then train or stay asleep.

`EnergyMod` does so for any Flower app, `client_app` makes a whole ClientApp of an experiment. Most messages only ask
whether the client takes part, and a small device should not load a machine learning framework to say no. So nothing
here imports one before there is something to train: a client whose energy is simulated works its rounds out once and
keeps them as plain numbers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from everfed.errors import InputError
from everfed.flower import own_work
from everfed.flower.calls import Call, Offer
from everfed.flower.energy import Choice, EnergySource, Measured, Simulated, own_plan, planned_choice
from everfed.flower.node_state import Memory
from everfed.flower.wire import RECORD, Answer, Ask
from everfed.scheduling.policies import Policy

if TYPE_CHECKING:
    from everfed.flower.training import Samples
    from everfed.run.experiment import Experiment

    Described = Experiment | Path | str

_PLAN = "plan"
_TERMS = "terms"


class EnergyMod:
    """Answers the server's question by itself, and lets the app train only in rounds that the client joins.

    The decision is the policy's, from the client's own energy and the round's number. `app()` makes a
    ClientApp that has the mod and can be asked; give it a train function as usual:

        app = EnergyMod(UniformWindow(), Simulated(fleet, seed=0)).app()

        @app.train()
        def train(message, context): ...

    A node's `state-dir` in its configuration is the folder where it keeps what must survive a power cut.
    """

    def __init__(self, policy: Policy, energy: EnergySource, name: str = "everfed") -> None:
        """name: of the run, below the node's state-dir, so that two runs do not mix."""
        self.policy, self.energy, self.name = policy, energy, name

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        return _answer(message, context, call_next, self.name, partial(self.energy.choose, self.policy))

    def app(self) -> ClientApp:
        """A ClientApp with this mod, which answers questions; its train function is still to be given."""
        return _app(self)


def client_app(
    experiment: Described, *, samples: Samples | None = None, energy: EnergySource | None = None
) -> ClientApp:
    """A ClientApp that trains as the simulator does, in the rounds that its energy allows.

    experiment: an Experiment, or the path of its file; the run's configuration may change it (`set`).
    samples: gives a client's own (x, y); None: its part of the experiment's data set. energy: None is
    the experiment's fleet, simulated.
    """

    def choose(run_config: Mapping[str, Any], client: int, ask: Ask, memory: Memory) -> Choice:
        plan = memory.load(_PLAN) if energy is None else None
        if plan is None or ask.round >= len(plan["join"]):
            chosen = load_experiment(experiment, run_config)
            if energy is not None:
                return energy.choose(chosen.policy, client, ask, memory)
            fleet, seed = chosen.make_fleet(), chosen.seeds.schedule
            if chosen.policy.coordinated or ask.round >= chosen.rounds:
                return Simulated(fleet, seed).choose(chosen.policy, client, ask, memory)
            plan = own_plan(fleet, chosen.policy, seed, client, chosen.rounds)
            memory.save(_PLAN, plan)
        return planned_choice(plan, ask.round)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        name = fingerprint(experiment, context.run_config)
        call = Call.of(message.content) if message.has_content() else None
        if call is not None:
            return work(message, call, context, _memory(context, name))
        return _answer(message, context, call_next, name, partial(choose, context.run_config))

    def work(message: Message, call: Call, context: Context, memory: Memory) -> Message:
        """Answer a server without rounds: offer work, and do it if the model comes with the call."""
        client = client_of(context)
        offered = _offer(partial(load_experiment, experiment, context.run_config), energy, client, call, memory)
        if message.metadata.message_type.startswith("query") or not offered.join:
            return Message(RecordDict({RECORD: offered.to_record()}), reply_to=message)
        from everfed.flower.training import LocalTraining  # loads torch

        local = LocalTraining(load_experiment(experiment, context.run_config), client, samples, memory)
        settled = call.kept.get(client, -1) + 1
        result = local.reply(message, Ask(offered.slot, settled), memory, offered.steps)
        result.content[RECORD] = offered.to_record()
        return result

    app = _app(mod)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from everfed.flower.training import LocalTraining  # loads torch

        ask = Ask.of(message.content)
        if ask is None:
            raise InputError("the message does not say which round it is of; the server must be everfed's.")
        memory = _memory(context, fingerprint(experiment, context.run_config))
        local = LocalTraining(load_experiment(experiment, context.run_config), client_of(context), samples, memory)
        return local.reply(message, ask, memory)

    return app


def _offer(
    described: Callable[[], Experiment], energy: EnergySource | None, client: int, call: Call, memory: Memory
) -> Offer:
    """The work that a client can do with its own energy. described: gives the experiment, which loads torch."""
    terms = memory.load(_TERMS)
    if terms is None:
        terms = own_work.terms(described(), client)
        memory.save(_TERMS, terms)
    if energy is None:
        means: own_work.Means = own_work.Simulated(terms)
    elif isinstance(energy, Measured):
        means = own_work.Metered(energy, terms)
    else:
        raise InputError(
            f"energy is {energy!r}; without rounds, clients take their energy from the experiment's fleet or from a "
            "meter, as in Measured(PowerSupply(cost_j=120.0))."
        )
    return own_work.offer(means, terms, call, memory)


def _answer(
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
    name: str,
    choose: Callable[[int, Ask, Memory], Choice],
) -> Message:
    """Answer the question in a message; call_next trains, if that is asked for and the client joins.

    name: of the run, below the node's state-dir.
    """
    ask = Ask.of(message.content) if message.has_content() else None
    if ask is None:
        return call_next(message, context)  # not a question of energy
    client = client_of(context)
    choice = choose(client, ask, _memory(context, name))
    asking_j = context.node_config.get("asking-j", 0.0)  # which the device's runner counts
    record = Answer(client, ask.round, *choice, asking_j=float(asking_j)).to_record()
    if message.metadata.message_type.startswith("query") or not choice.join:
        return Message(RecordDict({RECORD: record}), reply_to=message)
    result = call_next(message, context)
    if result.has_content():
        result.content[RECORD] = record
    return result


def _app(mod: Mod) -> ClientApp:
    app = ClientApp(mods=[mod])

    @app.query("everfed")
    def asked(message: Message, context: Context) -> Message:  # the mod answers all others
        raise ValueError("the query does not say which round it is of; the server must be everfed's.")

    return app


def _memory(context: Context, name: str) -> Memory:
    """What this client keeps of a run between messages."""
    folder = context.node_config.get("state-dir")
    if not folder:
        return Memory(context)
    return Memory(context, Path(os.path.expanduser(str(folder))) / name / f"client-{client_of(context)}")


def client_of(context: Context) -> int:
    """The client that this node is: `client` of its configuration, or Flower's `partition-id`."""
    for key in ("client", "partition-id"):
        value = context.node_config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise InputError(
        "this node does not know which client it is; start it with --node-config 'client=0' (0 for the first)."
    )


def load_experiment(experiment: Described, run_config: Mapping[str, Any]) -> Experiment:
    """The experiment with the changes of the run's configuration: `set = "method=greedy rounds=20"`."""
    from everfed.run import config  # loads torch

    raw = config.read(Path(experiment)) if isinstance(experiment, Path | str) else config.to_dict(experiment)
    for text in str(run_config.get("set") or "").split():
        config.change(raw, *config.parse_setting(text))
    return config.from_dict(raw)


def fingerprint(experiment: Described, run_config: Mapping[str, Any]) -> str:
    """A short name of an experiment, the same on every device: what is kept of one run is not used in another."""
    content = Path(experiment).read_bytes() if isinstance(experiment, Path | str) else None
    if content is None or b"trace" in content:  # what a file names is part of it
        from everfed.run import config  # loads torch, which a device without traces need not wait for

        whole = load_experiment(experiment, {}) if isinstance(experiment, Path | str) else experiment
        content = config.identity(whole).encode()
    return hashlib.sha256(content + str(run_config.get("set") or "").encode()).hexdigest()[:16]
