"""The client's side of a round, as a mod: decide from one's own energy, then train or stay asleep."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from everfed.flower.identity import client_of
from everfed.flower.messages import RECORD, Answer, Ask, reply
from everfed.flower.node_state import Memory
from everfed.flower.sources import Choice, EnergySource
from everfed.scheduling.policies import Policy


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
        ask = Ask.of(message.content) if message.has_content() else None
        if ask is None:
            return call_next(message, context)  # not a question of energy
        client = client_of(context)
        choice = self.choose(client, ask, self.memory(context), context)
        answer = Answer(client, ask.round, choice.join, choice.scale, choice.planned, choice.energy)
        if message.metadata.message_type.startswith("query") or not choice.join:
            return reply(message, answer)
        result = call_next(message, context)
        if result.has_content():
            result.content[RECORD] = answer.to_record()
        return result

    def choose(self, client: int, ask: Ask, memory: Memory, context: Context) -> Choice:
        """Whether the client takes part in the round that the server asks about."""
        return self.energy.choose(self.policy, client, ask, memory)

    def memory(self, context: Context) -> Memory:
        """What this client keeps between messages."""
        folder = context.node_config.get("state-dir")
        if not folder:
            return Memory(context)
        return Memory(context, Path(os.path.expanduser(str(folder))) / self.name / f"client-{client_of(context)}")

    def app(self) -> ClientApp:
        """A ClientApp with this mod, which answers questions; its train function is still to be given."""
        app = ClientApp(mods=[self])

        @app.query("everfed")
        def asked(message: Message, context: Context) -> Message:
            raise ValueError("the question holds no round; ask with everfed's strategy.")

        return app
