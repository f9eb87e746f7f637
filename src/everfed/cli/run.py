"""`everfed run`: one experiment, shown round by round and stored on disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from everfed.checks import CountOrZero, check_folder
from everfed.cli import options as o
from everfed.cli.engine import maker
from everfed.cli.screen import Screen, spent_energy, watched
from everfed.cli.stopping import Stop
from everfed.energy.calendar import part_of_year
from everfed.energy.physical import DeviceFleet
from everfed.learning.task import Task
from everfed.report.lines import evaluated_on
from everfed.report.notes import silence
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.loop import Run
from everfed.run.start import start
from everfed.store import StoredRun, open_run, stored_rounds
from everfed.store.runner import DEFAULT_CHECKPOINT_S
from everfed.store.trackers import tracked
from everfed.studies.sweep import folder_name
from everfed.trainers.timing import step_time


@o.takes_experiment("digits", o.ONE_METHOD)
def run(
    raw: dict[str, Any],
    seed: o.Seed = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder (default: everfed-out/runs/, named after the experiment).")
    ] = None,
    checkpoint_every: o.CheckpointEvery = DEFAULT_CHECKPOINT_S,
    on_divergence: o.OnDivergence = "stop",
    mixed_versions: o.MixedVersions = False,
    track: o.Track = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print how each part of the model would be trained, and exit.")
    ] = False,
    workers: Annotated[
        CountOrZero,
        typer.Option(
            help="Ray: worker processes for the clients of a round; 0: one per GPU or CPU.", rich_help_panel=o.CLUSTER
        ),
    ] = 0,
    client_state: Annotated[
        str | None,
        ("worker", "driver"),
        typer.Option(
            help="Ray: where clients' optimiser state is kept, worker or driver.",
            show_default="worker",
            rich_help_panel=o.CLUSTER,
        ),
    ] = None,
    *,
    place: o.Place,
    screen: Screen,
) -> None:
    """Train one model with one method.

    The run is stored in a folder. If it is interrupted (Ctrl-C saves it first), the same command resumes it and ends
    with the same model.
    [bold]everfed plan[/bold] shows beforehand which clients train when, and [bold]everfed audit[/bold] whether the
    schedule is biased. --explain only prints how the model would be trained on this machine.

    Example: everfed run digits --method greedy --rounds 200 --set client.lr=0.1
    """
    if seed is not None:
        config.change(raw, "seed", seed)
    experiment = config.from_dict(raw)
    if explain:
        _explain(experiment, on_divergence, screen)
        return
    folder = check_folder(out or Path("everfed-out/runs") / folder_name(experiment), "--out")
    if isinstance(experiment.fleet, DeviceFleet) and (said := part_of_year(experiment.fleet, experiment.rounds)):
        screen.note(said)
    began = time.perf_counter()

    def on_start(run: Run) -> None:
        for what in run.server.rule.explain():  # before the first round, since it may not fit
            screen.note(f"the server keeps {what}.")
        stop.under_way(True)

    with maker(place, workers, client_state, on_divergence) as make, Stop(screen) as stop:
        rounds = stored_rounds(
            experiment,
            folder,
            checkpoint_s=checkpoint_every,
            on_divergence=on_divergence,
            mixed_versions=mixed_versions,
            stop=stop,
            make=make,
            on_start=on_start,
        )
        followed = tracked(rounds, track or [], experiment, folder)
        done = sum(1 for _ in watched(followed, experiment.rounds, screen, experiment.fleet.energy_unit))
    stored = open_run(folder)
    if stored.state != "done":
        stop.exit(f"stopped after round {len(stored.rounds)} of {experiment.rounds}; resume with:")
    if done == 0:
        screen.note(
            f"this run is already done, in {folder}; choose another folder with --out, or delete it, to run it again."
        )
    seconds = time.perf_counter() - began
    silent = silence(stored)
    if silent:
        screen.note(silent)
    if screen.as_json:
        screen.json(_result(stored, seconds))
    else:
        screen.out.print(_table(stored, seconds))


def _explain(experiment: Experiment, on_divergence: str, screen: Screen) -> None:
    run = start(experiment, on_divergence=on_divergence)
    device, how, kept = run.setup.device.type, run.source.training(), run.server.rule.explain()
    trainer = getattr(run.source, "trainer", None)
    task = getattr(trainer, "task", None)  # a trainer of somebody's own may have none
    times = step_time(trainer, task) if trainer is not None and isinstance(task, Task) else None
    if screen.as_json:
        said = {"device": device, "precision": experiment.precision, **how.to_dict(), "server_keeps": kept}
        screen.json({**said, "times": times.to_dict() if times else None})
        return
    rows = {
        "device": device,
        "precision": experiment.precision,
        "trainer": how.trainer,
        "clients at once": f"up to {how.at_once:,}",
        "checked": how.check.said() if how.check else "no",
        **({"the server keeps": kept[0]} if kept else {}),
        "parts of the model": "",
    }
    lines = [*(f"{name:<20}{value}".rstrip() for name, value in rows.items()), *(f"  {part}" for part in how.parts)]
    if times:
        first, *rest = times.said()
        lines += [f"{'a local step':<20}{first}", *rest]
    screen.out.print("\n".join(lines), soft_wrap=True)


def _result(run: StoredRun, seconds: float) -> dict[str, Any]:
    return {
        "experiment": config.to_dict(run.experiment),
        "method": run.experiment.method,
        "final": run.final.to_dict() if run.final else None,
        **run.ending(),
        "participations": run.participations,
        "never_trained": silence(run),
        "energy": run.energy.to_dict(),
        "rounds": [record.to_dict() for record in run.rounds],
        "seconds": seconds,
        "folder": str(run.path),
    }


def _table(run: StoredRun, seconds: float) -> Table:
    final, energy, e = run.final, run.energy, run.experiment
    length = f"{e.rounds} rounds{' of time' * e.asynchronous}"
    title = f"{e.title} on {config.to_dict(e.data)['kind']}, {length}, seed {e.seed}"
    out = Table(title=title, title_justify="left", show_header=False)
    out.add_column(style="bold")
    out.add_column(justify="right")
    if final:
        if final.accuracy is not None:
            out.add_row(f"{evaluated_on([run])} accuracy", f"{100 * final.accuracy:.1f} %")
            for label, value in (final.group_accuracy or {}).items():
                out.add_row(f"  as group {label} sees it", f"{100 * value:.1f} %")
        out.add_row(f"{evaluated_on([run])} loss", f"{final.loss:.4f}")
        if final.accuracy is None:
            for label, value in (final.group_loss or {}).items():
                out.add_row(f"  as group {label} sees it", f"{value:.4f}")
        for name, value in final.own.items():
            out.add_row(f"{evaluated_on([run])} {name}", f"{value:.4g}")
    if watched := run.validation:
        out.add_row(f"validation {e.early_stopping.metric}", f"{watched.value(e.early_stopping.metric):.4g}")
        early = f", stopped early after {len(run.rounds)}" if len(run.rounds) < e.rounds else ""
        out.add_row("model of", f"round {run.model_round}{early}")
    for row in _took_part(run):
        out.add_row(*row)
    books = (energy.harvested, energy.spent, energy.wasted)

    def amounts(*values: float) -> str:
        return " / ".join(spent_energy(value, e.fleet.energy_unit) for value in values)

    out.add_row("energy harvested / spent / wasted", amounts(*books))
    if energy.standby or energy.leaked:
        out.add_row("drawn between rounds / leaked", amounts(energy.standby, energy.leaked))
    if energy.brownouts:
        out.add_row(f"{'works' if e.asynchronous else 'rounds'} lost to empty batteries", f"{energy.brownouts:,}")
    if energy.violations:
        out.add_row("spent beyond what was harvested", amounts(energy.shortfall))
    dropped = sum(len(r.dropped) for r in run.rounds)
    if dropped:
        out.add_row("updates ignored (not finite)", f"{dropped:,}")
    out.add_row("seconds", f"{seconds:.1f}")
    out.add_row("folder", str(run.path))
    return out


def _took_part(run: StoredRun) -> Iterator[tuple[str, str]]:
    """How much was trained: rounds of clients, or what arrived from clients that have none."""
    arrived = [record.arrived for record in run.rounds if record.arrived]
    if not arrived:
        yield "participations", f"{run.participations:,}"
        return
    yield "updates that arrived", f"{run.participations:,}"
    yield "versions of the model", f"{arrived[-1].version:,}"
    stale = np.concatenate([one.staleness for one in arrived])
    if len(stale):
        yield "staleness in versions, mean / most", f"{stale.mean():.1f} / {stale.max():,}"
        steps = np.concatenate([one.steps for one in arrived])
        if steps.min() < run.experiment.local_steps:
            yield "local steps of an update, mean", f"{steps.mean():.1f} of {run.experiment.local_steps}"
