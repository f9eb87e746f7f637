"""The page's batteries in JavaScript compute what everfed's own do."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files

import numpy as np
import pytest

from everfed import random
from everfed.advising.advise import MOST_MEMBERS, advise
from everfed.advising.batteries import Cells, costs, participations, slots
from everfed.energy.group import DeviceGroup
from everfed.energy.physical import DeviceFleet
from everfed.report.whatif import packed, seeds_of

node = shutil.which("node")
pytestmark = pytest.mark.skipif(node is None, reason="no node on the PATH")


def in_node(script: str, given) -> object:
    code = files("everfed.report").joinpath("battery.js").read_text(encoding="utf-8")
    code += f"\nconst given = JSON.parse(require('fs').readFileSync(0));\nconsole.log(JSON.stringify({script}));"
    done = subprocess.run(
        [node or "node", "-e", code], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_philox_draws_the_same_words():
    given = [[s, c, i] for s in (0, 7) for c in (0, 3, 999_999) for i in (0, 1, 8759, 4_000_000_000)]
    found = in_node("given.map(([s, c, i]) => philox(s, 1, c, i)[0])", given)
    exact = [int(random.words(s, random.Purpose.SLOT, c, i, lanes=1)[0]) for s, c, i in given]
    assert found == exact


def test_slots_are_those_of_the_schedule():
    given = [[0, 0, 1], [5, 0, 7], [5, 3, 24], [17, 1, 100]]
    found = in_node("given.map(([id, seed, cycle]) => [...slotsOf(id, seed, cycle, 500)])", given)
    for (client, seed, cycle), mine in zip(given, found, strict=True):
        due = slots(np.array([cycle]), np.array([client]), np.array([seed]), 500)
        assert mine == np.flatnonzero(due[:, 0]).tolist()


@pytest.fixture(scope="module", params=[0.0, 0.25], ids=["steady cost", "varying cost"])
def advice(request):
    """Two sites; a group whose devices differ, one with a set cycle, one in which some devices cannot idle."""
    groups = (
        DeviceGroup(name="even", count=3, site="miami", panel_wp=6.0, battery_wh=12.0),
        DeviceGroup(name="spread", count=40, site="greensboro", panel_wp=6.0, battery_wh=12.0, spread=0.2),
        DeviceGroup(
            name="set", count=9, site="greensboro", panel_wp=1.0, battery_wh=2.0, cycle=4, switched_off=True, step_s=600
        ),
        DeviceGroup(name="some dead", count=12, site="greensboro", panel_wp=5.5, battery_wh=6.0, spread=0.3),
    )
    return advise(DeviceFleet(groups, round_s=7200.0, cost_spread=request.param), rounds=1500, years=0)


def settings(model, panel, battery, count=24):
    """Settings of the sliders, spread over their ranges."""
    u = [random.uniform(seed, random.Purpose.SAMPLES, np.arange(count), 0) for seed in range(5)]
    rows = []
    for i in range(count):
        factor = [float(10.0 ** (1.2 * (u[j][i] - 0.5))) for j in range(2)]
        steps, sent = 1 + int(u[2][i] * 12), float(0.1 + 2 * u[3][i])
        cycle = 0 if u[4][i] < 0.5 else 1 + int(u[4][i] * 10)
        rows.append(
            {"panel": panel * factor[0], "battery": battery * factor[1], "steps": steps, "sent": sent, "cycle": cycle}
        )
    return rows


def in_python(model, setting, tables, round_s, seeds):
    """The same by the arrays of everfed.advising: [members, seeds] paid and offered slots."""
    unit = (
        model.step_j * setting["steps"] + model.up_j * setting["sent"] + model.down_j + model.wake_j
    ) / model.discharging
    device = [member for member in model.members for _ in range(seeds)]
    seed = np.tile(np.arange(seeds), len(model.members))
    ids = np.array([member.id for member in device])
    gain = np.array([setting["panel"] * member.gain for member in device]) / unit * model.charging
    table = np.array(tables).T
    column = np.array([member.table for member in device])
    net = np.array([member.mean_j for member in device]) * gain - model.standby_j / unit
    follows = np.where(net > 0, np.ceil((1.0 - 1e-12) / np.where(net > 0, net, 1.0)), round(86_400 / round_s))
    cycles = np.full(len(ids), setting["cycle"]) if setting["cycle"] else np.maximum(follows, 1).astype(np.int64)
    capacity = model.capacity_j_per_wh * setting["battery"] * np.array([member.battery for member in device]) / unit
    n = len(ids)
    cells = Cells(
        column, gain, np.full(n, 1.0 - model.leak), capacity, np.full(n, model.standby_j / unit),
        model.start * capacity, ids, seed,
    )  # fmt: skip
    due = slots(cycles, ids, seed, len(table))
    seconds = model.step_s * setting["steps"] + model.air_s + model.up_s * (setting["sent"] - 1.0)
    possible = seconds <= round_s and capacity.max() >= 1.0
    price = costs(due, ids, seed, model.cost_spread) if model.cost_spread else None
    paid = participations(cells, table, due, price) * possible
    shape = len(model.members), seeds
    return paid.reshape(shape), due.sum(axis=0).reshape(shape)


def weight_of(paid, offered):
    """The mean over the members that have a slot."""
    some = offered.sum(axis=1) > 0
    return float(np.mean(paid.sum(axis=1)[some] / offered.sum(axis=1)[some]))


# Supplies are rounded to 1/65535 of their largest value, which moves a payment now and then to a neighbouring slot.
ROUNDING = 0.002


@pytest.mark.parametrize("group", [0, 1, 2, 3])
def test_the_browser_counts_the_slots_that_python_counts(advice, group):
    g = advice.groups[group]
    tried = settings(g.model, g.panel, g.battery_wh)
    shape = packed(advice)
    seeds = seeds_of(len(g.model.members))
    given = {**shape, "group": group, "tried": tried, "seeds": seeds, "round_s": advice.horizon.round_s}
    found = in_node(
        "(() => { const tables = readTables(given.tables); return given.tried.map((s) => simulate("
        "given.models[given.group], s, tables, given.round_s, given.month_of, given.seeds)); })()",
        given,
    )
    weights = []
    for setting, mine in zip(tried, found, strict=True):
        paid, offered = in_python(g.model, setting, advice.tables, advice.horizon.round_s, seeds)
        assert mine["slots"] == offered.sum()
        assert mine["paid"] == pytest.approx(paid.sum(), abs=max(ROUNDING * offered.sum(), 2))
        # One slot of a member that has few is more than a part of all.
        moved = max(ROUNDING, 2 / offered.sum(axis=1).min() / len(g.model.members))
        assert mine["weight"] == pytest.approx(weight_of(paid, offered), abs=moved)
        weights.append(mine["weight"])
    assert min(weights) < 0.5 < max(weights)  # the settings tell something


@pytest.mark.parametrize("group", [0, 1, 2, 3])
def test_the_present_sizes_give_the_weight_of_the_advice(advice, group):
    """Of groups that are followed whole, exactly; of larger ones, to the spread of sixteen schedules."""
    g = advice.groups[group]
    seeds = seeds_of(len(g.model.members))
    setting = {
        "panel": g.panel,
        "battery": g.battery_wh,
        "steps": g.model.local_steps,
        "sent": 1.0,
        "cycle": g.model.set_cycle,
    }
    paid, offered = in_python(g.model, setting, advice.tables, advice.horizon.round_s, seeds)
    assert weight_of(paid, offered) == pytest.approx(g.weight, abs=1e-12 if len(g.model.members) == g.count else 0.03)


def test_members_are_devices_of_the_group(advice):
    for g in advice.groups:
        assert len(g.model.members) == min(MOST_MEMBERS, g.count)
        assert all(member.battery == pytest.approx(1.0) for member in g.model.members)
    first, spread, *_ = advice.groups
    assert [member.gain for member in first.model.members] == pytest.approx([1.0] * 3)
    gains = [member.gain for member in spread.model.members]
    assert 0.6 < min(gains) < 1.0 < max(gains) < 1.4
    model = first.model
    assert model.unit_j == pytest.approx(
        (model.local_steps * model.step_j + model.up_j + model.down_j + model.wake_j) / model.discharging
    )


def test_a_long_horizon_keeps_the_page_small(advice):
    small = packed(advice, most_bytes=40_000)
    used = {member["table"] for model in small["models"] for member in model["members"]}
    assert used == set(range(len(small["tables"])))
    assert sum(len(table["values"]) for table in small["tables"]) <= 40_000
    assert packed(advice, most_bytes=100) is None
