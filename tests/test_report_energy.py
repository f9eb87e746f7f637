"""Energy, fairness and steadiness in the report and in the screen's tables, against numbers worked out by hand."""

from __future__ import annotations

import io
import statistics
from dataclasses import replace

import pytest
from rich.console import Console

import report_runs
from everfed.energy.battery import Books
from everfed.report.data import page_data
from everfed.report.lines import lines
from everfed.report.measures import ACCOUNTS, Unit, fairness, late_variation, reached, with_measures
from everfed.report.raster import sample
from everfed.report.table import table
from everfed.studies.comparison import summarize


def test_fairness_is_jains_index_of_how_often_each_client_trained():
    # Clients 0 to 3 train 3, 2, 1 and 0 times: 6² / (4 · (9 + 4 + 1 + 0)).
    run = report_runs.scripted([[0, 1, 2], [0, 1], [0]], [None, None, 0.5])
    assert fairness(run, 4) == pytest.approx(36 / 56)
    assert page_data([run])["lines"][0]["final"]["fairness"]["mean"] == pytest.approx(36 / 56, rel=1e-4)
    alike = report_runs.scripted([[0, 1], [2, 3]], [None, 0.5])
    alone = report_runs.scripted([[1], [1]], [None, 0.5])
    nobody = report_runs.scripted([[], []], [None, 0.5])
    assert [fairness(one, 4) for one in (alike, alone, nobody)] == [1.0, 0.25, 1.0]


def test_the_late_variation_is_the_deviation_over_the_last_quarter_or_the_last_200_rounds():
    short = report_runs.scripted([[0]] * 8, [0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 0.6, 0.8])
    assert late_variation(short) == pytest.approx(statistics.stdev([0.6, 0.8]))
    seldom = report_runs.scripted([[0]] * 8, [0.1, 0.2, 0.3, 0.4, 0.5, 0.9, None, 0.8])
    assert late_variation(seldom) is None  # one evaluation does not move
    assert page_data([seldom])["lines"][0]["final"]["late_variation"] is None
    swinging = [0.0] * 799 + [0.5 + 0.1 * (r % 2) for r in range(201)]
    long = report_runs.scripted([[0]] * 1000, swinging)
    assert late_variation(long) == pytest.approx(statistics.stdev(swinging[800:]))


def one_run(mean):
    return {"mean": mean, "sd": None, "ci95": None, "runs": 1}


def test_energy_to_the_target_by_hand():
    quick = report_runs.scripted([[0, 1], [0], [0, 1, 2], [0]], [0.2, 0.5, 0.6, 0.8])
    slow = report_runs.scripted([[0], [0], [0], [0]], [0.1, None, 0.3, 0.4])
    slow = replace(slow, experiment=replace(slow.experiment, seed=1))
    assert reached(quick, 0.5).energy.spent == 3  # 2 and 1
    assert reached(quick, 0.51).energy.spent == 6
    assert reached(slow, 0.5) is None
    labelled = [("mine", quick), ("mine", slow)]
    row = with_measures(summarize(labelled), labelled)["mine"]
    assert row["to_target"] == {  # 0.9 of the mean final accuracy, 0.6
        "accuracy": 0.54, "energy": one_run(6.0), "rounds": one_run(3.0), "reached": 1,
    }  # fmt: skip
    assert row["wasted_part"]["mean"] == 0.25
    assert row["fairness"]["mean"] == pytest.approx((fairness(quick, 4) + 0.25) / 2)


def test_an_ideal_fleet_has_no_column_of_zeros():
    shown = [account["key"] for account in page_data(report_runs.trained())["energy"]["accounts"]]
    assert shown == ["harvested", "shortfall", "spent", "wasted"]
    without_fedavg = page_data(report_runs.trained()[:4])["energy"]
    assert [account["key"] for account in without_fedavg["accounts"]] == ["harvested", "spent", "wasted"]
    assert (without_fedavg["unit"], without_fedavg["words"]) == ("units", "units of one training round")


