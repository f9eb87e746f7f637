"""The pilot of `everfed advise`: stored runs, or the first rounds of an experiment on the fleet itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from everfed.advising.advice import Advice
from everfed.advising.expected import LEVEL, expect
from everfed.advising.outlook import Outlook, other_method, outlook
from everfed.advising.pilot import Trained, train_pilot
from everfed.cli.screen import Screen, table, watched
from everfed.energy.physical import DeviceFleet
from everfed.errors import InputError, some
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.history import History
from everfed.store import StoredRun, open_run
from everfed.store.reading import find_runs
from everfed.units import energy


def stored_pilot(folder: Path) -> list[StoredRun]:
    """The runs in a folder: one experiment under several seeds."""
    if not folder.exists():
        raise InputError(f"--pilot is '{folder}', which does not exist; give the folder of one or several runs.")
    runs = [open_run(path) for path in find_runs(folder)]
    if not runs:
        raise InputError(f"'{folder}' has no stored runs; make some with everfed run or everfed sweep.")
    kinds: dict[str, StoredRun] = {}
    for run in runs:
        plain = replace(
            run.experiment, seed=0, rounds=1, split_seed=None, init_seed=None, batch_seed=None, schedule_seed=None
        )
        kinds.setdefault(config.identity(plain), run)
    if len(kinds) > 1:
        one, two, *_ = kinds.values()
        raise InputError(
            f"'{folder}' has runs of {len(kinds)} experiments, such as '{one.name}' and '{two.name}'; a pilot is one "
            "experiment, under one or several seeds: give the folder of its runs."
        )
    return runs


def with_rounds_of(pilot: Experiment, fleet: Experiment, said: Collection[str], screen: Screen) -> Experiment:
    """The fleet's experiment with the pilot's local steps and messages, but for the keys that were said."""
    keys = [key for key in ("local_steps", "compression", "downlink") if key not in said]
    changed = {key: getattr(pilot, key) for key in keys if getattr(pilot, key) != getattr(fleet, key)}
    if changed:
        screen.note(f"advice for rounds as the pilot's: its {some(changed)}.")
    return replace(fleet, **changed)


def fresh_pilot(experiment: Experiment, fleet: DeviceFleet, rounds: int, screen: Screen) -> Trained:
    """The first rounds of an experiment, with the advised fleet in the place of its own."""
    screen.note(f"training {rounds} rounds as a pilot")
    mine = replace(experiment, fleet=fleet)
    return train_pilot(mine, rounds, lambda records: watched(records, rounds, screen))


def outlook_of(advice: Advice, runs: Sequence[History], metric: str) -> Outlook:
    found = outlook(advice, expect(runs, metric))
    method = getattr(getattr(runs[0], "experiment", None), "method", "algorithm1")
    return found if method == "algorithm1" else other_method(found, method)


def tell(screen: Screen, found: Outlook) -> None:
    what, _, words = found.words().partition(": ")
    screen.say(what, words)
    further = ["energy per further percent"] * found.percent
    out = table(
        found.expected.pilot.metric.replace("_", " ") + " to expect",
        ["after", "expected", f"interval, {100 * LEVEL:g} %", "energy spent by then", *further],
        caption="energy: of the whole fleet, on training and radio",
    )
    for horizon in found.horizons:
        value, _, interval = found.shown(horizon.estimate).partition(" [")
        percent = "not reached" if horizon.percent_j is None else energy(horizon.percent_j)
        far = "" if horizon.estimate.tested else " (not tested so far ahead)"
        ends = interval.rstrip("]").replace(", ", " to ")
        cells = [f"{horizon.days:g} days", value, f"{ends}{far}", energy(horizon.spent_j), percent]
        out.add_row(*cells[: len(out.columns)])
    screen.out.print(out)
    for note in found.notes:
        screen.note(note)
