"""A run that writes down more than its records have: as metrics of its own at every evaluation.

`rare` is how well the classes of the group with the least energy are known, `train_loss` the mean loss of the clients
since the last evaluation, each group by its part of the data. From close up also, group by group, `train_loss` and the
`length` of updates, and which way updates push the biases of the output (`push ...`); in the last rounds of the run,
which are evaluated one by one, the recall of rare and other classes and whether the rarest group was heard.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everfed.data.partition import ByEnergy, Split
from everfed.energy.fleet import Group
from everfed.learning.evaluate import Metrics
from everfed.learning.task import Trained
from everfed.run import start as local
from everfed.run.experiment import Experiment
from everfed.run.loop import Run
from everfed.run.rounds import Training
from everfed.scheduling.plan import PlanStep
from everfed.store import StoredRun

CLOSE_UP = 40  # rounds at the end that are evaluated one by one: two of the longest windows


def start(experiment: Experiment, every: int | None = None, close_up: int = 0) -> Run:
    """An experiment, set up to run here and watched.

    every, close_up: for a close look, the rounds between evaluations, and those at the end that are evaluated one by
    one; the experiment itself is then to ask for an evaluation in every round.
    """
    run = local.start(experiment)
    watched = Watched(run, every or experiment.evaluation_interval, close_up)
    return replace(run, source=watched, evaluate=watched.evaluate)


def spaced(run: StoredRun) -> StoredRun:
    """The same without the evaluations of the close-up."""
    rounds = [r if r.metrics and "train_loss" in r.metrics.own else replace(r, metrics=None) for r in run.rounds]
    return replace(run, rounds=rounds)


class Watched:
    """The rounds of a run and its evaluations, with more in them."""

    def __init__(self, run: Run, every: int, close_up: int = 0) -> None:
        setup = run.setup
        self.source, self.look, self.split, self.rounds = run.source, run.evaluate, setup.experiment.split, run.rounds
        self.every, self.close_up = every, close_up
        self.groups = setup.fleet.groups()
        counts = setup.data.label_counts()
        self.classes = counts.shape[1]
        self.shares = np.array([counts[group.clients].sum() for group in self.groups]) / counts.sum()
        self.rare = rare_classes(counts, self.groups)
        self.group_of = np.empty(len(counts), np.int64)
        for number, group in enumerate(self.groups):
            self.group_of[group.clients] = number
        self.step: PlanStep
        self.seen: list[tuple[Any, Tensor]] = []  # since the last evaluation

    # ---- as a source of rounds ----

    def next(self, round: int, params: Tensor) -> tuple[PlanStep, Iterable[Trained]]:
        self.step, results = self.source.next(round, params)
        return self.step, self._watch(results)

    def _watch(self, results: Iterable[Trained]) -> Iterator[Trained]:
        for trained in results:
            # Copies, left on the device: nothing waits for the numbers before they are asked for.
            numbers = [trained.losses[:, None]]
            if self.close_up:  # some trainers have to put the updates together first, which takes time
                deltas = trained.deltas
                # In all built-in models the last parameters are the biases of the output, one a class.
                numbers += [deltas.norm(dim=1)[:, None], deltas[:, -self.classes :]]
            self.seen.append((trained.clients, torch.cat(numbers, dim=1)))
            yield trained

    def training(self) -> Training:
        return self.source.training()

    def state_dict(self) -> dict[str, Tensor]:
        kept = self.source.state_dict()
        if self.seen:
            kept["watched.clients"] = torch.from_numpy(np.concatenate([clients for clients, _ in self.seen]))
            kept["watched.values"] = torch.cat([values for _, values in self.seen])
        return kept

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.source.load_state_dict(state)
        if "watched.clients" in state:
            self.seen = [(state["watched.clients"].cpu().numpy(), state["watched.values"])]

    # ---- as an evaluator ----

    def evaluate(self, params: Tensor) -> Metrics | None:
        number = self.step.round + 1
        due = number % self.every == 0 or number == self.rounds
        close = number > self.rounds - self.close_up
        metrics = self.look(params) if due or close else None
        if metrics is None:
            return None
        own = {**metrics.own, "rare": rare_accuracy(self.split, metrics, self.rare, self.groups)}
        if close:
            recalls, rare = np.array(metrics.class_accuracy), np.isin(np.arange(self.classes), self.rare)
            own |= {"recall rare": _mean(recalls[rare]), "recall others": _mean(recalls[~rare])}
            own["rarest heard"] = float((self.group_of[self.step.clients] == len(self.groups) - 1).any())
        return replace(metrics, own=own | (self._block() if due else {}))

    def _block(self) -> dict[str, float]:
        """The means of each group since the last call; NaN for a group that was not heard."""
        means = np.full((len(self.groups), 2 + self.classes if self.close_up else 1), math.nan)
        if self.seen:
            of = self.group_of[np.concatenate([clients for clients, _ in self.seen])]
            values = torch.cat([values.cpu() for _, values in self.seen]).double().numpy()
            for number in set(of.tolist()):
                means[number] = values[of == number].mean(axis=0)
        self.seen.clear()
        own = {"train_loss": group_mean(means[:, 0], self.shares)}
        if self.close_up:
            for column, name in enumerate(("train_loss", "length")):
                own |= {f"{name} {group.label}": means[number, column] for number, group in enumerate(self.groups)}
            own |= pushes(means[:, 2:], self.shares, self.rare)
        return {name: float(value) for name, value in own.items()}


# ---- what is worked out of it ----


def rare_accuracy(split: Split, metrics: Metrics, rare: Sequence[int], groups: Sequence[Group]) -> float:
    """How well the classes of the group with the least energy are known.

    By energy: the mean recall of the classes at home there. Otherwise, where no class is at home in one group alone:
    the recalls weighted by that group's class mix.
    """
    assert metrics.class_accuracy is not None
    assert metrics.group_accuracy is not None
    if not isinstance(split, ByEnergy):
        return metrics.group_accuracy[groups[-1].label]
    return statistics.fmean(metrics.class_accuracy[c] for c in rare)


def rare_classes(counts: Any, groups: Sequence[Group]) -> list[int]:
    """The classes of which the group with the least energy holds more than any other group."""
    held = np.array([counts[group.clients].sum(axis=0) for group in groups])
    return np.flatnonzero(held.argmax(axis=0) == len(groups) - 1).tolist()


def group_mean(values: Any, shares: Any) -> float:
    """The mean over the groups that were heard, by their part of the data; NaN if none was."""
    values, shares = np.asarray(values), np.asarray(shares)
    heard = ~np.isnan(values)
    return float((values * shares)[heard].sum() / shares[heard].sum()) if heard.any() else math.nan


def pushes(biases: Any, shares: Any, rare: Sequence[int]) -> dict[str, float]:
    """How output biases are pushed, each group by its part of the data (its mean weight in a round of an unbiased
    method): those of the rare classes by the group they are at home in, and by all others together; and, as a
    yardstick, all other classes' by everybody. What all biases have in common changes no prediction.

    biases: [groups, classes], NaN for a group that was not heard, which makes all of them so.
    """
    weighted = np.asarray(shares)[:, None] * (np.asarray(biases) + 0.0 * np.sum(biases))
    return {
        "push own": _mean(weighted[-1, rare]),
        "push others": _mean(weighted[:-1, rare].sum(axis=0)),
        "push rest": _mean(np.delete(weighted, rare, axis=1).sum(axis=0)),
    }


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else math.nan
