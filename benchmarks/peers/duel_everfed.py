"""everfed's side of the duel: `ef.start` with a policy of a few lines that draws the cohort."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from duel_parts import BATCH, EVERY, STEPS, answer, arguments, due, images, network

import everfed as ef
from everfed import random
from everfed.scheduling.policies import Decision, Energy, State, View


@dataclass(frozen=True)
class UniformCohort(ef.Policy):
    """Exactly `cohort` clients in every round, each set of so many equally likely: the server's draw of FedAvg.

    Updates are scaled by N / cohort, so that their sum by equal shares is the cohort's average. Energy is not looked
    at, and a client cannot tell by itself that it was drawn: this is for simulations of whole fleets.
    """

    energy: ClassVar[Energy] = Energy.UNLIMITED
    cohort: int = 50

    def step(self, state: State, view: View) -> Decision:
        clients = state["clients"]
        high, low = random.words(clients.seed, random.Purpose.COIN, clients.ids, view.round, lanes=2)
        drawn = np.argsort((high << np.uint64(32)) | low, axis=-1, kind="stable")[..., : self.cohort]
        join = np.zeros(view.affords.shape, np.bool_)
        np.put_along_axis(join, drawn, True, axis=-1)
        return Decision(join, np.full(len(clients.ids), len(clients.ids) / self.cohort), state)


def main() -> None:
    options = arguments(__doc__)
    clients, test = images(options.arrays, options.clients)
    run = ef.start(
        network(), ef.from_arrays(clients, test=test, classes=10), ef.Fleet.from_cycles(np.ones(options.clients, int)),
        UniformCohort(cohort=options.cohort), rounds=options.rounds, local_steps=STEPS, batch_size=BATCH,
        client=ef.SGD(options.rate), eval_every=EVERY, seed=options.seed,
        device=options.device, precision=options.precision,
    )  # fmt: skip
    first_at, accuracies, cohorts, seen = 0.0, {}, set(), set()
    for record in run:
        first_at = first_at or time.time()  # a record holds the length of the server's step: the device has finished
        cohorts.add(len(record.participants))
        seen.update(record.participants.tolist())
        if record.metrics is not None and due(record.round + 1, options.rounds):
            accuracies[record.round + 1] = record.metrics.accuracy
    if cohorts != {options.cohort}:
        raise SystemExit(f"cohorts of {sorted(cohorts)} took part, not of {options.cohort}")
    trainer = run.source.training().trainer
    more = {"cohorts": sorted(cohorts), "seen": len(seen), "trainer": trainer}
    answer("everfed", ["everfed", "torch"], first_at, accuracies, **more)


if __name__ == "__main__":
    main()
