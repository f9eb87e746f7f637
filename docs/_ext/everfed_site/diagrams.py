"""The directive `diagram`: drawings that are part of the page, so that they follow its colours, light or dark."""

from __future__ import annotations

from html import escape

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

# The rooms of the source, from the ground up: a room may import from the rooms below it. Some share a floor.
HOUSE: list[list[tuple[str, str]]] = [
    [("errors, checks, random, …", "the ground that all rooms stand on")],
    [("energy", "arrivals, batteries, devices, the sun")],
    [("data", "data sets, and how clients share them")],
    [("scheduling", "policies, plans, exact laws")],
    [("learning", "models, optimisers, reference trainers")],
    [("engine", "kernels for a GPU")],
    [("trainers", "which trainer, and its check")],
    [("server", "server rules and optimisers")],
    [("methods", "a policy and a server rule by name")],
    [("auditing", "bias, noise and energy of a schedule")],
    [("theory", "the convergence bound")],
    [("run", "experiments and the training loop")],
    [("advising", "who is starved, why, what to change")],
    [("testbed", "problems with known constants")],
    [("presets", "built-in experiments"), ("store", "runs on disk")],
    [("studies", "sweeps, tuning, comparisons")],
    [("report", "pages, figures, tables")],
    [("api", "simulate, compare, sweep"), ("ray", "clusters")],
    [("cli", "the command"), ("device", "small devices"), ("flower", "deployment")],
]
_FLOOR, _WIDTH = 30, 720


def _box(x: float, y: float, width: float, height: float, style: str = "box") -> str:
    return f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: list[str], title: str) -> str:
    head = f'<svg class="drawn" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
    arrow = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>'
    )
    return "\n".join([head, arrow, *parts, "</svg>"])


def house() -> str:
    """The rooms as floors, the ground at the bottom."""
    parts = []
    for floor, rooms in enumerate(reversed(HOUSE)):
        y, width = floor * _FLOOR, _WIDTH / len(rooms)
        for place, (name, what) in enumerate(rooms):
            x = place * width
            parts.append(_box(x + 2, y + 2, width - 4, _FLOOR - 4))
            if len(rooms) == 1:
                parts += [_text(14, y + 19, name, "name"), _text(230, y + 19, what, "what")]
            else:
                parts += [_text(x + 14, y + 19, name, "name"), _text(x + 14 + 9 * len(name) + 10, y + 19, what, "what")]
    return _svg(_WIDTH, len(HOUSE) * _FLOOR, parts, "The rooms of the source; each imports only from those below it.")


def round() -> str:
    """One round of one client, and the server's step."""
    steps = [
        ("energy arrives", "sun, motion, radio"),
        ("battery", "one round = 1 unit"),
        ("policy", "slot? energy?"),
        ("T local steps", "δ = change of w"),
        ("scale", "E · δ"),
    ]
    width, gap, y = 126, 22, 34
    parts = [_text(0, 16, "each client, on its own", "what")]
    for place, (name, what) in enumerate(steps):
        x = place * (width + gap)
        parts += [_box(x, y, width, 54), _text(x + width / 2, y + 23, name, "name", "middle")]
        parts.append(_text(x + width / 2, y + 41, what, "what", "middle"))
        if place:
            parts.append(f'<path class="flow" d="M{x - gap + 2} {y + 27}H{x - 3}"/>')
    x = 2 * (width + gap) + width / 2
    parts += [
        f'<path class="flow dashed" d="M{x} {y + 54}v22H{width + gap + width / 2}v-20"/>',
        _text(x - 8, y + 92, "no: keep the energy, wait for the next round", "what", "middle"),
    ]
    last, server = 4 * (width + gap) + width / 2, 176
    parts += [
        f'<path class="flow" d="M{last} {y + 54}V{server - 3}"/>',
        _box(370, server, 348, 54, "box server"),
        _text(544, server + 23, "server: w ← w + Σ pᵢ Eᵢ δᵢ", "name", "middle"),
        _text(544, server + 41, "over those who took part; pᵢ = share of the data", "what", "middle"),
        _text(0, server + 23, "E: rounds that a client needs to harvest one round's energy.", "what"),
        _text(0, server + 41, "It takes part with probability 1/E: mean weight 1.", "what"),
    ]
    return _svg(_WIDTH, 234, parts, "A round: energy, battery, policy, local steps, scale, sum at the server.")


DRAWINGS = {"house": house, "round": round}


class Diagram(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        drawing = DRAWINGS[self.arguments[0]]()
        return [nodes.raw("", f'<figure class="diagram">{drawing}</figure>', format="html")]


def setup(app: Sphinx) -> None:
    app.add_directive("diagram", Diagram)
