"""`everfed sweep` and `everfed compare`: many runs, a summary table, a report and a figure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from everfed.checks import check_folder
from everfed.cli import options as o
from everfed.cli.screen import Screen
from everfed.cli.stopping import Stop
from everfed.cli.tune import TUNE_SEEDS, carried_out, trial_table, tuned
from everfed.errors import InputError, some
from everfed.report.conclusion import conclude, of_grid
from everfed.run import config
from everfed.store import StoredRun
from everfed.studies import sweep


@o.takes_experiment("digits")
def compare(
    raw: dict[str, Any],
    chosen: list[str],
    methods: o.Methods = o.COMPARED,
    seeds: o.Seeds = "5",
    tune: Annotated[
        bool,
        typer.Option("--tune", help="First tune client.lr, or the keys of --grid, for each method on held-out data."),
    ] = False,
    grid: o.Grid = [],  # noqa: B006 - typer copies it
    tune_seeds: Annotated[str, typer.Option(help="Seeds to tune on; must differ from --seeds.")] = TUNE_SEEDS,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.", rich_help_panel="Output")] = Path(
        "everfed-out/compare"
    ),
    on_divergence: o.OnDivergence = "stop",
    track: o.Track = None,
    *,
    work: o.Work,
    screen: Screen,
) -> None:
    """Compare methods on the same fleet: accuracy or loss, energy, and paired differences.

    By default Algorithm 1 (each client picks a random round in every window and scales its update), greedy (train as
    soon as there is energy), wait-for-all, and FedAvg with unlimited energy as the upper bound. With the same seed, all
    methods use the same data split, initial weights and minibatches, so differences are paired. Settings per method
    come from their tables in the experiment file (everfed tune writes them), or are chosen first with --tune.

    Example: everfed compare digits-dirichlet --seeds 10
    """
    names = o.method_list(methods)
    axes = o.grid_axes(grid)
    o.check_chosen(chosen, ["method", *axes])
    if axes and not tune:
        raise InputError("--grid is for --tune, which is not given; add --tune, or use everfed sweep for a grid.")
    if tune:
        same = sorted(set(o.seed_list(tune_seeds, "--tune-seeds")) & set(o.seed_list(seeds)))
        if same:
            raise InputError(
                f"seed {some(same)} is in both --tune-seeds and --seeds; tune and report on different seeds."
            )
        beside = out.with_name(f"{out.name}-tune")  # not inside: reports on the folder must not include it
        found = tuned(screen, work, raw, axes, names, o.seed_list(tune_seeds), beside)
        found.save(beside)
        if not screen.as_json:
            screen.out.print(trial_table(found))
        raw = found.content()
    _sweep(screen, work, raw, {"method": names}, seeds, out, on_divergence=on_divergence, trackers=track or [])


@o.takes_experiment("digits")
def sweep_command(
    raw: dict[str, Any],
    chosen: list[str],
    grid: o.Grid = [],  # noqa: B006 - typer copies it
    seeds: o.Seeds = "3",
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.", rich_help_panel="Output")] = Path(
        "everfed-out/sweep"
    ),
    on_divergence: o.OnDivergence = "stop",
    track: o.Track = None,
    *,
    work: o.Work,
    screen: Screen,
) -> None:
    """Run a grid of settings over seeds, and summarise it.

    Ctrl-C saves and prints the command that resumes. If restarted, it skips finished runs and resumes interrupted ones;
    a larger grid adds runs to the folder.

    Example: everfed sweep digits --seeds 0:5 --grid client.lr=0.05,0.2 --grid policy=algorithm1,greedy
    """
    axes = o.grid_axes(grid)
    o.check_chosen(chosen, axes)
    _sweep(screen, work, raw, axes, seeds, out, on_divergence=on_divergence, trackers=track or [])


def _tell_untuned(screen: Screen, raw: dict[str, Any], runs: list[sweep.Planned]) -> None:
    """Note if one method has its own settings and another does not.

    A grid over parts of a method defines new methods, which do not use its table either.
    """
    swept = {key for run in runs for key in run.settings}
    in_parts = any(key.split(".")[0] in ("policy", "server") for key in swept)
    named = [run.experiment.method if in_parts else run.settings.get("method", run.experiment.method) for run in runs]
    names = list(dict.fromkeys(named))
    tables = config.method_settings(raw.get("methods", {}))
    own = [n for n in names if any(not of_grid(key, swept) for key in tables.get(n, {}))]
    without = [name for name in names if name not in own]
    if own and without:
        way_out = "add --tune to choose them alike" if swept == {"method"} else "set them for all with --set or --grid"
        screen.note(
            f"{', '.join(without)} has no settings of its own in this experiment, but {', '.join(own)} "
            f"ha{'s' if len(own) == 1 else 've'}; {way_out}."
        )


def _sweep(
    screen: Screen,
    work: o.Work,
    raw: dict[str, Any],
    axes: dict[str, list[Any]],
    seeds: str,
    out: Path,
    **options: Any,
) -> None:
    began = time.perf_counter()
    check_folder(out / "runs", "--out")
    runs = sweep.plan_runs(raw, axes, o.seed_list(seeds), out / "runs")
    _tell_untuned(screen, raw, runs)
    if same := sorted(set(config.tuned_on(raw)) & set(o.seed_list(seeds))):
        screen.note(f"the experiment's settings were also tuned on seed {some(same)}; report on other seeds.")
    before = sum((run.folder / "result.json").exists() for run in runs)
    if before:
        screen.note(f"{before} of {len(runs)} runs in {out} are already done; delete the folder to run them again.")
    with Stop(screen) as stop:
        stored = carried_out(screen, work, runs, stop, **options)
    if stop():
        done = sum(run.state == "done" for run in stored)
        stop.exit(f"stopped; {done} of {len(runs)} runs are done. Resume with:")
    _conclude(screen, runs, stored, out, began)


def _conclude(screen: Screen, runs: list[sweep.Planned], stored: list[StoredRun], out: Path, began: float) -> None:
    """Print the summary of a finished sweep, and write its report and figure."""
    seconds = time.perf_counter() - began
    made = conclude(runs, stored, out, seconds)
    failed = len(runs) - sum(run.state == "done" for run in stored)
    if screen.as_json:
        screen.json({**made.to_dict(), "seconds": seconds})
    else:
        screen.out.print(made.table())
        for key, values in made.own_settings.items():
            said = ", ".join(f"{value} {label}" for label, value in values.items())
            screen.out.print(f"{key}: {said}")
        screen.out.print(f"{seconds:.0f} s; report: {made.report}; figure: {made.figure}")
    for note in made.notes:
        screen.note(note)
    if failed:
        screen.err.print(f"{failed} of {len(runs)} runs did not finish: see the notes above.")
        raise typer.Exit(1)
