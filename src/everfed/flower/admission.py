"""Which offers of work a server takes: those of the right client, once each, and within the client's energy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.flower.calls import Offer
from everfed.flower.identity import Roster
from everfed.flower.limits import RoundLimits
from everfed.flower.pulling import Reply
from everfed.flower.supply import Supply
from everfed.flower.wire import RefusedError
from everfed.run.setup import Setup


class Terms:
    """What the works of an experiment can be, and the energy that each client has used."""

    def __init__(self, setup: Setup, roster: Roster, limits: RoundLimits) -> None:
        e, self.fleet, self.roster = setup.experiment, setup.fleet, roster
        self.supply = Supply(self.fleet, e.policy, e.seeds.schedule, limits.scale_slack, limits.check_energy)
        self.slots, self.local_steps = setup.timeline().slots, e.local_steps
        self.least = 1 if e.work.local_steps == "affordable" or e.work.partial == "send" else e.local_steps
        self.radio = e.make_pace(self.fleet).radio
        self.units: Floats = np.zeros(len(self.fleet))

    def checked(self, reply: Reply, node: int, round: int, said: Offer | None, counted: Ints) -> Offer:
        """The offer in a node's reply to a call of this round; ValueError says why it is not taken.

        said: what the node offered when it was asked, if this comes with the result. counted: each client's last slot.
        """
        if reply.message is None:
            raise RefusedError(reply.bad or "its reply is empty")
        offer = Offer.of(reply.message.content)
        if offer.round != round:
            raise RefusedError(f"the answer is for round {offer.round}, and the question was for round {round}")
        if not 0 <= offer.client < len(self.fleet):
            raise RefusedError(f"there is no client {offer.client} in this fleet")
        if why := self.roster.objection(node, offer.client):
            raise RefusedError(f"it answers for client {offer.client}, but {why}")
        if not 0 <= offer.planned <= (round + 1) * self.slots:
            raise RefusedError(f"it says that it has begun {offer.planned} works in {round + 1} rounds")
        # A server that was killed may be a round behind its clients.
        self.supply.advance(round + 1)
        self.supply.check_books(offer.client, round + 1, offer.energy, self.slots)
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
        if self.supply.rationed:
            self._check_ration(offer)
        return offer

    def _check_ration(self, offer: Offer) -> None:
        """No client works with more energy than has arrived, and a battery full of it at the start."""
        most = self._most(offer.client)
        total = self.units[offer.client] + self._price(offer)
        if total > most + 1e-6:
            raise RefusedError(f"its works would take {total:g} units of energy, and it can have {most:g} at most")

    def _most(self, client: int) -> float:
        """Units of energy that a client can have had so far."""
        started = np.broadcast_to(self.fleet.storage.start, len(self.fleet))[client]
        return float(self.supply.harvested[client] + started) * self.supply.slack

    def _price(self, offer: Offer) -> float:
        """What work takes at least."""
        radio = float(self.radio[offer.client])
        return (radio + (1.0 - radio) * offer.steps / self.local_steps) * self.supply.least

    def possible(self, offer: Offer) -> int:
        """Of the works that a client says it has begun, those for which there can have been energy."""
        price = self._price(replace(offer, steps=self.least))
        if not self.supply.rationed or not price:
            return offer.planned
        return min(offer.planned, int(self._most(offer.client) / price + 1e-6))

    def charge(self, offer: Offer) -> None:
        """Take note of the energy of work that has ended."""
        self.units[offer.client] += self._price(offer)
