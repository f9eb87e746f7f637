"""A fleet on Flower against the simulator, in good days and bad ones: real processes, TLS, keys, kills.

    python experiments/flower_faults.py                     # all parts, about half an hour on two cores
    python experiments/flower_faults.py equality resume     # some of them

Results go to docs/results/flower.json; docs/results/flower.md says what they mean. Deadlines are set for
a machine of two cores that has nothing else to do; on a busy one give --patience 3.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import everfed as ef
from everfed.errors import EverfedWarning
from everfed.flower.client import load_experiment
from everfed.flower.ledger import read
from everfed.flower.testing import Loopback
from everfed.learning.task import Trained, Trainer
from everfed.methods import plan
from everfed.run.experiment import Experiment
from everfed.run.rounds import LocalRounds
from everfed.scheduling.plan import PlanStep, Schedule

ROOT = Path(__file__).resolve().parent.parent
FLEET, EVIL = ROOT / "examples" / "flower-fleet", ROOT / "experiments" / "flower_evil"
OUT = ROOT / "docs" / "results" / "flower.json"
CLIENTS = 8
SETTINGS = "split.strength=1.0 client.lr=0.2 local_steps=5"


class Bench:
    """One fleet, and the runs on it."""

    def __init__(self, folder: Path, patience: float, clients: int = CLIENTS) -> None:
        self.folder, self.patience = folder, patience
        self.fleet = Loopback(folder, clients)

    def config(self, name: str, changes: str, **limits: Any) -> dict[str, Any]:
        deadlines = {"query-s": 20.0 * self.patience, "train-s": 30.0 * self.patience, "wait-s": 40.0 * self.patience}
        folder = str(self.folder / name)
        return {"folder": folder, "keys": str(self.fleet.keys), "set": f"{SETTINGS} {changes}", **deadlines, **limits}

    def run(self, config: dict[str, Any], app: Path = FLEET) -> dict[str, Any]:
        return self.fleet.run(app, config, timeout_s=1500.0 * self.patience)

    def reaches(self, name: str, pattern: str, after: int, timeout_s: float) -> bool:
        """Wait until a process's log says something, after its first `after` characters."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if re.search(pattern, self.fleet.log(name, 10**7)[after:], re.DOTALL):
                return True
            time.sleep(0.2)
        return False


def experiment_of(config: dict[str, Any], app: Path = FLEET) -> Experiment:
    file = next(app.glob("*/experiment.toml"))
    return load_experiment(file, config)


def compared(config: dict[str, Any]) -> dict[str, Any]:
    """A stored run against a simulation of the same experiment, round by round."""
    stored = ef.open_run(config["folder"])
    run = ef.start(experiment_of(config))
    records = list(run)
    if len(stored.rounds) != len(records):
        return {"rounds": len(stored.rounds), "error": f"{len(records)} rounds were expected"}
    losses = [(a.metrics, b.metrics) for a, b in zip(records, stored.rounds, strict=True)]
    return {
        "rounds": len(records),
        "participations": sum(len(r.participants) for r in records),
        "same_participants": all(
            a.participants.tolist() == b.participants.tolist() and a.scales.tolist() == b.scales.tolist()
            for a, b in zip(records, stored.rounds, strict=True)
        ),
        "same_energy": all(
            abs(a.energy.to_dict()[k] - b.energy.to_dict()[k]) < 1e-9
            for a, b in zip(records, stored.rounds, strict=True)
            for k in a.energy.to_dict()
        ),
        "largest_loss_difference": max(abs(a.loss - b.loss) for a, b in losses if a and b),
        "largest_parameter_difference": max(
            float((value - stored.params[name]).abs().max()) for name, value in run.params.items()
        ),
        "accuracy": stored.final.accuracy if stored.final else None,
    }


def books(config: dict[str, Any]) -> dict[str, Any]:
    """Do the books add up, and did every round keep its deadlines?"""
    folder = Path(config["folder"])
    entries = read(folder)
    summary = json.loads((folder / "deployment.json").read_text())
    return {
        "summary": summary,
        "books_add_up": all(sorted(e.planned) == sorted([*e.done, *e.lost, *e.refused]) for e in entries),
        # The first question may take as long as the fleet has to gather.
        "query_over_deadline": max(
            e.query_s / (config["query-s"] if e.round else max(config["query-s"], config["wait-s"])) for e in entries
        ),
        "train_over_deadline": max(e.train_s for e in entries) / config["train-s"],
        "lost": [(e.round, c, why) for e in entries for c, why in e.lost.items()],
        "refused": [(e.round, c, why) for e in entries for c, why in e.refused.items()],
        "turned_away": sorted({why for e in entries for why in e.turned_away.values()}),
    }


