"""Clients' samples that are loaded on demand: the same runs from any source, and no more in memory than needed."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import everfed as ef
from everfed.data.on_demand import OnDemand
from everfed.data.on_demand_hf import HuggingFace
from everfed.data.on_demand_parquet import Parquet, save_parquet
from everfed.data.on_demand_sources import Arrays, Generated, ranges, save_arrays
from everfed.data.on_demand_synthetic import Synthetic
from everfed.learning import streamed
from everfed.learning.streamed import StreamedSamples, on_device
from everfed.learning.task import CannotTrainError, DeviceData
from everfed.run import config
from everfed.trainers import choose

CPU = torch.device("cpu")
CYCLES = [1, 2, 3, 1, 2, 5, 1, 4]


@pytest.fixture(scope="module")
def fleet():
    return ef.Fleet.from_cycles(CYCLES)


@pytest.fixture(scope="module")
def data():
    """Digits, by-hand unequal: clients of 3 to 40 samples, in no order."""
    rng = np.random.default_rng(3)
    whole = ef.load("digits")
    sizes = np.array([40, 3, 17, 5, 9, 30, 12, 4])
    order = rng.permutation(len(whole.y))[: sizes.sum()]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return ef.FederatedData(whole.x, whole.y, order, starts, whole.test_x, whole.test_y, whole.classes)


def demanded(source, data, **options):
    return OnDemand(source, (data.test_x, data.test_y), data.classes, **options)


def from_memory(data, folder):
    return Arrays.of(data)


def mapped(data, folder):
    return save_arrays(Arrays.of(data), folder)


def parquet(data, folder):
    save_parquet(Arrays.of(data), folder, clients_a_file=3, clients_a_group=2)
    return Parquet(folder, shape=(1, 8, 8))


def partitioned_parquet(data, folder):
    """One file a client, in folders of Hive's kind."""
    for client in range(len(data)):
        own = data.samples_of(client)
        (folder / f"client={client}").mkdir()
        lists = pa.array(data.x[own].reshape(len(own), -1).tolist(), pa.list_(pa.float32()))
        pq.write_table(pa.table({"x": lists, "y": data.y[own]}), folder / f"client={client}" / "a.parquet")
    return Parquet(folder, shape=(1, 8, 8))


def generated(data, folder):
    def make(client):
        own = data.samples_of(client)
        return data.x[own], data.y[own]

    return Generated(data.sizes(), make)


def hugging_face(data, folder):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(
        {"x": data.x[data.order].reshape(len(data.order), -1), "label": data.y[data.order]}
    )
    table = table.add_column("who", np.repeat([f"client {i}" for i in range(len(data))], data.sizes()))
    return Reshaped(HuggingFace.by_column(table, "who"))


