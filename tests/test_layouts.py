"""Data may be handed over in any layout, byte order and number type: the trained model is the same, bit for bit."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn

import everfed as ef
from everfed.data.dataset import Dataset
from everfed.data.on_demand_parquet import Parquet, save_parquet
from everfed.data.on_demand_sources import Arrays, Generated, save_arrays
from everfed.data.plain import as_pair, labels, samples
from everfed.learning.layout import Layout
from everfed.learning.streamed import on_device
from everfed.learning.task import DeviceData, Task, as_weights, own_tensor
from everfed.ray.parcel import packed
from everfed.ray.worker import Order, Worker
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from layouts import FLOATS, INTEGERS, LABEL_WAYS, WAYS, dressed, handed_over, mapped, stored_along, with_steps

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLASSES, CLIENTS, EACH = 3, 3, 4
TRAINERS = ["batched", "one-by-one"]
try:
    import triton  # noqa: F401

    TRAINERS.append("kernels")
except ImportError:
    pass

_CHANCE = np.random.default_rng(5)
# Sixteenths, which every float type holds exactly.
X = [(_CHANCE.integers(-32, 32, (EACH, 2, 5, 4)) / 16).astype(np.float32) for _ in range(CLIENTS)]
Y = [_CHANCE.integers(0, CLASSES, EACH) for _ in range(CLIENTS)]
PLAIN = [np.ascontiguousarray(x) for x in X]


def model(trainer: str = "batched") -> nn.Module:
    """With a convolution, but where kernels would take seconds for it in Triton's interpreter."""
    torch.manual_seed(0)
    if trainer == "kernels" and DEVICE == CPU:
        return nn.Sequential(nn.Flatten(), nn.Linear(40, CLASSES))
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(60, CLASSES))


def task(trainer: str, data, optimizer=ef.SGD(0.1), net=None) -> Task:  # noqa: B008 - a value
    module = (net or model(trainer)).to(DEVICE)
    return Task(module, Layout(module), on_device(data, DEVICE), F.cross_entropy, optimizer, 1, 3, True, 4, 1)


def updates(trainer: str, data, net=None):
    """One local step of every client."""
    made = ef.TRAINERS[trainer](task(trainer, data, net=net))
    params = made.task.layout.flatten(made.task.module)
    return torch.cat([part.deltas.clone() for part in made.train(params, np.arange(len(data)), 0)])


@pytest.fixture(scope="module")
def expected():
    return {trainer: updates(trainer, ef.from_arrays(list(zip(PLAIN, Y, strict=True)))) for trainer in TRAINERS}


def assert_same(found, expected, about=""):
    """Bit for bit; on a GPU, torch's own convolutions may add in another order every time."""
    close = {"rtol": 0, "atol": 0} if DEVICE == CPU else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(found, expected, msg=lambda text: f"{about}: {text}", **close)


def assert_plain(array, dtype):
    assert type(array) is np.ndarray
    assert array.dtype == dtype
    assert array.dtype.isnative
    assert array.flags.c_contiguous
    assert array.flags.aligned


@settings(max_examples=150, deadline=None)
@given(handed_over((*FLOATS, *INTEGERS, "?")))
def test_samples_become_plain_whatever_dress_they_come_in(handed):
    dress, expected = handed
    made = samples(dress, "client 0", copy=True)
    assert_plain(made, np.uint8 if getattr(dress, "dtype", None) in (np.uint8, torch.uint8) else made.dtype)
    assert made.dtype in (np.uint8, np.float32, np.int64, np.bool_)
    assert made.flags.owndata
    assert made.flags.writeable
    np.testing.assert_array_equal(made, expected)


@settings(max_examples=100, deadline=None)
@given(handed_over((*INTEGERS, "?")))
def test_labels_become_plain_whatever_dress_they_come_in(handed):
    dress, expected = handed
    made = labels(dress, "client 0", copy=True)
    assert_plain(made, np.bool_ if expected.dtype == bool and made.ndim > 1 else np.int64)
    np.testing.assert_array_equal(made, expected)


