"""The GPU kernels against the reference trainer: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from torch import nn

import everfed as ef

pytest.importorskip("triton", reason="Triton is not installed here")
from everfed.engine import launch, trainer
from kernel_models import CLASSES, DEVICE, MODELS, Residual, chain, drawn_models, images, task

GPU = torch.cuda.is_available()
OPTIMIZERS = {
    "sgd": ef.SGD(0.1),
    "momentum and decay": ef.SGD(0.1, momentum=0.9, weight_decay=0.01, schedule=ef.Cosine()),
    "adam": ef.Adam(1e-2, eps=1e-3),
    "adam and decay": ef.Adam(1e-2, eps=1e-3, weight_decay=0.01),
}
ROUNDS = ([0, 1, 2], [1], [0, 2])


def deltas(trained, params, clients, round):
    parts = [(part.deltas, part.losses) for part in trained.train(params, np.array(clients), round)]
    return torch.cat([d for d, _ in parts]), torch.cat([losses for _, losses in parts])


def distance(a, b):
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def made(name, seed=0):
    build, shape, options = MODELS[name]
    torch.manual_seed(seed)
    return build(), images(shape, **options)


def assert_alike(model, data, optimizer, **more):
    """Three rounds of both trainers: every update, every loss and the weighed sum."""
    fast, slow = (ef.TRAINERS[t](task(model, data, optimizer, **more)) for t in ("kernels", "one-by-one"))
    params = fast.task.layout.flatten(model)
    for round, clients in enumerate(ROUNDS):
        expected, losses = deltas(slow, params, clients, round)
        (part,) = fast.train(params, np.array(clients), round)
        weights = np.linspace(0.5, 2.0, len(clients))
        update, finite = part.weighted_sum(weights)
        assert finite.all()
        assert distance(part.deltas, expected) < 1e-4
        assert distance(update, torch.as_tensor(weights, dtype=torch.float32, device=DEVICE) @ expected) < 1e-4
        torch.testing.assert_close(part.losses, losses, rtol=1e-4, atol=1e-5)
        params = params + update


# In Triton's interpreter.
SLOW = ("means and dropout", "in part", "no pool", "residual", "cropped", "norms", "strides", "resnet", "mobile")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in SLOW)) for n in MODELS])
def test_every_kind_of_model_trains_like_the_reference(name):
    model, data = made(name)
    assert_alike(model, data, ef.Adam(1e-2, eps=1e-3))


@pytest.mark.parametrize(
    ("optimizer", "keep"),
    [
        pytest.param(n, keep, marks=[pytest.mark.long] * (not keep and n != "adam"))
        for n in OPTIMIZERS
        for keep in (True, False)
    ],
)
def test_every_optimizer_steps_like_the_reference(optimizer, keep):
    model, data = made("mlp")
    assert_alike(model, data, OPTIMIZERS[optimizer], keep_state=keep)


@settings(max_examples=12 if GPU else 5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(drawn_models())
def test_gradients_of_random_shapes(drawn):
    model, shape, batch = drawn
    data = images(shape)
    once = {"batch_size": batch, "local_steps": 1}
    # A gradient-descent step of rate 1 is the gradient itself.
    fast, slow = (ef.TRAINERS[t](task(model, data, ef.SGD(1.0), **once)) for t in ("kernels", "one-by-one"))
    params = fast.task.layout.flatten(model)
    got, expected = (deltas(t, params, [2, 0], 0)[0] for t in (fast, slow))
    sizes = fast.task.layout.sizes
    for a, b, name in zip(got.split(sizes, 1), expected.split(sizes, 1), fast.task.layout.names, strict=True):
        assert (a - b).norm() <= 1e-4 * expected.norm(), name


RULES = {
    "proximal": (ef.Proximal(0.5),),
    "clip": (ef.Clip(0.05),),
    "clip, then proximal": (ef.Clip(0.05), ef.Proximal(3.0)),
    "proximal, then clip": (ef.Proximal(3.0), ef.Clip(0.05)),
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam and decay"])
def test_rules_for_gradients_are_followed_as_by_the_reference(rules, optimizer):
    model, data = made("mlp")
    plain, changed = (
        deltas(ef.TRAINERS["one-by-one"](given), given.layout.flatten(model), [0, 1], 0)[0]
        for given in (task(model, data, OPTIMIZERS[optimizer], gradients=which) for which in ((), RULES[rules]))
    )
    assert distance(changed, plain) > 1e-3  # so that a rule that is left out would be noticed
    assert_alike(model, data, OPTIMIZERS[optimizer], gradients=RULES[rules])


@pytest.mark.parametrize("name", ["a little of all", "in part"])
def test_rules_see_all_of_a_gradient_however_its_layers_make_it(name):
    """In splits, by torch's operations, and with padding, which would make a gradient longer if it were not zero."""
    model, data = made(name)
    assert_alike(model, data, ef.SGD(0.1), gradients=(ef.Clip(0.01), ef.Proximal(1.0)), local_steps=2)


