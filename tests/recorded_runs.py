"""Small runs of everything, and what they gave: recorded_results.json shows that a change of the code changed nothing.

python tests/recorded_runs.py --show          what is recorded
python tests/recorded_runs.py --write         run all again and write the file anew; says which entries changed
python tests/recorded_runs.py --write NAME    only these cases, and those that are new
python tests/recorded_runs.py --write --why "the reason that results changed"
"""

from __future__ import annotations

import conftest  # noqa: F401 - one thread and Triton's interpreter, before anything imports torch or Triton

# isort: split
import argparse
import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import warnings
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from recorded_tasks import TASKS, write_trace
from recorded_words import BASE, CASES, STOP_AT, Case

RESULTS = Path(__file__).with_name("recorded_results.json")
TOLERANCE = 1e-3  # of the sketch, where another machine rounds differently


class Run(NamedTuple):
    """rounds: each record as a dict; params: the model at the end, as a state_dict."""

    rounds: list[dict[str, Any]]
    params: dict[str, torch.Tensor]


# --- All that knows everfed's own names: if those change, only this part changes. ---


def experiment(words: dict[str, Any], folder: Path) -> Any:
    from everfed.run import config

    raw = deepcopy(BASE)
    for key, value in json.loads(json.dumps(words).replace("FOLDER", str(folder))).items():
        config.change(raw, key, value)
    return config.from_dict(raw)


def simulation(case: Case, folder: Path) -> Any:
    """Set up and ready: iterating gives records, `params` is the model now."""
    import everfed as ef

    made = experiment(case.words, folder)
    if not case.task:
        return ef.start(made)
    from everfed import AUGMENTS, from_arrays

    model, samples, more = TASKS[case.task]()
    data = from_arrays(samples, test=samples[-1])
    if "augment" in more:
        kind, size = more.pop("augment")
        data = replace(data, augment=AUGMENTS[kind](size))
    return ef.start(
        model, data, made.make_fleet(), case.words.get("method", "algorithm1"), rounds=made.rounds,
        local_steps=made.local_steps, batch_size=made.batch_size, client=made.client, seed=made.seed,
        eval_every=made.eval_every, trainer=made.trainer, check_trainer=made.check_trainer, device="cpu", **more,
    )  # fmt: skip


def stored(case: Case, folder: Path, until: int | None = None, then: Any = None) -> Run:
    """In a run folder, from where it is; until: the round after which it is stopped, or `then` is called."""
    from everfed import open_run, stored_rounds

    reached = []
    stop = (lambda: len(reached) + 1 == until) if until and not then else (lambda: False)
    for record in stored_rounds(experiment(case.words, folder), folder / "run", checkpoint_s=1e9, stop=stop):
        reached.append(record)
        if then and record.round + 1 == until:
            then()
    found = open_run(folder / "run")
    return Run([record.to_dict() for record in found.rounds], found.params)


def over_ray(cases: list[Case], folder: Path) -> list[Run]:
    """Each case on two workers of one Ray."""
    from everfed.ray import connect, sharded

    done = []
    with connect(cpus=2) as cluster:
        for case in cases:
            with sharded(experiment(case.words, folder), cluster, 2, state=case.state) as run:
                done.append(Run([record.to_dict() for record in run], run.params))
    return done


def over_flower(case: Case, folder: Path) -> Run:
    from flower_grid import run

    made, records, _ = run(experiment(case.words, folder))
    return Run([record.to_dict() for record in records], made.params)


def every_kind() -> dict[str, list[str]]:
    """What the table of cases must hold: settings, and the names each can have."""
    import everfed as ef
    from everfed.learning.compress import COMPRESSORS

    return {
        "method": list(ef.METHODS), "policy": list(ef.POLICIES), "server": list(ef.SERVER_RULES),
        "server_optimizer": list(ef.SERVER_OPTIMIZERS), "client": list(ef.OPTIMIZERS),
        "client.schedule": list(ef.SCHEDULES), "compression": list(COMPRESSORS), "gradients": list(ef.GRADIENT_RULES),
        "split": [name for name in ef.SPLITS if name != "natural"],  # which needs data with clients of their own
        "fleet.arrivals": list(ef.ARRIVALS), "trainer": list(ef.TRAINERS),
    }  # fmt: skip


# --- What a case gives. ---


def missing(case: Case) -> str:
    """Why a case cannot be run here, or nothing."""
    if case.words.get("trainer") == "kernels" and torch.cuda.is_available():
        return "kernels are compiled for the GPU here, not interpreted"
    absent = [module for module in case.needs if find_spec(module) is None]
    return f"{', '.join(absent)} is not installed" if absent else ""


