"""The duel that the field knows: pfl-research's CIFAR10-IID benchmark, everfed against pfl in one and five processes.

    python benchmarks/duel.py --device cuda --precision tf32 --out duel.json
    python benchmarks/duel.py --device cuda --precision tf32 --warm      # a second start of each, too
    python benchmarks/duel.py --data synthetic --clients 40 --cohort 5 --rounds 6 --rate 0.03     # tiny

'synthetic' is for seeing that it works: random images with a tint for each class. They make gradients so large that 0.1
is at the edge of what is stable, whoever trains; compare accuracies on them at 0.03.

1,000 clients of 50 images, 50 of them in each of 1,500 rounds, one local epoch in batches of 10 (5 steps) of SGD at
0.1, a server that averages, and an evaluation on the 10,000 test images after every 10th round. The network has two
convolutions and 1,626,442 parameters; both sides begin with the same weights, images and split.

Every contender is a fresh process, and its wall clock runs from before it is started until it has ended: imports,
reading and standardising the images, compilation and evaluations included. 'first round' is up to the end of the first.
Compilers keep what they made for the next start, so each contender gets empty caches (Triton, torch's inductor, the
driver). With --warm it then plays once more with the caches it has filled: a second row.
Before it, the images are decoded and written as bytes by this script, once for all.

What differs, since each does as it does:
- Cohorts. everfed's are exactly 50 different clients, all sets equally likely (`UniformCohort` in duel_everfed.py).
  pfl's sampler draws 50 times with replacement, so that a client may be in a cohort twice; so does its own benchmark.
- Minibatches. everfed draws each with replacement from the client's images. In pfl an epoch has every image once, and
  its data set in memory keeps their order, so that a client has the same five batches whenever it is drawn.
- Evaluation. pfl would also evaluate before the first round; here both do so equally often.
- Random numbers, so accuracies differ by chance, as between two values of --seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

from run import PeerError, Row, environment, result, run  # noqa: E402 -- found by the line above

# How a row is made: the script, its requirements and its own options.
CONTENDERS: dict[str, tuple[str, str, list[str]]] = {
    "everfed": ("duel_everfed.py", "everfed", []),
    "pfl": ("duel_pfl.py", "pfl", []),
    "pfl-5": ("duel_pfl.py", "pfl", ["--workers", "5"]),
}
EACH = 50  # images a client, as in duel_parts.py, which needs torch
NAMES = ("train_x", "train_y", "test_x", "test_y")

Images = dict[str, npt.NDArray[Any]]


def main() -> None:
    options = parse()
    rows = []
    with tempfile.TemporaryDirectory(prefix="duel") as folder:
        arrays = Path(folder) / "images.npz"
        np.savez(arrays, **images(options))
        for name, caches in ((name, caches) for name in options.contenders for caches in options.caches):
            rows.append(measure(name, caches, arrays, options))
            said = rows[-1].get("failed") or f"{rows[-1]['wall_s']:.1f} s, {100 * rows[-1]['accuracy']:.2f} %"
            print(f"{name}, caches {caches}: {said}", file=sys.stderr)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(rows, indent=1) + "\n")  # after each: a sitting may end early
    print(table(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.1, help="of the clients' SGD")
    parser.add_argument("--seed", type=int, default=0, help="of cohorts, minibatches and dropout")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="float32")
    parser.add_argument("--data", help="a folder of CIFAR-10, an .npz, or 'synthetic'; unless said, everfed fetches it")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--warm", action="store_true", help="also a second start of each, with the caches it filled")
    parser.add_argument("--envs", type=Path, default=Path(".peers"), help="where the environments are made")
    parser.add_argument("--no-envs", action="store_true", help="use this interpreter for all contenders")
    parser.add_argument("--timeout", type=float, default=4 * 3600, help="seconds a contender may take")
    parser.add_argument("--out", type=Path, default=Path(".peers/duel.json"), help="where all figures go")
    options = parser.parse_args()
    if options.precision != "float32" and options.device == "cpu":
        parser.error("tf32 and bf16 are for GPUs")
    if not 1 <= options.cohort <= options.clients:
        parser.error(f"a cohort is 1 to {options.clients} clients")
    options.caches = ["empty", "filled"] if options.warm else ["empty"]
    return options


def images(options: argparse.Namespace) -> Images:
    """Bytes of [images, channels, height, width], and labels."""
    if options.data == "synthetic":
        return synthetic(options.clients * EACH)
    if options.data and Path(options.data).suffix == ".npz":
        stored = np.load(options.data)
        if missing := [name for name in NAMES if name not in stored]:
            raise SystemExit(f"{options.data} lacks {', '.join(missing)}")
        found = {name: stored[name] for name in NAMES}
    else:
        import everfed as ef  # only here: the contenders have environments of their own

        source = ef.DATASETS["cifar10"](**({"folder": options.data} if options.data else {}))
        data = source.load()
        found = dict(zip(NAMES, (data.x, data.y, data.test_x, data.test_y), strict=True))
    for name in ("train_x", "test_x"):
        if found[name].shape[1:] == (32, 32, 3):
            found[name] = np.ascontiguousarray(found[name].transpose(0, 3, 1, 2))
    if found["train_x"].shape[1:] != (3, 32, 32) or len(found["train_x"]) < options.clients * EACH:
        raise SystemExit(f"{options.clients} clients need {options.clients * EACH:,} images of 3x32x32")
    return found | {name: found[name].reshape(-1) for name in ("train_y", "test_y")}


def synthetic(count: int, test: int = 500) -> Images:
    """Random images with a tint for each class: easy to learn, and quick to make."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, count + test)
    tints = rng.integers(0, 128, (10, 3, 1, 1), dtype=np.uint8)
    x = rng.integers(0, 128, (count + test, 3, 32, 32), dtype=np.uint8) + tints[y]
    return dict(zip(NAMES, (x[:count], y[:count], x[count:], y[count:]), strict=True))