def test_axes_of_one_element_may_have_any_stride():
    """NumPy calls all of these contiguous."""
    unaligned = np.frombuffer(bytes(33), np.float32, offset=1).reshape(2, 4)
    assert_plain(samples(unaligned, "unaligned"), np.float32)
    odd = np.zeros(1, [("x", "<f4", (2, 3)), ("tag", "u1")])["x"]  # 25 bytes from one sample to the next
    for x in (np.ones((1, 2, 3), "f4")[::-1], np.ones((4, 2, 3), "f4")[:1, ::-1][:, :1], odd, np.ones((2, 0, 3))[::-1]):
        y = np.zeros(5, int)[::-1][: len(x)]
        assert np.array_equal(samples(x, "one"), x)
        made = own_tensor(np.asarray(x, np.float32), CPU)
        assert made.stride() == torch.empty(x.shape).stride() or not x.size
        one = ef.FederatedData(x, y, y, np.array([len(x), 0])[::-1], x, y, 1)
        assert torch.equal(DeviceData(one, CPU).x, torch.tensor(x.tolist()).reshape(x.shape))


def test_every_way_is_the_same_numbers():
    for name, way in WAYS.items():
        made, _ = as_pair((way(X[0]), Y[0]), name)
        assert_plain(made, np.float32)
        np.testing.assert_array_equal(made, X[0], err_msg=name)
    for name, way in LABEL_WAYS.items():
        _, made = as_pair((X[0], way(Y[0])), name)
        assert_plain(made, np.int64)
        np.testing.assert_array_equal(made, Y[0], err_msg=name)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("way", WAYS)
def test_every_trainer_learns_the_same_from_every_layout(trainer, way, expected):
    handed = [(WAYS[way](x), list(LABEL_WAYS.values())[i](y)) for i, (x, y) in enumerate(zip(X, Y, strict=True))]
    assert_same(updates(trainer, ef.from_arrays(handed)), expected[trainer])


@pytest.mark.parametrize("trainer", TRAINERS)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_every_trainer_learns_the_same_from_any_dress(trainer, expected, data):
    """Type, byte order, order of the axes in memory, steps and class, all drawn, for each client anew."""
    handed = [
        (data.draw(dressed(x, FLOATS)), data.draw(dressed(y, INTEGERS))) for x, y in zip(X, Y, strict=True)
    ]  # fmt: skip
    assert_same(updates(trainer, ef.from_arrays(handed)), expected[trainer])
    clients = Generated([EACH] * CLIENTS, lambda client: handed[client])
    if trainer != "kernels":
        assert_same(updates(trainer, ef.OnDemand(clients, classes=CLASSES)), expected[trainer])


@pytest.mark.parametrize("trainer", TRAINERS)
def test_bytes_are_bytes_in_every_layout(trainer):
    images = [(16 * x + 100).astype(np.uint8) for x in X]
    plain = updates(trainer, ef.from_arrays(list(zip(images, Y, strict=True))))
    for dress in (stored_along(images[0], (0, 2, 3, 1)), with_steps(images[0], (2, 1, -1, 3)), mapped(images[0], True)):
        data = ef.from_arrays([(dress, Y[0]), *zip(images[1:], Y[1:], strict=True)])
        assert_same(updates(trainer, data), plain)


