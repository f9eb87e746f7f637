"""`everfed bound`: how far from the optimum a run can end, by the corrected theorem."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from everfed.arrays import Floats
from everfed.cli import options as o
from everfed.cli.screen import Screen, table
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.run import config
from everfed.theory import CONSTANTS, PROVEN, Bound, bound as theorem
from everfed.theory.coverage import check_honest, check_training, participation

_PROBLEM = "Problem"
_FLAGS = ("--method", "--clients", "--cycles", "--offsets", "--arrivals", "--capacity", "--rounds", "--local-steps")
_SHORTS = tuple(short for short in o.ONE_METHOD if short.flag in _FLAGS)


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
        _given(
            "Standard deviation of a minibatch gradient: one number, or several, assigned to clients in turn like "
            "cycles."
        ),
    ],
    heterogeneity: Annotated[float, _given("Γ = F* - Σ p F_i*; 0 if all clients have the same minimum.")],
    initial_distance_sq: Annotated[float, _given("Squared distance of the initial model from the optimum.")],
    iterations: Annotated[
        int | None, "[0, inf)", typer.Option(help="K: total local iterations; default: rounds times local steps.")
    ] = None,
    shares: Annotated[
        str,
        typer.Option(
            help="Shares of the data, assigned to clients in turn like cycles; default: equal.", show_default=False
        ),
    ] = "1",
    target: Annotated[
        float | None, typer.Option(help="Also print how many iterations bring the bound down to this gap.")
    ] = None,
    *,
    screen: Screen,
) -> None:
    """How far from the optimum can a run end? The paper's theorem, corrected.

    For strongly convex losses and plain SGD with step size 2/(μ(γ+t)), not for neural networks or Adam. Prints only
    what is proven for the method on this fleet, or why no theorem covers it. docs/theory.md has the proofs.

    Example: everfed bound --mu 1 --L 4 --G 1 --sigma 1 --heterogeneity 0.5 --initial-distance-sq 1 --rounds 1000
    """
    experiment = config.from_dict(raw)
    fleet = experiment.make_fleet()
    check_training(
        experiment.client, experiment.gradients, experiment.compression, experiment.server_optimizer,
        experiment.downlink,
    )  # fmt: skip
    check_honest(experiment.robust, experiment.attack)
    kind = participation(experiment.policy, experiment.server, fleet)
    parts = _dealt(shares, "--shares", len(fleet))
    if not parts.sum() > 0:
        raise InputError(f"--shares is '{shares}'; at least one client must hold data.")
    result = theorem(
        np.ones_like(fleet.cycles()) if kind == "everybody" else fleet.cycles(),
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
    proven = PROVEN[kind]
    needed = None if target is None else {name: result.required_iterations(target, name) for name in proven}
    if screen.as_json:
        everything = result.to_dict()
        only = {
            key: {name: value[name] for name in proven} if isinstance(value, dict) else value
            for key, value in everything.items()
        }
        said = {"method": experiment.method, "participation": kind, **only}
        screen.json({**said, "target": target, "required_iterations": needed})
        return
    screen.out.print(_bounds(result, proven, target, needed))
    if np.any(result.cycles > 1):
        screen.out.print(_groups(fleet, result, proven[0]))


def _bounds(result: Bound, proven: tuple[str, ...], target: float | None, needed: dict[str, int] | None) -> Table:
    columns = ["proven for", "γ", "C", "bound", *([f"iterations to {target:g}"] if needed else [])]
    out = table(f"E[F(w)] - F* after {result.iterations:,} iterations is at most", columns)
    for name in proven:
        numbers = (result.gammas[name], result.constants[name], result.at(result.iterations, name))
        cells = [f"{number:.6g}" for number in numbers]
        out.add_row(result.validity[name], *cells, *([f"{needed[name]:,}"] if needed else []))
    formulas = "\n".join(f"C = {CONSTANTS[name].formula}" for name in proven if result.constants[name])
    out.caption = f"B = {result.B:.6g}, κ = {result.kappa:.6g}; SGD with step 2/(μ(γ+t)), strongly convex losses" + (
        f"\n{formulas}" if formulas else ""
    )
    return out


def _groups(fleet: Fleet, result: Bound, constant: str) -> Table:
    """What each energy group adds to a constant."""
    columns = ("energy group", "clients", "share of data", "adds to C", "part of C", "adds to the bound")
    out = table(f"contribution of energy arrivals to C ({CONSTANTS[constant].proven_for})", columns)
    parts = result.parts[constant]
    to_bound = 2.0 * result.kappa / (result.mu * (result.gammas[constant] + result.iterations))
    for group in fleet.groups():
        added = float(parts.each[group.clients].sum())
        out.add_row(
            group.label,
            str(len(group.clients)),
            f"{100 * result.shares[group.clients].sum():.1f} %",
            f"{added:.6g}",
            f"{100 * added / parts.total:.1f} %" if parts.total else "-",
            f"{added * to_bound:.6g}",
        )
    if parts.common:
        out.caption = f"{parts.common:.6g} of C is not due to any client"
    return out


def _dealt(text: str, flag: str, clients: int) -> Floats:
    """'1,2' as one number per client, assigned to clients in turn like cycles."""
    values = o.number_list(text, flag)
    if len(values) > clients:
        raise InputError(f"{flag} has {len(values)} numbers for {clients} clients; give at most one per client.")
    return np.resize(np.asarray(values), clients)