def as_predicted(config: dict[str, Any]) -> dict[str, Any]:
    """Whether every client, in every round in which it was heard, did what the simulator says."""
    experiment, entries = experiment_of(config), read(Path(config["folder"]))
    steps = list(plan(experiment.make_fleet(), experiment.policy, experiment.rounds, experiment.seed))
    wrong = [
        (e.round, c)
        for e, step in zip(entries, steps, strict=True)
        for c in range(CLIENTS)
        if c not in e.absent and (c in step.clients.tolist()) != (c in e.planned)
    ]
    return {"heard": sum(CLIENTS - len(e.absent) for e in entries), "unlike_the_simulator": wrong}


def equality(bench: Bench) -> dict[str, Any]:
    """The four methods of the paper on eight nodes, each against its simulation."""
    results = {}
    for method, more in (
        ("algorithm1", "rounds=10"),
        ("greedy", "rounds=4"),
        ("wait-for-all", "rounds=4 fleet.cycles=[1,2]"),
        ("fedavg", "rounds=3"),
    ):
        config = bench.config(f"equal-{method}", f"method={method} {more}")
        began = time.monotonic()
        state = bench.run(config)
        took = time.monotonic() - began
        results[method] = {"status": state["status"], "seconds": took, **compared(config), **books(config)}
        results[method]["traffic"] = state["network-traffic"]
        print(method, json.dumps(results[method]), flush=True)
    return results


def single(bench: Bench) -> dict[str, Any]:
    """Bytes sent with the model for everybody, for the same rounds as a run that asks first."""
    out = {}
    for name, two in (("two-phase", True), ("single-phase", False)):
        config = bench.config(f"bytes-{name}", "rounds=2", **{"two-phase": two})
        state = bench.run(config)
        found = books(config)["summary"]
        out[name] = {"status": state["status"], "traffic": state["network-traffic"], **found, **compared(config)}
    return out


def resume(bench: Bench) -> dict[str, Any]:
    """SIGKILL the server in the middle of a round; start it again; the model is the one of no kill."""
    out = {}
    for name in ("sgd", "adam"):  # without and with a state that clients must not advance twice
        config = bench.config(f"resume-{name}", f"rounds=3 client.kind={name}")
        mark = len(bench.fleet.log("node-0", 10**7))
        bench.fleet.submit(FLEET, config)
        hit = bench.reaches("node-0", r"ROUND 1\].{0,200}Receiving: train", mark, 600 * bench.patience)
        bench.fleet.kill("superlink")
        at = len(read(Path(config["folder"])))
        time.sleep(2.0)
        bench.fleet.start_server()
        state = bench.run(config)
        out[name] = {"killed_in_training": hit, "rounds_before_kill": at, "status": state["status"], **compared(config)}
        out[name]["starts"] = len(json.loads((Path(config["folder"]) / "environment.json").read_text())["starts"])
        print("resume", json.dumps(out[name]), flush=True)
    return out


def faults(bench: Bench) -> dict[str, Any]:
    """Nodes killed while training, while idle and between question and training; one cut off; all come back."""
    config = bench.config("faults", "rounds=8")
    fleet, marks = bench.fleet, {f"node-{c}": len(bench.fleet.log(f"node-{c}", 10**7)) for c in range(CLIENTS)}
    done: list[str] = []
    threads: list[threading.Thread] = []

    def cut(client: int, pattern: str, label: str, back_s: float = 1.0) -> None:
        def body() -> None:
            name = f"node-{client}"
            if not bench.reaches(name, pattern, marks[name], 900 * bench.patience):
                done.append(f"{label}: never came to it")
                return
            fleet.kill(name)
            done.append(label)
            time.sleep(back_s)
            fleet.restart_node(client)
            done.append(f"client {client} is back")

        threads.append(threading.Thread(target=body))

    def pause(client: int, pattern: str, away_s: float) -> None:
        def body() -> None:
            name = f"node-{client}"
            if bench.reaches(name, pattern, marks[name], 900 * bench.patience):
                fleet.pause(name)
                done.append(f"client {client} is cut off")
                time.sleep(away_s)
                fleet.resume(name)
                done.append(f"client {client} is back")

        threads.append(threading.Thread(target=body))

    idle = next(c for c in (7, 3, 6, 2) if not _trains(config, c, range(2, 6)))
    cut(0, r"ROUND 1\].{0,200}Receiving: train", "client 0 killed while it trained")
    cut(4, r"ROUND 2\].{0,300}Sending: query.{0,300}Sent", "client 4 killed between question and training")
    cut(idle, r"ROUND 2\].{0,300}Sending: query.{0,300}Sent", f"client {idle} killed while idle")
    pause(1 if idle != 1 else 5, r"ROUND 3\].{0,300}Sending: query.{0,300}Sent", 45.0 * bench.patience)
    run = fleet.submit(FLEET, config)
    for thread in threads:
        thread.start()
    state = fleet.wait(run, 1500.0 * bench.patience, Path(config["folder"]) / "result.json")
    for thread in threads:
        thread.join()
    return {"status": state["status"], "happened": done, **books(config), **as_predicted(config)}


