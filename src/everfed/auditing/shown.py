"""An audit in a few lines and as a picture: how much each energy group counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from everfed.arrays import Floats
from everfed.energy.fleet import Group
from everfed.errors import InputError, counted
from everfed.showing import axes, svg
from everfed.showing.card import Card, Grid, Shown, ends, numeral
from everfed.showing.labels import fit_names

_MOST_DOTS = 200  # clients of a group that are drawn
_LETTERS = 11  # per inch, below the axes


class ShownAudit(Shown):
    """What both kinds of audit show: rows of clients by energy group, of values measured and exact."""

    groups: tuple[Group, ...]
    mean_weight: Floats | None
    exact: Any
    verdict: str
    rounds: int
    seeds: int

    _columns: ClassVar[Sequence[tuple[str, str]]] = ()  # (heading, field) of the numbers by group

    def plot(self, *, ax: Any = None) -> Any:
        """How much each client counts, by energy group: 1 is by its data; returns Matplotlib's axes.

        A dot is a client, as measured; a bar is the exact mean of its group, where that is known.
        """
        if self.mean_weight is None:
            raise InputError(f"this audit has no weights to draw: {self.verdict}")
        ax = axes.axes(ax)
        ax.axhline(1.0, color="#444444", linewidth=1.0, linestyle=(0, (4, 3)))
        groups = self._groups()
        for place, group in enumerate(groups):
            some = group.clients[np.linspace(0, len(group.clients) - 1, _MOST_DOTS).round().astype(np.int64)]
            shown = np.unique(some) if len(group.clients) > _MOST_DOTS else group.clients
            spread = np.linspace(-0.28, 0.28, len(shown)) if len(shown) > 1 else np.zeros(1)
            label = "a client, measured" if place == 0 else None
            dots = {"s": 18, "alpha": 0.7, "linewidths": 0, "color": axes.colour(0)}
            ax.scatter(place + spread, self.mean_weight[shown], label=label, **dots)
            if self.exact.mean_weight is not None:
                exact = float(self.exact.mean_weight[group.clients].mean())
                label = "exact, mean of the group" if place == 0 else None
                ax.hlines(exact, place - 0.38, place + 0.38, color=axes.colour(1), linewidth=2.0, label=label)
        width = ax.get_figure().get_figwidth() * ax.get_position().width  # inches
        names = fit_names([group.label for group in groups], round(_LETTERS * width))
        ax.set_xticks(names.at, names.texts, **names.how)
        ax.set(xlabel="energy group", ylabel="mean weight", ylim=(0, None))
        axes.title(ax, f"How much clients count over {self._over()} (1: by their data)")
        axes.grid(ax)
        ax.legend(frameon=False, fontsize=9)
        return ax

    def _groups(self) -> Sequence[Group]:
        """Of an audit that was made by hand, everybody."""
        if self.groups or self.mean_weight is None:
            return self.groups
        return [Group("all", np.arange(len(self.mean_weight)), (0, 0))]

    def _over(self) -> str:
        return f"{counted(self.rounds, 'round')}, {counted(self.seeds, 'seed')}"

    def _facts(self) -> list[tuple[str, str]]:
        return []

    def _card(self) -> Card:
        rows = []
        for group in self.groups:
            cells = [_cell(getattr(self, key), getattr(self.exact, key), group) for _, key in self._columns]
            rows.append((group.label, f"{len(group.clients):,}", *cells))
        names = [name for name, _ in self._columns]
        grid = Grid.of(("measured (exact)", "clients", *names), rows) if rows else None
        title = f"{type(self).__name__}: {self._over()}"
        return Card(title, [("verdict", self.verdict), *self._facts()], grid, self._picture)

    def _picture(self) -> str:
        if self.mean_weight is None:
            return ""
        exact = self.exact.mean_weight
        rows = [
            (
                group.label,
                float(self.mean_weight[group.clients].mean()),
                None if exact is None else float(exact[group.clients].mean()),
            )
            for group in ends(self._groups())
        ]
        return svg.dots(rows, "mean weight: measured ●, exact ○, by data at 1", 1.0)


def _cell(measured: Floats | None, exact: Floats | None, group: Group) -> str:
    if measured is None:
        return "-"
    known = measured[group.clients][~np.isnan(measured[group.clients])]
    text = numeral(float(known.mean())) if len(known) else "-"
    return text if exact is None else f"{text} ({numeral(float(exact[group.clients].mean()))})"
