"""Advice in the terminal: the verdict, then a table for each question."""

from __future__ import annotations

import math

from rich import box
from rich.table import Table
from rich.text import Text

from everfed.advising.advice import Advice, GroupAdvice, Size, Target, VarianceLimit
from everfed.advising.dates import MONTHS, day_and_month
from everfed.advising.words import money
from everfed.cli.screen import Screen, sparkline, table
from everfed.units import energy

_WIDE = 100  # columns of a terminal


def show(screen: Screen, advice: Advice) -> None:
    first, *others = advice.verdict
    screen.say("Verdict", first)
    for sentence in others:
        what, colon, text = sentence.partition(": ")
        if colon and what in ("Change first", "Without buying anything"):
            screen.say(what, text)
        else:
            screen.out.print(sentence)
    screen.out.print()
    screen.out.print(_fitted(screen, _state(advice)))
    screen.out.print(_fitted(screen, _causes(advice)))
    screen.out.print(_fitted(screen, _flows(advice)))
    screen.out.print(_fitted(screen, _sizes(advice)))
    if advice.changes:
        screen.out.print(_fitted(screen, _changes(advice)))
    screen.out.print(_fitted(screen, _levers(advice)))
    if advice.variance:
        screen.out.print(_fitted(screen, _variance(advice.variance)))
    _tell_seen(screen, advice)
    for note in advice.notes:
        screen.note(note)


def _fitted(screen: Screen, out: Table) -> Table:
    """Without its frame where the terminal is narrow, so that names and numbers need not be broken."""
    if screen.out.width < _WIDE:
        out.box, out.padding, out.pad_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False
    return out


def _state(advice: Advice) -> Table:
    target, horizon = advice.target, advice.horizon
    years = f", {target.needed} of {target.years}: what so many of the drawn years reach" if target.years else ""
    months = " ".join(MONTHS[int(m.month[5:]) - 1][0] for m in advice.groups[0].months)
    out = table(
        f"as it is, {day_and_month(horizon.start)} to {day_and_month(horizon.end)}",
        ["group", "count", "rounds a day", "weight", *_years_column(target), "by month", "starved"],
        caption=f"rounds a day: done of promised; weight: 1 is unbiased{years}; by month: {months}, up to 1 (█)",
    )
    out.columns[-2].min_width = len(advice.groups[0].months)  # never cut
    for g in advice.groups:
        often = f"{g.rounds_per_day:.3g} of {g.promised_per_day:.3g}"
        low = [_weight(g.years.low)] if target.years else []
        bars = Text(_bars([m.weight for m in g.months]), no_wrap=True)
        starved = {True: "yes", False: "no", None: "no slot"}[g.starved]
        style = "bold" if g.starved else ""
        out.add_row(g.name, str(g.count), often, _weight(g.weight), *low, bars, starved, style=style)
    return out