def _trains(config: dict[str, Any], client: int, rounds: range) -> bool:
    experiment = experiment_of(config)
    steps = plan(experiment.make_fleet(), experiment.policy, experiment.rounds, experiment.seed)
    return any(client in step.clients.tolist() for step in steps if step.round in rounds)


def dying(bench: Bench) -> dict[str, Any]:
    """Nearly a third of the nodes (3 of 8) die at random moments and stay dead."""
    config = bench.config("dying", "rounds=5")
    chance = random.Random(1)
    victims = chance.sample(range(CLIENTS), 3)
    run = bench.fleet.submit(FLEET, config)
    told = []
    for client in victims:
        time.sleep(chance.uniform(10.0, 30.0) * bench.patience)
        bench.fleet.kill(f"node-{client}")
        told.append((client, len(read(Path(config["folder"])))))
    state = bench.fleet.wait(run, 1500.0 * bench.patience, Path(config["folder"]) / "result.json")
    result = {"status": state["status"], "killed_after_round": told, **books(config), **as_predicted(config)}
    for client in victims:
        bench.fleet.restart_node(client)
    return result


def security(bench: Bench) -> dict[str, Any]:
    """Who must not get in does not, and what must not count does not."""
    fleet = bench.fleet
    stranger = fleet.folder / "stranger"
    from everfed.flower.identity import make_key

    make_key(stranger)
    out: dict[str, Any] = {}
    for label, options in (
        ("unregistered key", {"key": stranger}),
        ("plain HTTP to a TLS server", {"insecure": True}),
    ):
        name = fleet.start_node(0, name=f"outsider-{len(out)}", **options)
        process = fleet.processes[name]
        until = time.monotonic() + 20.0 * bench.patience
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
        let_in = "SuperNode ID" in fleet.log(name, 10**7)  # which a node says once it is let in
        out[label] = {"let_in": let_in, "exit": process.poll()}  # None: it still tries
        fleet.kill(name)
    lies = {
        1: "parameters are not numbers", 2: "wrong shape", 3: "wrong type", 5: "parameters ten thousand away",
        6: "scale 1000", 7: "speaks for another client",
    }  # fmt: skip
    sys.path.insert(0, str(EVIL))
    from evil_app.lies import told

    config = bench.config("evil", "method=fedavg rounds=2", lies=told(lies), **{"max-norm": 100.0})
    state = bench.run(config, EVIL)
    stored, experiment = ef.open_run(config["folder"]), experiment_of(config, EVIL)
    honest = [record.participants.tolist() for record in stored.rounds]
    out["liars"] = {"status": state["status"], "counted": honest, **books(config)}
    out["liars"]["model"] = _only(experiment, {0, 4}, stored.params)
    return out


class Some(LocalRounds):
    """Rounds in which only these clients count; the others are planned, and pay, as ever."""

    def __init__(self, schedule: Schedule, trainer: Trainer, clients: set[int]) -> None:
        super().__init__(schedule, trainer)
        self.clients = clients

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        step = self.schedule.plan_round(round)
        keep = np.isin(step.clients, list(self.clients))
        step = replace(step, clients=step.clients[keep], scales=step.scales[keep])
        return step, self.trainer.train(params, step.clients, round)


def _only(experiment: Experiment, clients: set[int], params: dict[str, Any]) -> float:
    """How far a model is from one that only these clients trained."""
    run = ef.start(experiment)
    assert isinstance(run.source, LocalRounds)
    run = replace(run, source=Some(run.source.schedule, run.source.trainer, clients))
    list(run)
    return max(float((value - params[name]).abs().max()) for name, value in run.params.items())


PARTS = {part.__name__: part for part in (equality, resume, faults, dying, security, single)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--patience", type=float, default=1.0, help="deadlines are this many times as long")
    parser.add_argument("--work", type=Path, default=None, help="where to keep the runs; default: a temporary folder")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    for part in given.parts:
        if part not in PARTS:
            parser.error(f"there is no part '{part}'; choose of {', '.join(PARTS)}")
    warnings.simplefilter("ignore", EverfedWarning)
    work = given.work or Path(tempfile.mkdtemp(prefix="everfed-flower-"))
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    bench = Bench(work, given.patience)
    with bench.fleet as fleet:
        fleet.start()
        for part in given.parts or PARTS:
            print("==", part, flush=True)
            results[part] = PARTS[part](bench)
            print(json.dumps(results[part], indent=1), flush=True)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(results, indent=1) + "\n")
    if given.work is None:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
