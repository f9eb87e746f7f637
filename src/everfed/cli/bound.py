"""`everfed bound`: how far from the optimum a run can end, by the corrected theorem."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from everfed import config
from everfed.arrays import Floats
from everfed.cli import options as o
from everfed.cli.screen import Screen
from everfed.energy import Fleet
from everfed.errors import InputError
from everfed.theory import CONSTANTS, Bound
from everfed.theory import bound as theorem

_PROBLEM = "Problem"
_NAMES = {
    "paper": "the paper's, 4 E_max² T² G²",
    "independent": "independent clients, 4 T² G² Σ p² (E-1)",
    "any_dependence": "any dependence, 4 T² G² (Σ p √(E-1))²",
}
_SHORTS = tuple(short for short in o.SHORT if short.flag in ("--clients", "--cycles", "--rounds", "--local-steps"))


def _given(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=_PROBLEM, show_default=False)


@o.takes_experiment("digits", _SHORTS)
def bound(
    raw: dict[str, Any],
    mu: Annotated[float, _given("Strong convexity of every client's loss.")],
    L: Annotated[float, typer.Option("--L", help="Smoothness of every client's loss.", rich_help_panel=_PROBLEM)],  # noqa: N803
    G: Annotated[  # noqa: N803
        float, typer.Option("--G", help="Bound on stochastic gradients: E|g|² ≤ G².", rich_help_panel=_PROBLEM)
    ],
    sigma: Annotated[
        str,
        _given("Standard deviation of a minibatch gradient: one number, or several that are dealt as cycles are."),
    ],
    heterogeneity: Annotated[float, _given("Γ = F* - Σ p F_i*; 0 if all clients have their minimum at one place.")],
    initial_distance_sq: Annotated[float, _given("Squared distance of the initial model from the optimum.")],
    iterations: Annotated[
        int | None, typer.Option(help="K: local iterations in all; default: rounds times local steps.")
    ] = None,
    shares: Annotated[
        str, typer.Option(help="Parts of the data, dealt as cycles are; default: equal.", show_default=False)
    ] = "1",
    target: Annotated[
        float | None, typer.Option(help="Also say how many iterations bring the bound down to this gap.")
    ] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    no_color: o.NoColor = False,
    debug: o.Debug = False,
) -> None:
    """How far from the optimum can a run end? The paper's theorem, corrected.

    For strongly convex losses and plain SGD with the step 2/(μ(γ+t)); it says nothing of networks or of Adam. Every
    number comes with how far it is proven. docs/theory.md has the derivation.

    Example: everfed bound --mu 1 --L 4 --G 1 --sigma 1 --heterogeneity 0.5 --initial-distance-sq 1 --rounds 1000
    """
    screen = Screen(json, quiet, no_color)
    experiment = config.from_dict(raw)
    fleet = experiment.make_fleet()
    if fleet.offsets().any():
        screen.note("the bound is for clients that all start in round 0; this fleet's offsets are left out of it.")
    parts = _dealt(shares, "--shares", len(fleet))
    if not parts.sum() > 0:
        raise InputError(f"--shares is '{shares}'; at least one client must hold data.")
    result = theorem(
        fleet.cycles(),
        parts / parts.sum(),
        mu=mu,
        L=L,
        G=G,
        sigma=_dealt(sigma, "--sigma", len(fleet)),
        heterogeneity=heterogeneity,
        initial_distance_sq=initial_distance_sq,
        local_steps=experiment.local_steps,
        iterations=experiment.rounds * experiment.local_steps if iterations is None else iterations,
    )
    needed = None if target is None else {name: result.required_iterations(target, name) for name in CONSTANTS}
    if json:
        screen.json({**result.to_dict(), "target": target, "required_iterations": needed})
        return
    screen.out.print(_bounds(result, target, needed))
    screen.out.print(_groups(fleet, result))


def _bounds(result: Bound, target: float | None, needed: dict[str, int] | None) -> Table:
    out = Table(title=f"E[F(w)] - F* after {result.iterations:,} iterations is at most", title_justify="left")
    for column in ("constant C", "C", "bound", *([f"iterations to {target:g}"] if needed else [])):
        out.add_column(column, justify="left" if column == "constant C" else "right")
    for name in CONSTANTS:
        cells = [f"{result.constants[name]:.6g}", f"{getattr(result, name):.6g}"]
        out.add_row(_NAMES[name], *cells, *([f"{needed[name]:,}"] if needed else []))
    out.caption = (
        f"{result.validity}\nB = {result.B:.6g}, κ = {result.kappa:.6g}, γ = {result.gamma:.6g}; "
        f"SGD with step {result.learning_rate:.6g}·γ/(γ+t), strongly convex losses"
    )
    out.caption_justify = "left"
    return out


def _groups(fleet: Fleet, result: Bound) -> Table:
    """What each energy group adds to the independent constant."""
    out = Table(title="what the wait for energy adds to C (independent clients)", title_justify="left")
    for column in ("energy group", "clients", "share of data", "adds to C", "part of C", "adds to the bound"):
        out.add_column(column, justify="left" if column == "energy group" else "right")
    total = result.constants["independent"]
    to_bound = 2.0 * result.kappa / (result.mu * (result.gamma + result.iterations))
    for group in fleet.groups():
        added = float(result.contributions[group.clients].sum())
        out.add_row(
            group.label,
            str(len(group.clients)),
            f"{100 * result.shares[group.clients].sum():.1f} %",
            f"{added:.6g}",
            f"{100 * added / total:.1f} %" if total else "-",
            f"{added * to_bound:.6g}",
        )
    out.caption, out.caption_justify = result.validity, "left"
    return out


def _dealt(text: str, flag: str, clients: int) -> Floats:
    """'1,2' as one number a client, dealt round the clients as cycles are."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} is '{text}'; write numbers with commas, such as 1 or 1,2,2,4.") from None
    if len(values) > clients:
        raise InputError(f"{flag} has {len(values)} numbers for {clients} clients; give at most one a client.")
    return np.resize(np.asarray(values), clients)
