"""The figures of docs/advise.md are those that the example gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import everfed as ef
from everfed.advising.advice import CAUSES
from everfed.advising.dates import MONTHS, Calendar
from everfed.advising.design import read
from everfed.advising.ledger import ledgers
from everfed.advising.words import money
from everfed.advising.world import World
from everfed.run import config

ROOT = Path(__file__).parent.parent
FLEET = ROOT / "examples" / "advise" / "fleet.toml"
PAGE = " ".join((ROOT / "docs" / "advise.md").read_text(encoding="utf-8").replace("\n>", "\n").split())


def rows(start):
    """Tables of the page by the name in their first cell, as lists of cells."""
    lines = (ROOT / "docs" / "advise.md").read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {start}"))
    found = {}
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            return found
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[first] = cells
    return found


def test_the_present_state_of_the_example_is_as_told():
    spec = config.from_dict(config.read(FLEET)).fleet
    world = World(read(spec), 8760, 0)
    table = rows("as it is")
    assert list(table) == [g.name for g in spec.groups]
    assert sum(g.count for g in spec.groups) == 300
    for g, book in zip(spec.groups, ledgers(world, Calendar(spec.round_s)), strict=True):
        worst = min(book.months, key=lambda m: m.weight)
        often = book.participations / (g.count * 365)
        told = table[g.name]
        assert told[0] == f"{often:.2f} of 6"
        assert told[1] == f"{book.weight:.3f}"
        assert told[3] == f"{MONTHS[int(worst.month[5:]) - 1]}, {worst.weight:.3f}"
        causes = ", ".join(f"{100 * book.skipped[name]:.1f}" for name in ("night", "overflow", "winter"))
        assert told[4] == f"{causes} %"
        if g.name == "greensboro-gateways":
            standby, harvested = (round(x / 1e6) for x in (book.flows.standby, book.flows.harvested))
            assert f"{standby} of {harvested} MJ" in PAGE


def test_every_cause_is_explained():
    assert list(rows("cause")) == list(CAUSES)


@pytest.mark.long
def test_the_decision_of_the_example_is_as_told():
    found = ef.advise(FLEET, price_wp=2.5, price_wh=0.6, budget=150, trace_wp={"greensboro-roofs": 0.06})
    for sentence in found.verdict:
        assert sentence in PAGE
    state, sizes = rows("as it is"), rows("sizes for 0.99")
    assert list(sizes) == [g.name for g in found.groups if g.starved]
    for g in found.groups:
        assert state[g.name][2] == f"{g.years.low:.3f}"
        if g.name in sizes:
            unit = "x" if g.panel_unit == "x" else "Wp"
            s = g.sizes
            told = [f"{g.panel:g} {unit}", f"{s.panel.panel:g} {unit}", f"{s.panel.cost:.2f} €"]
            told += [f"{g.battery_wh:g} Wh"]
            told += [f"{s.battery.battery_wh:g} Wh", f"{s.battery.cost:.2f} €"] if s.battery else ["–", "–"]
            assert sizes[g.name] == told
    smaller = [f"{found.groups[n].sizes.panel.panel:g}" for n in (0, 1)]
    assert f"panels of {' and '.join(smaller)} Wp would do where there are 2 and 0.06" in PAGE
    gateways = found.groups[2]
    assert gateways.sizes.cycle is None
    assert gateways.sizes.battery is None
    assert f"together {money(sum(c.cost for c in found.budget))}" in PAGE


def test_a_battery_that_lives_off_its_first_charge_does_what_is_told():
    raw = config.read(FLEET)
    config.change(raw, "fleet.groups.greensboro-gateways.battery_wh", 282.0)
    spec = config.from_dict(raw).fleet
    world = World(read(replace(spec, groups=spec.groups[2:3])), 3 * 8760, 0)
    (book,) = ledgers(world, Calendar(3600.0))
    first, second, third = book.paid.reshape(3, -1).sum(axis=1) / (50 * 365 * 6)
    assert first >= 0.99
    assert f"would reach 0.99 in the first year, {second:.2f} in the second and {third:.2f} in the third" in PAGE


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
def test_the_advised_fleet_has_the_weights_that_are_told():
    raw = config.read(FLEET)
    config.change(raw, "fleet.groups.greensboro-roofs.trace_scale", 1.26)
    config.change(raw, "fleet.groups.greensboro-gateways.panel_wp", 2.51)
    fleet = config.from_dict(raw).fleet.build()
    audit = ef.audit(fleet, "algorithm1", 8760, seeds=5)
    by_group = [f"{audit.mean_weight[fleet.group_of == n].mean():.3f}" for n in range(4)]
    assert by_group[0] == by_group[1] == "1.000"
    assert f"then 1.000 in Miami, {by_group[2]} for the gateways and {by_group[3]} for the roofs" in PAGE
