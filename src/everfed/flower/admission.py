"""Which offers of work a server takes: those of the right client, once each, and within the client's energy."""

from __future__ import annotations

import numpy as np
from flwr.app import Message

from everfed.arrays import Floats, Ints
from everfed.flower.calls import Offer
from everfed.flower.identity import Roster
from everfed.flower.round_server import spends_at_most
from everfed.flower.wire import RefusedError
from everfed.run.setup import Setup


class Terms:
    """What the works of an experiment can be, and the energy that each client has used."""

    def __init__(self, setup: Setup, roster: Roster, slack: float) -> None:
        """slack: how many times the energy that follows from its cycle a client may claim."""
        e, self.fleet, self.roster, self.slack = setup.experiment, setup.fleet, roster, slack
        self.slots, self.local_steps = setup.timeline().slots, e.local_steps
        self.least = 1 if e.work.local_steps == "affordable" or e.work.partial == "send" else e.local_steps
        self.radio = e.make_pace(self.fleet).radio
        self.rations = spends_at_most(self.fleet, e.policy)
        self.units: Floats = np.zeros(len(self.fleet))

    def checked(self, reply: Message, node: int, round: int, said: Offer | None, counted: Ints) -> Offer:
        """The offer in a node's reply to a call of this round; ValueError says why it is not taken.

        said: what the node offered when it was asked, if this comes with the result. counted: each client's last slot.
        """
        offer = Offer.of(reply.content)
        if offer.round != round:
            raise RefusedError(f"the answer is for round {offer.round}, and the question was for round {round}")
        if not 0 <= offer.client < len(self.fleet):
            raise RefusedError(f"there is no client {offer.client} in this fleet")
        if why := self.roster.objection(node, offer.client):
            raise RefusedError(f"it answers for client {offer.client}, but {why}")
        if not offer.join:
            return offer
        if said and (offer.client, offer.slot, offer.steps) != (said.client, said.slot, said.steps):
            raise RefusedError("its answer with the update is not the one it gave when it was asked")
        last, end = int(counted[offer.client]), (round + 1) * self.slots
        if not last < offer.slot < end:
            raise RefusedError(
                f"its work is of slot {offer.slot}; those up to {last} have been counted, and round {round} ends "
                f"before {end}"
            )
        if not self.least <= offer.steps <= self.local_steps:
            raise RefusedError(
                f"its work is of {offer.steps} local steps; it must be {self.least} to {self.local_steps}"
            )
        if self.rations:
            self._check_ration(offer)
        return offer

    def _check_ration(self, offer: Offer) -> None:
        """Energy comes once a cycle: no client works with more than that, and one unit at the start."""
        passed = offer.round - float(self.fleet.offsets()[offer.client])
        most = (passed / float(self.fleet.cycles()[offer.client]) + 1.0) * self.slack
        total = self.units[offer.client] + self._price(offer)
        if total > most + 1e-6:
            raise RefusedError(f"its works would take {total:g} units of energy, and it can have {most:g} at most")

    def _price(self, offer: Offer) -> float:
        radio = float(self.radio[offer.client])
        return radio + (1.0 - radio) * offer.steps / self.local_steps

    def charge(self, offer: Offer) -> None:
        """Take note of the energy of work that has ended."""
        self.units[offer.client] += self._price(offer)