class Reshaped:
    """A source of another's samples as pictures."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return len(self.source)

    def sizes(self):
        return self.source.sizes()

    def read(self, clients):
        x, y = self.source.read(clients)
        return x.reshape(-1, 1, 8, 8), y


SOURCES = [from_memory, mapped, parquet, partitioned_parquet, generated, hugging_face]


@pytest.mark.parametrize("trainer", ["batched", "one-by-one"])
@pytest.mark.parametrize("make", SOURCES)
def test_a_run_is_the_same_bit_for_bit_wherever_its_samples_come_from(make, trainer, data, fleet, tmp_path):
    settings = {"rounds": 6, "client": ef.Adam(1e-2), "trainer": trainer, "eval_every": 2}
    settings |= {"local_steps": 3, "batch_size": 6, "device": "cpu"}
    expected = ef.simulate("mlp", data, fleet, **settings)
    found = ef.simulate("mlp", demanded(make(data, tmp_path), data), fleet, **settings)
    for name, value in expected.params.items():
        assert torch.equal(found.params[name], value)
    assert [comparable(r) for r in found.rounds] == [comparable(r) for r in expected.rounds]


def comparable(record):
    """Without what is not known of every client on demand: its labels."""
    metrics = record.metrics and replace(record.metrics, breakdown={})
    return replace(record, participants=0, scales=0, seconds=0, metrics=metrics)


@pytest.mark.parametrize("make", SOURCES)
def test_a_source_reads_clients_in_the_order_asked_for(make, data, tmp_path):
    source = make(data, tmp_path)
    assert (len(source), source.sizes().tolist()) == (len(data), data.sizes().tolist())
    for clients in ([5, 0, 7, 2], [3], list(range(8))):
        x, y = source.read(np.array(clients))
        own = np.concatenate([data.samples_of(client) for client in clients])
        assert np.array_equal(x, data.x[own])
        assert np.array_equal(y, data.y[own])


def test_augmented_pictures_are_the_same_too():
    rng = np.random.default_rng(1)
    pairs = [(rng.integers(0, 256, (n, 3, 12, 12), dtype=np.uint8), rng.integers(0, 3, n)) for n in (4, 9)]
    data = replace(ef.from_arrays(pairs), augment=ef.AUGMENTS["crop-flip"](size=8), classes=3)
    lazy = OnDemand(Arrays.of(data), None, 3, augment=data.augment)
    assert lazy.input_shape() == data.input_shape() == (3, 8, 8)
    model, fleet = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), ef.Fleet.from_cycles([1, 2])
    one, two = (ef.simulate(model, d, fleet, rounds=3, client=ef.SGD(0.1)) for d in (data, lazy))
    assert all(torch.equal(one.params[name], two.params[name]) for name in one.params)


def test_regression_targets_may_be_on_demand():
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(n, 2)), rng.normal(size=(n, 1))) for n in (1, 6)]
    data, fleet = ef.from_arrays(pairs), ef.Fleet.from_cycles([1, 2])
    settings = {"rounds": 3, "client": ef.SGD(0.1)}
    model = nn.Linear(2, 1)
    one, two = (ef.simulate(model, d, fleet, **settings) for d in (data, OnDemand(Arrays.of(data))))
    assert all(torch.equal(one.params[name], two.params[name]) for name in one.params)


# -- what is in memory -----------------------------------------------------------------------------


class Counting:
    """A source that notes who was read."""

    def __init__(self, source):
        self.source, self.asked = source, []

    def __len__(self):
        return len(self.source)

    def sizes(self):
        return self.source.sizes()

    def read(self, clients):
        self.asked.append(clients.tolist())
        return self.source.read(clients)


def test_only_participants_are_read_each_once_a_round(data, fleet):
    source = Counting(Arrays.of(data))
    run = ef.start("mlp", demanded(source, data), fleet, rounds=4, client=ef.SGD(0.1))
    source.asked.clear()
    for record in run:
        assert source.asked == [record.participants.tolist()]
        source.asked.clear()


def test_only_drawn_samples_are_held(data):
    device_data = on_device(demanded(Arrays.of(data), data), CPU)
    assert isinstance(device_data, StreamedSamples)
    clients = torch.tensor([0, 5])  # 40 and 30 samples
    numbers = device_data.draw(clients, 7, 2, 3, seed=1)
    whole = DeviceData(data, CPU)
    expected = whole.draw(clients, 7, 2, 3, seed=1)
    assert len(device_data.x) == len(device_data.y) == len(expected.unique())
    assert torch.equal(device_data.x[numbers], whole.x[expected])
    assert torch.equal(device_data.y[numbers], whole.y[expected])


@pytest.mark.parametrize("block", [1, 2000, 10_000])
def test_large_clients_are_read_in_blocks(block, data, monkeypatch):
    monkeypatch.setattr(streamed, "_BLOCK", block)
    source = Counting(Arrays.of(data))
    device_data = on_device(demanded(source, data), CPU)
    source.asked.clear()
    clients = torch.tensor([0, 1, 3, 5, 7])
    numbers = device_data.draw(clients, 0, 2, 4, seed=9)
    whole = DeviceData(data, CPU)
    assert torch.equal(device_data.x[numbers], whole.x[whole.draw(clients, 0, 2, 4, seed=9)])
    assert [client for asked in source.asked for client in asked] == clients.tolist()
    sample = data.x[0].nbytes
    sizes = [sample * int(data.sizes()[asked].sum()) for asked in source.asked]
    largest = sample * int(data.sizes()[clients.numpy()].max())
    assert len(sizes) > 1
    assert max(sizes) <= block + largest


def test_parquet_reads_only_the_row_groups_that_it_needs(data, tmp_path, monkeypatch):
    source = parquet(data, tmp_path)
    read = []
    plain = pq.ParquetFile.read_row_groups

    def counted(self, groups, **options):
        read.extend(groups)
        return plain(self, groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    source.read(np.array([0]))  # 2 clients a group, 3 clients a file
    assert read == [0]
    source.read(np.array([2, 7]))
    assert read == [0, 1, 0]


def test_group_labels_are_exact_for_small_groups_and_sampled_for_large_ones(data):
    lazy = demanded(Arrays.of(data), data)
    groups = [np.array([0, 4]), np.array([1, 2, 3, 5, 6, 7])]
    for one, two in zip(lazy.label_mixes(groups), data.label_mixes(groups), strict=True):
        assert one.tolist() == two.tolist()
    many = Counting(Generated(np.ones(5000, np.int64), lambda client: ([[0.0]], [client % 2])))
    mix = OnDemand(many, None, 2).label_mixes([np.arange(5000)])[0]
    assert len(many.asked[-1]) == len(set(many.asked[-1])) == 200
    assert mix.sum() == 200
    assert mix.min() > 50


def test_kernels_give_their_place_to_the_batched_trainer_and_say_why(data, fleet):
    run = ef.start("mlp", demanded(Arrays.of(data), data), fleet, client=ef.Adam(1e-3), rounds=2, trainer="batched")
    with pytest.raises(CannotTrainError, match="on demand"):
        choose._fast(run.source.trainer.task)
    with pytest.raises(ef.InputError, match="loaded on demand"):
        ef.start("mlp", demanded(Arrays.of(data), data), fleet, client=ef.Adam(1e-3), rounds=2, trainer="kernels")


# -- synthetic data --------------------------------------------------------------------------------


def test_synthetic_data_are_a_function_of_seed_and_client(fleet):
    one, two, other = (Synthetic().load().partition(8, "iid", seed=seed) for seed in (1, 1, 2))
    x, y = one.read(np.array([6, 2]))
    assert x.shape == (40, 1, 8, 8)
    assert x.dtype == np.uint8
    assert np.array_equal(x[20:], two.read(np.array([2]))[0])
    assert not np.array_equal(x[20:], other.read(np.array([2]))[0])
    assert set(np.unique(one.test_y)) == set(range(10))
    assert not np.array_equal(y[:20], y[20:])


@pytest.mark.parametrize("side", [2, 5, 28])
def test_synthetic_pictures_have_any_side(side):
    data = Synthetic(samples=3, side=side, classes=4).load().partition(5, "iid")
    x, y = data.read(np.arange(5))
    assert x.shape == (15, 1, side, side)
    assert data.sizes().tolist() == [3] * 5
    assert y.max() < 4


def test_synthetic_classes_follow_energy_as_far_as_asked():
    fleet = ef.Fleet.from_cycles([1, 5] * 50)
    for strength, inside in ((1.0, 1.0), (0.5, 0.75), (0.0, 0.5)):
        data = Synthetic().load().partition(100, "by-energy", fleet=fleet, strength=strength)
        often = data.read(np.arange(0, 100, 2))[1]
        assert np.mean(often < 5) == pytest.approx(inside, abs=0.05)


def test_a_linear_model_learns_synthetic_data(fleet):
    data = Synthetic(samples=100).load().partition(8, "iid")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    history = ef.simulate(model, data, fleet, "fedavg", rounds=30, client=ef.SGD(0.5))
    assert 0.5 < history.final.accuracy < 0.99


def test_synthetic_data_run_from_an_experiment_file():
    experiment = config.from_dict({"data": "synthetic", "rounds": 2, "fleet": {"kind": "cycles", "clients": 12}})
    run = ef.start(experiment)
    assert isinstance(run.setup.data, OnDemand)
    assert len(list(run)) == 2


# -- what is refused -------------------------------------------------------------------------------


def two(x=None, y=None, sizes=(2, 1)):
    made = [([[0.0], [1.0]], [0, 1]), ([[2.0]] if x is None else x, [1] if y is None else y)]
    return Generated(list(sizes), lambda client: made[client])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OnDemand(Generated([], lambda c: None), None, 2), "no clients"),
        (lambda: OnDemand(two(sizes=(2, 0)), None, 2), "client 1 holds no samples"),
        (lambda: OnDemand(two(), None, -1), "classes is -1"),
        (lambda: OnDemand(two(), None, 0).read(np.array([0, 1])), "set classes to their number"),
        (lambda: OnDemand(two(), ([[0.0, 1.0]], [0]), 2), "the test set"),
        (lambda: OnDemand(two(y=[2]), None, 2).read(np.array([1])), "labels of 2 classes run from 0 to 1"),
        (lambda: OnDemand(two(x=[[np.nan]]), None, 2).read(np.array([1])), "NaN"),
        (lambda: OnDemand(two(x=[[1.0, 2.0]]), None, 2).read(np.array([1])), r"client 1 are float32 of shape \(2,\)"),
        (lambda: OnDemand(two(x=[[1.0], [2.0]], y=[0, 1]), None, 2).read(np.array([1])), "2 samples for client 1"),
        (lambda: OnDemand(two(), None, 2).read(np.array([2])), "no client 2"),
        (lambda: Arrays(np.zeros((3, 1)), np.zeros(3), np.array([0, 2])), "rise from 0"),
        (lambda: Arrays(np.zeros((3, 1)), np.zeros(3), np.array([0, 2, 1, 3])), "rise from 0"),
        (lambda: Arrays.open("/nowhere"), "no x.npy, y.npy, starts.npy"),
        (lambda: Synthetic(samples=0), "samples is 0"),
        (lambda: Synthetic().load().partition(4, "dirichlet"), "iid and by-energy"),
        (lambda: Synthetic().load().partition(4, "by-energy"), "needs the fleet"),
    ],
)
def test_bad_sources_are_refused_in_words(make, words):
    with pytest.raises(ef.InputError, match=words):
        make()


def test_bad_parquet_is_refused_in_words(tmp_path):
    def written(name, columns):
        folder = tmp_path / name
        folder.mkdir()
        pq.write_table(pa.table(columns), folder / "a.parquet")
        return Parquet(folder)

    with pytest.raises(ef.InputError, match="no Parquet files"):
        len(Parquet(tmp_path))
    with pytest.raises(ef.InputError, match="no column 'y'"):
        len(written("a", {"client": [0], "x": [1.0]}))
    with pytest.raises(ef.InputError, match="no column 'client' and is not in a folder"):
        len(written("b", {"x": [1.0], "y": [0]}))
    with pytest.raises(ef.InputError, match="client 0 are not contiguous"):
        len(written("c", {"client": [0, 1, 0], "x": [1.0] * 3, "y": [0] * 3}))
    with pytest.raises(ef.InputError, match="numbered from 0 on without gaps"):
        len(written("d", {"client": [0, 2], "x": [1.0] * 2, "y": [0] * 2}))
    with pytest.raises(ef.InputError, match="differ in length"):
        written("e", {"client": [0, 0], "x": [[1.0], [1.0, 2.0]], "y": [0] * 2}).read(np.array([0]))
    with pytest.raises(ef.InputError, match="missing values"):
        written("f", {"client": [0, 0], "x": [1.0, None], "y": [0] * 2}).read(np.array([0]))
    with pytest.raises(ef.InputError, match="holds string"):
        written("g", {"client": [0], "x": ["a"], "y": [0]}).read(np.array([0]))


def test_several_columns_make_an_input(tmp_path):
    pq.write_table(
        pa.table({"client": [0, 1, 1], "a": [1, 2, 3], "b": [4.0, 5.0, 6.0], "y": [0, 1, 0]}), tmp_path / "t"
    )
    source = Parquet(tmp_path / "t", x=("a", "b"))
    assert source.read(np.array([1]))[0].tolist() == [[2.0, 5.0], [3.0, 6.0]]


def test_hugging_face_without_the_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(ef.MissingExtraError, match=r"everfed\[datasets\]"):
        HuggingFace.by_column(None, "who")


def test_hugging_face_pictures_and_owners():
    datasets = pytest.importorskip("datasets")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    table = datasets.Dataset.from_dict({"image": list(pixels), "label": [0, 1, 0, 1, 1]}, features=features)
    source = HuggingFace.by_owner(table, [1, 0, 1, 0, 1], x="image")
    x, y = source.read(np.array([1, 0]))
    assert np.array_equal(x, pixels[[0, 2, 4, 1, 3]].transpose(0, 3, 1, 2))
    assert y.tolist() == [0, 0, 1, 1, 1]
    with pytest.raises(ef.InputError, match="unknown column 'who'"):
        HuggingFace.by_column(table, "who", x="image")
    with pytest.raises(ef.InputError, match=r"load_dataset\(name, split='train'\)"):
        HuggingFace.by_owner(datasets.DatasetDict(), [])


def test_ranges_of_nothing():
    assert ranges(np.array([3, 5]), np.array([3, 5])).tolist() == []