def whole(way) -> ef.FederatedData:
    """Federated data that somebody puts together by hand, everything in an odd layout."""
    x, y = np.concatenate(PLAIN), np.concatenate(Y)
    order, starts = np.arange(len(x)), np.arange(CLIENTS + 1) * EACH
    return ef.FederatedData(
        way(x), y.astype(">i2"), with_steps(order, (2,)).astype(">i4"), with_steps(starts, (-1,)).astype("u2"),
        way(x[:2]), with_steps(y[:2], (2,)), CLASSES,
    )  # fmt: skip


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("way", ["transposed", "a slice with steps", "big-endian", "tensor, channels last"])
def test_data_put_together_by_hand_are_read_alike(trainer, way, expected):
    data = whole(WAYS[way])
    for array, dtype in ((data.x, np.float32), (data.y, np.int64), (data.order, np.int64), (data.starts, np.int64)):
        assert_plain(array, dtype)
    assert_same(updates(trainer, data), expected[trainer])
    assert_same(updates(trainer, replace(data, x=WAYS[way](data.x))), expected[trainer])


class Raw:
    """A source of the user's own, which hands over what it is given as it is."""

    def __init__(self, way, y=lambda y: y):
        self.way, self.y = way, y

    def __len__(self):
        return CLIENTS

    def sizes(self):
        return np.full(CLIENTS, EACH, ">i4")[::1]

    def read(self, clients):
        x, y = (np.concatenate([part[c] for c in clients.tolist()]) for part in (X, Y))
        return self.way(x), self.y(y)


def sources(way, tmp_path):
    x, y, starts = np.concatenate(X), np.concatenate(Y), np.arange(CLIENTS + 1) * EACH
    yield "raw", Raw(way, LABEL_WAYS[">u2"])
    if not isinstance(way(x), list):
        yield "arrays", Arrays(way(x), LABEL_WAYS[">i4"](y), with_steps(starts, (2,)).astype(">u8"))
    yield "generated", Generated([EACH] * CLIENTS, lambda client: (way(X[client]), LABEL_WAYS["steps"](Y[client])))
    yield "written and mapped", save_arrays(Raw(way, LABEL_WAYS[">i8"]), tmp_path / "arrays")
    pytest.importorskip("pyarrow")
    save_parquet(Raw(way, LABEL_WAYS[">i8"]), tmp_path / "parquet")
    yield "parquet", Parquet(tmp_path / "parquet", shape=X[0].shape[1:])


@pytest.mark.parametrize("way", WAYS)
def test_every_source_gives_the_same_model_from_every_layout(way, expected, tmp_path):
    for name, source in sources(WAYS[way], tmp_path):
        data = ef.OnDemand(source, (WAYS[way](X[0]), Y[0]), CLASSES)
        assert_plain(data.test_x, np.float32)
        for trainer in ("batched", "one-by-one"):
            assert_same(updates(trainer, data), expected[trainer], name)


def test_hugging_face_columns_of_any_type(expected):
    datasets = pytest.importorskip("datasets")
    from everfed.data.on_demand_hf import HuggingFace

    owner = np.repeat(np.arange(CLIENTS), EACH)
    table = datasets.Dataset.from_dict(
        {"x": [x.tolist() for x in np.concatenate(X)], "label": np.concatenate(Y).astype("int8"), "who": owner}
    )
    data = ef.OnDemand(HuggingFace.by_column(table, "who"), classes=CLASSES)
    assert_same(updates("batched", data), expected["batched"])


def test_a_file_of_arrays_in_any_order_and_byte_order_is_read(expected, tmp_path):
    x, y = np.concatenate(X), np.concatenate(Y)
    np.save(tmp_path / "x.npy", np.asfortranarray(x.astype(">f8")))
    np.save(tmp_path / "y.npy", y.astype(">u2"))
    np.save(tmp_path / "starts.npy", (np.arange(CLIENTS + 1) * EACH).astype(">u4"))
    data = ef.OnDemand(Arrays.open(tmp_path), classes=CLASSES)
    assert_same(updates("batched", data), expected["batched"])


