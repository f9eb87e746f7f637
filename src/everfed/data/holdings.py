"""Who holds what: federated data in a few words, and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everfed.arrays import Ints, parts
from everfed.data.targets import CLASSIFICATION
from everfed.energy.fleet import Fleet
from everfed.energy.sampled import sample
from everfed.errors import InputError, counted
from everfed.showing import axes
from everfed.showing.card import Card, span
from everfed.showing.labels import fit_names, names_beside

_MOST_CLASSES = 200  # columns of a picture
_MOST_LINES = 30  # between groups; more would hide what they part
_ROOM = 60  # letters below the axes


def card(data: Any, picture: Callable[[], str] | None = None) -> Card:
    """The description of data; a test set may be empty."""
    sizes, shape = data.sizes(), data.input_shape()
    inputs = ", ".join(f"{name} {part}".strip() for name, part in parts(shape).items()) if shape else "one number"
    classes = f", {data.classes:,} classes" if data.classes else ""
    facts = [
        ("task", f"{data.task}{classes}"),
        ("samples", f"{int(sizes.sum()):,}, a client {span(int(sizes.min()), int(sizes.max()))}"),
        ("a sample", inputs),
        ("test set", f"{len(data.test_y):,} samples" if len(data.test_y) else "none"),
    ]
    return Card(f"{type(data).__name__} '{data.name}': {counted(len(data), 'client')}", facts, None, picture)


def held(data: Any, clients: Ints) -> Any:
    """[clients, classes]: samples of each class; None if samples have no single class, or there are too many."""
    if data.task != CLASSIFICATION or data.target_shape() != () or not 0 < data.classes <= _MOST_CLASSES:
        return None
    return np.array([np.bincount(data.y[data.samples_of(int(c))], minlength=data.classes) for c in clients], float)


def plot(data: Any, fleet: Fleet | None, most: int, ax: Any) -> Any:
    """Draw `held`, or the sizes where there are no classes."""
    if fleet is not None and len(fleet) != len(data):
        raise InputError(f"the fleet has {len(fleet)} clients and the data have {len(data)}; give the fleet of these.")
    if fleet is None:
        clients = np.unique(np.linspace(0, len(data) - 1, min(most, len(data))).round().astype(np.int64))
    else:
        clients = sample(fleet, most)
    ax = axes.axes(ax, (6.4, 4.4))
    counts = held(data, clients)
    some = "" if len(clients) == len(data) else f", {len(clients)} of {len(data):,}"
    if counts is None:
        ax.bar(np.arange(len(clients)), data.sizes()[clients], color=axes.colour(0), width=0.85)
        ax.set(xlabel=f"client{some}", ylabel="samples", ylim=(0, None))
        axes.whole(ax.xaxis)
        axes.grid(ax)
    else:
        drawn = ax.imshow(counts, aspect="auto", cmap=axes.ramp(), interpolation="nearest", vmin=0)
        ax.figure.colorbar(drawn, ax=ax, label="samples", fraction=0.05)
        ax.set(xlabel="class", ylabel=f"client{some}", xticks=_ticks(data.classes))
        axes.whole(ax.yaxis)
    if fleet is not None:
        _mark_groups(ax, fleet, clients, counts is not None)
    axes.title(ax, f"Who holds what: {data.name}, {int(data.sizes().sum()):,} samples")
    return ax


def _mark_groups(ax: Any, fleet: Fleet, clients: Ints, down: bool) -> None:
    """Names of the energy groups where their clients are, and lines between them."""
    middles, names, first = [], [], 0
    groups = fleet.groups()
    for group in groups:
        inside = int(np.isin(clients, group.clients).sum())
        if not inside:
            continue
        middles.append(first + (inside - 1) / 2)
        names.append(group.label)
        first += inside
        if first < len(clients) and len(groups) <= _MOST_LINES:
            (ax.axhline if down else ax.axvline)(first - 0.5, color="#888888", linewidth=0.8)
    if down:
        names_beside(ax, middles, names, len(clients))
        ax.set_ylabel("clients by energy group")
    else:
        fitted = fit_names(names, _ROOM)
        ax.set_xticks([middles[i] for i in fitted.at], fitted.texts, **fitted.how)
        ax.set_xlabel("clients by energy group")


def _ticks(classes: int) -> list[int]:
    return list(range(0, classes, max(1, -(-classes // 12))))