class AnyOrder:
    """It would move padding."""

    any_order = True

    def adjust(self, grads, params, start, clients):
        return grads.tanh() + 0.5


def test_rules_of_ones_own_for_any_order_leave_padding_alone():
    model, data = made("mlp")
    assert_alike(model, data, ef.SGD(0.01), gradients=(AnyOrder(),))


class OwnRule:
    def adjust(self, grads, params, start, clients):
        return 2.0 * grads


class DerivedRule(ef.Proximal):
    def adjust(self, grads, params, start, clients):
        return grads * torch.as_tensor(clients, device=grads.device)[:, None]


@pytest.mark.parametrize("rule", [OwnRule(), DerivedRule()])
def test_rules_that_ask_who_or_in_which_order_have_no_kernels(rule):
    model, data = made("mlp")
    with pytest.raises(ef.InputError, match=f"the kernels do not support {type(rule).__name__}"):
        ef.TRAINERS["kernels"](task(model, data, ef.SGD(), gradients=(rule,)))


@pytest.mark.parametrize("method", ["ht-scaffold", "fedawe"])
def test_methods_with_rules_and_starts_of_their_own_run_on_kernels(method):
    """SCAFFOLD's corrections change from round to round; FedAWE's clients begin where they ended."""
    data = ef.load("digits").partition(4, "iid")
    fleet = ef.Fleet.from_cycles([1, 2, 2, 4])
    settings = {"rounds": 5, "local_steps": 2, "batch_size": 4, "client": ef.SGD(0.1), "eval_every": 5}
    more = {"method": method, "gradients": (ef.Proximal(0.3),), "device": str(DEVICE)}
    fast, slow = (ef.simulate("logistic", data, fleet, trainer=t, **settings, **more) for t in ("kernels", "batched"))
    for name, value in fast.params.items():
        torch.testing.assert_close(value, slow.params[name], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_a_batch_too_large_for_one_tile():
    model, data = made("mlp")
    assert_alike(model, data, ef.SGD(0.1, momentum=0.9), batch_size=130)


def test_rows_that_fill_a_bucket_disturb_nobody():
    assert [trainer.bucket(n, 40) for n in (1, 2, 15, 16, 17, 33, 39, 40)] == [1, 2, 15, 16, 18, 36, 40, 40]
    model, _ = made("linear")
    data = images((10,), clients=20)
    adam = ef.Adam(1e-2, eps=1e-3)
    fast, slow = (ef.TRAINERS[t](task(model, data, adam, local_steps=1)) for t in ("kernels", "one-by-one"))
    params = fast.task.layout.flatten(model)
    for round, clients in enumerate((range(17), range(3, 20), range(17))):
        got, expected = (deltas(t, params, clients, round)[0] for t in (fast, slow))
        assert distance(got, expected) < 1e-4


def test_chunks_change_nothing():
    model, data = made("mlp")
    whole = ef.TRAINERS["kernels"](task(model, data, ef.Adam()))
    one = trainer.bytes_per_client(whole.lowered, whole.task)
    split = ef.TRAINERS["kernels"](task(model, data, ef.Adam(), memory_budget=2 * one))
    assert (whole.program.room, split.program.room) == (3, 2)
    params = whole.task.layout.flatten(model)
    for round in range(2):
        a, b = (deltas(t, params, [0, 1, 2], round) for t in (whole, split))
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1], b[1])


