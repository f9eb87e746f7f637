"""The animation of README: four clients through twenty rounds of Algorithm 1, from a real plan.

    python experiments/animation.py            # writes docs/images/windows.svg

Every window, slot, battery level and scale in it is what `ef.plan` and the battery of the simulation say. An SVG with
style sheets alone, so that it also moves as an image on a page; where motion is not wanted it is a still picture of
the whole plan.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import everfed as ef
from everfed.scheduling.plan import Schedule

OUT = Path(__file__).parent.parent / "docs" / "images" / "windows.svg"
CYCLES, ROUNDS, SEED = (1, 5, 10, 20), 20, 0
CAPACITY = 2.0  # units: a window's harvest, while the unit of the window before may still be unspent

SECONDS_A_ROUND, SECONDS_AT_END = 0.8, 4.0
LENGTH = ROUNDS * SECONDS_A_ROUND + SECONDS_AT_END
# Parts of a round: its energy arrives, the client trains, the update is under way, it has arrived.
HARVESTED, TRAINS, SENT, ARRIVED = 0.0, 0.3, 0.5, 0.95

WIDTH, HEIGHT = 800, 352
LEFT, CELL, TOP, ROW, TALL = 112, 20, 78, 58, 30
SERVER = LEFT + ROUNDS * CELL + 58
UNIT = (WIDTH - 16 - SERVER) / ROUNDS  # width of a weight of 1 at the server

# Tones that can be read on white and on black.
INK, FAINT = "#7d8590", "#8b949e"
COLOURS = ("#2f81c1", "#d9731a", "#2a9d76", "#8f6fc9")


@dataclass(frozen=True)
class Course:
    """What happens to the four clients: [rounds, clients] each."""

    joins: np.ndarray
    scales: np.ndarray
    harvested: np.ndarray  # battery levels after a round's harvest
    left: np.ndarray  # and after its decision


def course() -> Course:
    """The plan, and the batteries behind it."""
    fleet = ef.Fleet.from_cycles(CYCLES, arrivals="trickle", capacity=CAPACITY)
    shape = (ROUNDS, len(CYCLES))
    out = Course(np.zeros(shape, bool), np.zeros(shape), np.zeros(shape), np.zeros(shape))
    for step in ef.plan(fleet, ef.UniformWindow(), rounds=ROUNDS, seed=SEED):
        out.joins[step.round, step.clients] = True
        out.scales[step.round, step.clients] = step.scales
    schedule = Schedule(fleet, ef.UniformWindow(), SEED)
    for r in range(ROUNDS):
        schedule.arrive(r)
        out.harvested[r] = schedule.battery.level
        joins, _ = schedule.decide(r)
        out.left[r] = schedule.battery.level
        assert (joins == out.joins[r]).all()
    return out


def drawing(told: Course) -> str:
    """The SVG."""
    body = [line for client in range(len(CYCLES)) for line in _client(told, client)]
    said = "; ".join(
        f"E = {e} in {', '.join(map(str, np.flatnonzero(told.joins[:, c]) + 1))}" for c, e in enumerate(CYCLES) if e > 1
    )
    right, foot = SERVER + ROUNDS * UNIT, TOP + 3 * ROW + TALL
    fonts = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{fonts}">',
        "<title>Four clients through twenty rounds</title>",
        "<desc>A plan of Algorithm 1. Every client trains in one random round of each window of E rounds: E = 1 in "
        f"every round; {said}. Updates are multiplied by E: each client's add up to a weight of {ROUNDS}.</desc>",
        "<style>",
        *_rules(told),
        "</style>",
    ]
    frame = [
        _text(LEFT, 22, "Each client trains in one random round of every window of E rounds,"),
        _text(LEFT, 41, "as its harvest allows, and multiplies its update by E."),
        _text(SERVER, 41, "weight at the server", size=12),
        f'<g class="now">{_rect(LEFT, TOP - 14, CELL, foot - TOP + 28, 4)} fill="{FAINT}" opacity=".22"/></g>',
    ]
    below = [
        *(_text(LEFT + (r - 0.5) * CELL, foot + 30, str(r), size=12, anchor="middle") for r in (1, 5, 10, 15, 20)),
        _text(LEFT - 14, foot + 30, "round", size=12, anchor="end"),
        f'<path d="M{right} {TOP - 10}V{foot + 10}" stroke="{INK}" stroke-dasharray="3 4"/>',
        _text(right, foot + 30, f"{ROUNDS} each", size=12, anchor="end", look="late"),
    ]
    return "\n".join([*head, *frame, *body, *below, *_key(), "</svg>", ""])


def _client(told: Course, client: int) -> Iterator[str]:
    cycle, own = CYCLES[client], COLOURS[client]
    y = TOP + client * ROW
    middle = y + TALL / 2
    yield _text(14, middle + 5, f"E = {cycle}", colour=own, weight=600)
    # The battery: two units high, the level scaled from its foot.
    yield f'<path d="M{LEFT - 34} {y - 2}h6" stroke="{FAINT}" stroke-width="3"/>'
    yield f'{_rect(LEFT - 40, y, 18, TALL, 3)} fill="none" stroke="{FAINT}" stroke-width="1.5"/>'
    level = told.left[-1, client] / CAPACITY
    yield (
        f'{_rect(LEFT - 38, y + 2, 14, TALL - 4)} class="battery c{client}" fill="{own}" opacity=".75" '
        f'transform="translate(0 {(1 - level) * (y + TALL - 2):.2f}) scale(1 {level:.3f})"/>'
    )
    for first in range(0, ROUNDS, cycle):
        yield (
            f'{_rect(LEFT + first * CELL + 1.5, y, cycle * CELL - 3, TALL, 5)} fill="{own}" '
            f'fill-opacity=".1" stroke="{own}" stroke-opacity=".55"/>'
        )
    placed = 0.0
    for r in np.flatnonzero(told.joins[:, client]).tolist():
        x, scale = LEFT + (r + 0.5) * CELL, float(told.scales[r, client])
        opens = r - r % cycle
        # The slot is drawn when its window opens, and filled when its round comes.
        spot = f'cx="{x}" cy="{middle}" r="6"'
        yield f'<circle class="in d{opens}" {spot} fill="none" stroke="{own}" stroke-width="1.8"/>'
        yield f'<circle class="in t{r}" {spot} fill="{own}"/>'
        at = SERVER + placed * UNIT
        yield f'{_rect(at + 0.6, y + 5, scale * UNIT - 1.2, TALL - 10, 2)} class="in g{r}" fill="{own}"/>'
        if cycle > 1:
            yield _text(at + scale * UNIT / 2, middle + 4.5, f"×{scale:g}", 12, "#ffffff", "middle", f"in g{r}", 600)
        told_scale = _text(x, middle - 9, f"×{scale:g}", 12, own, "middle", weight=600) if cycle > 1 else ""
        packet = f'<circle cx="{x}" cy="{middle}" r="5" fill="{own}"/>{told_scale}'
        yield f'<g class="fly f{r}" style="--far:{at - x + 6:.1f}px" opacity="0">{packet}</g>'
        placed += scale


def _key() -> Iterator[str]:
    y, x = HEIGHT - 10, LEFT
    yield f'<circle cx="{x + 6}" cy="{y - 4}" r="5" fill="none" stroke="{INK}" stroke-width="1.8"/>'
    yield _text(x + 17, y, "drawn when the window opens", size=12)
    yield f'<circle cx="{x + 222}" cy="{y - 4}" r="5.5" fill="{INK}"/>'
    yield _text(x + 233, y, "trains, for one unit of energy", size=12)


def _rect(x: float, y: float, width: float, height: float, round_by: float = 0) -> str:
    """A rectangle, not yet closed."""
    return f'<rect x="{x:.2f}" y="{y:g}" width="{width:.2f}" height="{height:g}" rx="{round_by:g}"'


def _text(
    x: float,
    y: float,
    words: str,
    size: int = 13,
    colour: str = INK,
    anchor: str = "start",
    look: str = "",
    weight: int = 400,
) -> str:
    named = f' class="{look}"' if look else ""
    bold = f' font-weight="{weight}"' if weight != 400 else ""
    look = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"{bold}'
    return f'<text{named} x="{x:g}" y="{y:g}" {look}>{words}</text>'


def _rules(told: Course) -> Iterator[str]:
    """The style sheet: keyframes in percent of the whole, one set per moment at which something happens."""
    yield "@media (prefers-reduced-motion: no-preference) {"
    yield f".in, .fly, .now, .battery, .late {{ animation: {LENGTH:g}s linear infinite both; }}"
    for letter, part, width in (("d", HARVESTED, 0.15), ("t", TRAINS, 0.12), ("g", ARRIVED, 0.08)):
        for r in range(ROUNDS):
            start, end = _at(r + part), _at(r + part + width)
            if letter == "d" and r == 0:
                continue  # there from the beginning
            yield f".{letter}{r} {{ animation-name: {letter}{r} }}"
            yield f"@keyframes {letter}{r} {{ 0%, {start} {{ opacity: 0 }} {end}, 100% {{ opacity: 1 }} }}"
    for r in range(ROUNDS):
        out, near, there, gone = (_at(r + part) for part in (SENT, SENT + 0.05, ARRIVED, ARRIVED + 0.04))
        far = "transform: translateX(var(--far))"
        yield f".f{r} {{ animation-name: f{r} }}"
        yield (
            f"@keyframes f{r} {{ 0%, {out} {{ opacity: 0; transform: none }} {near} {{ opacity: 1; transform: none }} "
            f"{there} {{ opacity: 1; {far} }} {gone}, 100% {{ opacity: 0; {far} }} }}"
        )
    for client in range(len(CYCLES)):
        foot = TOP + client * ROW + TALL - 2
        yield f".c{client} {{ animation-name: c{client}; transform-origin: 0 {foot}px }}"
        frames = [("0%", told.harvested[0, client])]
        for r in range(ROUNDS):
            frames += [(_at(r + part), told.harvested[r, client]) for part in (0.15, TRAINS)]
            frames.append((_at(r + TRAINS + 0.2), told.left[r, client]))
        frames.append(("100%", told.left[-1, client]))
        said = " ".join(f"{when} {{ transform: scaleY({level / CAPACITY:.3f}) }}" for when, level in frames)
        yield f"@keyframes c{client} {{ {said} }}"
    yield ".now { animation-name: now }"
    steps = " ".join(
        f"{_at(r)}, {_at(r + 0.9)} {{ opacity: 1; transform: translateX({r * CELL}px) }}" for r in range(ROUNDS)
    )
    last = f"transform: translateX({(ROUNDS - 1) * CELL}px)"
    yield f"@keyframes now {{ {steps} {_at(ROUNDS)}, 100% {{ opacity: 0; {last} }} }}"
    yield ".late { animation-name: late }"
    yield f"@keyframes late {{ 0%, {_at(ROUNDS - 0.1)} {{ opacity: 0 }} {_at(ROUNDS + 0.3)}, 100% {{ opacity: 1 }} }}"
    yield "}"
    yield "@media (prefers-reduced-motion: reduce) { .now { opacity: 0 } }"


def _at(rounds: float) -> str:
    return f"{100 * rounds * SECONDS_A_ROUND / LENGTH:.2f}%"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the SVG file to write")
    where = parser.parse_args().out
    where.write_text(drawing(course()), encoding="utf-8")
    print(f"{where} ({where.stat().st_size / 1000:.0f} kB)")
