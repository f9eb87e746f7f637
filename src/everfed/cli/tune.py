"""`everfed tune`: settings for each method, chosen on held-out samples under one budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from everfed.checks import CountOrZero, check_folder
from everfed.cli import options as o
from everfed.cli.engine import executor
from everfed.cli.screen import Screen, many_runs
from everfed.cli.stopping import Stop
from everfed.errors import counted
from everfed.report.lines import show
from everfed.store import StoredRun
from everfed.studies import sweep
from everfed.studies.tuning import MOST_STEPS, SEEDS, VALIDATION, Trial, Tuned, tune
from everfed.studies.yardstick import Yardstick

TUNE_SEEDS = f"{SEEDS[0]}:{SEEDS[-1] + 1}"


@o.takes_experiment("digits")
def tune_command(
    raw: dict[str, Any],
    chosen: list[str],
    grid: o.Grid = [],  # noqa: B006 - typer copies it
    methods: o.Methods = o.COMPARED,
    seeds: o.Seeds = TUNE_SEEDS,
    validation: Annotated[
        float | None,
        "[0, 1)",
        typer.Option(
            help="Fraction of the training samples to hold out.", show_default=f"the experiment's, or {VALIDATION:g}"
        ),
    ] = None,
    extend: Annotated[
        CountOrZero, typer.Option(help="Steps by which a numeric grid is extended if the best value is at its edge.")
    ] = MOST_STEPS,
    budget: Annotated[CountOrZero, typer.Option(help="Maximum runs per method, extensions included; 0: no limit.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the result.", rich_help_panel="Output")] = Path(
        "everfed-out/tune"
    ),
    *,
    work: o.Work,
    screen: Screen,
) -> None:
    """Choose the learning rate, or any keys, for each method on held-out samples, never on test data.

    Every method has the same candidates, seeds and rounds. A candidate's score is the validation accuracy (without
    classes: the loss), averaged over the evaluations in the last tenth of the rounds and over the seeds; ties go to the
    smaller value. Without --grid, it tries client.lr at 1/4 to 4 times the experiment's value. If restarted, it skips
    finished runs. The result, tuned.toml, is an experiment file with a table per method.

    Example: everfed tune digits --grid client.lr=0.1,0.2,0.4, then: everfed compare everfed-out/tune/tuned.toml
    """
    axes = o.grid_axes(grid)
    o.check_chosen(chosen, ["method", *axes])
    check_folder(out, "--out")
    found = tuned(
        screen, work, raw, axes, o.method_list(methods), o.seed_list(seeds), out,
        validation=validation, extend=extend, budget=budget or None,
    )  # fmt: skip
    toml, table = found.save(out)
    if screen.as_json:
        screen.json({**found.to_dict(), "file": str(toml)})
    else:
        screen.out.print(trial_table(found))
        screen.out.print(f"experiment file: {toml}; all trials: {table}")


def tuned(
    screen: Screen,
    work: o.Work,
    raw: dict[str, Any],
    axes: dict[str, list[Any]],
    methods: list[str],
    seeds: list[int],
    out: Path,
    **limits: Any,
) -> Tuned:
    """Tune with progress on the screen; Ctrl-C saves and prints how to resume."""
    done = 0

    def run(runs: Sequence[sweep.Planned]) -> None:
        nonlocal done
        screen.note(f"{'tuning' if not done else 'the grid is extended'}: {counted(len(runs), 'run')}.")
        done += len(runs)
        carried_out(screen, work, runs, stop)
        if stop():
            stop.exit("stopped; resume with:")

    with Stop(screen) as stop:
        found = tune(raw, axes or None, methods=methods, seeds=seeds, out=out, run=run, **limits)
    for note in found.notes:
        screen.note(note)
    return found


def carried_out(
    screen: Screen, work: o.Work, runs: Sequence[sweep.Planned], stop: Stop, **options: Any
) -> list[StoredRun]:
    """Execute runs, with progress on the screen."""
    with executor(work, runs[0].experiment) as spread, many_runs(runs, screen) as progress:
        return sweep.run_all(
            runs, jobs=work.jobs or None, checkpoint_s=work.checkpoint_every, on_progress=progress, stop=stop,
            mixed_versions=work.mixed_versions, under_way=stop.under_way, executor=spread, **options,
        )  # fmt: skip


def trial_table(found: Tuned) -> Table:
    """One row per method and, for one key, one column per value; the chosen one is marked."""
    title = f"validation {found.judged.label}, mean over {counted(len(found.seeds), 'seed')}"
    out = Table(title=title, title_justify="left", caption_justify="left")
    out.caption = f"*: chosen; {found.runs_per_method} runs of each method; diverged: under at least one seed"
    out.add_column("method")
    if len(found.grid) == 1:
        ((key, values),) = found.grid.items()
        for value in values:
            out.add_column(f"{key}\n{show(value)}", justify="right", no_wrap=True)
        for method in found.methods:
            mine = [trial for trial in found.trials if trial.method == method]
            out.add_row(method, *(_cell(trial, found.judged, trial is found.best(method)) for trial in mine))
        return out
    for name in (*found.grid, found.judged.name):
        out.add_column(name, justify="right")
    for method in found.methods:
        best = found.best(method)
        out.add_row(method, *(show(value) for value in best.settings.values()), _cell(best, found.judged, True))
    return out


def _cell(trial: Trial, judged: Yardstick, best: bool) -> str:
    if None in trial.scores:
        return "diverged"
    said = judged.text(trial.score if judged.higher_is_better else -trial.score)
    return f"{said}*" if best else said
