"""What the tests of clusters share: a small run, and how its results are compared."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from everfed.errors import EverfedWarning
from everfed.learning.models import Mlp
from everfed.learning.optim import SGD
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet

SMALL = Experiment(
    fleet=CycleFleet(clients=12, cycles=(1, 2, 4)), model=Mlp(hidden=8), client=SGD(0.1), rounds=16, eval_every=16,
    device="cpu",
)  # fmt: skip


def close_to(one, other):
    """Parameters alike but for rounding."""
    return all(torch.allclose(one.params[name], other.params[name], rtol=1e-4, atol=2e-6) for name in one.params)


@contextmanager
def notes_said():
    """What people are told meanwhile."""
    notes = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", EverfedWarning)
        yield notes
    notes += [str(warning.message) for warning in told if issubclass(warning.category, EverfedWarning)]


def same_rounds(ones, others):
    pairs = list(zip(ones, others, strict=True))
    assert all(np.array_equal(a.participants, b.participants) for a, b in pairs)
    assert [b.round_weight for _, b in pairs] == pytest.approx([a.round_weight for a, _ in pairs])
    # The same minibatches: other ones would give other losses.
    assert [b.train_loss for _, b in pairs] == pytest.approx([a.train_loss for a, _ in pairs], rel=1e-4)


def everfed(*arguments, **environment):
    script = "import sys; {}; from everfed.cli import main; main()"
    without = environment.pop("without", None)
    code = script.format(f"sys.modules['{without}'] = None" if without else "pass")
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip
