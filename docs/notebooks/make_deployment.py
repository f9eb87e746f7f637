"""Makes the folder `deployment/`, whose records the notebook reads: eight clients, twenty rounds, and what goes wrong.

    python docs/notebooks/make_deployment.py

The clients and the server are those of a deployment; only the network is replaced by calls within this process, so that
it takes seconds. Client 6 is without a network for eight rounds; every third reply of client 1 is lost.
"""

import json
import logging
import platform
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from everfed.flower import RoundLimits, client_app  # noqa: E402
from everfed.flower.server import stored_remote_rounds  # noqa: E402
from everfed.run import config  # noqa: E402
from flower_grid import InProcessGrid, Node  # noqa: E402

CLIENTS, ROUNDS = 8, 20
AWAY = range(6, 14)  # rounds without client 6


def main(folder: Path = Path(__file__).parent / "deployment") -> None:
    warnings.simplefilter("ignore")
    platform.platform = lambda *_: "Linux"  # no matter which machine made it
    logging.disable(logging.CRITICAL)
    shutil.rmtree(folder, ignore_errors=True)
    raw = config.read(ROOT / "examples" / "flower-fleet" / "fleet_app" / "experiment.toml")
    experiment = replace(config.from_dict({**raw, "rounds": ROUNDS}), eval_every=2)
    nodes = [Node(client_app(experiment), {"partition-id": number}) for number in range(CLIENTS)]
    lost = {"replies": 0}

    def unreliable(reply, number):
        if number == 101 and "arrays" in reply.content:
            lost["replies"] += 1
            return None if lost["replies"] % 3 == 0 else reply
        return reply

    grid = InProcessGrid(nodes, unreliable)
    limits = RoundLimits(query_s=5.0, train_s=1.0, wait_s=0.0)
    for record, ledger in stored_remote_rounds(experiment, grid, folder, limits=limits):
        nodes[6].online = record.round + 1 not in AWAY
        summary = {**ledger.summary(), "brownouts": record.energy.brownouts, "violations": record.energy.violations}
        (folder / "deployment.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    for file in (folder / "lock", *folder.glob("checkpoint-*")):
        file.unlink()  # only a run that goes on needs them


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
