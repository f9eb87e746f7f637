"""A user's model and loss, tried on a few samples before training.

What they may do wrong without an error, and what would else end in an error of torch in the middle of a run, is
refused here in one sentence.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from everfed.errors import InputError, first_line, shown
from everfed.learning.dropout import counted_dropout
from everfed.learning.task import DeviceData, Loss

# How far two evaluations of the same samples may be apart, relative to the largest output: a GPU adds in any order.
_ROUNDING = 1e-4

# How often they are evaluated: a mask that rarely drops may be the same twice.
_TIMES = 4


def check_fits(module: nn.Module, sample: Tensor, classes: int) -> None:
    """Run small forward passes to reject a model of the wrong shape, or one whose evaluation draws by chance."""
    training = module.training
    with undisturbed(sample.device), _unchanged(module):
        try:
            with torch.no_grad():
                module.eval()
                out, *others = (module(sample.clone()) for _ in range(_TIMES))
        except Exception as error:  # the model's own code, which may raise anything
            shape = tuple(sample.shape[1:])
            raise InputError(f"the model does not accept samples of shape {shape}: {first_line(error)}.") from error
        finally:
            module.train(training)
    if not isinstance(out, Tensor):
        raise InputError(
            f"the model {type(module).__name__} returns a {type(out).__name__}; its forward must return one tensor, "
            "the outputs (of nn.LSTM, for one, return only the part that is needed)."
        )
    if classes and (out.ndim != 2 or len(out) != len(sample) or out.shape[1] < classes):
        raise InputError(
            f"the model gives outputs of shape {tuple(out.shape)} for {len(sample)} samples; "
            f"for {classes} classes it must be ({len(sample)}, {classes})."
        )
    apart = _ROUNDING * out.abs().max()
    if any(other.shape != out.shape or bool(((other - out).abs() > apart).any()) for other in others):
        raise InputError(
            f"the model {type(module).__name__} gives other outputs for the same samples when it is evaluated again; "
            "use nn.Dropout, or F.dropout(..., training=self.training), which draw in training only."
        )


def check_targets(module: nn.Module, sample: Tensor, targets: Tensor) -> None:
    """Squared error broadcasts silently, (n, 1) against (n) to (n, n): refuse shapes that differ."""
    with undisturbed(sample.device), torch.no_grad():
        out = module(sample)
    if out.shape != targets.shape:
        raise InputError(
            f"the model gives outputs of shape {tuple(out.shape)} for targets of shape {tuple(targets.shape)}; "
            "for a squared error both must be the same."
        )


def check_training(module: nn.Module, loss: Loss, data: DeviceData, batch_size: int) -> None:
    """Compute one minibatch's loss to reject a model that changes its own state, and a loss without a gradient."""
    with undisturbed(data.device), torch.enable_grad():
        module = _copied(module).train()
        nobody = torch.zeros((), dtype=torch.int64, device=data.device)
        try:
            with _unchanged(module), counted_dropout(0, nobody, 0):
                outputs = module(data.inputs(batch_size))
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"the model fails in training mode: {first_line(error)}.") from error
        if not (isinstance(outputs, Tensor) and outputs.requires_grad):
            raise InputError(
                f"the outputs of the model {type(module).__name__} have no gradient in training mode; its forward must "
                "return a tensor that was computed from its parameters without detach() or torch.no_grad()."
            )
        _check_loss(loss, outputs.float(), data.targets(batch_size))


def _check_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    right = "it takes (outputs, targets) and returns their mean loss, a tensor with one number and a gradient"
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, type):
        raise InputError(
            f"the loss is the class {name}; give a function, or an instance such as nn.MSELoss(): {right}."
        )
    try:
        found = loss(outputs, targets)
    except Exception as error:  # the user's own code, which may raise anything
        raise InputError(f"the loss {name} fails ({first_line(error)}); {right}.") from error
    if not isinstance(found, Tensor):
        raise InputError(f"the loss {name} returns {shown(found)}; {right}.")
    if found.ndim:
        raise InputError(f"the loss {name} returns a tensor of shape {tuple(found.shape)}; {right}.")
    if not found.requires_grad:
        raise InputError(f"the loss {name} returns a tensor without a gradient; {right}.")


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Refuse a model of which a forward pass inside changes weights or buffers."""

    def state() -> dict[str, Tensor]:
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: value.detach() for name, value in named.items() if not is_lazy(value)}

    before = {name: value.clone() for name, value in state().items()}
    yield
    after = state()
    for name, value in before.items():
        if not torch.equal(value.nan_to_num(), after[name].nan_to_num()):
            raise InputError(
                f"the model's forward changes '{name}', a state of its own that clients would share and no average "
                "would hold; use layers without such a state, as nn.GroupNorm for nn.BatchNorm."
            )


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception:  # weights that are computed from others cannot be copied
        return module


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Every generator of random numbers is afterwards where it was, and nothing is said twice."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - the user's model may use it
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
