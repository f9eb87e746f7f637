"""Axes of Matplotlib with the look of the project's figures."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from everfed.arrays import Floats
from everfed.showing.colours import PALETTE

_GRID = "#e3e3e3"
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
_WIDEST = 34  # letters of a legend's line
_HIGHEST = 12  # lines of a legend


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
    whole(ax.xaxis)


def whole(axis: Any) -> None:
    """Ticks at whole numbers, even where there is but one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


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


def look(place: int) -> dict[str, Any]:
    """The colour and the dash of one of many curves: dashes tell apart those that share a colour."""
    return {"color": colour(place), "linestyle": _DASHES[place // len(PALETTE) % len(_DASHES)]}


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
    """Inside where it hides least; of many names beside the axes, those that have room and the last; of one none."""
    handles, names = ax.get_legend_handles_labels()
    if len(names) < 2:
        return
    texts = [_wrapped(name) for name in names]
    shown, room = [], _HIGHEST - 1 - texts[-1].count("\n")
    for handle, text in zip(handles[:-1], texts[:-1], strict=True):
        room -= 1 + text.count("\n")
        if room < 0:
            break
        shown.append((handle, text))
    if hidden := len(names) - 1 - len(shown):
        from matplotlib.lines import Line2D

        shown.append((Line2D([], [], linestyle="none"), f"… and {hidden:,} more"))
    shown.append((handles[-1], texts[-1]))
    large = len(shown) > 5 or any("\n" in text for _, text in shown)
    outside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if large else {"loc": "best"}
    made = ax.legend(*zip(*shown, strict=True), frameon=False, fontsize=9, **outside)
    for text in made.get_texts():
        text.set_parse_math(False)


def _wrapped(name: str) -> str:
    """In at most three lines, since names may differ in their ends alone."""
    parts = textwrap.wrap(name, _WIDEST, break_on_hyphens=False, max_lines=3, placeholder=" …")
    return "\n".join(parts) or name