def entry(case: Case) -> dict[str, Any]:
    """What is recorded of a case."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_trace(Path(folder))
            return digest(_run(case, Path(folder))) if case.how != "ray" else _ray_entries()[case.name]
    finally:
        torch.set_num_threads(threads)


def _run(case: Case, folder: Path) -> Run:
    if case.how == "flower":
        return over_flower(case, folder)
    if case.how == "checkpoint":  # the state of one run is put into another, which goes on with it
        first, second = simulation(case, folder), simulation(case, folder)
        rounds = [record.to_dict() for _, record in zip(range(STOP_AT), first, strict=False)]
        second.load_state_dict(deepcopy(first.state_dict()))
        return Run(rounds + [record.to_dict() for record in second], second.params)
    if case.how == "stored":
        return stored(case, folder)
    if case.how == "killed":
        stored(case, folder, until=STOP_AT)  # saved here; what the killed process did after this is lost
        command = [sys.executable, __file__, "--die", case.name, str(folder)]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        return stored(case, folder)
    run = simulation(case, folder)
    return Run([record.to_dict() for record in run], run.params)


def die(case: Case, folder: Path) -> None:
    """Go on with a stored run, and be killed in its middle."""
    stored(case, folder, until=STOP_AT + 4, then=lambda: os.kill(os.getpid(), signal.SIGKILL))


@functools.cache
def _ray_entries() -> dict[str, dict[str, Any]]:
    """All cases on Ray, in a process of their own: how Ray authenticates is settled once a process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    told = subprocess.run([sys.executable, __file__, "--ray"], env=clean, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    entries: dict[str, dict[str, Any]] = json.loads(told.stdout.splitlines()[-1])
    return entries


def _as_recorded(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what later versions added to it."""
    kept = {key: value for key, value in record.items() if key != "seconds"}
    if kept["metrics"]:
        own = {k: v for k, v in kept["metrics"].get("own", {}).items() if k not in ("mae", "r2")}
        later = ("breakdown", "own")
        kept["metrics"] = {k: v for k, v in kept["metrics"].items() if k not in later} | ({"own": own} if own else {})
    return kept


def digest(run: Run) -> dict[str, Any]:
    schedule, params = hashlib.sha256(), hashlib.sha256()
    for record in run.rounds:
        # Nine digits: the sun's place is a matter of sines, whose last bit differs from machine to machine.
        numbers = [*record["scales"], *record["energy"].values()]
        shown = [record["round"], record["participants"], [f"{x:.9g}" if abs(x) > 1e-9 else "0" for x in numbers]]
        schedule.update(json.dumps(shown).encode())
    for name, value in sorted(run.params.items()):
        params.update(json.dumps([name, list(value.shape), str(value.dtype)]).encode())
        params.update(value.contiguous().numpy().tobytes())
    records = [_as_recorded(record) for record in run.rounds]
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in run.params.values()))
    losses = [record["train_loss"] for record in run.rounds if record["train_loss"] is not None]
    metrics = [record["metrics"]["loss"] for record in run.rounds if record["metrics"]]
    return {
        "schedule": schedule.hexdigest(),
        "params": params.hexdigest(),
        "records": hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest(),
        "sketch": [float(f"{x:.6g}") for x in (norm, *losses[-1:], *metrics[-1:])],
    }


def machine() -> dict[str, str]:
    """Where parameters must be equal to the last bit."""
    processor = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "torch": str(torch.__version__), "numpy": np.__version__, "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(), "processor": processor,
    }  # fmt: skip


# --- The command. ---


def write(names: list[str], why: str) -> None:
    """Run cases again, all unless some are named, and write the file anew."""
    recorded = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"machine": machine(), "runs": {}}
    old = recorded["runs"]
    if unknown := set(names) - CASES.keys():
        sys.exit(f"there is no case {', '.join(sorted(unknown))}.")
    if names and recorded["machine"] != machine():
        sys.exit("the file is of another machine: write all of it anew, without names.")
    again = [case for name, case in CASES.items() if not names or name in names or name not in old]
    if unable := [f"{case.name}: {missing(case)}" for case in again if missing(case)]:
        sys.exit("nothing is written, since some cases cannot be run here:\n" + "\n".join(unable))
    new, changed = {}, []
    for name, case in CASES.items():
        before = old.get(name, {})
        now = entry(case) if case in again else {key: value for key, value in before.items() if key != "why"}
        differ = [key for key in now if before and before[key] != now[key]]
        for key in differ:
            print(f"{name}: {key} was {before[key]}, is {now[key]}")
        changed += [name] * bool(differ)
        reason = why if differ else before.get("why")
        new[name] = {**now, **({"why": reason} if reason else {})}
    if changed and not why:
        sys.exit(f'{len(changed)} entries changed and nothing is written; say why with --why "...".')
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in new.items())
    RESULTS.write_text(f'{{"machine": {json.dumps(machine())},\n"runs": {{\n{lines}\n}}}}\n')
    print(f"{len(new)} entries, {len(changed)} changed, {len(new.keys() - old.keys())} new", end=", ")
    print(f"{len(old.keys() - new.keys())} dropped.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", nargs="*", metavar="NAME")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--why", default="")
    parser.add_argument("--die", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--ray", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.die:
        die(CASES[asked.die[0]], Path(asked.die[1]))
    elif asked.ray:
        cases = [case for case in CASES.values() if case.how == "ray"]
        runs = over_ray(cases, Path())
        print(json.dumps({case.name: digest(run) for case, run in zip(cases, runs, strict=True)}))
    elif asked.write is not None:
        write(asked.write, asked.why)
    elif asked.show:
        recorded = json.loads(RESULTS.read_text())
        print(*(f"{key}: {value}" for key, value in recorded["machine"].items()), sep="\n")
        for name, found in recorded["runs"].items():
            print(f"{name:32} {found['params'][:12]} {found['sketch']} {found.get('why', '')}")
    else:
        parser.print_help()


if __name__ == "__main__":
    main()
