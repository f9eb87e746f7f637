"""A whole ServerApp from an experiment: rounds on the nodes there are, written to a run folder."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from everfed.data.federated import FederatedData
from everfed.flower.identity import Roster
from everfed.flower.ledger import Ledger
from everfed.flower.limits import RoundLimits
from everfed.flower.load import Described, load_experiment
from everfed.flower.remote import stored_remote_rounds
from everfed.store.checkpoint import write_atomically
from everfed.store.folder import is_running

log = logging.getLogger("flwr.everfed")


def server_app(experiment: Described, *, data: FederatedData | None = None) -> ServerApp:
    """A ServerApp that runs the experiment on the nodes there are, and writes a run folder.

    The run's configuration says the rest: `folder` (where to write; an interrupted run goes on there),
    `keys` (a folder of the clients' public keys; without it nodes are believed), `set` (changes to the
    experiment) and the names of `RoundLimits` with dashes (`query-s`, `train-s`, ...).
    data: what the server knows of the clients' data, their sizes and a test set; None: the experiment's.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = dict(context.run_config)
        chosen = load_experiment(experiment, settings)
        folder = Path(str(settings.get("folder") or "everfed-out/flower")).expanduser()
        keys = settings.get("keys")
        roster = Roster.read(Path(str(keys)).expanduser()) if keys else None
        own = ("folder", "keys", "set")
        terms = RoundLimits.of({key: value for key, value in settings.items() if key not in own})
        _await_folder(folder, terms.wait_s)
        for record, protocol in stored_remote_rounds(chosen, grid, folder, data=data, terms=terms, roster=roster):
            entry = protocol.ledger.entries[-1]
            log.info(
                "round %d: %d planned, %d done, %d lost, %d refused%s",
                record.round + 1, len(entry.planned), len(entry.done), len(entry.lost), len(entry.refused),
                f", accuracy {record.metrics.accuracy:.3f}" if record.metrics and record.metrics.accuracy else "",
            )  # fmt: skip
            summary = write_summary(protocol.ledger, folder)
            if record.round + 1 == chosen.rounds:
                log.info(
                    "%(lost)d of %(planned)d participations were lost and %(refused)d refused, %(missed)d missed while "
                    "away; %(bias)s of the weight went to other clients than it should",
                    {**summary, "bias": f"{summary['bias']:.1%}"},
                )

    return app


def _await_folder(folder: Path, patience_s: float) -> None:
    """A server whose SuperLink was killed takes a while to notice; until then the folder is its own."""
    until = time.monotonic() + patience_s
    while is_running(folder) and time.monotonic() < until:
        time.sleep(1.0)


def write_summary(ledger: Ledger, folder: Path) -> dict[str, Any]:
    """The deployment's books beside the run's records."""
    summary = ledger.summary()
    write_atomically(folder / "deployment.json", json.dumps(summary, indent=1) + "\n")
    return summary
