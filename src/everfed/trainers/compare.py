"""The check of a trainer: two clients' first minibatches, compared with plain autograd.

Fast ways to train are long programs, and what they get wrong shows nowhere: a loss falls on scrambled
pixels too. So every run first trains a little of its own data twice and compares. The plain way is
short enough to be read: the module itself, torch's autograd, torch's optimiser.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Inputs, Ints, taken
from everfed.errors import InputError, first_line
from everfed.learning.calling import outputs_of
from everfed.learning.dropout import backward, counted_dropout
from everfed.learning.generators import Drawn, seeded, undisturbed
from everfed.learning.gradients import GradientRule, adjusted
from everfed.learning.layout import copied
from everfed.learning.one_by_one import OneByOne
from everfed.learning.optim import SGD, Adam, Constant, Optimizer, rate
from everfed.learning.precision import autocast, set_precision
from everfed.learning.task import CannotTrainError, Check, Task, Trainer, in_words

# How far a step moves the weights, relative to their length. A step of 1e-9 would drown in the rounding of
# the weights, and after one of 100 the second gradient has nothing to do with the first.
_MOVE = 0.01

# Adam divides by |g|, and so makes full steps of gradients that are rounding noise; not below this part of
# the largest one.
_ADAM_FLOOR = 0.1


def conditioned(optimizer: Optimizer, gradient: Tensor, weights: Tensor) -> Optimizer:
    """The run's rule with a rate, and Adam's eps, that suit this gradient. Rules that are not ours become SGD:
    gradients are compared, and the rule's own sensitivity is not known."""
    if not isinstance(optimizer, SGD | Adam):
        optimizer = SGD()
    gradient = gradient + optimizer.weight_decay * weights
    far = _MOVE * (float(weights.norm()) or 1.0)
    if not isinstance(optimizer, Adam):
        return replace(optimizer, lr=_rate(far, gradient), schedule=Constant())
    eps = _bounded(_ADAM_FLOOR * float(gradient.abs().max()))
    return replace(optimizer, eps=eps, lr=_rate(far, gradient / (gradient.abs() + eps)), schedule=Constant())


def _rate(far: float, direction: Tensor) -> float:
    length = float(torch.linalg.vector_norm(direction, dtype=torch.float64))
    return _bounded(far / length) if length else 1.0


def _bounded(value: float) -> float:
    """A positive number for any gradient, so that the comparison continues even if it is not finite."""
    return min(max(value, 1e-30), 1e30) if value == value else 1.0


# How far an update may be from plain autograd's in float32, relative to its length. Rounding is a few
# millionths there; in TF32 it was measured as up to 2.6 %, in bfloat16 as 7 %. Misread samples are 100 % off.
TOLERANCES = {"float32": 1e-3, "tf32": 0.1, "bf16": 0.3}

# The first step starts from the server's weights, later ones from each client's own, which lie elsewhere.
_STEPS = 2

# Weights are rounded at every step, on both ways: what that may come to, relative to their length.
_ROUNDING = 5e-7

# Where a trainer is off, plain autograd is tried from weights that are moved by this much: an update that
# changes as much by itself, as where a ReLU flips, says nothing about the trainer.
_NUDGE = 2.0**-20
# Then from weights that are moved up and down at random, by no more than they are rounded: a normalised layer
# does not see that all are scaled. How often, each with both signs.
_SHAKE, _SHAKES = 2.0**-22, 4


@dataclass(frozen=True)
class _Result:
    """What one way of training came to."""

    deltas: Tensor  # [C, parameters]
    losses: Tensor  # [C]
    weighed: Tensor  # [parameters]: their sum with `_weights`


@dataclass(frozen=True)
class _Plain(_Result):
    optimizer: Optimizer  # the rule it was trained with
    draws: tuple[str, ...]  # the generators that were drawn from


