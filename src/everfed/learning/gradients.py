"""Changes to the clients' gradients between the backward pass and the optimiser's step.

A rule adjusts a matrix [clients, parameters], one row per client. Several apply in the order given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from everfed import registry
from everfed.arrays import Ints
from everfed.checks import Checked, NonNegative, Positive


class GradientRule(Protocol):
    """The protocol of gradient rules; `GRADIENT_RULES` lists those without server state."""

    def adjust(self, grads: Tensor, params: Tensor, start: Tensor, clients: Ints) -> Tensor:
        """grads, params: [C, parameters]; start: where the client began, in one row or a row per client.

        May change grads in place.
        """
        ...


@runtime_checkable
class AddedRule(GradientRule, Protocol):
    """A rule that adds the same to all gradients of a client's round. The GPU kernels have it fetched once a round."""

    def added(self, clients: Ints) -> Tensor:
        """[C, parameters]"""
        ...


@dataclass(frozen=True)
class Proximal(Checked):
    """FedProx (Li et al., MLSys 2020): a pull of strength mu back to the server's parameters.

    Adds mu * (w - start) to the gradient, the derivative of mu/2 * |w - start|^2. It limits the drift of many local
    steps on unequal data. Not for few local steps, which it only slows down.

    mu: the strength of the pull.

    >>> import everfed as ef
    >>> ef.Experiment(gradients=(ef.Proximal(0.1),)).gradients
    (Proximal(mu=0.1),)
    """

    any_order: ClassVar[bool] = True  # all elements, and all clients, are treated alike: kernels have their own order
    mu: NonNegative = 0.01

    def adjust(self, grads: Tensor, params: Tensor, start: Tensor, clients: Ints) -> Tensor:
        return grads.add(params - start, alpha=self.mu)


@dataclass(frozen=True)
class Clip(Checked):
    """Each client's gradient, shortened to length `norm` if it is longer.

    Bounds a client's update, and so the variance its scale multiplies; a clipped gradient is biased
    (the mean of shortened minibatch gradients is not the shortened mean).

    norm: the greatest length of a gradient.

    >>> import everfed as ef
    >>> ef.Experiment(gradients=(ef.Clip(5.0), ef.Proximal(0.1))).gradients[0]
    Clip(norm=5.0)
    """

    any_order: ClassVar[bool] = True
    norm: Positive = 1.0

    def adjust(self, grads: Tensor, params: Tensor, start: Tensor, clients: Ints) -> Tensor:
        # As torch.nn.utils.clip_grad_norm_, but for each row; a gradient that is not finite stays so.
        length = grads.norm(dim=1, keepdim=True)
        shorter: Tensor = self.norm / (length + 1e-6)
        return grads * shorter.clamp(max=1.0)


GRADIENT_RULES: dict[str, type[Any]] = {"proximal": Proximal, "clip": Clip}
registry.table("gradients", GRADIENT_RULES, GradientRule)


def adjusted(rules: tuple[GradientRule, ...], grads: Tensor, params: Tensor, start: Tensor, clients: Ints) -> Tensor:
    """The gradients after all rules."""
    for rule in rules:
        grads = rule.adjust(grads, params, start, clients)
    return grads