def measure(name: str, caches: str, arrays: Path, options: argparse.Namespace) -> Row:
    """caches: 'empty', or 'filled' by the same contender just before."""
    script, requirements, own = CONTENDERS[name]
    command = [str(HERE / "peers" / script), "--arrays", str(arrays), *own]
    given = ("rounds", "clients", "cohort", "rate", "seed", "device", "precision")
    setting = {option: getattr(options, option) for option in given}
    for option, value in setting.items():
        command += [f"--{option}", str(value)]
    try:
        python = Path(sys.executable) if options.no_envs else environment(requirements, options)
        began = time.time()  # not a monotonic clock: the contender notes its first round by the same one
        output = run([str(python), *command], options.timeout, **cached_in(arrays.parent / f"caches-{name}"))
        ended = time.time()
        row = result(output)
    except PeerError as failure:
        return {"peer": name, **setting, "caches": caches, "failed": str(failure)}
    return row | setting | {"caches": caches, "wall_s": ended - began, "first_round_s": row["first_at"] - began}


def cached_in(folder: Path) -> dict[str, str]:
    """Where compilers keep what they make; it is this folder's first use, or the same contender's second."""
    kinds = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "driver"}
    return {variable: str(folder / kind) for variable, kind in kinds.items()}


def table(rows: list[Row]) -> str:
    """Markdown; the ratio is to everfed's row with the same caches."""
    base = {row["caches"]: row["wall_s"] for row in rows if row["peer"] == "everfed" and "wall_s" in row}
    lines = [
        "| contender | caches | wall clock, s | times everfed | first round, s | accuracy, % | precision | versions |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        name = row["peer"] + (f", {row['workers']} processes" if row.get("workers", 1) > 1 else "")
        if "failed" in row:
            reason = row["failed"].replace("|", "/")[:200]
            lines.append(f"| {name} | {row['caches']} | failed | | | | | {reason} |")
            continue
        ratio = f"{row['wall_s'] / base[row['caches']]:.2f}" if row["caches"] in base else ""
        numbers = f"{row['wall_s']:.1f} | {ratio} | {row['first_round_s']:.1f} | {100 * row['accuracy']:.2f}"
        versions = ", ".join(f"{k} {v}" for k, v in row["versions"].items())
        lines.append(f"| {name} | {row['caches']} | {numbers} | {row['precision']} | {versions} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
