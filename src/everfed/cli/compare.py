"""`everfed compare`: the paper's comparison, over seeds, with a table and a picture."""

from __future__ import annotations

import json as json_module
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from everfed import report, sweep
from everfed.cli import options as o
from everfed.experiment import Experiment
from everfed.methods import METHODS

_DEFAULTS = Experiment()


def compare(
    methods: Annotated[
        str, typer.Option(help=f"Which methods, with commas: {', '.join(METHODS)}.", rich_help_panel="Training")
    ] = ",".join(sweep.COMPARED),
    seeds: o.Seeds = "3",
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
    device: o.Device = _DEFAULTS.device,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the numbers.", rich_help_panel="Output")] = Path(
        "everfed-out/compare"
    ),
    jobs: Annotated[int, typer.Option(help="Runs side by side on a CPU; 0: one a core.")] = 0,
    json: o.Json = False,
    quiet: o.Quiet = False,
    no_color: o.NoColor = False,
    debug: o.Debug = False,
) -> None:
    """Compare methods under one energy profile: who learns what, and what it costs.

    Algorithm 1 (each client picks a random round in every window and scales its update), greedy (train as soon as
    there is energy), wait-for-all, and FedAvg with unlimited energy as the upper bound. All methods of one seed meet
    the same data split, initial weights and minibatches.

    Example: everfed compare --split dirichlet --alpha 0.1 --seeds 5
    """
    screen = o.Screen(json, quiet, no_color)
    base = Experiment(
        data=data, split=split, alpha=alpha, per=per, strength=strength, clients=clients,
        cycles=o.whole_numbers(cycles, "--cycles"), offsets=o.whole_numbers(offsets, "--offsets") or None,
        arrivals=arrivals, capacity=capacity or None, model=model, optimizer=optimizer, lr=lr, schedule=schedule,
        momentum=momentum, weight_decay=weight_decay, keep_state=keep_state, rounds=rounds, local_steps=local_steps,
        batch_size=batch_size, eval_every=eval_every or None, device=device,
    )  # fmt: skip
    began = time.perf_counter()
    seed_numbers = o.seed_list(seeds)
    experiments = sweep.grid(base, [m.strip() for m in methods.split(",") if m.strip()], seed_numbers)
    experiments[0].simulation()  # refuse bad input, and say notes once, before workers start
    outcomes = _run(experiments, jobs or None, screen)
    summary = sweep.summarize(outcomes)
    title = f"{data}, {split} split, {clients} clients with cycles {cycles.replace(',', ', ')}"
    picture = report.figure(outcomes, out / "compare.png", title)
    result = {"methods": summary, "seconds": time.perf_counter() - began, "report": str(picture)}
    details = {"experiment": base.to_dict(), "seeds": seed_numbers, "curves": _curves(outcomes)}
    _write(out / "compare.json", {**result, **details})
    if json:
        screen.json(result)
        return
    screen.out.print(report.table(summary, len(seed_numbers)))
    screen.out.print(f"{result['seconds']:.0f} s; picture: {picture}; numbers: {out / 'compare.json'}", markup=False)


def _run(experiments: list[Experiment], jobs: int | None, screen: o.Screen) -> list[sweep.Outcome]:
    """All runs, with one progress bar a method."""
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("accuracy {task.fields[accuracy]}"),
        TimeElapsedColumn(),
    )
    methods = list(dict.fromkeys(e.method for e in experiments))
    per_method = len(experiments) // len(methods)
    done = [0] * len(experiments)
    accuracy: list[float | None] = [None] * len(experiments)
    plain = not screen.err.is_terminal
    with Progress(*columns, console=screen.err, disable=screen.quiet or plain) as bars:
        tasks = {
            m: bars.add_task(METHODS[m].title, total=per_method * experiments[0].rounds, accuracy="-") for m in methods
        }

        def show(progress: sweep.Progress) -> None:
            done[progress.run] = progress.round
            experiment = experiments[progress.run]
            if progress.accuracy is not None:
                accuracy[progress.run] = progress.accuracy
            if plain:
                if progress.round == experiment.rounds:
                    text = _text(accuracy[progress.run])
                    screen.err.print(f"{experiment.method}, seed {experiment.seed}: done, accuracy {text}")
                return
            mine = [i for i, e in enumerate(experiments) if e.method == experiment.method]
            known = [a for i in mine if (a := accuracy[i]) is not None]
            mean = sum(known) / len(known) if known else None
            bars.update(tasks[experiment.method], completed=sum(done[i] for i in mine), accuracy=_text(mean))

        return sweep.run_all(experiments, jobs, show)


def _text(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.1f} %"


def _curves(outcomes: list[sweep.Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "method": outcome.experiment.method,
            "seed": outcome.experiment.seed,
            "rounds": outcome.rounds,
            "spent": outcome.spent,
            "metrics": [m.to_dict() for m in outcome.metrics],
        }
        for outcome in outcomes
    ]


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json_module.dumps(value, indent=1) + "\n")