# Who may change what was handed over, and when.


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_changed_after_a_run_was_set_up_does_not_reach_it(trainer, expected):
    for kind in ("clients", "federated", "test set"):
        x, test = np.concatenate(PLAIN), X[0].copy()
        y, order, starts = np.concatenate(Y), np.arange(len(x)), np.arange(CLIENTS + 1) * EACH
        if kind == "clients":
            data = ef.from_arrays([(x[i * EACH : (i + 1) * EACH], Y[i]) for i in range(CLIENTS)], (test, Y[0]))
        else:
            data = ef.FederatedData(x, y, order, starts, test, Y[0].copy(), CLASSES)
        run = ef.start(
            model(trainer), data, ef.Fleet.from_cycles([1, 1, 1]), device=DEVICE, trainer=trainer, rounds=1,
            local_steps=1, batch_size=3, seed=1, client=ef.SGD(0.1), check_trainer=False,
        )  # fmt: skip
        before = run.evaluate(run.server.params).loss
        for array in (x, test, y, order, starts):
            array[...] = 0
        assert run.evaluate(run.server.params).loss == before
        (part,) = run.source.trainer.train(run.server.params, np.array([2]), 0)
        torch.testing.assert_close(part.deltas[0], expected[trainer][2], rtol=1e-5, atol=1e-7)


def test_a_function_may_use_one_buffer_for_all_clients():
    shared = np.zeros((2, 4), np.uint8)

    def make(client):
        shared[...] = client
        return shared, [0, 1]

    x, _ = Generated([2, 2, 2], make).read(np.arange(3))
    assert x[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_source_may_change_its_own_sizes_later():
    sizes = np.array([2, 2])
    data = ef.OnDemand(Generated(sizes, lambda client: (np.ones((2, 1)), [0, 1])), classes=2)
    sizes[...] = 9
    assert data.sizes().tolist() == [2, 2]


# What cannot be converted without a guess is refused in words.

GOOD = np.zeros((2, 3), np.float32)
BAD = {
    "masked": ((np.ma.masked_equal(GOOD, 1.0), [0, 1]), "samples of client 0 are a masked array"),
    "masked rows in a list": (([np.ma.masked_equal(GOOD[0], 1.0), GOOD[1]], [0, 1]), "masked array"),
    "masked labels": ((GOOD, np.ma.masked_equal([0, 1], 1)), "labels of client 0 are a masked array"),
    "complex": ((GOOD.astype(complex), [0, 1]), "samples of client 0 must be numbers; they are complex128"),
    "text": ((GOOD.astype(str), [0, 1]), "must be numbers; they are <U32"),
    "objects": ((GOOD.astype(object), [0, 1]), "must be numbers; they are object"),
    "dates": ((GOOD.astype("datetime64[s]"), [0, 1]), "must be numbers"),
    "records": ((np.zeros(2, "i4,f4"), [0, 1]), "must be numbers"),
    "lists of different lengths": (([[1.0, 2.0], [1.0]], [0, 1]), "samples of client 0 cannot be converted"),
    "too large": ((GOOD.astype(float) + 1e300, [0, 1]), "samples of client 0 hold numbers beyond 3.4e+38"),
    "targets too large": ((GOOD, [1e300, 0.0]), "labels of client 0 hold numbers beyond"),
    "labels beyond int64": ((GOOD, np.array([0, 2**64 - 1], np.uint64)), "go up to 18446744073709551615"),
    "complex labels": ((GOOD, np.array([0j, 1j])), "labels of client 0 must be numbers"),
    "a sparse tensor": ((torch.eye(2).to_sparse(), [0, 1]), "sparse, quantised, nested or meta tensor"),
    "a meta tensor": ((torch.zeros(2, 3, device="meta"), [0, 1]), "meta tensor"),
    "no axis": ((3.0, [0]), "client 0 has 0 samples"),
}


@pytest.mark.parametrize(("pair", "words"), BAD.values(), ids=list(BAD))
def test_what_would_need_a_guess_is_refused(pair, words):
    with pytest.raises(ef.InputError) as error:
        ef.from_arrays([pair])
    assert words in str(error.value)


def test_small_floats_of_torch_are_read():
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        x, _ = as_pair((torch.tensor([[0.5, -2.0]]).to(dtype), [0]), "client 0")
        assert x.tolist() == [[0.5, -2.0]]
    conjugate = torch.tensor([[1.0 + 2.0j]]).conj().imag  # a view that is negated when it is read
    assert conjugate.is_neg()
    assert as_pair((conjugate, [0]), "client 0")[0].tolist() == [[-2.0]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"order": [0, 1, 12]}, "order contains 0 to 12; sample numbers must be from 0 to 11"),
        ({"order": np.arange(12) - 1}, "order contains -1"),
        ({"order": np.arange(12.0)}, "order must be a list of whole numbers"),
        ({"starts": [0, 4, 3, 12]}, "starts must rise from 0 to 12"),
        ({"starts": [0, 4, 8, 11]}, "starts must rise from 0 to 12"),
        ({"y": np.zeros(11, int)}, "12 samples but 11 labels"),
        ({"test_y": [0]}, "2 samples but 1 labels"),
        ({"classes": 2}, "the label of training sample"),
        ({"y": np.zeros(12)}, "the training labels are floats"),
        ({"x": np.ma.masked_equal(np.concatenate(PLAIN), 0.0)}, "masked array"),
    ],
)
def test_data_put_together_by_hand_are_checked(changes, words):
    with pytest.raises(ef.InputError) as error:
        replace(whole(WAYS["tensor"]), **changes)
    assert words in str(error.value)