def test_less_memory_than_one_client_needs_is_an_error():
    model, data = made("mlp")
    with pytest.raises(ef.InputError, match="does not fit into the device's memory"):
        ef.TRAINERS["kernels"](task(model, data, ef.Adam(), memory_budget=10))


@pytest.mark.parametrize(
    "optimizer",
    ["sgd", "adam", *(pytest.param(f"{n} and decay", marks=pytest.mark.long) for n in ("momentum", "adam"))],
)
def test_client_state_can_move_to_the_batched_trainer_and_back(optimizer):
    model, data = made("mlp")
    uncut, first = (ef.TRAINERS["kernels"](task(model, data, OPTIMIZERS[optimizer])) for _ in range(2))
    middle = ef.TRAINERS["batched"](task(model, data, OPTIMIZERS[optimizer]))
    last = ef.TRAINERS["kernels"](task(model, data, OPTIMIZERS[optimizer]))
    params = uncut.task.layout.flatten(model)
    expected = [deltas(uncut, params, clients, r)[0] for r, clients in enumerate(ROUNDS)]
    got = [deltas(first, params, ROUNDS[0], 0)[0]]
    middle.load_state_dict({k: v.clone() for k, v in first.state_dict().items()})
    got.append(deltas(middle, params, ROUNDS[1], 1)[0])
    last.load_state_dict({k: v.clone() for k, v in middle.state_dict().items()})
    got.append(deltas(last, params, ROUNDS[2], 2)[0])
    for a, b in zip(got, expected, strict=True):
        assert distance(a, b) < 1e-4


def test_the_table_of_moments_grows_with_the_clients_seen():
    model, _ = made("linear")
    data = images((10,), clients=9)
    small = trainer.bytes_per_client(
        ef.TRAINERS["kernels"](task(model, data, ef.Adam())).lowered, task(model, data, ef.Adam())
    )
    fast = ef.TRAINERS["kernels"](task(model, data, ef.Adam(1e-2, eps=1e-3), memory_budget=2 * small))
    slow = ef.TRAINERS["one-by-one"](task(model, data, ef.Adam(1e-2, eps=1e-3)))
    params = fast.task.layout.flatten(model)
    rows = []
    for round, clients in enumerate(([8, 1], [2, 3, 4], [8, 5, 1, 0], [1, 8])):
        got, expected = (deltas(t, params, clients, round)[0] for t in (fast, slow))
        assert distance(got, expected) < 1e-4
        rows.append(fast.moments.rows_there)
    assert rows[0] == 2
    assert rows[-1] == 8


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes with NumPy, which tells
def test_a_client_that_is_not_finite_is_found_and_can_be_left_out():
    model, data = made("mlp")
    data.x[data.samples_of(1)] = 1e30  # its own samples only
    fast, slow = (ef.TRAINERS[t](task(model, data, ef.SGD(1.0))) for t in ("kernels", "one-by-one"))
    params = fast.task.layout.flatten(model)
    (part,) = fast.train(params, np.array([0, 1, 2]), 0)
    update, finite = part.weighted_sum(np.ones(3))
    expected = torch.stack([d.isfinite().all() for d in deltas(slow, params, [0, 1, 2], 0)[0]])
    assert finite.tolist() == expected.tolist() == [True, False, True]
    assert not update.isfinite().all()
    update, _ = part.weighted_sum(np.ones(3), skip=True)
    assert update.isfinite().all()
    assert update.norm() > 0


