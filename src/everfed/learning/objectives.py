"""What each task asks of a model: the loss that is trained, and the shape of the outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from everfed.data.targets import CLASSIFICATION, IGNORED, MULTILABEL, NEXT_TOKEN, REGRESSION
from everfed.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy over the positions that have a target. outputs: [batch, length, vocabulary]."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


LOSSES: dict[str, Loss] = {
    CLASSIFICATION: F.cross_entropy,
    NEXT_TOKEN: token_loss,
    MULTILABEL: F.binary_cross_entropy_with_logits,
    REGRESSION: F.mse_loss,
}


def per_client(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Each client's minibatch loss [C], from outputs and targets [C, batch, ...].

    Cross entropies in one call over all clients: under vmap, torch falls back to a slow decomposition.
    """
    if loss is F.cross_entropy:
        each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none")
        return each.view(targets.shape).mean(dim=1)
    if loss is token_loss:
        flat = F.cross_entropy(outputs.flatten(0, 2), targets.flatten(), reduction="none", ignore_index=IGNORED)
        counted = (targets != IGNORED).flatten(1).sum(dim=1)
        return flat.view(len(targets), -1).sum(dim=1) / counted
    return vmap(loss)(outputs, targets)


def check_outputs(out: Tensor, task: str, count: int, classes: int, target_shape: tuple[int, ...]) -> None:
    """Refuse outputs for `count` samples that do not fit the task."""
    found, given = tuple(out.shape), f"the model gives outputs of shape {tuple(out.shape)} for {count} samples"
    if task == CLASSIFICATION and (out.ndim != 2 or found[0] != count or found[1] < classes):
        raise InputError(f"{given}; for {classes} classes it must be ({count}, {classes}).")
    if task == MULTILABEL and found != (count, classes):
        raise InputError(f"{given}; for {classes} labels it must be ({count}, {classes}), one number per label.")
    if task == NEXT_TOKEN and (out.ndim != 3 or found[:2] != (count, *target_shape) or found[2] < classes):
        raise InputError(
            f"{given}; for targets of shape {target_shape}, one of {classes} tokens at each position, it must be "
            f"({count}, {target_shape[0]}, {classes}). (For one class per sample give targets of shape (samples,); for "
            "several labels name the task 'multilabel'.)"
        )


class Targets(NamedTuple):
    """The targets of some test samples, one after the other: of tokens, several per sample."""

    loss: Tensor  # [T]
    hit: Tensor | None  # [T] whether, or how far, the prediction is right; None for regression
    label: Tensor | None  # [T] the class; None where there is not one
    sample: Tensor  # [T] which of the samples


def per_target(task: str, outputs: Tensor, y: Tensor) -> Targets:
    """How well each target is predicted."""
    sample = torch.arange(len(y), device=y.device)
    if task == CLASSIFICATION:
        return Targets(F.cross_entropy(outputs, y, reduction="none"), outputs.argmax(dim=1) == y, y, sample)
    if task == NEXT_TOKEN:
        counts = y != IGNORED
        kept, label = outputs[counts], y[counts]
        hit = kept.argmax(dim=1) == label
        return Targets(F.cross_entropy(kept, label, reduction="none"), hit, label, sample[:, None].expand_as(y)[counts])
    if task == MULTILABEL:
        loss = F.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(dim=1)
        return Targets(loss, ((outputs > 0) == (y > 0.5)).to(loss.dtype).mean(dim=1), None, sample)
    return Targets(F.mse_loss(outputs, y, reduction="none").reshape(len(y), -1).mean(dim=1), None, None, sample)
