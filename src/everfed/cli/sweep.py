"""`everfed sweep` and `everfed compare`: many runs, a summary table, a report and a picture."""

from __future__ import annotations

import json as json_module
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from everfed import report
from everfed.cli import options as o
from everfed.cli.engine import executor
from everfed.cli.screen import Screen, Stop, many_runs
from everfed.cli.tune import TUNE_SEEDS, trial_table, tuned
from everfed.errors import InputError, some
from everfed.run import config
from everfed.store import StoredRun
from everfed.store.checkpoint import write_atomically
from everfed.store.runner import DEFAULT_CHECKPOINT_S
from everfed.studies import sweep
from everfed.studies.comparison import differences, incomparable, reference_of, summarize, unfinished


@o.takes_experiment("digits")
def compare(
    raw: dict[str, Any],
    chosen: list[str],
    methods: o.Methods = o.COMPARED,
    seeds: o.Seeds = "5",
    tune: Annotated[
        bool,
        typer.Option("--tune", help="First choose client.lr, or --grid's keys, for each method on held-out data."),
    ] = False,
    grid: o.Grid = [],  # noqa: B006 - typer copies it
    tune_seeds: Annotated[str, typer.Option(help="Seeds to tune on; never those that are reported.")] = TUNE_SEEDS,
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
    the same data split, initial weights and minibatches, so differences are told pair by pair. It is a sweep over
    methods and seeds; settings of one method alone come from its table in the experiment file, as everfed tune writes
    them, or are chosen first with --tune.

    Example: everfed compare digits-dirichlet --seeds 10
    """
    screen = Screen(json, quiet, no_color)
    names, where = o.method_list(methods), (engine, address, jobs)
    axes = o.grid_axes(grid)
    o.check_chosen(chosen, ["method", *axes])
    if axes and not tune:
        raise InputError("--grid says what to tune, and --tune is not given; add it, or use everfed sweep for a grid.")
    if tune:
        same = sorted(set(o.seed_list(tune_seeds, "--tune-seeds")) & set(o.seed_list(seeds)))
        if same:
            raise InputError(f"seed {some(same)} is both tuned on and reported; give --tune-seeds others than --seeds.")
        beside = out.with_name(f"{out.name}-tune")  # not inside: a report on the folder is on what is compared
        found = tuned(
            screen, raw, axes, names, o.seed_list(tune_seeds), beside, where, {"checkpoint_s": checkpoint_every}
        )
        found.save(beside)
        if not json:
            screen.out.print(trial_table(found))
        raw = found.content()
    options = {"checkpoint_s": checkpoint_every, "on_divergence": on_divergence, "trackers": track or []}
    _sweep(screen, raw, {"method": names}, seeds, out, where, options)


@o.takes_experiment("digits")
def sweep_command(
    raw: dict[str, Any],
    chosen: list[str],
    grid: o.Grid = [],  # noqa: B006 - typer copies it
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
    axes = o.grid_axes(grid)
    o.check_chosen(chosen, axes)
    _sweep(screen, raw, axes, seeds, out, (engine, address, jobs), options)


def _tell_untuned(screen: Screen, raw: dict[str, Any], runs: list[sweep.Planned]) -> None:
    """A method with settings of its own is compared with one that has none: say so.

    A grid over parts of a method makes other methods of it, which do not have its table either.
    """
    swept = {key for run in runs for key in run.settings}
    in_parts = any(key.split(".")[0] in ("policy", "server") for key in swept)
    named = [run.experiment.method if in_parts else run.settings.get("method", run.experiment.method) for run in runs]
    names = list(dict.fromkeys(named))
    tables = config.method_settings(raw.get("methods", {}))
    own = [n for n in names if any(not _of_grid(key, swept) for key in tables.get(n, {}))]
    without = [name for name in names if name not in own]
    if own and without:
        way_out = "add --tune to choose them alike" if swept == {"method"} else "set them for all with --set or --grid"
        screen.note(
            f"{', '.join(without)} has no settings of its own in this experiment, as {', '.join(own)} "
            f"ha{'s' if len(own) == 1 else 've'}; {way_out}."
        )


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
    _tell_untuned(screen, raw, runs)
    if same := sorted(set(config.tuned_on(raw)) & set(o.seed_list(seeds))):
        screen.note(f"the experiment's settings were chosen on seed {some(same)} as well; report on other seeds.")
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
    summary = report.with_measures(summarize(labelled), labelled)
    reference = reference_of(list(summary))
    apart = differences(labelled, reference) if reference else {}
    by_label = {label: [run for name, run in labelled if name == label] for label, _ in labelled}
    notes = report.silences(by_label.items()) + (incomparable(labelled, reference) if reference else [])
    finished = [run for run in stored if run.final]
    failed = [run for run in stored if run.state != "done"]
    page = picture = None
    if any(run.rounds for run in stored):
        page = report.page(stored, out / "report.html")
    if summary:
        picture = report.figure(finished, out / "figure.png")  # a summary has accuracies, so there is one to draw
    own = _own_settings(runs)
    result = {
        "methods": summary,
        "own_settings": own,
        "unfinished": unfinished(labelled),
        "differences": {"reference": reference, "methods": apart},
        "seconds": time.perf_counter() - began,
        "report": str(page) if page else None,
        "notes": notes,
    }
    content = {**result, "figure": str(picture) if picture else None, "experiment": config.to_dict(runs[0].experiment)}
    write_atomically(out / "summary.json", json_module.dumps(content, indent=1) + "\n")
    if screen.as_json:
        screen.json(result)
    else:
        titles = {run.label: run.experiment.title for run in runs}
        screen.out.print(report.table(summary, titles, finished, apart, reference))
        for key, values in own.items():
            said = ", ".join(f"{value} {label}" for label, value in values.items())
            screen.out.print(f"{key}: {said}", markup=False)
        screen.out.print(f"{result['seconds']:.0f} s; report: {page}; picture: {picture}", markup=False)
    for note in notes:
        screen.note(note)
    if failed:
        screen.err.print(f"{len(failed)} of {len(runs)} runs did not finish: see the notes above.", markup=False)
        raise typer.Exit(1)


def _own_settings(runs: list[sweep.Planned]) -> dict[str, dict[str, Any]]:
    """{"client.lr": {"algorithm1": 0.8, "greedy": 1.6}}: keys that differ between labels and are in no grid."""
    flat = {run.label: config.flat(config.to_dict(run.experiment)) for run in runs}
    swept = {key for run in runs for key in run.settings}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    out = {}
    for key in keys:
        values = {label: mine.get(key) for label, mine in flat.items()}
        told = key in ("seed", "plugins") or _of_grid(key, swept)
        if not told and len({str(value) for value in values.values()}) > 1:
            out[key] = values
    return out


def _of_grid(key: str, swept: set[str]) -> bool:
    return any(sweep.overwritten(key, axis) for axis in swept)
