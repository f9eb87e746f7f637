"""Nodes with a key that lie, over TLS, in real processes: what each lie comes to.

    python experiments/flower_attacks.py                 # about a quarter of an hour on two cores
    python experiments/flower_attacks.py --only scale     # lies whose name holds a word

Eight nodes; six lie, each in its own way, and two are honest. After every run: it has ended, its model is to the last
bit the one that the honest two alone train, and the ledger names each liar with the reason. Results go to
docs/results/flower_attacks.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from flower_faults import CLIENTS, EVIL, ROOT, _only, experiment_of

import everfed as ef
from everfed.errors import EverfedWarning
from everfed.flower.ledger import read
from everfed.flower.testing import Loopback

sys.path.insert(0, str(EVIL))
from evil_app.lies import LIES, told

OUT = ROOT / "docs" / "results" / "flower_attacks.json"
HONEST = (0, 4)
LIARS = tuple(client for client in range(CLIENTS) if client not in HONEST)


def attacked(fleet: Loopback, names: tuple[str, ...], patience: float) -> dict[str, Any]:
    """One run in which each of these lies has its own client."""
    lies = dict(zip(LIARS, names, strict=False))
    folder = fleet.folder / f"run-{names[0].replace(' ', '-')}"
    deadlines = {"query-s": 30.0 * patience, "train-s": 60.0 * patience, "wait-s": 60.0 * patience}
    config = {
        "folder": str(folder),
        "keys": str(fleet.keys),
        "set": "method=fedavg rounds=3 split.strength=1.0 client.lr=0.2 local_steps=5",
        "lies": told(lies),
        **deadlines,
    }
    began = time.monotonic()
    state = fleet.run(EVIL, config, timeout_s=900.0 * patience)
    stored, entries = ef.open_run(folder), read(folder)
    honest = set(range(CLIENTS)) - set(lies)
    difference = _only(experiment_of(config, EVIL), honest, stored.params)
    counted = {client for record in stored.rounds for client in record.participants.tolist()}
    found = {}
    for client, name in lies.items():
        said = [e.refused[client] for e in entries if client in e.refused]
        said += [e.lost[client] for e in entries if client in e.lost]
        said += [
            why for e in entries for why in (*e.turned_away.values(), *e.failed.values()) if f"client {client}:" in why
        ]
        found[name] = {
            "said": said[:1] and said[0],
            "times": len(said),
            "as_expected": bool(said)
            and all(LIES[name][1] in why and len(why) < 500 and why.isprintable() for why in said),
            "counted": client in counted,
        }
    ended = state["status"] == "finished:completed" and len(stored.rounds) == 3
    return {
        "ended": ended,
        "largest_difference_from_the_honest": difference,
        "honest_counted": sorted(counted) == sorted(honest),
        "seconds": round(time.monotonic() - began, 1),
        "lies": found,
    }


def fit(why: str, words: str) -> bool:
    """Whether a reason says what it should, in one line."""
    return words in why and len(why) < 500 and why.isprintable()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="lies whose name holds this")
    parser.add_argument("--patience", type=float, default=1.0, help="deadlines are this many times as long")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    names = [name for name in LIES if given.only in name]
    if not names:
        parser.error(f"no lie is called '{given.only}'; choose of {', '.join(LIES)}")
    warnings.simplefilter("ignore", EverfedWarning)
    work = Path(tempfile.mkdtemp(prefix="everfed-attacks-"))
    runs = []
    with Loopback(work, CLIENTS) as fleet:
        fleet.start()
        batches = -(-len(names) // len(LIARS))
        for first in range(batches):
            some = tuple(names[first::batches])  # of lies that are alike, each in a run of its own
            runs.append(attacked(fleet, some, given.patience))
            print(json.dumps(runs[-1], indent=1), flush=True)
            given.out.write_text(json.dumps({"lies": len(names), "runs": runs}, indent=1) + "\n")
    shutil.rmtree(work)
    bad = [
        name
        for run in runs
        for name, lie in run["lies"].items()
        if not (run["ended"] and run["largest_difference_from_the_honest"] == 0.0 and lie["as_expected"])
        or lie["counted"]
    ]
    print(f"{len(names) - len(bad)} of {len(names)} lies came to what they should" + (f"; not: {bad}" if bad else ""))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
