"""Axes of Matplotlib with the look of the project's figures."""

from __future__ import annotations

from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.showing.colours import PALETTE

_GRID = "#e3e3e3"


def axes(ax: Any = None, size: tuple[float, float] = (6.4, 3.6)) -> Any:
    """The axes to draw on: those given, or new ones of a new figure."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt  # here, since it takes half a second and chooses a backend

    _, made = plt.subplots(figsize=size, layout="constrained")
    made.spines[["top", "right"]].set_visible(False)
    return made


def grid(ax: Any, along: str = "y") -> None:
    ax.grid(axis=along, color=_GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def title(ax: Any, text: str) -> None:
    ax.set_title(text, loc="left", fontsize=10, parse_math=False)  # names are shown as they are, dollars included


def whole_rounds(ax: Any) -> None:
    """Ticks of x at whole rounds: there is none between two."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10], integer=True))


def percents(ax: Any) -> None:
    """Of y no more than all percents there are, as intervals over two seeds may have, and no less than one of them."""
    low, high = ax.get_ylim()
    bottom, top = max(0.0, low), min(101.0, high)
    if top - bottom < 1.0:
        bottom = max(0.0, (bottom + top) / 2 - 0.5)
        top = bottom + 1.0
    ax.set_ylim(max(low, -0.02 * top) if low < 0.0 else bottom, top)  # a mark at 0 is seen whole


def colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]


def ramp() -> Any:
    """A colour map from white to the first colour."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("everfed", ["#ffffff", PALETTE[0]])


def cells(ax: Any, codes: Floats) -> None:
    """[rows, columns] of numbers: 0 is empty, k has the palette's k-th colour; the first row is at the top."""
    from matplotlib.colors import ListedColormap

    rows, columns = codes.shape
    edges = [np.arange(count + 1) - 0.5 for count in (columns, rows)]
    lines = 0.4 if max(rows, columns) <= 60 else 0.0
    table = ListedColormap(["#ffffff00", *PALETTE])
    ax.pcolormesh(*edges, codes, cmap=table, vmin=0, vmax=len(PALETTE), edgecolors="white", linewidth=lines)
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))


def legend(ax: Any) -> None:
    """Inside where it hides least; of many names beside the axes; of one name none."""
    names = ax.get_legend_handles_labels()[1]
    if len(names) < 2:
        return
    outside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(names) > 5 else {"loc": "best"}
    made = ax.legend(frameon=False, fontsize=9, **outside)
    for text in made.get_texts():
        text.set_parse_math(False)