@pytest.mark.long
def test_clients_that_come_after_the_table_grew_start_from_zero():
    """Spare rows behind the old table were written by the unused places of a bucket."""
    model, _ = made("linear")
    data = images((10,), clients=60)
    whole = ef.TRAINERS["kernels"](task(model, data, ef.Adam()))
    small = trainer.bytes_per_client(whole.lowered, whole.task)
    adam = ef.Adam(1e-2, eps=1e-3)
    fast = ef.TRAINERS["kernels"](task(model, data, adam, memory_budget=18 * small, local_steps=1))
    slow = ef.TRAINERS["one-by-one"](task(model, data, adam, local_steps=1))
    assert fast.at_once == 18
    params = fast.task.layout.flatten(model)
    for round, first in enumerate((0, 17, 34, 43)):
        got, expected = (deltas(t, params, range(first, first + 17), round)[0] for t in (fast, slow))
        assert distance(got, expected) < 1e-4


def test_a_state_replaces_all_of_the_last_one():
    model, data = made("mlp")
    fast, other = (ef.TRAINERS["kernels"](task(model, data, ef.Adam(1e-2, eps=1e-3))) for _ in range(2))
    params = fast.task.layout.flatten(model)
    before = {k: v.clone() for k, v in fast.state_dict().items()}
    deltas(fast, params, [0, 1, 2], 0)
    fast.load_state_dict(before)
    a, b = (deltas(t, params, [0, 1, 2], 0)[0] for t in (fast, other))
    assert torch.equal(a, b)


def test_what_is_lowered_and_what_not_is_told():
    model, data = made("in part")
    notes = ef.TRAINERS["kernels"](task(model, data, ef.SGD())).explain()
    assert notes[0] == "0 Conv2d: kernel"
    assert notes[1] == "1 Softplus: torch, no kernel for it"
    assert notes[-1] == "9 Linear: kernel"
    notes = ef.TRAINERS["kernels"](task(Residual(), images((3, 6, 6)), ef.SGD())).explain()
    assert all(note.endswith(": kernel") for note in notes)
    notes = ef.TRAINERS["kernels"](task(*made("changed in place"), ef.SGD())).explain()
    assert "add: torch, relu: it changes a value that others read" in notes


@pytest.mark.parametrize("name", ["resnet", "mobile", "norms", "strides", "activations", "read often"])
def test_models_of_the_field_need_no_torch_operations(name):
    notes = ef.TRAINERS["kernels"](task(*made(name), ef.SGD())).explain()
    assert all(note.endswith(": kernel") for note in notes), notes


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(10, CLASSES)

    def forward(self, x):
        return self.out(x) if x.sum() > 0 else self.out(-x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(10, 10), nn.Linear(10, CLASSES)

    def forward(self, x):
        return self.out(self.a(torch.tanh(self.a(x))))


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(10, CLASSES)

    def forward(self, x):
        y = self.out(x)
        torch.softmax(y, 1)
        return y


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Idle(), "nothing uses the result"),
        (Branching(), "cannot be traced"),
        (Twice(), "used more than once"),
        (chain(nn.GroupNorm(1, 10), nn.Tanh()), "no convolution or linear layer"),
    ],
    ids=["idle operation", "branches", "shared", "nothing to lower"],
)
def test_models_without_kernels_say_why(model, reason):
    data = images((10,))
    with pytest.raises(ef.InputError, match=f"trainer='kernels' was requested, but .*{reason}"):
        ef.TRAINERS["kernels"](task(model, data, ef.SGD()))


class Applied(nn.Module):
    """A function of single elements between two linear layers."""

    def __init__(self, function) -> None:
        super().__init__()
        self.a, self.out, self.function = nn.Linear(10, 20), nn.Linear(20, CLASSES), function

    def forward(self, x):
        return self.out(self.function(self.a(x)))


