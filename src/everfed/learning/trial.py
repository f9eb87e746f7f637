"""A user's model and loss, tried on a few samples before training.

What they may do wrong without an error, and what would else end in an error of torch in the middle of a run, is
refused here in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everfed.arrays import Inputs, each, parts, taken
from everfed.data.federated import FederatedData
from everfed.data.on_demand import OnDemand
from everfed.errors import InputError, first_line, shown
from everfed.learning.calling import outputs_of
from everfed.learning.dropout import backward, counted_dropout
from everfed.learning.generators import Drawn, seed_all, undisturbed
from everfed.learning.layout import copied
from everfed.learning.objectives import check_outputs
from everfed.learning.own_state import attributes, check_attributes, unchanged
from everfed.learning.task import DeviceData, Loss

# How far two evaluations of the same samples may be apart, relative to the largest output: a GPU adds in any order.
_ROUNDING = 1e-4

# How many places of a sample are looked at one by one, and not only together.
_MOST_PLACES = 32

# How often they are evaluated: a mask that rarely drops may be the same twice.
_TIMES = 4

# The most samples of the passes that a model must repeat in training.
_REPEATED = 4


def check_fits(module: nn.Module, data: FederatedData | OnDemand, sample: Inputs) -> None:
    """Run small forward passes to reject a model of the wrong shape, or one whose evaluation draws by chance.

    sample: a few samples of the data as the model sees them.
    """
    training, first = module.training, next(iter(parts(sample).values()))
    with undisturbed(first.device), unchanged(module):
        try:
            with torch.no_grad():
                module.eval()
                out, *others = (outputs_of(module, each(Tensor.clone, sample)) for _ in range(_TIMES))
        except InputError:
            raise
        except Exception as error:  # the model's own code, which may raise anything
            what = " and ".join(_described(name, part) for name, part in parts(sample).items())
            raise InputError(f"the model does not accept {what}: {first_line(error)}.{_hint(data, error)}") from error
        finally:
            module.train(training)
    check_outputs(out, data.task, len(first), data.classes, data.target_shape())
    apart = _ROUNDING * out.abs().max()
    if any(other.shape != out.shape or bool(((other - out).abs() > apart).any()) for other in others):
        raise InputError(
            f"the model {type(module).__name__} gives other outputs for the same samples when it is evaluated again; "
            "use nn.Dropout, or F.dropout(..., training=self.training), which draw in training only."
        )


def _described(name: str, part: Tensor) -> str:
    kind = {torch.int64: "whole numbers ", torch.bool: "truth values "}.get(part.dtype, "")
    whose = f"the input '{name}', " if name else ""
    return f"{whose}{kind or ''}{'of' if kind else 'samples of'} shape {tuple(part.shape[1:])}"


def _hint(data: FederatedData | OnDemand, error: Exception) -> str:
    """What may be meant, where a type does not fit."""
    said = str(error)
    if not any(word in said for word in ("dtype", "Long", "Float", "scalar type", "Int")):
        return ""
    kinds = {part.dtype.kind + str(part.dtype.itemsize) for part in parts(data.test_x).values()}
    if "i8" in kinds:
        return " Whole numbers stay so, for models that embed tokens; give measurements as floats, x.astype('float32')."
    if "f4" in kinds and "Long" in said:
        return " Give tokens as whole numbers, x.astype('int64')."
    if "u1" in kinds:
        return " Bytes (uint8) are taken as images and scaled to 0 to 1; give tokens as int64."
    return ""


def check_tokens(module: nn.Module, data: FederatedData | OnDemand) -> None:
    """Evaluate the samples with the lowest and the highest whole numbers, on the CPU: on a GPU, an index outside of a
    layer's table would end the process. Of data on demand, among the first client's and the test set."""
    first = data.alone(0) if isinstance(data, OnDemand) else (data.x, data.y)
    if not any(part.dtype == np.int64 for part in parts(first[0]).values()):
        return
    training = module.training
    with undisturbed(torch.device("cpu")), torch.no_grad():
        module.eval()
        try:
            for where, x in (("training", first[0]), ("test", data.test_x)):
                tried: set[int] = set()
                for number, said in _extremes(x):
                    if number in tried:
                        continue
                    tried.add(number)
                    inputs = each(lambda part: data.augment.evaluate(torch.tensor(part)), taken(x, [number, number]))
                    try:
                        outputs_of(module, inputs)
                    except IndexError as error:
                        if _fails(module, each(_zeros, inputs)):
                            raise InputError(_too_long(inputs, error)) from error
                        raise InputError(
                            f"the model fails on {where} sample {number}, which holds {said}: {first_line(error)}."
                        ) from error
                    except Exception:  # not a matter of numbers: `check_fits` says what it is
                        return
        finally:
            module.train(training)


def _zeros(part: Tensor) -> Tensor:
    return torch.zeros_like(part) if part.dtype == torch.int64 else part


def _fails(module: nn.Module, inputs: Inputs) -> bool:
    try:
        outputs_of(module, inputs)
    except IndexError:
        return True
    return False


def _too_long(inputs: Inputs, error: Exception) -> str:
    """Zeros are in every table; so a sample has more places than a table of the model, as that of positions."""
    what = " and ".join(_described(name, part) for name, part in parts(inputs).items())
    return (
        f"the model does not accept {what}, whatever the numbers: {first_line(error)}. Sequences may be longer than "
        "its table of positions; cut them, or make the model for longer ones."
    )


def _extremes(x: Inputs) -> Iterator[tuple[int, str]]:
    """(the number of a sample, what is special about it)."""
    for name, part in parts(x).items():
        if part.dtype == np.int64 and part.size:
            rows = part.reshape(len(part), -1)
            of = f" of '{name}'" if name else ""
            # First of all places, then of each, since columns may go to tables of their own.
            yield int(rows.max(axis=1).argmax()), f"the highest number{of}, {rows.max()}"
            yield int(rows.min(axis=1).argmin()), f"the lowest number{of}, {rows.min()}"
            for place in range(min(rows.shape[1], _MOST_PLACES)):
                column = rows[:, place]
                yield int(column.argmax()), f"the highest number{of} at place {place}, {column.max()}"
                yield int(column.argmin()), f"the lowest number{of} at place {place}, {column.min()}"


def check_targets(module: nn.Module, sample: Inputs, targets: Tensor, loss: Loss) -> None:
    """Squared errors broadcast silently, (n, 1) against (n) to (n, n): refuse shapes that differ.

    A loss of the user's own may want more outputs than targets, such as quantiles, but hardly as many in another shape.
    """
    with undisturbed(targets.device), torch.no_grad():
        out = outputs_of(module, sample)
    same = out.shape == targets.shape
    if not same and (loss is F.mse_loss or out.numel() == targets.numel()):
        raise InputError(
            f"the model gives outputs of shape {tuple(out.shape)} for targets of shape {tuple(targets.shape)}; "
            "both must be the same, since (n, 1) and (n) would be compared each with each."
        )


def check_training(module: nn.Module, loss: Loss, data: DeviceData, batch_size: int) -> tuple[str, ...]:
    """Compute a few gradients to reject a model that changes its own state, and a loss without a gradient.

    Returns which generators of random numbers, of those that a process shares, are drawn from on the way.
    """
    with undisturbed(data.device), torch.enable_grad():
        module = _copied(module).train()
        seed_all(0, data.device)
        drawn = Drawn(data.device)
        with unchanged(module):
            outputs = _forward(module, data.inputs(batch_size))
        if not (isinstance(outputs, Tensor) and outputs.requires_grad):
            raise InputError(
                f"the outputs of the model {type(module).__name__} have no gradient in training mode; its forward must "
                "return a tensor that was computed from its parameters without detach() or torch.no_grad()."
            )
        found = _check_loss(loss, outputs.float(), data.targets(batch_size))
        try:
            backward(found)
        except InputError:
            raise
        except Exception as error:  # a hook, or an autograd function of the user's own
            raise InputError(f"the model fails in its backward pass: {first_line(error)}.") from error
        finally:
            module.zero_grad()
        return tuple(dict.fromkeys((*drawn.since(), *_check_repeats(module, data, batch_size))))


def _check_repeats(module: nn.Module, data: DeviceData, batch_size: int) -> tuple[str, ...]:
    """Reject a model whose outputs in training depend on what it was given before, or on numbers that no seed decides.

    Of plain attributes, those after the second pass are compared with those after the third: until then, caches are
    filled. Returns the generators that were drawn from.
    """
    count = min(batch_size, _REPEATED)
    some, other = data.inputs(count), each(lambda part: part[count:], data.inputs(2 * count))
    outputs: list[Tensor] = []
    kept: list[dict[str, Any]] = []
    drawn: list[str] = []
    with unchanged(module):
        for seed, inputs in ((1, some), (2, some), (2, some), (3, other), (2, some)):
            seed_all(seed, data.device)
            watched = Drawn(data.device)
            outputs.append(_forward(module, each(Tensor.clone, inputs)).detach().float())
            drawn.extend(watched.since())
            kept.append(attributes(module) if len(kept) in (1, 2) else {})
    check_attributes(kept[1], kept[2])
    expected = outputs[1]
    apart = _ROUNDING * expected.abs().max()
    for found in (outputs[2], outputs[4]):
        if found.shape != expected.shape or bool(((found - expected).abs() > apart).any()):
            raise InputError(
                f"the model {type(module).__name__} gives other outputs for the same samples in training, though "
                "torch's, NumPy's and Python's generators start from the same number; it must not keep anything from "
                "batch to batch, nor draw from a generator that no seed decides."
            )
    return tuple(drawn)


def _forward(module: nn.Module, inputs: Inputs) -> Tensor:
    """The outputs in training mode."""
    nobody = torch.zeros((), dtype=torch.int64, device=next(iter(parts(inputs).values())).device)
    try:
        with counted_dropout(0, nobody, 0):
            return outputs_of(module, inputs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the model fails in training mode: {first_line(error)}.") from error


def _check_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss, if it is one."""
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
    return found


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copied(module)
    except Exception:  # weights that are computed from others cannot be copied
        return module
