"""The client's side of a round: decide from one's own energy, then train or stay asleep.

`EnergyMod` does so for any Flower app, `client_app` makes a whole ClientApp of an experiment. Most messages only ask
whether the client takes part, and a small device should not load a machine learning framework to say no. So nothing
here imports one before there is something to train: a client whose energy is simulated works its rounds out once and
keeps them as plain numbers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from everfed.errors import InputError, first_line
from everfed.flower import downlink, own_work
from everfed.flower.calls import Call, Offer
from everfed.flower.device import Energy, client_of, energy_of, samples_of
from everfed.flower.energy import Choice, EnergySource, Measured, Simulated, note_training, own_plan, planned_choice
from everfed.flower.node_state import Memory
from everfed.flower.thinning import Thinning, thin_out
from everfed.flower.wire import ARRAYS, RECORD, Answer, Ask, printable
from everfed.scheduling.policies import Policy

if TYPE_CHECKING:
    from everfed.run.experiment import Experiment

    Described = Experiment | Path | str
    Samples = Callable[..., tuple[Any, Any]]

log = logging.getLogger("flwr.everfed")

_ROUNDS = re.compile(rb"(?m)^rounds\s*=.*$")
_RAISED = 2  # Flower's code for it
_PLAN = "plan"
_TERMS = "terms"


class EnergyMod:
    """Answers the server's question by itself, and lets the app train only in rounds that the client joins.

    The decision is the policy's, from the client's own energy and the round's number. It is a mod like any other, and
    comes first of several, since the server's question has no model that others could look at:

        app = ClientApp(mods=[EnergyMod(UniformWindow(), Simulated(fleet, seed=0))])

        @app.train()
        def train(message, context): ...

    A node's `state-dir` in its configuration is the folder where it keeps what must survive a power cut.
    """

    def __init__(self, policy: Policy, energy: Energy = None, name: str = "everfed") -> None:
        """energy: a source, a function of (client, node_config) that makes one, or None: the meter that the node's
        configuration names. name: of the app, below the node's state-dir, so that two apps do not mix."""
        self.policy, self.energy, self.name = policy, energy, name

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        def choose(client: int, ask: Ask, memory: Memory) -> Choice:
            source = energy_of(self.energy, context.node_config)
            if source is None:
                raise InputError(
                    "this node's energy is not known; give EnergyMod an energy, or the node's configuration a meter, "
                    "such as --node-config 'meter=\"power-supply\" cost-j=120.0'."
                )
            return source.choose(self.policy, client, ask, memory)

        return _answer(message, context, call_next, self.name, choose)

    def app(self) -> ClientApp:
        """A ClientApp with this mod; its train function is still to be given."""
        return _app(self)


def client_app(
    experiment: Described, *, samples: Samples | None = None, energy: Energy = None, classes: int | None = None
) -> ClientApp:
    """A ClientApp that trains as the simulator does, in the rounds that its energy allows.

    experiment: an Experiment, or the path of its file; the run's configuration may change it (`set`).
    samples: a function of (client) or (client, node_config) that gives the client's own (x, y); None: its part of the
        experiment's data set.
    energy: a source, or a function of (client, node_config) that makes one; None: the meter that the node's
        configuration names, and without one the experiment's fleet, simulated.
    classes: of own samples; None: as the server says.
    """

    def choose(context: Context, client: int, ask: Ask, memory: Memory) -> Choice:
        source = energy_of(energy, context.node_config)
        plan = memory.load(_PLAN) if source is None else None
        if plan is None or ask.round >= len(plan["join"]):
            chosen = load_experiment(experiment, context.run_config)
            if source is not None:
                return source.choose(chosen.policy, client, ask, memory)
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
        return _answer(message, context, call_next, name, partial(choose, context))

    def work(message: Message, call: Call, context: Context, memory: Memory) -> Message:
        """Answer a server without rounds: offer work, and do it if the model comes with the call."""
        client, source = client_of(context.node_config), energy_of(energy, context.node_config)
        offered = _offer(partial(load_experiment, experiment, context.run_config), source, client, call, memory)
        offered = replace(offered, holds=downlink.held(memory))
        if is_question(message) or not offered.join:
            return Message(RecordDict({RECORD: offered.to_record()}), reply_to=message)
        settled = call.kept.get(client, -1) + 1
        try:
            downlink.restore(message.content, memory)
            result = trained(message, context, Ask(offered.slot, settled), memory, offered.steps)
        except Exception as error:
            log.exception("client %d could not do the work of slot %d", client, offered.slot)
            return failed(error, message)
        result.content[RECORD] = offered.to_record()
        return result

    def trained(message: Message, context: Context, ask: Ask, memory: Memory, steps: int | None = None) -> Message:
        from everfed.flower.own_data import told_in  # loads torch
        from everfed.flower.training import LocalTraining

        own = None if samples is None else lambda client: samples_of(samples, context.node_config)
        told = told_in(message.content) | ({} if classes is None else {"classes": classes})
        chosen = load_experiment(experiment, context.run_config)
        return LocalTraining(chosen, client_of(context.node_config), own, memory, told).reply(
            message, ask, memory, steps
        )

    app = _app(mod)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        ask = Ask.of(message.content)
        if ask is None:
            raise InputError("the message does not say which round it is of; the server must be everfed's.")
        return trained(message, context, ask, _memory(context, fingerprint(experiment, context.run_config)))

    return app


