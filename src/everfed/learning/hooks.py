"""Hooks of a user's module. A trainer honours them or refuses the module.

Hooks on the forward pass are called wherever a module is, but by kernels. Hooks on gradients are called by torch's own
backward pass alone: not for a client's row of a batch over clients.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as of_all_modules

from everfed.errors import InputError

_ON_GRADIENTS = ("_backward_hooks", "_backward_pre_hooks")
_ON_CALLS = ("_forward_hooks", "_forward_pre_hooks")
# Of a parameter: what registers a hook, and where torch keeps it.
_OF_PARAMETERS = {
    "register_hook": "_backward_hooks",
    "register_post_accumulate_grad_hook": "_post_accumulate_grad_hooks",
}


def gradient_hooks(module: nn.Module) -> str:
    """Where the module has hooks on gradients, in words; empty if it has none."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and any(getattr(parameter, kind, None) for kind in _OF_PARAMETERS.values()):
            return f"the parameter '{name}'"
    return _of_layers(module, _ON_GRADIENTS)


def any_hooks(module: nn.Module) -> str:
    """Where the module has hooks on gradients or calls, in words; empty if it has none."""
    return gradient_hooks(module) or _of_layers(module, _ON_CALLS)


def _of_layers(module: nn.Module, kinds: tuple[str, ...]) -> str:
    if any(getattr(of_all_modules, f"_global{kind}", None) for kind in kinds):
        return "all modules of the process"
    for name, layer in module.named_modules():
        if any(getattr(layer, kind) for kind in kinds):
            return f"the layer '{name}'" if name else f"the model {type(module).__name__}"
    return ""


def copy_hooks(module: nn.Module, copy: nn.Module) -> None:
    """Give a copy the hooks of the module's parameters, which copying drops; it keeps those of layers."""
    theirs = dict(copy.named_parameters())
    for name, parameter in module.named_parameters():
        mine = theirs.get(name, parameter)
        if mine is parameter or not mine.requires_grad:
            continue
        for register, kept in _OF_PARAMETERS.items():
            for hook in (getattr(parameter, kept, None) or {}).values():
                if "register_multi_grad_hook" in getattr(hook, "__qualname__", ""):
                    raise InputError(
                        f"the parameter '{name}' has a hook of register_multi_grad_hook, which belongs to these very "
                        "tensors and not to the clients' copies; use a hook on each parameter."
                    )
                getattr(mine, register)(hook)


def check_travels(model: Any) -> None:
    """Refuse to send a module to another process that would lose its hooks without a word."""
    if isinstance(model, nn.Module) and (where := gradient_hooks(model)).startswith("the parameter"):
        raise InputError(
            f"{where} has a hook on its gradient, which does not travel to other processes; leave jobs at 1, or give a "
            "function that makes the module with its hooks."
        )
