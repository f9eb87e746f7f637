"""Run one federated workload on everfed and on its peers, and print one table.

Every peer runs in a process of its own, one after another, by default in an environment of its own
that is made on first use. A peer that cannot be installed or fails gets a row that says why.

    python benchmarks/peers/run.py --workload digits40
    python benchmarks/peers/run.py --workload paper40 --device cuda --precision bf16 --peers everfed torch pfl
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# How a row is made: the script, its requirements and its own options.
PEERS: dict[str, tuple[str, str, list[str]]] = {
    "everfed": ("with_everfed.py", "everfed", []),
    "everfed-algorithm1": ("with_everfed.py", "everfed", ["--method", "algorithm1"]),
    "torch": ("with_torch.py", "torch", []),
    "graphs": ("with_graphs.py", "torch", []),
    "flower": ("with_flower.py", "flower", []),
    "pfl": ("with_pfl.py", "pfl", []),
    "fedjax": ("with_fedjax.py", "fedjax", []),
    "jax": ("with_jax.py", "jax", []),
}
PARALLEL = ("flower", "pfl")  # train several clients at the same time, in processes of their own

Row = dict[str, Any]


class PeerError(Exception):
    """A peer gave no result; the message is for its row."""


def main() -> None:
    options = parse()
    rows = []
    for peer in options.peers:
        for workers in options.workers if peer in PARALLEL and options.workers else [None]:
            row = measure(peer, workers, options)
            rows.append(row)
            said = row.get("failed") or f"{row['ms_per_round']:.1f} ms a round"
            print(f"{row['peer']}: {said}", file=sys.stderr)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=("paper40", "digits40"), default="digits40")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="float32")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before the timed ones")
    parser.add_argument("--threads", type=int, help="CPU cores a peer may use; all unless said")
    parser.add_argument("--workers", type=int, nargs="+", help=f"processes of {' and '.join(PARALLEL)}; a row for each")
    parser.add_argument("--peers", nargs="+", choices=PEERS, metavar="PEER", help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--envs", type=Path, default=Path(".peers"), help="where the environments are made")
    parser.add_argument("--no-envs", action="store_true", help="use this interpreter for all peers")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds a peer may take")
    parser.add_argument("--json", type=Path, default=Path(".peers/results.json"), help="where all figures go")
    options = parser.parse_args()
    # Who takes part matters on the digits; the images measure the training of all.
    options.peers = options.peers or [p for p in PEERS if options.workload == "digits40" or p != "everfed-algorithm1"]
    return options


def measure(peer: str, workers: int | None, options: argparse.Namespace) -> Row:
    script, requirements, own = PEERS[peer]
    command = [str(HERE / script), *own, *(["--workers", str(workers)] if workers else [])]
    for name in ("workload", "device", "precision", "rounds", "warmup", "threads"):
        value = getattr(options, name)
        command += [f"--{name}", str(value)] if value is not None else []
    try:
        python = Path(sys.executable) if options.no_envs else environment(requirements, options)
        return result(run([str(python), *command], options.timeout))
    except PeerError as failure:
        return {"peer": peer, "workload": options.workload, "device": options.device, "failed": str(failure)}


def environment(requirements: str, options: argparse.Namespace) -> Path:
    """The interpreter of a peer's environment, made unless it is there. A mark says that it is whole."""
    special = f"{requirements}-cuda"
    if options.device == "cuda" and (HERE / "requirements" / f"{special}.txt").exists():
        requirements = special
    folder = options.envs.resolve() / requirements
    python, mark = folder / "bin" / "python", folder / "complete"
    if not mark.exists():
        print(f"making {folder}", file=sys.stderr)
        options.envs.mkdir(parents=True, exist_ok=True)
        (options.envs / ".gitignore").write_text("*\n")  # nothing in there is for git
        venv.create(folder, with_pip=True)  # without clearing: what lies there may not be ours
        wanted = HERE / "requirements" / f"{requirements}.txt"
        run([str(python), "-m", "pip", "install", "--quiet", "-r", str(wanted)], options.timeout)
        mark.touch()
    return python


def run(command: list[str], timeout: float, **variables: str) -> str:
    """What a command printed; if it fails, the last error it named. variables: of its environment."""
    try:
        env = surroundings() | variables
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env)
    except subprocess.TimeoutExpired:
        raise PeerError(f"took more than {timeout:.0f} s") from None
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in said if "Error" in line or "ERROR" in line]
        raise PeerError((errors or said or [f"ended with status {done.returncode}"])[-1])
    return done.stdout


def surroundings() -> dict[str, str]:
    """The peers' environment variables. everfed is the one of this repository, installed or not."""
    paths = [os.environ.get("PYTHONPATH"), str(ROOT / "src")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def result(output: str) -> Row:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            row: Row = json.loads(line)
            return row
    raise PeerError("printed no result")


def table(rows: list[Row]) -> str:
    """Markdown; the ratio is to the first row of everfed itself."""
    base = next((row["ms_per_round"] for row in rows if row["peer"] == "everfed" and "ms_per_round" in row), None)
    lines = ["| peer | ms a round | times everfed | precision | versions |", "|---|---:|---:|---|---|"]
    for row in rows:
        name = row["peer"] + (f", {row['workers']} processes" if row.get("workers", 1) > 1 else "")
        if "failed" in row:
            reason = row["failed"].replace("|", "/")[:200]
            lines.append(f"| {name} | failed | | | {reason} |")
            continue
        ms, versions = row["ms_per_round"], ", ".join(f"{k} {v}" for k, v in row["versions"].items())
        ratio = f"{ms / base:.2f}" if base else ""
        lines.append(f"| {name} | {ms:.1f} | {ratio} | {row['precision']} | {versions} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
