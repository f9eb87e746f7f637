"""Rules that change gradients, inside a round of kernels that is recorded once and replayed.

With rules, all layers' gradients of a step are first brought together in one row per client; without, each is consumed
where it was made. Rules are the ones of `learning/gradients.py`, called with rows in the kernels' own order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Ints
from everfed.engine.layers import Layer
from everfed.learning.gradients import AddedRule, GradientRule

_NOBODY: Ints = np.zeros(0, np.int64)  # a rule for any order has promised not to ask who


def without_kernels(rules: tuple[GradientRule, ...]) -> list[str]:
    """Names of the rules that only the other trainers can follow."""
    unknown = [rule for rule in rules if not (_any_order(rule) or isinstance(rule, AddedRule))]
    return [type(getattr(rule, "rule", rule)).__name__.strip("_") for rule in unknown]  # within, on several GPUs


def bytes_per_client(rules: tuple[GradientRule, ...], size: int, own_starts: bool) -> int:
    """The gradient, what rules add, where the client began, and what a rule computes on its way."""
    added = sum(isinstance(rule, AddedRule) for rule in rules)
    return 4 * size * (1 + added + own_starts + 2) if rules else 0


class Rules:
    """The rules of one program, with rows for up to `room` clients."""

    def __init__(self, rules: tuple[GradientRule, ...], room: int, size: int, from_kernel: Tensor) -> None:
        self.rules, self.from_kernel = rules, from_kernel
        device = from_kernel.device
        self.gradients = torch.zeros(room if rules else 0, size, device=device)
        self.real = torch.zeros(size, dtype=torch.bool, device=device)  # not padding
        self.real[from_kernel] = True
        self.added = {
            n: torch.zeros(room, size, device=device) for n, r in enumerate(rules) if isinstance(r, AddedRule)
        }

    def begin(self, clients: Ints) -> None:
        """Fetch what is added to the gradients of these clients, before the round. Padding stays zero."""
        for number, rows in self.added.items():
            rule = self.rules[number]
            assert isinstance(rule, AddedRule)
            rows[: len(clients)].index_copy_(1, self.from_kernel, rule.added(clients))

    def __call__(self, layers: list[Layer], clients: int, params: Tensor, start: Tensor) -> Tensor:
        """The step's gradients [room, size] after all rules. params, start: [clients or 1, size]"""
        rows = self.gradients[:clients]
        for layer in layers:
            if layer.size:
                parts = layer.gradient[: layer.splits * clients * layer.size].view(layer.splits, clients, layer.size)
                torch.sum(parts, 0, out=rows[:, layer.offset : layer.offset + layer.size])
        found = rows
        for number, rule in enumerate(self.rules):
            if number in self.added:
                found = found + self.added[number][:clients]
            else:
                found = rule.adjust(found, params, start, _NOBODY)
        rows.copy_(torch.where(self.real, found, 0.0))  # a rule that adds something would move padding, too
        return self.gradients


def _any_order(rule: GradientRule) -> bool:
    """A promise of this class alone: one that is derived from it may change what it does."""
    return bool(vars(type(rule)).get("any_order", False))