def compare(
    make: Callable[[Task], Trainer], task: Task, passed_on: tuple[type[Exception], ...] = (CannotTrainError,)
) -> Check:
    """Train the first and the last client that have samples, with a trainer of this kind and plainly.

    Nothing of it stays: neither in the trainer, which is another one than the run's, nor in the model, the
    clients' state, the rules, or any generator of random numbers. passed_on: errors of the trainer that are not
    taken as a failure.
    """
    holders = torch.nonzero(task.data.sizes).reshape(-1).cpu().numpy()
    clients: Ints = np.unique(holders[[0, -1]]) if len(holders) else holders
    who = tuple(clients.tolist())
    if not who:
        return Check(note="no client has samples here")
    with undisturbed(task.data.device):
        try:
            params = task.layout.flatten(task.module)
            rules, note = _copyable(task.gradients)
            steps = min(task.local_steps, _STEPS)
            task = replace(task, gradients=rules, local_steps=steps, most_at_once=len(clients))
            plain = _plainly(task, params, clients)
        except InputError:  # which says itself what would be right
            raise
        except Exception as error:  # the model's own code, which may raise anything; the run will meet it as well
            return Check(who, note=f"it failed ({first_line(error)})")
        task = replace(task, optimizer=plain.optimizer)
        try:
            trainer = make(_apart(task))
            found = _by(trainer, params, clients)
        except passed_on:
            raise
        except Exception as error:
            return Check(who, math.inf, TOLERANCES[task.precision], _failure(error))
        tolerance = TOLERANCES[task.precision]
        if plain.draws and not isinstance(trainer, OneByOne):  # by chance it may have drawn the same here
            whose = " and ".join(plain.draws)
            failure = f"cannot draw for each client by itself what training draws from {whose} (it can for dropout)"
            return Check(who, math.inf, tolerance, failure, note)
        difference, where = _difference(found, plain, params, clients, task)
        for moved in _nudged(params):
            if difference > tolerance:
                nudged = _plainly(task, moved, clients, plain.optimizer, task.precision)
                tolerance = max(tolerance, 4.0 * _difference(nudged, plain, params, clients, task)[0])
    failure = ""
    if difference > tolerance:
        failure = (
            f"computes different updates than plain autograd on this run's data: {where} is "
            f"{in_words(difference)} off, and rounding explains at most {in_words(tolerance)}"
        )
    return Check(who, difference, tolerance, failure, note)


def _nudged(params: Tensor) -> Iterator[Tensor]:
    """Weights that rounding could hardly tell from these."""
    yield params * (1.0 + _NUDGE)
    draw = torch.Generator().manual_seed(0)
    for _ in range(_SHAKES):
        up = 2.0 * torch.randint(0, 2, params.shape, generator=draw).to(params) - 1.0
        for sign in (1.0, -1.0):
            yield params * (1.0 + sign * _SHAKE * up)


def fails(make: Callable[[Task], Trainer], task: Task) -> str:
    """How a trainer of this kind fails on the first client's first minibatch; empty if it does not. Nothing stays."""
    holders = torch.nonzero(task.data.sizes).reshape(-1).cpu().numpy()
    if len(holders) == 0:
        return ""
    with undisturbed(task.data.device):
        try:
            rules, _ = _copyable(task.gradients)
            little = replace(task, gradients=rules, local_steps=1, most_at_once=1)
            _by(make(_apart(little)), task.layout.flatten(task.module), holders[:1])
        except Exception as error:  # the model's own code, which may raise anything
            return _failure(error)
    return ""


def _failure(error: BaseException) -> str:
    return f"fails on this run's data ({first_line(error)})"


def _copyable(rules: tuple[GradientRule, ...]) -> tuple[tuple[GradientRule, ...], str]:
    """(the rules, as far as they can be tried without a trace; what had to be left out)."""
    try:
        copy.deepcopy(rules)
    except Exception:  # open files, for one
        return (), "without the rules that change gradients, which cannot be copied"
    return rules, ""


def _apart(task: Task) -> Task:
    """The task with copies of all that training may change."""
    module = copied(task.module).train()
    return replace(task, module=module, data=copy.copy(task.data), gradients=copy.deepcopy(task.gradients))


