"""Milliseconds a round of the field's models, by trainer and by rule for gradients, and whether a run repeats its bits.

    python benchmarks/models.py                          # on a GPU: all models, bf16 and float32
    python benchmarks/models.py --models resnet18-gn vit --precisions bf16
    python benchmarks/models.py --small --device cpu     # tiny, to see that it works

40 clients, 5 local SGD steps of 20 samples, all participants in every round; medians over whole rounds of a run, after
those that set things up. 'first' is from the making of the run to the end of its first round. 'apart' is how far the
final model is from the one that the slowest trainer makes, relative to the way it went. 'bits': two runs, equal or not.
'asked for' and 'trainer' differ where `auto` took what is also measured by name.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import everfed as ef

RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "proximal": {"gradients": (ef.Proximal(0.01),)},
    "clip": {"gradients": (ef.Clip(1.0),)},
    "scaffold": {"method": "ht-scaffold"},
}


def gn_cnn() -> nn.Module:
    def part(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*part(3, 32), *part(32, 64), nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10))


def mobile() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.GroupNorm(4, 32), nn.ReLU()]
    inputs = 32
    for outputs, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        layers += [
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
            nn.GroupNorm(4, inputs),
            nn.ReLU(),
        ]
        layers += [nn.Conv2d(inputs, outputs, 1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class ViT(nn.Module):
    """4 layers of 128, 64 tokens."""

    def __init__(self, wide: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, wide, 4, 4), nn.Parameter(torch.zeros(1, 64, wide))
        made = [
            nn.TransformerEncoderLayer(wide, heads, 2 * wide, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        ]
        self.layers, self.out = nn.Sequential(*made), nn.Linear(wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gn-cnn": gn_cnn,
    "mobile": mobile,
    "resnet18-gn": lambda: ef.build("resnet18-gn", (3, 32, 32), 10),
    "mobilenet-gn": lambda: ef.build("mobilenet-gn", (3, 32, 32), 10),
    "vit": ViT,
    "char-gpt": lambda: ef.build("char-gpt", (80,), 82),
    "char-lstm": lambda: ef.build("char-lstm", (80,), 82),
}


def data(name: str, clients: int, each: int) -> ef.FederatedData:
    """Random numbers: speed does not depend on what they show."""
    draw = np.random.default_rng(0)
    if name.startswith("char"):
        texts = [draw.integers(0, 82, (each, 81)) for _ in range(clients)]
        return ef.from_arrays([(text[:, :-1], text[:, 1:]) for text in texts])
    x = draw.normal(size=(each, 3, 32, 32)).astype(np.float32)
    return ef.from_arrays([(x, draw.integers(0, 10, each)) for _ in range(clients)])


def run(name: str, trainer: str, precision: str, rule: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    model, clients = MODELS[name](), options.clients
    settings: dict[str, Any] = {"method": "fedavg", **RULES[rule], "rounds": options.rounds, "trainer": trainer}
    settings |= {"local_steps": 5, "batch_size": options.batch, "client": ef.SGD(0.01), "eval_every": options.rounds}
    began = time.perf_counter()
    made = ef.start(
        model, data(name, clients, 2 * options.batch), ef.Fleet.from_cycles([1] * clients), device=options.device,
        precision=precision, **settings,
    )  # fmt: skip
    first, ms = 0.0, []
    for record in made:
        first = first or time.perf_counter() - began
        ms.append(1000 * record.seconds)
    how = made.source.training()
    moved = torch.cat([(made.params[n].cpu() - p.detach().cpu()).flatten() for n, p in model.named_parameters()])
    middle = statistics.median(ms[len(ms) // 2 : -1])
    return {"ms": middle, "first_s": first, "trainer": how.trainer, "parts": how.parts, "moved": moved}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--precisions", nargs="+", default=["bf16", "float32"])
    parser.add_argument("--trainers", nargs="+", default=["auto", "compiled", "batched"])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES), help="with auto alone")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="2 clients, batches of 2, float32")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    if options.small:
        options.clients, options.batch, options.rounds, options.precisions = 2, 2, 4, ["float32"]
    rows = []
    print("| model | precision | asked for | trainer | rule | ms a round | first, s | apart | bits |")
    print("|---|---|---|---|---|---:|---:|---:|---|")
    for name in options.models:
        slow = run(name, "one-by-one", "float32", "plain", options) if "plain" in options.rules else None
        for precision in options.precisions:
            for trainer in options.trainers:
                for rule in options.rules if trainer == "auto" else ["plain"]:
                    rows.append(measured(name, trainer, precision, rule, slow, options))
                    print(
                        f"| {' | '.join(shown(value) for key, value in rows[-1].items() if key != 'parts')} |",
                        flush=True,
                    )
                    if options.out:
                        options.out.write_text(json.dumps(rows, indent=1) + "\n")


def measured(
    name: str, trainer: str, precision: str, rule: str, slow: dict[str, Any] | None, options: argparse.Namespace
) -> dict[str, Any]:
    try:
        found, again = (run(name, trainer, precision, rule, options) for _ in range(2))
    except Exception as error:  # one model must not end the sitting
        about = {"model": name, "precision": precision, "asked": trainer, "trainer": "failed", "rule": rule}
        return about | {"error": str(error)[:200]}
    apart = None
    if slow is not None and rule == "plain":
        apart = float(F.pairwise_distance(found["moved"], slow["moved"], eps=0.0) / slow["moved"].norm())
    bits = "equal" if torch.equal(found["moved"], again["moved"]) else "not equal"
    return {
        "model": name, "precision": precision, "asked": trainer, "trainer": found["trainer"], "rule": rule,
        "ms": min(found["ms"], again["ms"]), "first_s": found["first_s"], "apart": apart, "bits": bits,
        "parts": found["parts"],
    }  # fmt: skip


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
