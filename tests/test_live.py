"""Objects of the user's own in an experiment: stored, resumed, told apart, reported, swept and compared."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import everfed as ef
from everfed.energy.battery import Storage
from everfed.energy.changing import Changing
from everfed.learning.optim import SCHEDULES
from everfed.report.page import page
from everfed.run import config, live
from everfed.run.experiment import Experiment
from everfed.run.fingerprint import fingerprint
from everfed.run.fleets import CycleFleet
from everfed.scheduling.policies import Decision
from everfed.store import find_runs, open_run
from everfed.studies.sweep import folder_name
from older_folders import as_older_version

KW = {"rounds": 8, "local_steps": 2, "client": ef.SGD(0.1), "device": "cpu", "check_trainer": False}


def client(seed: int, count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    return (rng.normal(size=(count, 5)) + y[:, None]).astype(np.float32), y


def samples():
    return ef.from_arrays([client(i) for i in range(8)], test=client(99))


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def net(seed: int = 0, width: int = 4) -> Net:
    torch.manual_seed(seed)
    return Net(width)


@dataclass(frozen=True)
class EveryNth(ef.Policy):
    n: int = 2

    def step(self, state, view):
        return Decision(view.affords & (view.round % self.n == 0), np.ones(view.affords.shape[-1]), state)


FLEETS = {
    "cycles": lambda: ef.Fleet.from_cycles([1, 2, 4, 4] * 2),
    "offsets": lambda: ef.Fleet.from_cycles([1, 2, 4, 4] * 2, [0, 1, 0, 3, 1, 0, 2, 0]),
    "markov": lambda: ef.Fleet.from_cycles([1, 2, 4, 4] * 2, arrivals="markov"),
    "storage": lambda: ef.Fleet.from_cycles([1, 2, 4, 4] * 2, storage=Storage(leak=0.01, start=0.5), capacity=3),
    "capacities": lambda: ef.Fleet.from_cycles([1, 2] * 4, capacity=[1, 2, 3, 4, 1, 2, 3, 4]),
    "changing": lambda: replace(
        ef.Fleet.from_cycles([1, 2] * 4),
        arrivals=Changing(ef.Fleet.from_cycles([1, 2] * 4).arrivals, ef.Fleet.from_cycles([2, 1] * 4).arrivals, at=4),
    ),
}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_stored_run_is_the_plain_one_and_its_fleet_comes_back(fleet, tmp_path):
    made = FLEETS[fleet]()
    plain = ef.simulate(net(), samples(), made, "greedy", **KW)
    stored = ef.simulate(net(), samples(), made, "greedy", out=tmp_path / "run", **KW)
    assert stored.state == "done"
    assert same(plain.params, stored.params)
    again = open_run(tmp_path / "run")
    assert fingerprint(again.experiment.make_fleet()) == fingerprint(made)
    assert again.final == plain.final
    assert "not audited" not in str(page([again], tmp_path / "page.html").read_text(encoding="utf-8"))


def test_a_fleet_that_a_file_can_describe_is_described():
    live_one = Experiment(fleet=ef.Fleet.from_cycles([1, 5, 10, 20] * 10))
    assert folder_name(live_one) == folder_name(Experiment())
    assert CycleFleet.of(ef.Fleet.from_cycles([3, 1, 3, 1])) == CycleFleet(4, (3, 1))
    assert CycleFleet.of(FLEETS["storage"]()) is None


def test_a_run_goes_on_where_it_was_cut_off(tmp_path):
    class OffError(Exception):
        pass

    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == 30:
            raise OffError
        return nn.functional.cross_entropy(outputs, targets)

    def go(**kw):
        return ef.simulate(
            net(), samples(), FLEETS["storage"](), EveryNth(1), loss=loss, trainer="one-by-one", **KW, **kw
        )

    calls[:] = [1] * 100
    whole = go()
    calls.clear()
    with pytest.raises(OffError):
        go(out=tmp_path)
    calls[:] = [1] * 100
    # The closed-over list has another content, so this is another loss by its content, and that is said.
    with pytest.raises(ef.InputError, match="holds a different experiment: loss was"):
        go(out=tmp_path)
    assert same(go(out=tmp_path / "other").params, whole.params)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"model": net(1)}, "model"),
        ({"model": net(0, 5)}, "model"),
        ({"data": ef.from_arrays([client(i) for i in range(1, 9)], test=client(99))}, "data"),
        ({"fleet": FLEETS["capacities"]()}, "fleet"),
        ({"policy": EveryNth(3)}, "policy"),
        ({"loss": nn.functional.cross_entropy}, "loss"),
        ({"client": ef.SGD(0.2)}, "client.lr"),
    ],
)
def test_another_object_is_another_experiment(change, key, tmp_path):
    first = Experiment(model=net(), data=samples(), fleet=FLEETS["cycles"](), policy=EveryNth(2), **KW)
    ef.simulate(first, out=tmp_path)
    ef.simulate(replace(first, model=net(), data=samples()), out=tmp_path)  # equal content, other objects
    with pytest.raises(ef.InputError, match=rf"holds a different experiment: .*{key}"):
        ef.simulate(replace(first, **change), out=tmp_path)


def test_fingerprints_follow_content():
    def one(x):
        return x + 1

    def two(x):
        return x + 2

    values = [
        1, 1.0, True, None, "1", np.arange(3), np.arange(3.0), np.arange(3).reshape(3, 1), [1, 2], (2, 1), {"a": 1},
        one, two, functools.partial(one, 1), Net, net(), net(1), EveryNth(), EveryNth(3), samples(), {1, 2},
    ]  # fmt: skip
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint(np.arange(6).reshape(2, 3).T) == fingerprint(np.arange(6).reshape(2, 3).T.copy())
    circle: list[object] = []
    circle.append(circle)
    assert fingerprint(circle)
    with pytest.raises(ef.InputError, match="cannot be identified by their content"):
        fingerprint(i for i in range(3))


def test_a_folder_names_live_parts_and_what_needs_them_says_so(tmp_path):
    ef.simulate(net(), samples(), FLEETS["cycles"](), EveryNth(), out=tmp_path / "run", metrics=[worst], **KW)
    stored = open_run(tmp_path / "run")
    assert stored.experiment.method == "EveryNth+sum"
    assert stored.curve("worst")[1][-1] == stored.final.value("worst")
    assert config.to_dict(stored.experiment)["policy"]["kind"] == "live"
    with pytest.raises(ef.InputError, match="'EveryNth' was an object in the process"):
        stored.experiment.policy.step({}, None)
    with pytest.raises(ef.InputError, match="was an object in the process"):
        ef.start(stored.experiment)
    text = page([stored], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not audited: 'EveryNth' is not a registered kind" in text.replace("\\u0027", "'").replace("&#x27;", "'")


def worst(outputs, targets):
    """The least likely true class."""
    return outputs.softmax(1).gather(1, targets[:, None]).min()


def test_methods_are_compared_by_name_method_and_policy(tmp_path):
    mine = ef.Method(EveryNth(2), ef.Sum(), "mine")
    found = ef.compare(net(), samples(), FLEETS["cycles"](), ["algorithm1", ef.Greedy(), mine], seeds=2,
                       out=tmp_path, **KW)  # fmt: skip
    assert list(found.summary) == ["algorithm1", "greedy", "mine"]
    assert found.reference == "algorithm1"
    assert found.differences.keys() == {"greedy", "mine"}
    assert found.report.exists()
    assert len(find_runs(tmp_path)) == 6
    plain = ef.simulate(net(), samples(), FLEETS["cycles"](), "greedy", seed=1, **KW)
    (stored,) = (run for run in found.runs if run.experiment.method == "greedy" and run.experiment.seed == 1)
    assert same(stored.params, plain.params)
    console = Console(width=200, file=io.StringIO())
    console.print(found.table())
    assert all(label in console.file.getvalue() for label in ("Algorithm 1", "Benchmark 1 (greedy)", "mine"))
    again = ef.compare(net(), samples(), FLEETS["cycles"](), ["greedy"], seeds=2, out=tmp_path, **KW)
    assert again.summary["greedy"]["accuracy"] == found.summary["greedy"]["accuracy"]


def test_grids_hold_settings_and_objects(tmp_path):
    base = Experiment(model=net(), data=samples(), fleet=FLEETS["storage"](), **KW)
    grid = {"client.lr": [0.05, 0.2], "policy": [EveryNth(2), ef.Greedy()], "model": [net(), net(1)]}
    found = ef.sweep(base, grid, seeds=[4], out=tmp_path)
    assert len(found.runs) == 8
    assert len({str(run.params) for run in found.runs}) == 8
    (one,) = (r for r in found.runs if r.experiment.client.lr == 0.2 and isinstance(r.experiment.policy, EveryNth)
              and torch.equal(r.experiment.model.body[0].weight, net(1).body[0].weight))  # fmt: skip
    plain = ef.simulate(net(1), samples(), FLEETS["storage"](), EveryNth(2), seed=4, **{**KW, "client": ef.SGD(0.2)})
    assert same(one.params, plain.params)


def test_a_live_schedule_of_rates_is_a_live_part(tmp_path):
    @dataclass(frozen=True)
    class Halving(type(SCHEDULES["constant"]())):
        def __call__(self, *args):
            return 0.5 * super().__call__(*args)

    optimizer = ef.SGD(0.1, schedule=Halving())
    run = ef.simulate(net(), samples(), FLEETS["cycles"](), out=tmp_path, **{**KW, "client": optimizer})
    assert isinstance(run.experiment.client.schedule, live.Live)
    assert same(ef.simulate(net(), samples(), FLEETS["cycles"](), out=tmp_path, **{**KW, "client": optimizer}).params,
                run.params)  # fmt: skip


def test_names_stand_for_parts_and_classes_do_not():
    named = Experiment(data="digits", model="mlp", policy="greedy", client="adam", compression="qsgd", fleet="cycles")
    assert (named.policy, named.client) == (ef.Greedy(), ef.Adam())
    with pytest.raises(ef.InputError, match="client is the class SGD; give a value of it"):
        Experiment(client=ef.SGD)
    with pytest.raises(ef.InputError, match="Did you mean 'greedy'"):
        Experiment(policy="greddy")
    with pytest.raises(ef.InputError, match="Did you mean 'rounds'"):
        ef.simulate(net(), samples(), FLEETS["cycles"](), round=3)


def scaled_loss(factor):
    def loss(outputs, targets, *, by=factor):
        return nn.functional.cross_entropy(outputs * by, targets)

    return loss


def policy_over(base_every):
    class Base(ef.Policy):
        def step(self, state, view):
            return Decision(view.affords & (view.round % base_every == 0), np.ones(view.affords.shape[-1]), state)

    class Mine(Base):
        pass

    return Mine()


class Odd(nn.Module):
    """A module whose content is not all in its state_dict."""

    def __init__(self, factor=1.0, hidden=1.0, frozen=False, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.factor = nn.Linear(3, 3), nn.Linear(3, 3), factor
        self.second.load_state_dict(self.first.state_dict())
        self.first.weight.requires_grad = not frozen
        self.register_buffer("hidden", torch.tensor(hidden), persistent=False)
        if tied:
            self.second.weight = self.first.weight


def with_hook(factor):
    module = nn.Linear(2, 2)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    module.register_forward_hook(lambda m, inputs, output: output * factor)
    return module


LAMBDAS = [lambda x: x + 1, lambda x: x - 1]
STEP = 1


def reads_a_global(x):
    return x * STEP


@pytest.mark.parametrize(
    "make",
    [
        lambda n: nn.CrossEntropyLoss(label_smoothing=n / 10),
        lambda n: nn.MultiheadAttention(4, 2**n),
        lambda n: Odd(factor=n),
        lambda n: Odd(hidden=float(n)),
        lambda n: Odd(frozen=n == 1),
        lambda n: Odd(tied=n == 1),
        with_hook,
        scaled_loss,
        policy_over,
        lambda n: LAMBDAS[n - 1],
        lambda n: type("Made", (EveryNth,), {"n": n}),
        lambda n: functools.partial(scaled_loss, n),
        lambda n: EveryNth(n).step,
    ],
)
def test_what_a_fingerprint_must_not_miss(make):
    def of(n):
        torch.manual_seed(0)
        return fingerprint(make(n))

    assert of(1) == of(1) != of(2) == of(2)


def test_globals_are_part_of_code(monkeypatch):
    before = fingerprint(reads_a_global)
    monkeypatch.setitem(globals(), "STEP", 2)
    assert fingerprint(reads_a_global) != before


def test_lazy_modules_can_be_stored(tmp_path):
    def lazy():
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(3))

    plain = ef.simulate(lazy, samples(), FLEETS["cycles"](), **KW)
    assert same(plain.params, ef.simulate(lazy, samples(), FLEETS["cycles"](), out=tmp_path, **KW).params)
    assert fingerprint(lazy()) == fingerprint(lazy())


def test_experiments_with_arrays_are_compared_by_content():
    one, two = (Experiment(model=net(), data=samples(), fleet=FLEETS["storage"](), **KW) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != replace(one, model=net(1))
    assert len({one, two}) == 1
    assert ef.simulate(one) != ef.simulate(two)  # histories are told apart by identity, without comparing arrays


def test_an_experiment_is_compared_over_methods(tmp_path):
    base = Experiment(model=net(), data=samples(), fleet=FLEETS["cycles"](), **KW)
    found = ef.compare(base, methods=["greedy", EveryNth()], seeds=1, out=tmp_path)
    assert list(found.summary) == ["greedy", "EveryNth(n=2)"]


def test_grids_and_seeds_of_any_sequence(tmp_path):
    base = Experiment(model=net(), data=samples(), fleet=FLEETS["cycles"](), **KW)
    found = ef.sweep(base, {"client.lr": np.array([0.05, 0.2])}, seeds=np.int64(1), out=tmp_path)
    assert [run.experiment.client.lr for run in found.runs] == [0.05, 0.2]
    for grid, words in (({"rounds": 3}, "the values of 'rounds' are 3"), ({"method": "greedy"}, "must be a list")):
        with pytest.raises(ef.InputError, match=words):
            ef.sweep(base, grid, out=tmp_path)
    with pytest.raises(ef.InputError, match="seeds is True"):
        ef.sweep(base, {"rounds": [3]}, seeds=True, out=tmp_path)


def test_numbers_and_devices_of_libraries_are_plain_ones(tmp_path):
    settings = {**KW, "client": ef.SGD(np.float32(0.5)), "device": torch.device("cpu"), "rounds": np.int64(4)}
    stored = ef.simulate(net(), samples(), FLEETS["cycles"](), out=tmp_path, **settings)
    assert same(stored.params, ef.simulate(net(), samples(), FLEETS["cycles"](), **settings).params)


def test_a_rule_beside_a_method_is_refused():
    with pytest.raises(ef.InputError, match="server is given beside the method"):
        ef.simulate(net(), samples(), FLEETS["cycles"](), server=ef.Normalized(), **KW)


def test_a_folder_cannot_run_code_that_lies_beside_it(tmp_path, monkeypatch):
    ef.simulate(net(), samples(), FLEETS["cycles"](), out=tmp_path / "run", **KW)
    (tmp_path / "trap_module.py").write_text("raise SystemExit('executed')")
    as_older_version(tmp_path / "run", lambda text: 'plugins = ["trap_module"]\n' + text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in a notebook
    with pytest.raises(ef.InputError, match="plugin 'trap_module' not found"):
        open_run(tmp_path / "run")


@pytest.mark.long
def test_objects_of_one_class_are_told_apart_in_a_sweep(tmp_path):
    base = Experiment(model=net(), data=samples(), fleet=FLEETS["cycles"](), **KW)
    grid = {"model": [net(), net(1)], "policy": [EveryNth(2), EveryNth(3), ef.Greedy(), ef.Greedy(scaled=True)]}
    found = ef.sweep(base, grid, seeds=2, out=tmp_path)
    assert len(found.summary) == 8
    assert all(row["seeds"] == [0, 1] for row in found.summary.values())
    twins = [ef.Method(EveryNth(n), ef.Sum(), "mine") for n in (2, 3)]
    with pytest.raises(ef.InputError, match="two settings of the grid are both called 'mine'"):
        ef.compare(base, methods=twins, out=tmp_path)


def half(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets) / 2


def test_losses_metrics_and_gradient_rules_can_be_swept(tmp_path):
    base = Experiment(model=net(), data=samples(), fleet=FLEETS["cycles"](), **KW)
    for key, values in {"loss": [None, half], "metrics": [[], [worst]], "gradients": [[], [ef.Clip(0.01)]]}.items():
        found = ef.sweep(base, {key: values}, seeds=1, out=tmp_path / key)
        assert len(found.summary) == 2
        for run, value in zip(found.runs, values, strict=True):
            plain = ef.simulate(replace(base, **{key: value}))
            assert same(run.params, plain.params)
            assert run.final == plain.final


def test_what_a_sweep_cannot_do_is_said(tmp_path):
    base = Experiment(model=lambda: net(), data=samples(), fleet=FLEETS["cycles"](), **KW)
    with pytest.raises(ef.InputError, match="cannot be sent to another process"):
        ef.sweep(base, {"rounds": [3]}, seeds=2, jobs=2, out=tmp_path)
    with pytest.raises(ef.InputError, match="seed is given, but the runs have the seeds"):
        ef.compare(net(), samples(), FLEETS["cycles"](), seed=3, out=tmp_path, **KW)
    with pytest.raises(ef.InputError, match="metrics is 'accuracy'; it must be a list"):
        Experiment(metrics="accuracy")
    ef.simulate(net(), samples(), FLEETS["cycles"](), out=tmp_path, **KW)
    with pytest.raises(ef.InputError, match="check_trainer was False, now True"):
        ef.simulate(net(), samples(), FLEETS["cycles"](), out=tmp_path, **{**KW, "check_trainer": True})