def _plainly(
    task: Task, params: Tensor, clients: Ints, rule: Optimizer | None = None, precision: str = "float32"
) -> _Plain:
    """The first local steps of each client, one after the other, the simplest way there is.

    rule: the optimiser; None: the task's, with a rate that suits the first gradient.
    """
    task = _apart(task)
    device, steps = task.data.device, task.local_steps
    deltas, losses = [], []
    draws: tuple[str, ...] = ()
    set_precision(precision, device)
    try:
        for client in clients.tolist():
            with seeded(task.seed, client, 0, device):  # for models that draw numbers of their own
                drawn = Drawn(device)
                who = torch.tensor([client], device=device)
                numbers = task.data.draw(who, 0, steps, task.batch_size, task.seed)
                weights, total = params.clone(), torch.zeros((), device=device)
                optimizer = None
                for step in range(steps):
                    x, y = task.data.samples(numbers[:, step], who, step, task.seed)
                    gradient, loss = _gradient(task, weights, taken(x, 0), y[0], who[0], step, precision)
                    gradient = adjusted(task.gradients, gradient[None], weights[None], params, np.array([client]))[0]
                    rule = rule or conditioned(task.optimizer, gradient, params)
                    optimizer = optimizer or rule.as_torch([weights])
                    weights.grad = gradient
                    for group in optimizer.param_groups:
                        group["lr"] = rate(rule, step, task.iterations)
                    optimizer.step()
                    total += loss / steps
                draws = draws or drawn.since()
            deltas.append(weights - params)
            losses.append(total)
    finally:
        set_precision(task.precision, device)
    rows = torch.stack(deltas)
    assert rule is not None
    return _Plain(rows, torch.stack(losses), (_weights(clients, rows)[:, None] * rows).sum(dim=0), rule, draws)


def _gradient(
    task: Task, weights: Tensor, x: Inputs, y: Tensor, client: Tensor, step: int, precision: str
) -> tuple[Tensor, Tensor]:
    """(the gradient of one minibatch's loss; the loss)."""
    task.layout.load(weights, task.module)
    named = dict(task.module.named_parameters())
    trained = [named[name] for name in task.layout.names]
    with counted_dropout(task.seed, client, step), autocast(precision):
        outputs = outputs_of(task.module, x)
    loss = task.loss(outputs.float(), y)
    task.module.zero_grad()
    backward(loss)
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    return torch.cat([part.reshape(-1) for part in found]), loss.detach()


def _by(trainer: Trainer, params: Tensor, clients: Ints) -> _Result:
    """The same by a trainer. Its sums are looked at as well, since a run uses those and not the updates."""
    deltas, losses, total, done = [], [], torch.zeros_like(params), 0
    weights = _weights(clients, params).cpu().numpy().astype(np.float64)
    for part in trainer.train(params, clients, 0):
        coefficients = weights[done : done + len(part.clients)]
        done += len(part.clients)
        deltas.append(part.deltas.clone())
        losses.append(part.losses.clone())
        total += part.weighted_sum(coefficients)[0]
    return _Result(torch.cat(deltas), torch.cat(losses), total)


def _weights(clients: Ints, like: Tensor) -> Tensor:
    """Coefficients that are not alike, so that no two clients can change places unnoticed."""
    return torch.arange(1, len(clients) + 1, device=like.device) / 2.0


def _difference(found: _Result, plain: _Result, params: Tensor, clients: Ints, task: Task) -> tuple[float, str]:
    """(the largest relative difference, where it is)."""
    # Where updates are so short that rounding alone may be out of tolerance, they cannot be told apart from it.
    floor = _ROUNDING * float(params.norm()) / TOLERANCES[task.precision]
    worst, where = 0.0, "everything"
    names = [*(f"the update of client {c}" for c in clients.tolist()), "their weighed sum"]
    mines, expecteds = ([*result.deltas, result.weighed] for result in (found, plain))
    for name, mine, expected in zip(names, mines, expecteds, strict=True):
        off = _relative(mine, expected, floor)
        if off > worst:
            parts = task.layout.unflatten((mine - expected).nan_to_num())
            most = max(parts, key=lambda n: float(parts[n].norm()))
            worst, where = off, f"{name} (most in '{most}')"
    # Losses are means of logarithms, of the order of 1; smaller ones are not told apart further.
    off = _relative(found.losses, plain.losses, 1.0)
    if off > worst:
        worst, where = off, "the training loss"
    return worst, where


def _relative(found: Tensor, expected: Tensor, floor: float) -> float:
    """Relative to the expected length, or to `floor` where there is hardly any."""
    finite, expected_finite = bool(found.isfinite().all()), bool(expected.isfinite().all())
    if not finite or not expected_finite:  # an update that is lost is lost on both ways
        return 0.0 if finite == expected_finite else math.inf
    gap, length = float((found - expected).norm()), float(expected.norm()) + floor
    return gap / length if length else math.inf if gap else 0.0