FUNCTIONS = {
    "relu": lambda x: F.relu(x, True),
    "relu_": lambda x: x.relu_(),
    "relu6": lambda x: F.relu6(x, inplace=True),
    "leaky": F.leaky_relu,
    "leaky with a slope": lambda x: F.leaky_relu(x, 0.3),
    "leaky with a named slope in place": lambda x: F.leaky_relu(x, negative_slope=0.5, inplace=True),
    "leaky_": lambda x: F.leaky_relu_(x, 0.2),
    "tanh": lambda x: torch.tanh(F.tanh(x).tanh()),
    "tanh_": torch.tanh_,
    "tanh_ of a tensor": lambda x: x.tanh_(),
    "sigmoid": lambda x: torch.sigmoid(F.sigmoid(x).sigmoid()),
    "sigmoid_": torch.sigmoid_,
    "sigmoid_ of a tensor": lambda x: x.sigmoid_(),
    "silu": lambda x: F.silu(F.silu(x), inplace=True),
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_kernels_of_their_modules(name):
    torch.manual_seed(0)
    model, data = Applied(FUNCTIONS[name]), images((10,))
    notes = ef.TRAINERS["kernels"](task(model, data, ef.SGD())).explain()
    assert all(note.endswith(": kernel") for note in notes), notes
    assert_alike(model, data, ef.SGD(0.1), local_steps=1)


class Detached(nn.Module):
    """Nothing comes back from what is detached; the layer before it only decays."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(10, 20), nn.Linear(20, 20), nn.Linear(20, CLASSES)

    def forward(self, x):
        return self.out(F.softplus(self.b(F.elu(self.a(x)).detach())))


class Ignored(nn.Module):
    """A segment that only asks for its source's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c, self.out = nn.Linear(10, 20), nn.Parameter(torch.randn(20)), nn.Linear(20, CLASSES)

    def forward(self, x):
        return self.out(torch.zeros_like(self.a(x)) + self.c)


class PartlyDetached(nn.Module):
    """A parameter of a segment without a gradient beside one that has it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(10, 20), nn.Linear(20, CLASSES)
        self.c, self.d = nn.Parameter(torch.randn(20)), nn.Parameter(torch.randn(20))

    def forward(self, x):
        return self.out(self.a(x) * self.c + self.d.detach())


@pytest.mark.parametrize("kind", [Detached, Ignored, PartlyDetached])
def test_what_no_gradient_comes_back_from_gets_none(kind):
    torch.manual_seed(0)
    assert_alike(kind(), images((10,)), ef.SGD(0.1, momentum=0.9, weight_decay=0.1))


def test_a_flattened_image_is_not_taken_for_logits():
    model = chain(nn.Conv2d(3, CLASSES, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    with pytest.raises(ef.InputError, match="flattened image"):
        ef.TRAINERS["kernels"](task(model, images((3, 6, 6)), ef.SGD()))


def test_other_losses_and_optimizers_say_why():
    model, data = made("mlp")
    with pytest.raises(ef.InputError, match="the loss is not cross-entropy"):
        ef.TRAINERS["kernels"](task(model, data, ef.SGD(), loss=lambda out, y: F.cross_entropy(out, y)))

    class Other(ef.SGD):
        pass

    with pytest.raises(ef.InputError, match="no kernel for the optimiser Other"):
        ef.TRAINERS["kernels"](task(model, data, Other()))


def test_a_whole_run_with_kernels_equals_the_batched_one():
    data = ef.load("digits").partition(8, "iid")
    fleet = ef.Fleet.from_cycles([1, 2, 4, 4] * 2)
    settings = {"rounds": 3, "local_steps": 1, "batch_size": 5, "client": ef.SGD(0.1), "eval_every": 3}
    fast, slow = (
        ef.simulate("logistic", data, fleet, trainer=t, device=str(DEVICE), **settings) for t in ("kernels", "batched")
    )
    for name, value in fast.params.items():
        torch.testing.assert_close(value, slow.params[name], rtol=1e-4, atol=1e-6)
    for a, b in zip(fast.rounds, slow.rounds, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-4)
        assert a.update_norm == pytest.approx(b.update_norm, rel=1e-4)


def compiled_for(capability, shared_memory, precision, tmp_path, *models):
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]  # the package may not be installed
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    script = Path(__file__).with_name("compile_kernels.py")
    command = [sys.executable, str(script), str(capability), str(shared_memory), precision, *models]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)


class Unparsed:
    """A kernel that Python 3.11 fails to parse while other threads parse, too."""

    def __init__(self) -> None:
        self.tried = 0

    def warmup(self, *args, grid, **meta):
        self.tried += 1
        if self.tried == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=48, after=80)")
        return args, grid, meta


def test_a_failure_of_pythons_parser_in_threads_does_not_cost_the_kernels():
    kernel = Unparsed()
    assert launch.compiled_kernels([(kernel, (1,), (2,), {"BLOCK": 3})]) == [((2,), (1,), {"BLOCK": 3})]
    assert kernel.tried == 2


EVERY_PRECISION = [pytest.param(precision, [], marks=pytest.mark.long) for precision in ("bf16", "tf32", "float32")]


@pytest.mark.parametrize(
    ("precision", "models"),
    [pytest.param("tf32", ["cnn"], marks=pytest.mark.long), ("bf16", ["a little of all"]), *EVERY_PRECISION],
)
def test_kernels_compile_for_a_data_centre_gpu(precision, models, tmp_path):
    told = compiled_for(90, 232448, precision, tmp_path, *models)
    assert told.returncode == 0, told.stderr[-2000:]
    assert "compiled" in told.stdout


def test_a_gpu_with_too_little_shared_memory_is_noticed_before_training(tmp_path):
    told = compiled_for(90, 10000, "bf16", tmp_path, "cnn")
    assert "CannotLowerError" in told.stderr
    assert "bytes of shared memory, but there are 10000" in told.stderr


@pytest.mark.skipif(not GPU, reason="there is no GPU here")
class TestOnTheGpu:
    def test_graphs_and_plain_launches_give_the_same_bits(self):
        model, data = made("cnn")
        with_graphs, without = (ef.TRAINERS["kernels"](task(model, data, ef.Adam())) for _ in range(2))
        without.recording = False
        params = with_graphs.task.layout.flatten(model)
        for round in range(5):
            a, b = (deltas(t, params, [0, 1, 2], round)[0] for t in (with_graphs, without))
            assert torch.equal(a, b)
        assert with_graphs.graphs[3] is not None
        assert without.graphs[3] is None

    def test_a_model_lowered_in_part_can_be_recorded(self):
        model, data = made("in part")
        with_graphs, without = (ef.TRAINERS["kernels"](task(model, data, ef.Adam())) for _ in range(2))
        without.recording = False
        params = with_graphs.task.layout.flatten(model)
        for round in range(4):
            a, b = (deltas(t, params, [0, 1, 2], round)[0] for t in (with_graphs, without))
            assert distance(a, b) < 1e-5

    @pytest.mark.parametrize("name", ["mlp", "cnn", "cropped", "means and dropout", "no pool"])
    def test_lower_precision_is_no_worse_than_torchs(self, name):
        """Means over several models: which unit a rounding error flips is chance."""
        errors = {"torch bf16": 0.0, "bf16": 0.0, "tf32": 0.0}
        for seed in range(8):
            model, data = made(name, seed)
            kinds = [("one-by-one", "float32"), ("one-by-one", "bf16"), ("kernels", "bf16"), ("kernels", "tf32")]
            results = []
            for trainer_name, precision in kinds:
                once = {"precision": precision, "batch_size": 64, "local_steps": 1, "seed": seed}
                given = task(model, data, ef.SGD(1.0), **once)
                trained = ef.TRAINERS[trainer_name](given)
                results.append(deltas(trained, given.layout.flatten(model), [0, 1, 2], 0)[0])
            for kind, result in zip(errors, results[1:], strict=True):
                errors[kind] += distance(result, results[0]) / 8
        # Small models of few images leave chance about a quarter; on the paper's network the ratio is 0.94.
        assert errors["bf16"] <= 1.3 * errors["torch bf16"], errors
        assert errors["tf32"] <= errors["torch bf16"], errors
