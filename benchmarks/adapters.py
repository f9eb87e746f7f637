"""What clients' own adapters cost: a local step of several clients with LoRA, and of one client with all their samples.

    python benchmarks/adapters.py                                     # 16 clients, a decoder of 100 million parameters
    python benchmarks/adapters.py --device cuda --precision bf16 --batch 16 --length 512
    python benchmarks/adapters.py --layers 2 --width 64               # small, to see that it works

Both go through the same frozen weights with the same number of tokens; the difference is what adapters of their own
cost. They are trained in turns, in one process. The third column is the bare frozen model, forward alone.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

import everfed as ef

VOCABULARY = 82


def run(clients: int, batch: int, trainer: str, options: argparse.Namespace) -> ef.Run:
    draw = np.random.default_rng(0)
    texts = draw.integers(0, VOCABULARY, (clients, batch, options.length + 1))
    data = ef.from_arrays([(text[:, :-1], text[:, 1:]) for text in texts])
    shape = {"layers": options.layers, "width": options.width, "heads": options.width // 64 or 1}
    model = ef.build("char-gpt", (options.length,), VOCABULARY, **shape, lora=options.rank)
    return ef.start(
        model, data, ef.Fleet.from_cycles([1] * clients), "fedavg", rounds=100, local_steps=1, batch_size=batch,
        client=ef.SGD(0.01), device=options.device, precision=options.precision, trainer=trainer, check_trainer=False,
    )  # fmt: skip


def seconds(made: ef.Run, round: int) -> float:
    clients = np.arange(len(made.setup.data))
    began = time.perf_counter()
    for part in made.source.trainer.train(made.server.params, clients, round):
        float(part.losses.sum())  # waits for the device
    return time.perf_counter() - began


def forward(made: ef.Run) -> float:
    """The model alone, without gradients, on all samples at once."""
    task = made.source.trainer.task
    inputs = task.data.inputs(task.batch_size)
    began = time.perf_counter()
    with torch.no_grad():
        float(task.module(inputs).sum())
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1, help="samples of each client")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sample")
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--trainers", nargs="+", default=["batched"])
    options = parser.parse_args()
    one = run(1, options.clients * options.batch, "batched", options)
    size = sum(p.numel() for p in one.setup.module.parameters())
    print(f"{size:,} parameters, {one.setup.layout.size:,} of an adapter; torch {torch.__version__}, medians of")
    print(f"{options.repeats}; {options.clients} clients with {options.batch} times {options.length} tokens each\n")
    print("| trainer | clients' own adapters, s | one adapter, all samples, s | ratio | forward alone, s |")
    print("|---|---:|---:|---:|---:|")
    for trainer in options.trainers:
        own = run(options.clients, options.batch, trainer, options)
        for made in (own, one):
            seconds(made, 0)  # the first call allocates
        times = [(seconds(own, r), seconds(one, r), forward(one)) for r in range(1, 1 + options.repeats)]
        many, single, bare = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {trainer} | {many:.2f} | {single:.2f} | {many / single:.2f} | {bare:.2f} |", flush=True)


if __name__ == "__main__":
    main()
