"""`everfed run`: one method, one seed, watched round by round."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from everfed.cli import options as o
from everfed.experiment import Experiment
from everfed.methods import METHODS
from everfed.simulate import History, RoundRecord

_DEFAULTS = Experiment()


def run(
    method: o.MethodName = _DEFAULTS.method,
    data: o.Data = _DEFAULTS.data,
    split: o.Split = _DEFAULTS.split,
    strength: o.Strength = _DEFAULTS.strength,
    alpha: o.Alpha = _DEFAULTS.alpha,
    per: o.Per = _DEFAULTS.per,
    model: o.Model = _DEFAULTS.model,
    clients: o.Clients = _DEFAULTS.clients,
    cycles: o.Cycles = "1,5,10,20",
    offsets: o.Offsets = "",
    arrivals: o.ArrivalsName = _DEFAULTS.arrivals,
    capacity: o.Capacity = 0.0,
    rounds: o.Rounds = _DEFAULTS.rounds,
    local_steps: o.LocalSteps = _DEFAULTS.local_steps,
    batch_size: o.BatchSize = _DEFAULTS.batch_size,
    optimizer: o.OptimizerName = _DEFAULTS.optimizer,
    lr: o.LearningRate = _DEFAULTS.lr,
    schedule: o.ScheduleName = _DEFAULTS.schedule,
    momentum: o.Momentum = _DEFAULTS.momentum,
    weight_decay: o.WeightDecay = _DEFAULTS.weight_decay,
    keep_state: o.KeepState = _DEFAULTS.keep_state,
    eval_every: o.EvalEvery = 0,
    trainer: o.TrainerName = _DEFAULTS.trainer,
    seed: o.Seed = 0,
    device: o.Device = _DEFAULTS.device,
    save: Annotated[Path | None, typer.Option(help="Write the trained model's state_dict here (torch.save).")] = None,
    json: o.Json = False,
    quiet: o.Quiet = False,
    no_color: o.NoColor = False,
    debug: o.Debug = False,
) -> None:
    """Train one model with one method and say how it went.

    The energy profile decides who trains when; see it beforehand with [bold]everfed plan[/bold], and what it does to
    training with [bold]everfed audit[/bold].

    Example: everfed run --method greedy --cycles 1,50 --clients 20 --rounds 500
    """
    screen = o.Screen(json, quiet, no_color)
    experiment = Experiment(
        data=data, split=split, alpha=alpha, per=per, strength=strength, clients=clients,
        cycles=o.whole_numbers(cycles, "--cycles"), offsets=o.whole_numbers(offsets, "--offsets") or None,
        arrivals=arrivals, capacity=capacity or None, method=method, model=model, optimizer=optimizer, lr=lr,
        schedule=schedule, momentum=momentum, weight_decay=weight_decay, keep_state=keep_state, rounds=rounds,
        local_steps=local_steps, batch_size=batch_size, eval_every=eval_every or None, seed=seed, device=device,
        trainer=trainer,
    )  # fmt: skip
    began = time.perf_counter()
    simulation = experiment.simulation()
    history = History(list(_watched(simulation, len(simulation), screen)), simulation.params)
    seconds = time.perf_counter() - began
    if save:
        _save(history, save)
    if json:
        screen.json(_result(experiment, history, seconds))
    else:
        screen.out.print(_table(experiment, history, seconds))


def _watched(records: Iterable[RoundRecord], total: int, screen: o.Screen) -> Iterable[RoundRecord]:
    """The same records, with a progress bar beside them."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[trained]:>3} training  accuracy {task.fields[accuracy]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen.err, disable=screen.quiet, transient=True) as bar:
        task = bar.add_task("", total=total, trained=0, accuracy="-")
        accuracy = "-"
        for record in records:
            if record.metrics and record.metrics.accuracy is not None:
                accuracy = f"{100 * record.metrics.accuracy:.1f} %"
                if not screen.err.is_terminal:
                    screen.err.print(f"round {record.round + 1}/{total}  accuracy {accuracy}")
            bar.update(task, advance=1, trained=len(record.participants), accuracy=accuracy)
            yield record


def _result(experiment: Experiment, history: History, seconds: float) -> dict[str, Any]:
    return {
        "experiment": experiment.to_dict(),
        "final": history.final.to_dict() if history.final else None,
        "participations": history.participations,
        "energy": history.energy.to_dict(),
        "rounds": [record.to_dict() for record in history.rounds],
        "seconds": seconds,
    }


def _table(experiment: Experiment, history: History, seconds: float) -> Table:
    final, energy = history.final, history.energy
    e = experiment
    title = f"{METHODS[e.method].title} on {e.data}, {e.rounds} rounds, seed {e.seed}"
    out = Table(title=title, title_justify="left", show_header=False)
    out.add_column(style="bold")
    out.add_column(justify="right")
    if final and final.accuracy is not None:
        out.add_row("test accuracy", f"{100 * final.accuracy:.1f} %")
        for label, value in (final.group_accuracy or {}).items():
            out.add_row(f"  as group {label} sees it", f"{100 * value:.1f} %")
    if final:
        out.add_row("test loss", f"{final.loss:.4f}")
    out.add_row("participations", f"{history.participations:,}")
    books = (energy.harvested, energy.spent, energy.wasted)
    out.add_row("energy harvested / spent / wasted", " / ".join(f"{amount:,.0f}" for amount in books))
    if energy.violations:
        out.add_row("spent without being there", f"{energy.shortfall:,.0f}")
    out.add_row("seconds", f"{seconds:.1f}")
    return out


def _save(history: History, path: Path) -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(history.params, path)
