"""`everfed tune`: settings for each method, chosen on held-out samples under one budget."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from everfed.cli import options as o
from everfed.cli.engine import executor
from everfed.cli.screen import Screen, Stop, many_runs
from everfed.report.lines import show
from everfed.store.runner import DEFAULT_CHECKPOINT_S
from everfed.studies import sweep
from everfed.studies.tuning import MOST_STEPS, SEEDS, VALIDATION, Trial, Tuned, tune

TUNE_SEEDS = f"{SEEDS[0]}:{SEEDS[-1] + 1}"
Where = tuple[str, str | None, int]  # engine, address, jobs


@o.takes_experiment("digits")
def tune_command(
    raw: dict[str, Any],
    chosen: list[str],
    grid: o.Grid = [],  # noqa: B006 - typer copies it
    methods: o.Methods = o.COMPARED,
    seeds: o.Seeds = TUNE_SEEDS,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Fraction of the training samples to hold out.", show_default=f"the experiment's, or {VALIDATION:g}"
        ),
    ] = None,
    extend: Annotated[
        int, typer.Option(help="Steps by which a numeric grid is extended if the best value is at its edge.")
    ] = MOST_STEPS,
    budget: Annotated[int, typer.Option(help="Maximum runs per method, extensions included; 0: no limit.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the result.", rich_help_panel="Output")] = Path(
        "everfed-out/tune"
    ),
    jobs: o.Jobs = 0,
    engine: o.Engine = "local",
    address: o.Address = None,
    checkpoint_every: o.CheckpointEvery = DEFAULT_CHECKPOINT_S,
    json: o.Json = False,
    quiet: o.Quiet = False,
    no_color: o.NoColor = False,
    debug: o.Debug = False,
) -> None:
    """Choose the learning rate, or any keys, for each method on held-out samples, never on test data.

    Every method has the same candidates, seeds and rounds. A candidate's score is the validation accuracy, averaged
    over the evaluations in the last tenth of the rounds and over the seeds; ties go to the smaller value. Without
    --grid, it tries client.lr at 1/4 to 4 times the experiment's value. If restarted, it skips finished runs. The
    result, tuned.toml, is an experiment file with a table per method.

    Example: everfed tune digits --grid client.lr=0.1,0.2,0.4, then: everfed compare everfed-out/tune/tuned.toml
    """
    screen = Screen(json, quiet, no_color)
    axes = o.grid_axes(grid)
    o.check_chosen(chosen, ["method", *axes])
    found = tuned(
        screen, raw, axes, o.method_list(methods), o.seed_list(seeds), out, (engine, address, jobs),
        {"checkpoint_s": checkpoint_every}, validation=validation, extend=extend, budget=budget or None,
    )  # fmt: skip
    toml, table = found.save(out)
    if json:
        screen.json({**found.to_dict(), "file": str(toml)})
    else:
        screen.out.print(trial_table(found))
        screen.out.print(f"experiment file: {toml}; all trials: {table}", markup=False)


def tuned(
    screen: Screen,
    raw: dict[str, Any],
    axes: dict[str, list[Any]],
    methods: list[str],
    seeds: list[int],
    out: Path,
    where: Where,
    options: dict[str, Any],
    **limits: Any,
) -> Tuned:
    """Tune with progress on the screen; Ctrl-C saves and prints how to resume."""
    with Stop(screen) as stop:
        found = tune(
            raw, axes or None, methods=methods, seeds=seeds, out=out,
            run=_runner(screen, where, options, stop), **limits,
        )  # fmt: skip
    for note in found.notes:
        screen.note(note)
    return found


def _runner(
    screen: Screen, where: Where, options: dict[str, Any], stop: Stop
) -> Callable[[Sequence[sweep.Planned]], None]:
    done = 0

    def run(runs: Sequence[sweep.Planned]) -> None:
        nonlocal done
        screen.note(f"{'tuning' if not done else 'the grid is extended'}: {len(runs)} runs.")
        done += len(runs)
        with executor(*where, runs[0].experiment) as spread, many_runs(runs, screen) as progress:
            sweep.run_all(
                runs, jobs=where[2] or None, on_progress=progress, stop=stop, executor=spread, **options
            )  # fmt: skip
        if stop():
            screen.err.print("stopped; resume with:", markup=False)
            screen.err.print(f"  everfed {shlex.join(sys.argv[1:])}", markup=False)
            raise typer.Exit(130)

    return run


def trial_table(found: Tuned) -> Table:
    """One row per method and, for one key, one column per value; the chosen one is marked."""
    seeds = f"{len(found.seeds)} seed{'s' * (len(found.seeds) != 1)}"
    title = f"validation accuracy %, mean over {seeds}"
    out = Table(title=title, title_justify="left", caption_justify="left")
    out.caption = f"*: chosen; {found.runs_per_method} runs of each method; diverged: under at least one seed"
    out.add_column("method")
    if len(found.grid) == 1:
        ((key, values),) = found.grid.items()
        for value in values:
            out.add_column(f"{key}\n{show(value)}", justify="right", no_wrap=True)
        for method in found.methods:
            mine = [trial for trial in found.trials if trial.method == method]
            out.add_row(method, *(_cell(trial, trial is found.best(method)) for trial in mine))
        return out
    for name in (*found.grid, "score"):
        out.add_column(name, justify="right")
    for method in found.methods:
        best = found.best(method)
        out.add_row(method, *(show(value) for value in best.settings.values()), _cell(best, True))
    return out


def _cell(trial: Trial, best: bool) -> str:
    if None in trial.scores:
        return "diverged"
    said = f"{100 * trial.score:.1f}" if trial.score >= 0 else f"loss {-trial.score:.4g}"
    return f"{said}*" if best else said