def _offer(
    described: Callable[[], Experiment], energy: EnergySource | None, client: int, call: Call, memory: Memory
) -> Offer:
    """The work that a client can do with its own energy. described: gives the experiment, which loads torch."""
    terms = memory.load(_TERMS)
    if terms is None or call.round >= len(terms["harvest"]):  # or rounds were added to the run
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
    client, memory = client_of(context.node_config), _memory(context, name)
    memory.enter(ask.run)
    choice = choose(client, ask, memory)
    asking_j = context.node_config.get("asking-j", 0.0)  # which the device's runner counts
    record = Answer(
        client, ask.round, *choice, asking_j=float(asking_j), holds=downlink.held(memory)
    ).to_record()  # fmt: skip
    if is_question(message) or not choice.join:
        return Message(RecordDict({RECORD: record}), reply_to=message)
    try:
        downlink.restore(message.content, memory)
        how, sent = Thinning.of(message.content), message.content.get(ARRAYS)
        result = call_next(message, context)
        if how and result.has_content() and isinstance(sent, ArrayRecord):
            thin_out(result.content, dict(sent), how, client, ask.round)
    except Exception as error:
        log.exception("client %d could not train in round %d", client, ask.round)
        return failed(error, message)
    note_training(ask.round, memory)
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
    client = client_of(context.node_config)
    return Memory(context, Path(os.path.expanduser(str(folder))) / name / f"client-{client}")


def failed(error: Exception, message: Message) -> Message:
    """The reply of an app that raised an error: its type and its first line, for the server's log."""
    return Message(Error(_RAISED, printable(f"{type(error).__name__}: {first_line(error)}")), reply_to=message)


def is_question(message: Message) -> bool:
    """Whether a message only asks: what is to be trained comes with a model."""
    return message.metadata.message_type.startswith("query") or not {ARRAYS, downlink.SMALL} & set(message.content)


def load_experiment(experiment: Described, run_config: Mapping[str, Any]) -> Experiment:
    """The experiment with the changes of the run's configuration: `set = "method=greedy rounds=20"`."""
    from everfed.run import config, live  # loads torch

    changes = str(run_config.get("set") or "").split()
    if isinstance(experiment, Path | str):
        raw = config.read(Path(experiment))
    elif changes:
        raw = config.to_dict(experiment)
    else:
        return experiment
    for text in changes:
        config.change(raw, *config.parse_setting(text))
    made = config.from_dict(raw)
    if isinstance(experiment, Path | str):
        return made
    whole: Experiment = live.restored(made, live.objects(experiment))  # models and data that no file can hold
    return whole


def fingerprint(experiment: Described, run_config: Mapping[str, Any]) -> str:
    """A short name of an experiment, the same on every device, however many rounds it has: they may become more."""
    content = Path(experiment).read_bytes() if isinstance(experiment, Path | str) else None
    if content is None or b"trace" in content:  # what a file names is part of it
        from everfed.run import config  # loads torch, which a device without traces need not wait for

        content = config.identity(replace(load_experiment(experiment, {}), rounds=1)).encode()
    changes = [text for text in str(run_config.get("set") or "").split() if not text.startswith("rounds=")]
    return hashlib.sha256(_ROUNDS.sub(b"", content) + " ".join(changes).encode()).hexdigest()[:16]