def test_a_fleet_of_devices_tells_all_its_books_and_they_balance():
    runs = report_runs.devices()
    data = page_data(runs)
    shown = data["energy"]["accounts"]
    assert data["energy"]["unit"] == "kJ"
    assert {a["key"] for a in shown} == {a.key for a in ACCOUNTS} - {"shortfall"}
    for i, line in enumerate(data["lines"]):
        mine, final = runs[2 * i : 2 * i + 2], line["final"]
        for account in shown:
            books = [getattr(run.energy, account["key"]) / 1000 for run in mine]
            assert final[account["key"]]["mean"] == pytest.approx(statistics.fmean(books), rel=1e-4)
        sides = [sum(final[a["key"]]["mean"] for a in shown if a["in"] == side) for side in (True, False)]
        assert sides[0] == pytest.approx(sides[1], rel=1e-4)
        assert final["brownouts"]["mean"] == statistics.fmean(run.energy.brownouts for run in mine) > 0
        part = statistics.fmean(run.energy.wasted / run.energy.harvested for run in mine)
        assert final["wasted_part"]["mean"] == pytest.approx(part, rel=1e-4)
        assert line["loss"]["spent"][-1] == pytest.approx(final["spent"]["mean"], rel=1e-4)


def test_amounts_are_told_in_the_unit_that_keeps_them_short():
    run = report_runs.devices()[0]

    def told(spent):
        last = replace(run.rounds[-1], energy=Books(harvested=spent, spent=spent))
        return Unit.of([replace(run, rounds=[last])])

    assert [told(j).name for j in (9e3, 2e4, 3e7, 4e10)] == ["J", "kJ", "MJ", "GJ"]
    assert told(3e7).factor * 3e7 == pytest.approx(30)
    mixed = Unit.of([run, report_runs.scripted([[0]], [0.5])])
    assert (mixed.name, mixed.factor) == ("units or J", 1.0)


def test_the_cost_of_a_devices_round_follows_from_the_runs_own_local_steps():
    run = report_runs.devices()[0]
    long = report_runs.untrained(replace(run.experiment, local_steps=50))
    fleets = page_data([run, long])["fleets"]
    assert len(fleets) == 2
    assert fleets[0]["batteries"][0]["capacity"] > fleets[1]["batteries"][0]["capacity"]


def test_rows_of_the_raster_lie_group_by_group():
    run = report_runs.devices()[0]
    spread = replace(run.experiment.fleet, groups=tuple(replace(g, spread=0.5) for g in run.experiment.fleet.groups))
    fleet = spread.build()
    groups = [g.clients.tolist() for g in fleet.groups()]
    chosen = sample(fleet, 400).tolist()
    assert [sorted(chosen[:3]), sorted(chosen[3:])] == groups


def test_a_fleets_groups_are_a_table_of_the_settings():
    run = report_runs.devices()[0]
    found = page_data([run])["settings"]
    groups = found["tables"][0]
    assert groups["name"] == "fleet.groups"
    assert groups["columns"] == ["name", "site"]
    assert groups["rows"] == [["miami", "miami"], ["sand-point", "sand-point"]]
    assert ["panel_wp", "0.01"] in groups["shared"]
    assert not any(key == "fleet.groups" for key, _ in found["shared"])
    # Runs whose groups differ are lines of their own, and neither label spells a group out.
    other = replace(run.experiment.fleet, groups=run.experiment.fleet.groups[:1])
    both = [run, report_runs.untrained(replace(run.experiment, fleet=other))]
    assert [line.label[:30] for line in lines(both)] == [
        "Algorithm 1 · fleet.groups=2 e", "Algorithm 1 · fleet.groups=1 e",
    ]  # fmt: skip
    assert len(page_data(both)["settings"]["tables"]) == 2


def printed(runs, labels) -> str:
    labelled = list(zip(labels, runs, strict=True))
    console = Console(width=120, file=io.StringIO())
    titles = {label: run.experiment.title for label, run in labelled}
    console.print(table(with_measures(summarize(labelled), labelled), titles, runs))
    return console.file.getvalue()


def test_the_screens_tables_fit_and_hide_what_is_zero():
    methods = [m for m in report_runs.METHODS for _ in range(2)]
    ideal = printed(report_runs.trained(), methods)
    assert "energy in units of one training round" in ideal
    assert "fairness" in ideal
    assert not any(word in ideal for word in ("standby", "leaked", "lost", "brown-", "…"))
    real = printed(report_runs.devices(), ["algorithm1", "algorithm1", "greedy", "greedy"])
    assert "energy in kJ" in real
    assert all(word in real for word in ("standby", "leaked", "lost", "brown-", "kJ spent"))
    assert "…" not in real
    assert max(map(len, (ideal + real).splitlines())) <= 120