def test_clients_of_different_types_are_not_written_into_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr("everfed.data.on_demand_sources._CLIENTS_AT_ONCE", 1)
    monkeypatch.setattr("everfed.data.on_demand_sources.batches", lambda n: [np.array([c]) for c in range(n)])
    source = Generated([2, 2], lambda client: (np.full((2, 3), 0.5) if client else np.zeros((2, 3), np.uint8), [0, 1]))
    with pytest.raises(ef.InputError, match="hold float32 of shape"):
        save_arrays(source, tmp_path)


# What lies behind the entrance.


def test_kernels_refuse_what_is_not_contiguous():
    pytest.importorskip("triton")
    from everfed.engine.kernels.update import weighed_sum
    from everfed.engine.launch import launch

    rows = torch.zeros(4, 6, device=DEVICE).T
    with pytest.raises(RuntimeError, match=r"argument 0 of the kernel weighed_sum .* strides \(1, 6\)"):
        launch(weighed_sum, (1,), rows, BLOCK=1024)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_coefficients_and_parameters_of_any_layout_count_alike(trainer):
    data = ef.from_arrays(list(zip(PLAIN, Y, strict=True)))
    made = ef.TRAINERS[trainer](task(trainer, data))
    params = made.task.layout.flatten(made.task.module)
    spread = torch.stack([params, params + 1.0], dim=1)[:, 0]
    sums = []
    for start, weights in (
        (params, np.array([0.5, 1.0, 2.0])),
        (spread, with_steps(np.array([0.5, 1.0, 2.0], "f4"), (-2,))),
    ):
        total = torch.zeros_like(params)
        for part in made.train(start, np.arange(3), 0):
            total += part.weighted_sum(weights[part.clients])[0]
        sums.append(total)
    assert_same(*sums)
    assert as_weights(np.ones(4, "f4")[::2], CPU).is_contiguous()
    assert own_tensor(np.ones((4, 4))[::2, ::-1], CPU).is_contiguous()


@pytest.mark.parametrize("trainer", TRAINERS)
def test_weights_of_any_layout_train_alike(trainer):
    data = ef.from_arrays(list(zip(PLAIN, Y, strict=True)))
    odd = model(trainer).to(memory_format=torch.channels_last)
    odd[-1].weight = nn.Parameter(odd[-1].weight.detach().T.contiguous().T)
    assert not odd[-1].weight.is_contiguous()
    # Libraries take other ways through other layouts, which on some processors end in other last bits.
    torch.testing.assert_close(updates(trainer, data, net=odd), updates(trainer, data), rtol=1e-5, atol=1e-7)


