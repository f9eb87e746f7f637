"""`everfed sweep` and `everfed compare`: many runs, a summary table, a report and a picture."""

from __future__ import annotations

import json as json_module
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from everfed import config, report, sweep
from everfed.cli import options as o
from everfed.cli.engine import executor
from everfed.cli.screen import Screen, Stop, many_runs
from everfed.errors import lookup
from everfed.methods import METHODS
from everfed.store import StoredRun
from everfed.store.checkpoint import write_atomically
from everfed.store.runner import DEFAULT_CHECKPOINT_S


@o.takes_experiment("digits")
def compare(
    raw: dict[str, Any],
    methods: Annotated[
        str, typer.Option(help=f"Which methods, with commas: {', '.join(METHODS)}.", rich_help_panel="Training")
    ] = ",".join(sweep.COMPARED),
    seeds: o.Seeds = "3",
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.", rich_help_panel="Output")] = Path(
        "everfed-out/compare"
    ),
    jobs: o.Jobs = 0,
    engine: o.Engine = "local",
    address: o.Address = None,
    checkpoint_every: o.CheckpointEvery = DEFAULT_CHECKPOINT_S,
    on_divergence: o.OnDivergence = "stop",
    track: o.Track = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    no_color: o.NoColor = False,
    debug: o.Debug = False,
) -> None:
    """Compare methods under one energy profile: who learns what, and what it costs.

    Algorithm 1 (each client picks a random round in every window and scales its update), greedy (train as soon as
    there is energy), wait-for-all, and FedAvg with unlimited energy as the upper bound. All methods of one seed meet
    the same data split, initial weights and minibatches. It is a sweep over methods and seeds.

    Example: everfed compare digits-dirichlet --seeds 5
    """
    screen = Screen(json, quiet, no_color)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    for name in names:
        lookup(METHODS, name, "method")
    options = {"checkpoint_s": checkpoint_every, "on_divergence": on_divergence, "trackers": track or []}
    _sweep(screen, raw, {"method": names}, seeds, out, (engine, address, jobs), options)


@o.takes_experiment("digits")
def sweep_command(
    raw: dict[str, Any],
    grid: Annotated[
        list[str],
        typer.Option("--grid", metavar="KEY=V,V", help="Values to try, such as client.lr=0.01,0.1. Repeatable."),
    ] = [],  # noqa: B006 - typer copies it
    seeds: o.Seeds = "3",
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.", rich_help_panel="Output")] = Path(
        "everfed-out/sweep"
    ),
    jobs: o.Jobs = 0,
    engine: o.Engine = "local",
    address: o.Address = None,
    checkpoint_every: o.CheckpointEvery = DEFAULT_CHECKPOINT_S,
    on_divergence: o.OnDivergence = "stop",
    track: o.Track = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    no_color: o.NoColor = False,
    debug: o.Debug = False,
) -> None:
    """Run a grid of settings over seeds, and summarise it.

    Started again, it skips what is done and resumes what was cut off; a larger grid in the same folder adds to it.

    Example: everfed sweep digits --seeds 0:5 --grid client.lr=0.05,0.2 --grid policy=algorithm1,greedy
    """
    screen = Screen(json, quiet, no_color)
    options = {"checkpoint_s": checkpoint_every, "on_divergence": on_divergence, "trackers": track or []}
    _sweep(screen, raw, o.grid_axes(grid), seeds, out, (engine, address, jobs), options)


def _sweep(
    screen: Screen,
    raw: dict[str, Any],
    axes: dict[str, list[Any]],
    seeds: str,
    out: Path,
    where: tuple[str, str | None, int],
    options: dict[str, Any],
) -> None:
    began = time.perf_counter()
    runs = sweep.plan_runs(raw, axes, o.seed_list(seeds), out / "runs")
    before = sum((run.folder / "result.json").exists() for run in runs)
    if before:
        screen.note(f"{before} of {len(runs)} runs in {out} were done already; delete the folder to run them again.")
    with executor(*where, runs[0].experiment) as spread, Stop(screen) as stop, many_runs(runs, screen) as show:
        stored = sweep.run_all(runs, jobs=where[2] or None, on_progress=show, stop=stop, executor=spread, **options)
    if stop():
        done = sum(run.state == "done" for run in stored)
        screen.err.print(f"stopped; {done} of {len(runs)} runs are done. Resume with:", markup=False)
        screen.err.print(f"  everfed {shlex.join(sys.argv[1:])}", markup=False)
        raise typer.Exit(130)
    _conclude(screen, runs, stored, out, began)


def _conclude(screen: Screen, runs: list[sweep.Planned], stored: list[StoredRun], out: Path, began: float) -> None:
    """The summary, the page and the picture of a finished sweep."""
    labelled = [(run.label, result) for run, result in zip(runs, stored, strict=True)]
    summary = report.with_measures(sweep.summarize(labelled), labelled)
    by_label = {label: [run for name, run in labelled if name == label] for label, _ in labelled}
    notes = report.silences(by_label.items())
    finished = [run for run in stored if run.final]
    failed = [run for run in stored if run.state != "done"]
    page = picture = None
    if summary:
        page = report.page(finished, out / "report.html")
        picture = report.figure(finished, out / "figure.png")  # a summary has accuracies, so there is one to draw
    result = {"methods": summary, "seconds": time.perf_counter() - began, "report": str(page) if page else None}
    result["notes"] = notes
    content = {**result, "figure": str(picture) if picture else None, "experiment": config.to_dict(runs[0].experiment)}
    write_atomically(out / "summary.json", json_module.dumps(content, indent=1) + "\n")
    if screen.as_json:
        screen.json(result)
    else:
        titles = {run.label: run.experiment.title for run in runs}
        screen.out.print(report.table(summary, titles, finished))
        screen.out.print(f"{result['seconds']:.0f} s; report: {page}; picture: {picture}", markup=False)
    for note in notes:
        screen.note(note)
    if failed:
        screen.err.print(f"{len(failed)} of {len(runs)} runs did not finish: see the notes above.", markup=False)
        raise typer.Exit(1)
