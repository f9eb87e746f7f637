"""The trainer 'compiled': one program for any number of clients, which comes to the same as one client at a time.

Most tests run the traced operations as they are, since compiling takes seconds; some compile.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import everfed as ef
import test_store as stored
from everfed.errors import InputError
from everfed.learning import compiled
from everfed.learning.convolutions import convolution
from test_models_zoo import SMALL, alike, built, data, start
from zoo import LENGTH, ZOO, Own, linear
from zoo_operations import OPERATIONS

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

# Recurrent layers of torch's LSTM are written for vmap in a way that fixes the number of clients.
REFUSED = {"lstm", "both directions", "frozen lstm", "char-lstm", "char-lstm whole", "char-lstm half frozen"}
REFUSED |= {"mobilenet-gn whole", "mobilenet-gn half frozen"}  # too many operations
REFUSED |= {"bags", "bags with padding", "bags of maxima"}  # which torch takes in a loop over clients


@pytest.fixture
def uncompiled(monkeypatch):
    """The traced operations themselves in the place of what the compiler makes of them."""
    monkeypatch.setattr(compiled, "_program", lambda graph, fakes: graph)


def by_trace(model, given=None, **settings):
    """The trainer of a run, or None with the sentence that refuses it."""
    try:
        return start(model, "compiled", given, **settings), ""
    except InputError as refused:
        return None, str(refused)


def check(name, model, given=None, close=None, **settings):
    run, refused = by_trace(model, given, **settings)
    if run is None:
        assert refused.startswith(
            ("trainer='compiled' was requested, but ", "this model cannot be batched", "vmap ignores")
        )
        return refused
    assert name not in REFUSED
    alike(run, start(model, "one-by-one", given, **settings), **(close or {}))
    return ""


SOME = [
    "tied weights", "frozen every other", "buffers", "attention", "padded embedding", "low rank everywhere",
    "weight norm of a convolution", "alpha dropout", "addition in place", "gru cell",
]  # fmt: skip


@pytest.mark.parametrize("name", [name if name in SOME else pytest.param(name, marks=pytest.mark.long) for name in ZOO])
def test_modules_are_traced_and_train_as_one_by_one(uncompiled, name):
    model, expected = ZOO[name]
    refused = check(name, model)
    assert bool(refused) == (expected == "one-by-one" or name in REFUSED), refused


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_traced_and_train_as_one_by_one_or_are_refused(uncompiled, name):
    check(name, OPERATIONS[name])


@pytest.mark.parametrize("half_frozen", [False, True], ids=["whole", "half frozen"])
@pytest.mark.parametrize("name", SMALL)
def test_built_in_models_are_traced_and_train_as_one_by_one(uncompiled, name, half_frozen):
    given = data(SMALL[name][0], tokens=name.startswith("char"))
    close = {"rtol": 0.02, "atol": 2e-4, "rounds": 1} if "-gn" in name else {}
    label = f"{name} {'half frozen' if half_frozen else 'whole'}"
    refused = check(label, lambda: built(name, half_frozen), given, close, client=ef.SGD(0.03))
    assert bool(refused) == (label in REFUSED), refused


@pytest.mark.parametrize("name", ["mlp", *(pytest.param(n, marks=pytest.mark.long) for n in ("small-cnn", "char-gpt"))])
def test_compiled_programs_train_as_one_by_one(name):
    given = data(SMALL[name][0], tokens=name.startswith("char"))
    more = {"dropout": 0.4} if name == "char-gpt" else {}
    trainers, client = ("compiled", "one-by-one"), ef.SGD(0.1)
    runs = [start(lambda: built(name, **more), trainer, given, client=client) for trainer in trainers]
    assert "compiled by inductor" in runs[0].source.trainer.explain()[0]
    alike(*runs)
    # One program serves every number of clients, and repeats its bits.
    trainer, params = runs[0].source.trainer, runs[0].server.params
    together = next(iter(trainer.train(params, np.arange(4), 0))).deltas.clone()
    for clients in ([0], [1, 3], [0, 1, 2], [3, 2, 1, 0]):
        once, again = (next(iter(trainer.train(params, np.array(clients), 0))).deltas.clone() for _ in range(2))
        assert torch.equal(once, again)
        torch.testing.assert_close(once, together[clients], rtol=1e-3, atol=2e-6)


def test_a_compiled_run_goes_on_with_the_same_bits(tmp_path):
    experiment = replace(stored.SMALL, trainer="compiled", client=ef.Adam(0.01), rounds=16)
    expected = stored.run(experiment, tmp_path / "whole")
    while (cut := stored.run(experiment, tmp_path / "cut", stop=stored.stop_after(5))).state != "done":
        assert cut.state == "stopped"
    stored.assert_same(cut, expected)


def test_one_program_serves_all_seeds(uncompiled):
    """Seeds are arguments, not constants: a sweep over them compiles once."""
    model = lambda: nn.Sequential(linear(LENGTH, 8), nn.Dropout(0.5), linear(8))  # noqa: E731
    first, second = (start(model, "compiled", seed=seed).source.trainer for seed in (1, 2**40 + 3))
    assert first.compiled.program.code == second.compiled.program.code
    for seed in (1, 2**40 + 3):
        alike(start(model, "compiled", seed=seed), start(model, "one-by-one", seed=seed))


def counting():
    def forward(self, x):
        self.calls += self.training
        return self.a(x)

    module = Own(forward, a=linear(LENGTH))
    module.calls = 0
    return module


def noisy(outputs, targets):
    return F.cross_entropy(outputs + torch.randn_like(outputs), targets)


def watched():
    module = linear(LENGTH)
    module.register_forward_hook(lambda *given: None)
    return module


def gathered(self, x):
    which = x.long().clamp(0, 7)
    return self.out(self.a(x).gather(1, which))


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        (counting, {}, "changes its attribute 'calls'"),
        (lambda: linear(LENGTH), {"loss": noisy}, "random|draws"),
        (watched, {}, "does not call hooks"),
        (lambda: Own(gathered, a=linear(LENGTH, 8), out=linear(LENGTH)), {}, "whose order is not fixed"),
        (ZOO["a branch on values"][0], {}, "cannot be traced"),
        (ZOO["lstm"][0], {}, "made for a certain number of clients"),
    ],
    ids=["changes itself", "random loss", "hooks", "scattered gradients", "branches", "lstm"],
)  # fmt: skip
def test_what_a_program_would_not_repeat_is_refused(uncompiled, model, settings, said):
    with pytest.raises(InputError, match=said):
        start(model, "compiled", **settings)


def test_a_token_outside_of_the_table_takes_no_row_of_another_clients(uncompiled):
    run = start(ZOO["padded embedding"][0], "compiled")
    program, task = run.source.trainer.compiled, run.source.trainer.task
    rows = run.server.params.repeat(3, 1)
    x = torch.zeros(3, 4, LENGTH)
    x[1, 2, 3], x[2, 0, 0] = 99.0, -1.0
    y, who = torch.zeros(3, 4, dtype=torch.int64), torch.arange(3)
    grads, losses = program(rows, x, y, who, 0)
    assert task.batch_size == 4
    assert losses.isfinite().tolist() == grads.isfinite().all(dim=1).tolist() == [True, False, False]


def test_too_many_operations_are_refused(uncompiled, monkeypatch):
    monkeypatch.setattr(compiled, "_MOST_OPERATIONS", 10)
    with pytest.raises(InputError, match="more than 10 operations take too long to compile; it has "):
        start(lambda: linear(LENGTH), "compiled")


def test_a_wrong_program_is_refused(monkeypatch):
    def wrong(graph, fakes):
        return lambda *given: tuple(2.0 * part for part in graph(*given))

    monkeypatch.setattr(compiled, "_program", wrong)
    with pytest.raises(InputError, match="gives other gradients for 2 clients"):
        start(lambda: linear(LENGTH), "compiled")


def test_a_missing_compiler_is_told(monkeypatch):
    import torch._inductor

    def missing(*given, **options):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(torch._inductor, "standalone_compile", missing)
    with pytest.raises(InputError, match=r"torch's compiler fails \(no C\+\+ compiler\); use trainer='auto' or"):
        start(lambda: linear(LENGTH), "compiled")


# -- convolutions as products ----------------------------------------------------------------------

TORCHS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("dims", TORCHS)
def test_convolutions_as_products_are_torchs(dims):
    torch.manual_seed(0)
    tried = 0
    paddings, channels = (0, 1, 2, "same", "valid"), ((1, 3, 5), (2, 4, 6), (4, 4, 4), (4, 4, 8), (1, 1, 1))
    for wide, stride, padding, apart, (groups, inputs, outputs) in itertools.product(
        (1, 2, 3, 4), (1, 2, 3, 4), paddings, (1, 2), channels
    ):
        window = [wide] * dims
        window[-1] = max(1, wide - 1)
        x = torch.randn(2, inputs, *(9, 8, 7)[:dims], dtype=torch.float64)
        weight = torch.randn(outputs, inputs // groups, *window, dtype=torch.float64)
        bias = torch.randn(outputs, dtype=torch.float64)
        try:
            expected = TORCHS[dims](x, weight, bias, stride, padding, apart, groups)
        except RuntimeError:  # windows that are larger than the picture, and strides with 'same'
            continue
        torch.testing.assert_close(convolution(x, weight, bias, stride, padding, apart, groups), expected)
        single = TORCHS[dims](x[0], weight, None, stride, padding, apart, groups)
        torch.testing.assert_close(convolution(x[0], weight, None, stride, padding, apart, groups), single)
        tried += 1
    assert tried > 400


def test_wide_windows_are_left_to_torch():
    x, weight = torch.randn(1, 1, 20, 20), torch.randn(2, 1, 9, 9)
    torch.testing.assert_close(convolution(x, weight, padding=4), F.conv2d(x, weight, padding=4))
