"""Nodes with a key that lie, and strangers at the door, over TLS, in real processes: what each comes to.

    python experiments/flower_attacks.py                  # about a quarter of an hour on two cores
    python experiments/flower_attacks.py --only scale     # lies whose name holds a word, into the earlier results
    python experiments/flower_attacks.py --short          # two lies and the strangers, as in CI

Eight nodes; six lie, each in its own way, and two are honest. After every run: it has ended, its model is to the last
bit the one that the honest two alone train, and the ledger names each liar with the reason. Meanwhile strangers, who
have the fleet's certificate and no registered key, try to get in. Results go to docs/results/flower_attacks.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from flower_faults import CLIENTS, EVIL, ROOT, _only, experiment_of

import everfed as ef
from everfed.errors import EverfedWarning
from everfed.flower.identity import make_key
from everfed.flower.ledger import Entry, read
from everfed.flower.testing import Loopback

sys.path.insert(0, str(EVIL))
from evil_app.lies import LIES, told

OUT = ROOT / "docs" / "results" / "flower_attacks.json"
HONEST = (0, 4)
SHORT = ("parameters of 1e30", "harvested is not a number")
ROUNDS = 3


def attacked(fleet: Loopback, names: tuple[str, ...], patience: float) -> dict[str, Any]:
    """One run in which each of these lies has its own client."""
    liars = [client for client in range(fleet.clients) if client not in HONEST]
    lies = dict(zip(liars, names, strict=False))
    folder = fleet.folder / f"run-{names[0].replace(' ', '-')}"
    deadlines = {"query-s": 30.0 * patience, "train-s": 60.0 * patience, "wait-s": 60.0 * patience}
    few = f"fleet.clients={fleet.clients} fleet.cycles=[1]" if fleet.clients < CLIENTS else ""
    config = {
        "folder": str(folder),
        "keys": str(fleet.keys),
        "set": f"method=fedavg rounds={ROUNDS} split.strength=1.0 client.lr=0.2 local_steps=5 {few}",
        "lies": told(lies),
        **deadlines,
    }
    began = time.monotonic()
    state = fleet.run(EVIL, config, timeout_s=900.0 * patience)
    stored, entries = ef.open_run(folder), read(folder)
    honest = set(range(fleet.clients)) - set(lies)
    counted = {client for record in stored.rounds for client in record.participants.tolist()}
    return {
        "ended": state["status"] == "finished:completed" and len(stored.rounds) == ROUNDS,
        "largest_difference_from_the_honest": _only(experiment_of(config, EVIL), honest, stored.params),
        "honest_counted": sorted(counted) == sorted(honest),
        "seconds": round(time.monotonic() - began, 1),
        "lies": {name: found(entries, client, LIES[name][1], client in counted) for client, name in lies.items()},
    }


def found(entries: list[Entry], client: int, words: str, counted: bool) -> dict[str, Any]:
    """What the ledger says of a liar. words: that each reason should hold, in one line."""
    said = [by_client[client] for e in entries for by_client in (e.refused, e.lost) if client in by_client]
    named = f"client {client}:"
    said += [why for e in entries for why in (*e.turned_away.values(), *e.failed.values()) if named in why]
    said += [] if said else [e.absent[client] for e in entries if client in e.absent]  # it said no in its round
    right = bool(said) and all(words in why and len(why) < 500 and why.isprintable() for why in said)
    return {"said": said[0] if said else "", "times": len(said), "as_expected": right, "counted": counted}


def strangers(fleet: Loopback) -> dict[str, Any]:
    """Nodes without a registered key, and commands to the control interface, at the fleet's open port."""
    make_key(fleet.folder / "strangers-key")
    nodes = {
        "a node with a key that is not registered": fleet.start_node(
            0, key=fleet.folder / "strangers-key", name="stranger"
        ),
        "a node that speaks plain HTTP": fleet.start_node(0, insecure=True, name="plain"),
    }
    home = fleet.folder / "home-of-a-stranger"
    home.mkdir()
    authority = fleet.certificates / "ca.crt"
    (home / "config.toml").write_text(
        f'[superlink.fleet]\naddress = "127.0.0.1:{fleet.port}"\nroot-certificates = "{authority}"\n'
    )
    made = {}
    for name, words in {
        "lists the nodes": ("supernode", "list", "fleet"),
        "registers a key of his own": ("supernode", "register", str(fleet.folder / "strangers-key.pub"), "fleet"),
        "removes a node": ("supernode", "unregister", "1", "fleet"),
        "runs an app": ("run", str(EVIL), "fleet"),
    }.items():
        done = _flwr(fleet, home, *words)
        said = done.stdout + done.stderr
        made[name] = {
            "said": _line(said, "Not Found", "404"),
            "as_expected": done.returncode != 0 and ("Not Found" in said or "404" in said),
        }
    time.sleep(10.0)  # nodes try again and again
    for name, node in nodes.items():
        log = fleet.log(node, 10**7)
        inside = "SuperNode ID" in log  # which a node says once it is let in
        made[name] = {
            "said": _line(log, "not registered", "onnect", "SSL", "rror"),
            "as_expected": "Starting Flower SuperNode" in log and not inside,
        }
        fleet.kill(node)
    return made


def _flwr(fleet: Loopback, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    command = [str(fleet.bin / "flwr"), *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own}, timeout=240)


def _line(text: str, *words: str) -> str:
    """The last line that holds one of these words, the first of them if several do."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # without colours
    for word in words:
        lines = [line.strip(" │") for line in plain.splitlines() if word in line]
        if lines:
            return "".join(c for c in lines[-1] if c.isprintable())[:200]
    return ""


def kept_of(path: Path, names: list[str]) -> dict[str, Any]:
    """Earlier results, without the lies that are told again."""
    made: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"strangers": {}, "runs": []}
    for run in made["runs"]:
        run["lies"] = {name: lie for name, lie in run["lies"].items() if name not in names}
    return {**made, "runs": [run for run in made["runs"] if run["lies"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="lies whose name holds one of these; others are kept")
    parser.add_argument("--short", action="store_true", help="two lies and the strangers, on three nodes")
    parser.add_argument("--patience", type=float, default=1.0, help="deadlines are this many times as long")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    names = (
        list(SHORT)
        if given.short
        else [name for name in LIES if not given.only or any(word in name for word in given.only)]
    )
    if not names:
        parser.error(f"no lie is called {given.only}; choose of {', '.join(LIES)}")
    warnings.simplefilter("ignore", EverfedWarning)
    work = Path(tempfile.mkdtemp(prefix="everfed-attacks-"))
    clients = 3 if given.short else CLIENTS
    runs: list[dict[str, Any]] = []
    kept = kept_of(given.out, names) if given.only else {"strangers": {}, "runs": []}
    with Loopback(work, clients) as fleet:
        fleet.start()
        outside = kept["strangers"] if given.only else strangers(fleet)
        print(json.dumps(outside, indent=1), flush=True)
        batches = -(-len(names) // (clients - sum(client < clients for client in HONEST)))
        for first in range(batches):
            some = tuple(names[first::batches])  # of lies that are alike, each in a run of its own
            runs.append(attacked(fleet, some, given.patience))
            print(json.dumps(runs[-1], indent=1), flush=True)
            all_runs = [*kept["runs"], *runs]
            lies = sum(len(run["lies"]) for run in all_runs)
            given.out.write_text(json.dumps({"lies": lies, "strangers": outside, "runs": all_runs}, indent=1) + "\n")
    shutil.rmtree(work)
    bad = [name for name, tried in outside.items() if not tried["as_expected"]]
    for run in runs:
        good = run["ended"] and run["honest_counted"] and run["largest_difference_from_the_honest"] == 0.0
        bad += [name for name, lie in run["lies"].items() if not (good and lie["as_expected"]) or lie["counted"]]
    cases = len(names) + len(outside)
    print(f"{cases - len(bad)} of {cases} attacks came to what they should" + (f"; not: {bad}" if bad else ""))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
