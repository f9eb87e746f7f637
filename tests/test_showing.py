"""What people see of objects: short texts, cards for notebooks, plots, tables; and that nothing else has changed."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields, replace
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

import everfed as ef
from everfed import presets
from everfed.errors import InputError, MissingExtraError
from everfed.report.style import styles
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.showing.colours import PALETTE

mpl.use("agg")
MOST_LINES, WIDEST = 29, 100
FLEET = ef.Fleet.from_cycles([1, 5, 10, 20] * 10)
DATA = ef.load("digits").partition(clients=40, how="by-energy", fleet=FLEET, seed=0)
SMALL = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=6, eval_every=2, device="cpu", client=ef.SGD(0.1))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return ef.simulate(SMALL, out=tmp_path_factory.mktemp("runs") / "one")


@pytest.fixture(scope="module")
def long_history(stored):
    """10,000 rounds of a million clients, as far as their records go."""
    rounds = [replace(stored.rounds[-1], round=r, participants=np.arange(1000)) for r in range(10_000)]
    return ef.History(rounds, stored.params)


def things(stored, long_history):
    million = ef.Fleet.from_cycles(np.resize([1, 5, 10, 20], 1_000_000))
    yield from (FLEET, million, DATA, stored, long_history, ef.History(stored.rounds, stored.params))
    yield ef.Fleet.from_cycles(range(1, 1001))  # a thousand cycles
    yield from (ef.plan(FLEET, "algorithm1", 20), ef.plan(million, "greedy", 20))
    yield from (ef.audit(FLEET, "greedy", 20, 5), ef.audit(FLEET, "renewal", 20, 5), ef.audit(FLEET, "mifa", 20, 5))
    yield from (
        Experiment(),
        Experiment(data=DATA, fleet=FLEET),
        replace(SMALL, fleet=CycleFleet(1000, tuple(range(1, 1001)))),
    )
    yield from (config.from_dict(presets.content(name)) for name in presets.texts())
    yield ef.from_arrays([(np.zeros((i + 1, 2)), np.zeros(i + 1)) for i in range(500)])
    yield ef.compare_runs(stored)


def test_every_repr_is_short_and_every_card_is_whole(stored, long_history):
    for thing in things(stored, long_history):
        lines = repr(thing).splitlines()
        assert 1 < len(lines) <= MOST_LINES, repr(thing)
        assert max(map(len, lines)) <= WIDEST, repr(thing)
        card = thing._repr_html_()
        ElementTree.fromstring(card)  # tags are closed, and texts escaped
        assert len(card) < 60_000


def test_a_fleet_of_devices_and_its_groups_are_shown():
    experiment = config.from_dict(presets.content("solar-fleet"))
    assert "48 devices in 6 groups: Miami, ESP32" in repr(experiment)
    assert "Sand Point, Pi Zero" in repr(experiment.make_fleet())


def test_names_from_others_cannot_break_out_of_a_card():
    data = replace(DATA, name="<script>alert(1)</script>")
    assert "<script>" not in data._repr_html_()


def test_a_card_takes_the_pages_own_colour():
    """No black or white of its own, so that it is seen on dark pages too."""
    card = ef.plan(FLEET, "algorithm1", 20)._repr_html_()
    assert "currentColor" in card
    assert not any(word in card.lower() for word in ("#000", "#fff", "black", "white"))


def test_the_numbers_of_a_repr_are_those_of_the_object(stored):
    assert f"accuracy {100 * stored.final.accuracy:.1f} %" in repr(stored)
    assert f"{stored.energy.spent:g} units spent, {stored.energy.harvested:g} harvested" in repr(stored)
    audit = ef.audit(FLEET, "greedy", 20, 5)
    assert audit.verdict[:40] in repr(audit)
    (row,) = [line for line in repr(audit).splitlines() if line.strip().startswith("E=5 ")]
    assert row.split() == ["E=5", "10", "0.2", "(0.2)", "0.2", "(0.2)", "5", "(5)"]


def test_an_error_names_an_object_in_one_line():
    with pytest.raises(InputError, match=r"fleet is FederatedData 'digits': 40 clients; it must be a Fleet\."):
        ef.plan(DATA, "greedy", 2)


def test_a_run_without_a_round_is_shown_too():
    assert repr(ef.History([], {})).splitlines()[0] == "History: 0 rounds"
    assert "<svg" not in ef.History([], {})._repr_html_()


def test_equality_and_pickling_are_as_before(stored):
    assert ef.Fleet.from_cycles([1, 5, 10, 20] * 10) != FLEET  # by identity
    assert Experiment() == Experiment()
    assert DATA == DATA
    back = pickle.loads(pickle.dumps(FLEET))
    assert np.array_equal(back.cycles(), FLEET.cycles())
    assert pickle.loads(pickle.dumps(SMALL)) == SMALL
    assert repr(pickle.loads(pickle.dumps(DATA))) == repr(DATA)
    audit = ef.audit(FLEET, "greedy", 20, 5)
    assert pickle.loads(pickle.dumps(audit)).verdict == audit.verdict
    assert [f.name for f in fields(ef.History)] == ["rounds", "params", "model_round"]


def test_plots_return_the_axes_they_were_given_or_new_ones(stored):
    import matplotlib.pyplot as plt

    plan, audit = ef.plan(FLEET, "algorithm1", 20), ef.audit(FLEET, "greedy", 20, 5)
    numbers = ef.from_arrays([(np.zeros((i + 1, 2)), np.zeros(i + 1)) for i in range(5)])
    for thing in (FLEET, plan, audit, DATA, numbers, stored, ef.compare_runs(stored)):
        made = thing.plot()
        assert made.get_title(loc="left")
        _, mine = plt.subplots()
        assert thing.plot(ax=mine) is mine
        made.figure.canvas.draw()  # labels and ticks fit together
        plt.close("all")


def test_a_drawn_plan_has_one_mark_per_participation():
    plan = ef.plan(FLEET, "algorithm1", 20)
    (mesh,) = plan.plot().collections
    assert np.count_nonzero(mesh.get_array()) == len(plan.table()["round"])


def test_drawn_harvest_is_what_arrives():
    lines = FLEET.plot(20).get_lines()
    assert [line.get_ydata()[-1] for line in lines] == [20, 4, 2, 1]


def test_drawn_data_are_the_counts_and_a_fleet_sorts_them():
    (image,) = DATA.plot(fleet=FLEET).get_images()
    order = np.argsort(FLEET.cycles(), kind="stable")
    assert np.array_equal(image.get_array(), DATA.label_counts()[order])
    with pytest.raises(InputError, match="4 clients and the data have 40"):
        DATA.plot(fleet=ef.Fleet.from_cycles([1] * 4))


def test_a_drawn_history_is_its_curve(stored):
    *_, whole = stored.plot().get_lines()
    rounds, values = stored.curve("accuracy")
    assert whole.get_xdata().tolist() == rounds
    np.testing.assert_allclose(whole.get_ydata(), 100 * np.array(values))
    with pytest.raises(InputError, match="several values a round"):
        stored.plot("class_accuracy")
    with pytest.raises(InputError, match="never evaluated on validation"):
        stored.plot(on="validation")
    with pytest.raises(InputError, match="no weights to draw"):
        ef.audit(FLEET, "mifa", 20, 5).plot()


def test_frames_hold_the_records(stored):
    frame = stored.to_frame()
    assert frame.index.tolist() == [r.round for r in stored.rounds]
    assert frame["spent"].tolist() == [r.energy.spent for r in stored.rounds]
    assert frame["participants"].tolist() == [len(r.participants) for r in stored.rounds]
    known = frame["accuracy"].dropna()
    assert list(zip(known.index + 1, known, strict=True)) == list(zip(*stored.curve("accuracy"), strict=True))
    assert frame["accuracy[E=2]"].dropna().tolist() == [
        r.metrics.group_accuracy["E=2"] for r in stored.rounds if r.metrics
    ]


def test_a_plan_is_iterated_again_and_collected():
    plan = ef.plan(FLEET, "algorithm1", 20, seed=3)
    first, again = ([(s.round, s.clients.tolist(), s.scales.tolist()) for s in plan] for _ in range(2))
    assert first == again
    assert len(plan) == 20
    rows = [(r, c, s) for r, clients, scales in first for c, s in zip(clients, scales, strict=True)]
    assert list(zip(*(column.tolist() for column in plan.table().values()), strict=True)) == rows
    assert list(plan.to_frame().itertuples(index=False, name=None)) == rows


def test_without_pandas_the_error_names_the_extra(stored, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for make in (stored.to_frame, ef.plan(FLEET, "greedy", 2).to_frame, ef.compare_runs(stored).to_frame):
        with pytest.raises(MissingExtraError, match=r"pip install 'everfed\[pandas\]'"):
            make()


def test_plots_have_the_colours_of_the_figures():
    known = {style.colour for style in styles(["algorithm1", "greedy", "wait-for-all", "fedavg", "greedy-normalized"])}
    assert known <= set(PALETTE)


def test_importing_the_package_and_listing_its_names_loads_nothing_heavy():
    code = (
        "import sys, everfed; assert {'compare_runs', 'Plan', 'simulate'} <= set(dir(everfed)); "
        "print([name for name in ('torch', 'numpy', 'matplotlib', 'rich', 'pandas', 'IPython') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
