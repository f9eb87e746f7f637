"""A fleet's server and eight SuperNodes on this machine, with TLS and node authentication, train the digits.

    python examples/flower-fleet/run.py

Keys, certificates, logs and the run are written below `everfed-out/flower-fleet`, and the report beside
them. Interrupted and called again, the run goes on where it was. Everything that was started is ended.
On two cores eight nodes take about 20 seconds a round, since Flower starts a process for every message:
a quarter of an hour in all, or two minutes with --rounds 3. Without rounds, clients work as soon as
they have energy, and nobody waits for another: --method renewal --round 20.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

from everfed import open_run
from everfed.errors import EverfedWarning
from everfed.flower import Loopback
from everfed.flower.ledger import read
from everfed.report.page import page as report_page

APP = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("everfed-out/flower-fleet"))
    parser.add_argument("--method", default="algorithm1")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds that each half of a round may take")
    parser.add_argument("--round", type=float, default=0.0, help="seconds of a round, as in 20: for --method renewal")
    given = parser.parse_args()
    warnings.simplefilter("ignore", EverfedWarning)

    run_folder = given.folder.resolve() / "run"
    with Loopback(given.folder, given.clients) as fleet:
        print(f"starting a server and {given.clients} SuperNodes, with TLS and keys of their own")
        fleet.start()
        config = {
            "folder": str(run_folder),
            "keys": str(fleet.keys),
            "set": f"method={given.method} rounds={given.rounds} fleet.clients={given.clients}",
            "query-s": given.deadline,
            "train-s": given.deadline,
            "round-s": given.round,
        }
        number = fleet.submit(APP, config)
        shown = len(read(run_folder))
        result = run_folder / "result.json"
        while not result.exists() and "finished" not in (state := fleet.look(number)["status"]):
            until = time.monotonic() + 20.0
            while not result.exists() and time.monotonic() < until:
                shown = show(run_folder, shown)
                time.sleep(1.0)
        shown = show(run_folder, shown)
        state = fleet.wait(number, 60.0)["status"]
        if state != "finished:completed":
            raise SystemExit(f"the run ended as {state}; its log is {given.folder}/superlink/log")

    stored = open_run(run_folder)
    page = report_page([stored], given.folder / "report.html", None)
    summary = json.loads((run_folder / "deployment.json").read_text())
    accuracy = stored.final.accuracy if stored.final else None
    print(f"accuracy {accuracy:.3f} after {summary['rounds']} rounds; report: {page}")
    print(
        f"participations: {summary['planned']} planned, {summary['done']} done, {summary['lost']} lost; "
        f"{summary['models_sent']} models sent, {summary['rounds'] * given.clients} without asking first"
    )


def show(folder: Path, shown: int) -> int:
    """Print the rounds that are new in the books; returns how many there are."""
    entries = read(folder)
    for entry in entries[shown:]:
        who = ", ".join(map(str, sorted(entry.done))) or "nobody"
        lost = f"; lost: {', '.join(map(str, entry.lost))}" if entry.lost else ""
        print(f"round {entry.round + 1}: trained by {who}{lost} ({entry.query_s + entry.train_s:.0f} s)", flush=True)
    return len(entries)


if __name__ == "__main__":
    main()
