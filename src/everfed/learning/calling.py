"""One way to call a model, whatever its inputs and outputs look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from everfed.arrays import Inputs
from everfed.errors import InputError


def outputs_of(module: nn.Module, inputs: Inputs, weights: dict[str, Tensor] | None = None) -> Tensor:
    """The model's outputs for a batch. Several inputs are passed by name.

    weights: trained parameters that stand in for the module's own. Of the outputs that Hugging Face's models return,
    the logits are taken.
    """
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else ((inputs,), {})
    out = module(*args, **kwargs) if weights is None else functional_call(module, weights, args, dict(kwargs))
    return out if isinstance(out, Tensor) else _logits(out, module)


def _logits(out: Any, module: nn.Module) -> Tensor:
    found = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    if isinstance(found, Tensor):
        return found
    raise InputError(
        f"the model {type(module).__name__} returns a {type(out).__name__}; its forward must return one tensor, "
        "the outputs, or an object with 'logits' (of nn.LSTM, for one, return only the part that is needed)."
    )