def _weight(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _years_column(target: Target) -> list[str]:
    return [f"{target.needed} of {target.years}"] if target.years else []


def _bars(weights: list[float | None]) -> str:
    """One block per month, from 0 to 1; a month without a slot is empty."""
    return "".join(" " if w is None else sparkline([0.0, 1.0, min(w, 1.0)])[-1] for w in weights)


def _causes(advice: Advice) -> Table:
    names = [name for name in advice.causes if any(g.skipped[name] >= 0.00005 for g in advice.groups)]
    out = table("slots skipped, and why", ["group", "all", *names, "worst"], caption="worst: the month with the most")
    for g in advice.groups:
        worst = min((m for m in g.months if m.weight is not None), key=lambda m: m.weight or 0.0, default=None)
        month = "-" if worst is None else f"{MONTHS[int(worst.month[5:]) - 1][:3]} ({1.0 - (worst.weight or 0.0):.0%})"
        shares = [_percent(g.skipped[name]) for name in names]
        out.add_row(g.name, _percent(sum(g.skipped.values())), *shares, month)
    return out


def _percent(share: float) -> str:
    return "-" if share == 0.0 else f"{share:.1%}"


def _flows(advice: Advice) -> Table:
    out = table(
        "where the energy goes",
        ["group", "harvest", "training", "radio", "standby", "losses", "overflow", "worst week"],
        caption="shares of the harvest; losses: charging and leak; worst week: first day and mean level of the battery",
    )
    for g in advice.groups:
        f, week = g.flows_j, g.worst_week
        parts = (f.training, f.radio, f.standby, f.charging_loss + f.leak + f.lost, f.overflow)
        shares = [f"{part / f.harvested:.0%}" if f.harvested else "-" for part in parts]
        level = sum(week.level_wh) / len(week.level_wh) / week.capacity_wh if week.capacity_wh else 0.0
        day, _, month = day_and_month(week.start).partition(" ")
        out.add_row(g.name, energy(f.harvested), *shares, f"{day} {month[:3]}, {level:.0%}")
    return out


def _sizes(advice: Advice) -> Table:
    what = f"a weight of {advice.target.weight:g}"
    if advice.target.years:
        what += f" in {advice.target.needed} of {advice.target.years} years"
    measure = "price" if advice.prices.per_wp is not None else "enlargement"
    out = table(
        f"sizes that reach {what}",
        ["group", "cycle", "panel", "smallest", "battery", "smallest", "cheapest pair", "cycle kept now"],
        caption=f"pair: least {measure}, nothing taken away; cycle kept now: the shortest without any change",
    )
    for g in advice.groups:
        s = g.sizes
        out.add_row(
            g.name, str(g.cycle), _panel(g, g.panel), "-" if s.panel is None else _panel(g, s.panel.panel),
            f"{g.battery_wh:g} Wh", "-" if s.battery is None else f"{s.battery.battery_wh:g} Wh", _pair(g, s.pair),
            "-" if s.cycle is None else f"{s.cycle.cycle}",
        )  # fmt: skip
    return out


def _panel(g: GroupAdvice, size: float) -> str:
    return f"{size:g} Wp" if g.panel_unit == "Wp" else f"{size:g} × trace"


def _pair(g: GroupAdvice, size: Size | None) -> str:
    if size is None:
        return "-"
    if size.panel == g.panel and size.battery_wh == g.battery_wh:
        return "as it is"
    return f"{_panel(g, size.panel)}, {size.battery_wh:g} Wh"


def _changes(advice: Advice) -> Table:
    """The best change of each group; the others are sizes of the table above."""
    priced = advice.prices.per_wp is not None
    columns = ["group", "change", "cycle", "weight", "fleet's gain", *(["price"] if priced else [])]
    caption = "fleet's gain: rise of the mean weight over all devices" + "; the most for its price comes first" * priced
    out = table("what to change, the best first", columns, left=["group", "change"], caption=caption)
    told: set[str] = set()
    for change in advice.changes:
        if change.group in told:
            continue
        told.add(change.group)
        cells = [change.group, change.text, str(change.settings["cycle"])]
        cells += [f"{change.weight_before:.3f} → {change.weight_after:.3f}", f"{change.helps:+.4f}"]
        if priced:
            cells.append("unknown" if change.cost is None else money(change.cost))
        out.add_row(*cells)
    return out


def _levers(advice: Advice) -> Table:
    out = table(
        "settings of the whole fleet; cycles follow, panels and batteries stay",
        ["setting", "rounds a day", "lowest weight", "in group", f"below {advice.target.weight:g}"],
        left=["setting", "in group"],
        caption=f"rounds a day: mean over all devices; below {advice.target.weight:g}: number of groups",
    )
    counts = {g.name: g.count for g in advice.groups}
    for lever in advice.levers:
        label = f"{lever.name} {lever.value}".strip()
        if lever.refused:
            out.add_row(label, "-", "-", lever.refused, "-")
            continue
        often = sum(e.rounds_per_day * counts[e.group] for e in lever.effects) / sum(counts.values())
        known = {e.group: e.weight for e in lever.effects if e.weight is not None}
        lowest = min(known, key=lambda name: known[name], default="no slot")
        below = sum(weight < advice.target.weight for weight in known.values())
        out.add_row(label, f"{often:.3g}", _weight(known.get(lowest)), lowest, str(below))
    return out


def _variance(limit: VarianceLimit) -> Table:
    out = table(
        "variance of a round's update, for equal updates of length 1",
        ["", "variance", "times the limit", "lowest weight"],
        caption="times the limit: where all groups have their weight; what is biased may fall below it",
    )
    least = "infinite" if limit.least is None or math.isinf(limit.least) else f"{limit.least:.3g}"
    out.add_row("least of any unbiased schedule, independent devices", least, "1", "1")
    for d in limit.methods:
        variance = "-" if d.variance is None else f"{d.variance:.3g}"
        weight = "-" if d.lowest_weight is None else f"{d.lowest_weight:.3f}"
        times = f"{d.times:.2f}" if d.times is not None else "-" if d.unbiased else "biased"
        out.add_row(d.method, variance, times, weight)
    return out


def _tell_seen(screen: Screen, advice: Advice) -> None:
    seen = advice.seen
    if seen.hours is None:
        late = [name for name, hours in seen.groups.items() if hours is None]
        screen.say("Seen", f"{', '.join(late)} take part in fewer than {seen.times} rounds within the horizon.")
        return
    slow = max(seen.groups, key=lambda name: seen.groups[name] or 0.0)
    text = f"every group has taken part in {seen.times} rounds after {seen.hours:,.0f} h; {slow} is the last."
    devices = [hours for hours in seen.devices_h.values() if hours is not None]
    if len(devices) == len(seen.devices_h):
        text += f" Every device has trained {seen.times} times after {max(devices):,.0f} h."
    screen.say("Seen", text)
