"""Natural clients: who holds what is as the data say, and how clients meet energy is as the key says."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import everfed as ef
from everfed.data.dataset import Dataset
from everfed.data.owners import Owners
from everfed.data.partition import Natural

CYCLES = [5, 1, 20, 1, 10, 5]
FLEET = ef.Fleet.from_cycles(CYCLES)


def dataset(people=8, draw=None):
    """Each sample holds its owner's number, so that it can be told whose it is."""
    draw = draw or np.random.default_rng(0)
    sizes = draw.permutation(np.arange(3, 3 + people))
    train, test = np.repeat(np.arange(people), sizes), np.repeat(np.arange(people), 2)
    draw.shuffle(train)
    names = tuple(f"person {i}" for i in range(people))
    columns = {
        "motion": tuple(float(10 * i % 7) for i in range(people)),
        "side": tuple("lr"[i % 2] for i in range(people)),
    }
    x, test_x = (np.stack([owner, owner], axis=1).astype(np.float32) for owner in (train, test))
    return Dataset("people", x, train % 2, test_x, test % 2, 2, owners=Owners(train, test, names, columns))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(people=st.integers(1, 12), seed=st.integers(0, 99), rand=st.data())
def test_every_client_holds_all_samples_of_one_person_and_nobody_elses(people, seed, rand):
    clients = rand.draw(st.integers(1, people))
    data = dataset(people)
    split = data.split(Natural(), clients, seed=seed)
    assert len(split) == len(split.names) == clients
    assert len(set(split.names)) == clients
    for client, name in enumerate(split.names):
        person = int(name.removeprefix("person "))
        held = split.x[split.samples_of(client)][:, 0]
        assert set(held) == {person}
        assert len(held) == int((data.owners.train == person).sum())
        assert set(split.test_x[split.test_owner == client][:, 0]) == {person}
    assert sum(split.sizes()) == len(split.order)
    assert split.shares().sum() == pytest.approx(1.0)


def order_of(fleet):
    """Clients from the best powered to the worst."""
    return np.argsort(CYCLES, kind="stable")


def test_clients_meet_energy_by_size_or_by_a_column():
    data = dataset(6)
    sizes = data.split(Natural("size"), 6, fleet=FLEET).sizes()[order_of(FLEET)]
    assert sizes.tolist() == sorted(sizes, reverse=True)
    sizes = data.split(Natural("size", reverse=True), 6, fleet=FLEET).sizes()[order_of(FLEET)]
    assert sizes.tolist() == sorted(sizes)
    split = data.split(Natural("column", "motion"), 6, fleet=FLEET)
    motion = dict(zip(data.owners.names, data.owners.columns["motion"], strict=True))
    values = [motion[split.names[client]] for client in order_of(FLEET)]
    assert values == sorted(values)
    sides = dict(zip(data.owners.names, data.owners.columns["side"], strict=True))
    split = data.split(Natural("column", "side"), 6, fleet=FLEET)
    assert [sides[split.names[client]] for client in order_of(FLEET)] == ["l"] * 3 + ["r"] * 3


def test_a_random_match_depends_on_the_seed_alone():
    one, same, other = (dataset().split(Natural(), 6, seed=seed).names for seed in (1, 1, 2))
    assert one == same != other


def test_data_with_clients_of_their_own_are_split_by_them_unless_told_otherwise():
    experiment = ef.Experiment(data=dataset(), fleet=FLEET)
    assert len(experiment.make_data(FLEET).names) == 6
    assert experiment.split == Natural()  # and says so
    chosen = ef.Experiment(data=dataset(), fleet=FLEET, split=ef.SPLITS["by-energy"]())
    assert chosen.make_data(FLEET).names == ()
    assert ef.Experiment(data=ef.DATASETS["smartwatch"]()).split == Natural()
    assert ef.Experiment(data=dataset(), fleet=FLEET, split=ef.SPLITS["iid"]()).make_data(FLEET).names == ()
    held = ef.Experiment(data=dataset(), fleet=FLEET, validation=0.25).make_data(FLEET)
    assert all(set(held.test_x[held.test_owner == i][:, 0]) <= {int(held.names[i][7:])} for i in range(6))


def test_a_run_reports_each_groups_own_test_samples():
    data = dataset(6)
    history = ef.simulate("logistic", data, FLEET, rounds=5)
    assert set(history.final.group_accuracy) == {"E=1", "E=5", "E=10", "E=20"}
    assert history.final.breakdown["accuracy"].keys() == {"clients mean", "clients worst tenth"}


@pytest.mark.parametrize(
    ("split", "clients", "what"),
    [
        (Natural(), 9, "fleet has 9 clients and the data 8"),
        (Natural("column", "speed"), 8, "unknown column of the data's clients 'speed'"),
        (Natural("column"), 8, "split.column names what"),
        (Natural("size", "motion"), 8, "split.column names what"),
        (Natural("size"), 8, "pass fleet="),
    ],
)
def test_what_cannot_be_matched_is_refused(split, clients, what):
    with pytest.raises(ef.InputError, match=what):
        dataset().split(split, clients)


def test_data_without_clients_of_their_own_cannot_be_split_by_them():
    with pytest.raises(ef.InputError, match="needs data with clients of their own"):
        ef.load("digits").partition(4, "natural")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"train": np.array([0, 1, 2])}, "is 2; the clients are 0 to 1"),
        ({"train": np.array([0, 0, 0])}, "holds no samples"),
        ({"test": np.array([-2])}, "is -2"),
        ({"columns": {"a": (1.0,)}}, "1 values for 2 clients"),
        ({"train": np.array([0.5, 1])}, "whole numbers"),
    ],
)
def test_owners_that_do_not_fit_are_refused(change, what):
    right = {"train": np.array([0, 1, 1]), "test": np.array([-1, 0]), "names": ("a", "b"), "columns": {}}
    Owners(**right)
    with pytest.raises(ef.InputError, match=what):
        Owners(**(right | change))
    with pytest.raises(ef.InputError, match="3 owners were given for 2 training samples"):
        Dataset("d", np.ones((2, 1)), [0, 1], np.ones((2, 1)), [0, 1], 2, owners=Owners(**right))
