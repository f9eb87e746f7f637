"""What the torch-based scripts share: model, data on the device, augmentation, optimiser, precision.

All of them train with exactly these parts, so that what differs is the framework around them.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import CROP, LOCAL_STEPS, WORKLOADS, Workload, probe


def build(workload: Workload) -> nn.Module:
    """The workload's model with the same initial weights in every script."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _cnn() if workload.name == "paper40" else _mlp()
    assert sum(p.numel() for p in model.parameters()) == workload.parameters
    return model


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _cnn() -> nn.Module:
    """The CIFAR network of McMahan et al. (AISTATS 2017)."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(64 * (CROP // 4) ** 2, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )


@functools.cache
def kept_model(name: str, device: str) -> nn.Module:
    """One module a process, which all the clients it trains use in turn."""
    return build(WORKLOADS[name]).to(device)


def optimizer(workload: Workload, parameters: list[nn.Parameter], lr: float | None = None) -> torch.optim.Optimizer:
    """Fused: the fastest that torch has, on the CPU and on GPUs."""
    make = torch.optim.Adam if workload.optimizer == "adam" else torch.optim.SGD
    return make(parameters, lr=workload.lr if lr is None else lr, fused=True)


@functools.cache
def resident(name: str, device: str) -> list[tuple[Tensor, Tensor]]:
    """Every client's data on the device; made once a process."""
    return [
        (torch.as_tensor(x, device=device), torch.as_tensor(y, device=device)) for x, y in WORKLOADS[name].clients()
    ]


def batches(x: Tensor, y: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """A round's minibatches of one client: a fresh shuffle, samples repeating only where it has too few."""
    needed = LOCAL_STEPS * size
    order = torch.cat([torch.randperm(len(y), device=y.device) for _ in range(-(-needed // len(y)))])
    return [(x[numbers], y[numbers]) for numbers in order[:needed].split(size)]


def inputs(x: Tensor) -> Tensor:
    """What the model trains on: images are cropped and mirrored at random and standardised."""
    if x.dtype != torch.uint8:
        return x
    count, channels, height, width = x.shape
    top = torch.randint(0, height - CROP + 1, (count, 1), device=x.device)
    left = torch.randint(0, width - CROP + 1, (count, 1), device=x.device)
    mirrored = torch.rand((count, 1), device=x.device) < 0.5
    along = torch.arange(CROP, device=x.device)
    columns = torch.where(mirrored, CROP - 1 - along, along) + left
    # One gather of whole pixels is far fewer operations than a crop and a flip of each image.
    pixels = ((along + top)[:, :, None] * width + columns[:, None, :]).flatten(1)
    cropped = x.flatten(2).gather(2, pixels[:, None].expand(-1, channels, -1))
    return standardize(cropped.view(count, channels, CROP, CROP))


def standardize(images: Tensor) -> Tensor:
    x = images.float()
    deviation, mean = torch.std_mean(x, dim=(1, 2, 3), keepdim=True, correction=0)
    return (x - mean) / deviation


def set_precision(precision: str) -> None:
    """torch lets convolutions use TF32 unless told otherwise, so float32 must be asked for.

    cuDNN tries its convolutions and keeps the fastest, as somebody who knows torch would have it: shapes do not change.
    """
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
    torch.backends.cudnn.allow_tf32 = precision != "float32"


def autocast(precision: str) -> torch.autocast:
    return torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16")


def train_client(model: nn.Module, workload: Workload, client: int, device: str, precision: str) -> int:
    """The local steps, from the weights that are in the model; says how many they were."""
    x, y = resident(workload.name, device)[client]
    rule, steps = optimizer(workload, list(model.parameters())), 0
    for images, labels in batches(x, y, workload.batch):
        with autocast(precision):
            loss = F.cross_entropy(model(inputs(images)), labels)
        rule.zero_grad()
        loss.backward()
        rule.step()
        steps += 1
    return steps


@torch.no_grad()
def probe_loss(model: nn.Module, workload: Workload) -> float:
    """The model's loss on some samples of every client, in the middle of the image."""
    x, y = (torch.as_tensor(array) for array in probe(workload.clients()))
    if x.dtype == torch.uint8:
        edge = (x.shape[-1] - CROP) // 2
        x = standardize(x[..., edge : edge + CROP, edge : edge + CROP])
    device = next(model.parameters()).device
    return float(F.cross_entropy(model(x.to(device)), y.to(device)))


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
