"""What a defence does to the mean of a round's update, and what attackers do to it: measured with the server's code.

Every client sends the same part, and beside it a part that its energy group alone knows, as where data follow the
energy. If all clients count by their data, each of these parts has the mean 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from everfed.arrays import Floats, Ints
from everfed.auditing.judge import ERROR_RATE, FEWEST_SEEDS, NEGLIGIBLE
from everfed.energy.fleet import Fleet
from everfed.errors import counted, some
from everfed.learning.attacks import Attack, attacked
from everfed.learning.task import PlainTrained
from everfed.scheduling.plan import Schedule
from everfed.scheduling.policies import Policy
from everfed.server.aggregate import Aggregator, Setting
from everfed.server.guarded import guarded
from everfed.server.robust import Defence
from everfed.server.rules import ServerRule
from everfed.stats import t_quantile

_MOST_SEEDS, _MOST_ROUNDS, _MOST_GROUPS = 10, 200, 8


@dataclass(frozen=True)
class Defended:
    """Measured means; without the defence, on the same schedules, in `plain`."""

    common: float  # how often the part counts that all updates have in common
    by_group: dict[str, float]  # and the part that a group alone has
    plain: dict[str, float]  # the same of the sum; "common" is that of all
    band: float  # differences from `plain` up to this may be chance, at the audit's error rate
    rounds: int
    seeds: int
    attackers: tuple[int, ...] = ()
    share: float = 0.0  # of the data, that attackers hold
    most: float = 0.0  # of a round's weight, that attackers had
    attacked: dict[str, float] = field(default_factory=dict)  # as `plain`, under attack, with the defence if there is

    @property
    def biased(self) -> bool:
        """Whether the defence changed a mean by more than chance would."""
        found = {"common": self.common, **self.by_group}
        return any(abs(found[name] - self.plain[name]) > max(self.band, NEGLIGIBLE) for name in found)


def measure(
    fleet: Fleet,
    policy: Policy,
    server: ServerRule,
    shares: Floats,
    rounds: int,
    seeds: Sequence[int],
    robust: Defence | None,
    attack: Attack | None,
) -> Defended:
    """Over the first of these seeds and rounds."""
    labels, of = _groups(fleet)
    updates = torch.zeros(len(fleet), 1 + len(labels))
    updates[:, 0] = 1.0
    updates[torch.arange(len(fleet)), 1 + torch.from_numpy(of)] = 1.0
    held = np.bincount(of, weights=shares, minlength=len(labels))
    seeds, rounds = seeds[:_MOST_SEEDS], min(rounds, _MOST_ROUNDS)
    parts = np.append(1.0, np.where(held > 0.0, held, 1.0))
    size, cpu = updates.shape[1], torch.device("cpu")
    setting = Setting(shares, size, cpu, None, 1, rounds, torch.zeros(size))
    hostile = np.array(attack.clients if attack else (), np.int64)
    # [which, seeds, parts]: the sum, the defence, and the defence under attack.
    cases = [(None, None), (robust, None), *([(robust, attack)] if attack else [])]
    means, most = np.zeros((len(cases), len(seeds), size)), 0.0
    rules = [[guarded(server, setting, how) for how, _ in cases] for _ in seeds]
    schedule = Schedule(fleet, policy, np.array(seeds, np.uint64)[:, None])  # all seeds side by side
    for round in range(rounds):
        joins, scales = schedule.step(round)
        scales = np.broadcast_to(scales, joins.shape)
        for number, seed in enumerate(seeds):
            clients = np.flatnonzero(joins[number])
            scale = scales[number, clients]
            for rule, mean, (_, how) in zip(rules[number], means[:, number], cases, strict=True):
                mean += _round(rule, round, clients, scale, updates, how, seed) / parts / rounds
            if attack:
                weights = shares[clients] * (scale if server.heeds_scales else 1.0)
                if weights.sum() > 0.0:
                    most = max(most, float(weights[np.isin(clients, hostile)].sum() / weights.sum()))
    names = ["common", *labels]
    plain, defended, *under = (dict(zip(names, mean.mean(axis=0).tolist(), strict=True)) for mean in means)
    spread = (means[1] - means[0]).std(axis=0, ddof=1).max() if len(seeds) > 1 else np.inf
    quantile = t_quantile(1.0 - ERROR_RATE / size / 2, max(len(seeds) - 1, 1))
    band = float(quantile * spread / np.sqrt(len(seeds))) if len(seeds) >= FEWEST_SEEDS else float("inf")
    return Defended(
        defended.pop("common"), defended, plain, band, rounds, len(seeds), tuple(hostile.tolist()),
        float(shares[hostile].sum()), most, under[0] if under else {},
    )  # fmt: skip


def _round(
    rule: Aggregator, round: int, clients: Ints, scales: Floats, updates: Tensor, attack: Attack | None, seed: int
) -> Floats:
    rule.open(round, clients, scales)
    if len(clients):
        sent: PlainTrained = PlainTrained(clients, updates[clients], torch.zeros(len(clients)))
        for trained in attacked([sent], attack, round, seed) if attack else [sent]:
            rule.add(trained)
    update = rule.close().update
    return np.zeros(updates.shape[1]) if update is None else update.double().numpy()


def _groups(fleet: Fleet) -> tuple[list[str], Ints]:
    """(names, each client's group): the energy groups, if they are some but not many."""
    of = np.zeros(len(fleet), np.int64)
    groups = fleet.groups()
    if 1 < len(groups) <= _MOST_GROUPS:
        for number, group in enumerate(groups):
            of[group.clients] = number
        return [group.label for group in groups], of
    if len(groups) == 1:
        return ["every third client", "the other clients"][: len(fleet)], (np.arange(len(fleet)) % 3 > 0).astype(int)
    order = np.argsort(fleet.cycles(), kind="stable")
    of[order] = np.arange(len(fleet)) * 4 // len(fleet)
    return [f"the {word} quarter by energy" for word in ("best", "second", "third", "last")], of


def defended_words(found: Defended, robust: Defence) -> str:
    """The verdict on a defence, as the beginning of a sentence about the run."""
    name = type(robust).__name__
    over = f"over {counted(found.seeds, 'run')} of {found.rounds} rounds"
    if not found.biased:
        return (
            f"not unbiased in general: the defence {name} puts something else in the place of the sum of updates; with "
            f"updates that differ by energy group no deviation was found {over}"
        )
    means = ", ".join(f"of {label} {value:.2f}" for label, value in found.by_group.items())
    usual = ", ".join(f"{value:.2f}" for label, value in found.plain.items() if label != "common")
    return (
        f"biased by the defence {name}: with updates that differ by energy group, what all have in common counts "
        f"{found.common:.2f} times, and what is known to one group alone: {means} (without the defence "
        f"{found.plain['common']:.2f}, and {usual}; {over})"
    )


def attack_words(found: Defended) -> str:
    """A sentence about the attackers."""
    return (
        f"The run has attackers: client {some(found.attackers)}, with {found.share:.1%} of the data and up to "
        f"{found.most:.0%} of a round's weight; under their attack, what all updates have in common counts "
        f"{found.attacked['common']:.2f} times instead of {found.common:.2f}."
    )
