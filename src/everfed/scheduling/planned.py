"""A whole plan: iterate over it for its rounds, as often as you like; or collect it into a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from everfed.arrays import Floats, Ints
from everfed.checks import Count, checked
from everfed.energy.fleet import Fleet
from everfed.energy.sampled import sample
from everfed.errors import counted
from everfed.machine import check_memory
from everfed.scheduling.plan import PlanStep, Schedule
from everfed.scheduling.policies import Policy
from everfed.showing import axes, svg
from everfed.showing.card import Card, Grid, Shown, numeral
from everfed.showing.colours import PALETTE
from everfed.showing.frames import frame
from everfed.showing.labels import names_beside

_MOST_LINES = 30  # between groups; more would hide what they part
_GLANCE = 20_000_000  # clients x rounds that are planned for a card
_BYTES_A_ROW = 24


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Shown):
    """Which clients train in which round with which scale. Nothing is kept: each pass computes the rounds anew.

    fleet: the clients and their energy.
    policy: when clients train.
    rounds: how many.
    seed: of energy and schedule.
    title: its name on cards and in figures.

    >>> from everfed.scheduling.policies import Greedy
    >>> plan = Plan(Fleet.from_cycles([1, 2]), Greedy(), rounds=4)
    >>> len(plan), [step.clients.tolist() for step in plan]
    (4, [[0, 1], [0], [0, 1], [0]])
    >>> plan.table()["client"].tolist()
    [0, 1, 0, 0, 1, 0]
    """

    fleet: Fleet
    policy: Policy
    rounds: int
    seed: int = 0
    title: str = "a plan"

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[PlanStep]:
        return Schedule(self.fleet, self.policy, self.seed).rounds(0, self.rounds)

    def table(self) -> dict[str, Ints | Floats]:
        """Arrays round, client and scale, with one entry per participation; the lines of `everfed plan --csv`."""
        steps = [(step.round, step.clients, step.scales) for step in self._checked()]
        return {
            "round": np.repeat([r for r, _, _ in steps], [len(clients) for _, clients, _ in steps]),
            "client": np.concatenate([clients for _, clients, _ in steps]),
            "scale": np.concatenate([scales for _, _, scales in steps]),
        }

    def to_frame(self) -> Any:
        """The same as a pandas DataFrame."""
        return frame(self.table())

    def plot(self, *, rounds: int | None = None, most: int = 60, ax: Any = None) -> Any:
        """Who trains when: a row per client, by energy group, and a mark per participation; returns Matplotlib's axes.

        rounds: how many to draw (default: up to 100). most: clients that are drawn; of more, some of each group.
        """
        ax = axes.axes(ax, (6.4, 4.0))
        shown = min(self.rounds, 100 if rounds is None else checked("rounds", rounds, Count))
        clients, scales = self._raster(shown, most)
        codes, names, first = np.zeros(scales.shape), [], 0
        groups = self.fleet.groups()
        for place, group in enumerate(groups):
            rows = np.flatnonzero(np.isin(clients, group.clients))
            if not len(rows):
                continue
            codes[rows] = (place % len(PALETTE) + 1) * (scales[rows] > 0)
            names.append((first + (len(rows) - 1) / 2, group.label))
            first += len(rows)
            if first < len(clients) and len(groups) <= _MOST_LINES:
                ax.axhline(first - 0.5, color="#bbbbbb", linewidth=0.8)
        axes.cells(ax, codes)
        names_beside(ax, [at for at, _ in names], [label for _, label in names], len(clients))
        some = "" if len(clients) == len(self.fleet) else f", {len(clients)} of {len(self.fleet):,}"
        ax.set(xlabel="round", ylabel=f"clients by energy group{some}")
        axes.whole_rounds(ax)
        axes.title(ax, f"Who trains when: {self.title}, seed {self.seed}")
        return ax

    def _checked(self) -> Iterator[PlanStep]:
        """The rounds, refused once they would not fit into memory."""
        rows = 0
        for step in self:
            rows += len(step.clients)
            check_memory(
                f"a table of {rows:,} participations", 2 * _BYTES_A_ROW * rows, "iterate over the plan instead"
            )
            yield step

    def _raster(self, rounds: int, most: int) -> tuple[Ints, Floats]:
        """Some clients, and [clients, rounds] their scales; 0 where they do not train."""
        clients = sample(self.fleet, most)
        row = np.full(len(self.fleet), -1)
        row[clients] = np.arange(len(clients))
        scales = np.zeros((len(clients), rounds))
        for r, step in enumerate(islice(self, rounds)):
            rows = row[step.clients]
            scales[rows[rows >= 0], r] = step.scales[rows >= 0]
        return clients, scales

    def _card(self) -> Card:
        facts = [("rounds", f"{self.rounds:,}"), ("seed", str(self.seed)), ("policy", _one_line(self.policy))]
        rows = [
            (group.label, f"{len(group.clients):,}", numeral(float((1.0 / self.fleet.cycles()[group.clients]).sum())))
            for group in self.fleet.groups()
        ]
        grid = Grid.of(("energy group", "clients", "harvest, units a round"), rows)
        return Card(f"Plan: {self.title}, {counted(len(self.fleet), 'client')}", facts, grid, self._picture)

    def _picture(self) -> str:
        rounds = min(self.rounds, 60, _GLANCE // len(self.fleet))
        if rounds < min(self.rounds, 10):  # too large for a glance
            return ""
        clients, scales = self._raster(rounds, 24)
        across = "round 0" if rounds == 1 else f"rounds 0 to {rounds - 1}"
        said = f"{across} across, {counted(len(clients), 'client')} down, well powered first"
        return svg.raster(scales / max(scales.max(), 1e-300), "who trains when (stronger: larger scale)", said)


def _one_line(policy: Policy) -> str:
    return " ".join(repr(policy).split())
