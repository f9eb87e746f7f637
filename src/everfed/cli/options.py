"""Options that several commands share, each written once, and how their texts are read."""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from rich.console import Console

from everfed.data import DATASETS, SPLITS
from everfed.energy import ARRIVALS
from everfed.errors import EverfedWarning, InputError
from everfed.learning import MODELS, OPTIMIZERS, TRAINERS
from everfed.methods import METHODS


def _names(table: Any) -> str:
    return ", ".join(table)


_FLEET, _TRAINING, _OUTPUT = "Fleet", "Training", "Output"

Clients = Annotated[int, typer.Option(help="How many clients.", rich_help_panel=_FLEET)]
Cycles = Annotated[
    str,
    typer.Option(
        help="E: rounds a client needs to harvest one round's energy. Dealt round the clients: with 1,5,10,20 "
        "client 0 can train every round, client 3 every 20th.",
        rich_help_panel=_FLEET,
    ),
]
Offsets = Annotated[
    str,
    typer.Option(help="First round with energy: one a cycle or one a client (default: all 0).", rich_help_panel=_FLEET),
]
ArrivalsName = Annotated[
    str,
    typer.Option("--arrivals", help=f"How energy comes: {_names(ARRIVALS)}.", rich_help_panel=_FLEET),
]
Capacity = Annotated[
    float,
    typer.Option(help="Battery in rounds' worth of energy; 0: as large as the schedule needs.", rich_help_panel=_FLEET),
]
Data = Annotated[str, typer.Option(help=f"Data set: {_names(DATASETS)}.", rich_help_panel=_TRAINING)]
Split = Annotated[
    str,
    typer.Option(
        help=f"Who holds which samples: {_names(SPLITS)}. by-energy gives each energy group its own classes.",
        rich_help_panel=_TRAINING,
    ),
]
Strength = Annotated[
    float, typer.Option(help="Of the by-energy split: 0 is iid, 1 fully separated.", rich_help_panel=_TRAINING)
]
Alpha = Annotated[float, typer.Option(help="Of the dirichlet split: small is more skewed.", rich_help_panel=_TRAINING)]
Per = Annotated[
    str, typer.Option(help="Of the dirichlet split: skew per client, or per energy-group.", rich_help_panel=_TRAINING)
]
MethodName = Annotated[str, typer.Option(help=f"One of {_names(METHODS)}.", rich_help_panel=_TRAINING)]
Model = Annotated[str, typer.Option(help=f"One of {_names(MODELS)}.", rich_help_panel=_TRAINING)]
Rounds = Annotated[int, typer.Option(help="Global rounds.", rich_help_panel=_TRAINING)]
LocalSteps = Annotated[int, typer.Option(help="T: steps a participant trains in a round.", rich_help_panel=_TRAINING)]
BatchSize = Annotated[
    int, typer.Option(help="Samples a step, drawn uniformly with replacement.", rich_help_panel=_TRAINING)
]
OptimizerName = Annotated[
    str, typer.Option("--optimizer", help=f"Of the clients: {_names(OPTIMIZERS)}.", rich_help_panel=_TRAINING)
]
LearningRate = Annotated[float, typer.Option("--lr", help="Learning rate of the clients.", rich_help_panel=_TRAINING)]
ScheduleName = Annotated[
    str,
    typer.Option("--schedule", help="Of the learning rate: constant or cosine.", rich_help_panel=_TRAINING),
]
Momentum = Annotated[float, typer.Option(help="Of sgd.", rich_help_panel=_TRAINING)]
WeightDecay = Annotated[
    float, typer.Option(help="Adds this times the parameters to the gradient.", rich_help_panel=_TRAINING)
]
KeepState = Annotated[
    bool,
    typer.Option(
        "--keep-state/--reset-state",
        help="Whether a client's optimiser state survives to its next round.",
        rich_help_panel=_TRAINING,
    ),
]
EvalEvery = Annotated[
    int, typer.Option(help="Evaluate every so many rounds; 0: 20 times in the run.", rich_help_panel=_TRAINING)
]
TrainerName = Annotated[
    str, typer.Option("--trainer", help=f"{_names(TRAINERS)}; same results.", rich_help_panel=_TRAINING)
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=_TRAINING)]
Seed = Annotated[int, typer.Option(help="Fixes all chance of the run.")]
Seeds = Annotated[str, typer.Option(help="Which seeds: 3 (the first three), 0:5, or 1,4,7.")]
Json = Annotated[
    bool, typer.Option("--json", help="Machine-readable result on standard output.", rich_help_panel=_OUTPUT)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes, only the result.", rich_help_panel=_OUTPUT)
]
NoColor = Annotated[bool, typer.Option("--no-color", help="Plain text (so does NO_COLOR=1).", rich_help_panel=_OUTPUT)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_OUTPUT)]


class Screen:
    """Where a command writes: results to standard output, everything else to standard error."""

    def __init__(self, as_json: bool = False, quiet: bool = False, no_color: bool = False) -> None:
        plain = no_color or "NO_COLOR" in os.environ
        colours: Any = None if plain else "auto"
        self.as_json, self.quiet = as_json, quiet
        self.out = Console(color_system=colours, highlight=False, width=None if sys.stdout.isatty() else 120)
        self.err = Console(stderr=True, color_system=colours, highlight=False, quiet=quiet)
        warnings.simplefilter("always", EverfedWarning)
        warnings.showwarning = self._note

    def _note(self, message: Any, category: type[Warning], *details: Any, **more: Any) -> None:
        if issubclass(category, EverfedWarning):
            self.err.print(f"note: {message}", style="yellow", markup=False)

    def json(self, value: Any) -> None:
        print(json.dumps(value, indent=2))


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """'1,5,10' as whole numbers, or an error that names the option."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        values = [float(part) for part in parts]
    except ValueError:
        raise InputError(f"{option} is '{text}'; give whole numbers with commas, such as 1,5,10,20.") from None
    for value in values:
        if value != value or value != int(value) if abs(value) != float("inf") else True:
            raise InputError(f"{option} contains {value:g}; each must be a whole number of rounds.")
    return tuple(int(v) for v in values)


def seed_list(text: str) -> list[int]:
    """'3' is 0, 1, 2; '2:5' is 2, 3, 4; '1,4' is 1, 4."""
    try:
        if ":" in text:
            first, last = text.split(":")
            seeds = list(range(int(first or 0), int(last)))
        elif "," in text:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        else:
            seeds = list(range(int(text)))
    except ValueError:
        raise InputError(f"--seeds is '{text}'; write 3 (the first three), 0:5, or 1,4,7.") from None
    if not seeds or min(seeds) < 0:
        raise InputError(f"--seeds is '{text}'; that names no seed, or a negative one.")
    return seeds