class Turned:
    """An augmentation of the user's own that returns a view in another layout."""

    random = False

    def shape(self, stored):
        return stored

    def evaluate(self, images):
        return images.movedim(-3, -1).contiguous().movedim(-1, -3)

    def train(self, images, words):
        return self.evaluate(images)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_augmentations_may_return_views(trainer, expected):
    data = replace(ef.from_arrays(list(zip(PLAIN, Y, strict=True))), augment=Turned())
    torch.testing.assert_close(updates(trainer, data), expected[trainer], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_state_in_another_layout_goes_on_alike(trainer):
    data = ef.from_arrays(list(zip(PLAIN, Y, strict=True)))
    shared = task(trainer, data, ef.Adam(0.1))
    params, found = shared.layout.flatten(shared.module), []
    for turn in (lambda t: t, lambda t: torch.stack([t, t], dim=-1)[..., 0] if t.ndim else t):
        made = ef.TRAINERS[trainer](shared)
        list(made.train(params, np.arange(3), 0))
        again = ef.TRAINERS[trainer](shared)
        again.load_state_dict({name: turn(value) for name, value in made.state_dict().items()})
        found.append(torch.cat([part.deltas.clone() for part in again.train(params, np.arange(3), 1)]))
    assert_same(*found)


# Ray and Flower: the same data, by their own ways in.


@dataclass(frozen=True)
class Handed:
    """A data set of the user's own, in an odd layout."""

    way: str = ""

    def load(self):
        x, y = np.concatenate(PLAIN), np.concatenate(Y)
        dress = WAYS[self.way] if self.way else np.ascontiguousarray
        named = "lists" if self.way == "lists" else ">i4"
        return Dataset("handed", dress(x), LABEL_WAYS[named](y) if self.way else y, dress(x[:4]), y[:4], CLASSES)


SMALL = Experiment(
    data=Handed(), split=ef.SPLITS["iid"](), fleet=CycleFleet(clients=CLIENTS, cycles=(1,)), rounds=2, local_steps=2,
    batch_size=3, client=ef.SGD(0.1, momentum=0.9), device="cpu", check_trainer=False,
)  # fmt: skip


def worker_result(way):
    with warnings.catch_warnings():
        worker = Worker(packed(replace(SMALL, data=Handed(way)), ()), 1)
        worker.begin()
        module = ef.start(SMALL)
        params = module.server.params.numpy().copy()
        params.flags.writeable = False  # as Ray hands arrays over
        clients = np.arange(CLIENTS)
        clients.flags.writeable = False
        return worker.train(params, Order(0, clients, np.array([1.0, 2.0, 0.5]), False, None))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_ray_workers_train_alike():
    plain = worker_result("")
    for way in WAYS:
        found = worker_result(way)
        assert np.array_equal(found.result, plain.result), way
        assert np.array_equal(found.losses, plain.losses), way


def test_flower_clients_train_alike():
    pytest.importorskip("flwr", reason="Flower is not installed")
    from everfed.flower.training import LocalTraining
    from everfed.flower.wire import Ask

    experiment = replace(SMALL, keep_state=False)
    sent = ef.start(SMALL).server.params.numpy()
    full = [(x, np.arange(EACH) % CLASSES) for x in PLAIN]  # every client knows every class

    def trained(x, y, client):
        local = LocalTraining(experiment, client, samples=lambda _: (x, y))
        return local.train(sent, Ask(0), None)

    for client, (x, y) in enumerate(full):
        after, _, loss = trained(x, y, client)
        for name, way in WAYS.items():
            found, _, its_loss = trained(way(x), LABEL_WAYS[">u2"](y), client)
            assert np.array_equal(found, after), name
            assert its_loss == loss
