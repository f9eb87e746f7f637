"""The verdict in sentences: who is starved, why, what to change first."""

from __future__ import annotations

from everfed.advising.advice import Change, GroupAdvice, Horizon, Prices, Size, Target
from everfed.advising.dates import FIRST_YEAR, YEAR_DAYS, Calendar, day_and_month
from everfed.advising.design import Design, once_a_day
from everfed.energy.supply import DAY_S, length
from everfed.errors import counted, some
from everfed.units import power

_MOST_NAMED = 4
SEASONAL_DAYS = 350  # a record that is as long knows all seasons


def verdict(
    groups: list[GroupAdvice], ranked: list[Change], chosen: list[Change], target: Target, prices: Prices,
    horizon: Horizon, unable: list[tuple[int, float]],
) -> list[str]:  # fmt: skip
    """unable: of every group, as `Design.unable` says it."""
    starved = sorted((g for g in groups if g.starved), key=lambda g: g.weight or 0.0)
    said = [_who(groups, starved, target)]
    for g, (devices, least_w) in zip(groups, unable, strict=True):
        if g.dead_since or (g.charge_days is not None and not g.starved):
            said.append(_unkept(g, horizon, devices, least_w))
    said += [_seldom(g, horizon) for g in groups if g.weight is None or 1.0 / g.promised_per_day > horizon.days]
    if not starved:
        return said
    by_name = {g.name: g for g in groups}
    hardware = [c for c in ranked if c.kind != "cycle"]
    affordable = [c for c in hardware if prices.budget is None or (c.cost is not None and c.cost <= prices.budget)]
    if affordable:
        said.append(f"Change first: {told(affordable[0], by_name[affordable[0].group], target, prices)}.")
    elif hardware and prices.budget is not None:
        said.append(f"No single change fits into {money(prices.budget)}; the best one is {hardware[0].group}: "
                    f"{hardware[0].text}, {_price(hardware[0], prices)}.")  # fmt: skip
    free = [c for c in ranked if c.kind == "cycle"]
    if free:
        words = (_cycle(c, by_name[c.group], horizon) for c in free)
        said.append(f"Without buying anything: {'; '.join(list(words)[:_MOST_NAMED])}.")
    if chosen:
        total = money(sum(c.cost or 0.0 for c in chosen))
        listed = "; ".join(f"{c.group}: {c.text}" for c in chosen)
        left = [g.name for g in starved if g.name not in [c.group for c in chosen]]
        rest = f" Not within it: {some(left, _MOST_NAMED)}." if left else ""
        said.append(f"Within {money(prices.budget or 0.0)}, in this order: {listed}; together {total}.{rest}")
    helpless = [g for g in starved if g.name not in [c.group for c in ranked]]
    for g in helpless:
        why = g.sizes.why.get("all") or "no size up to 64 times the present, and no cycle, reaches the target"
        said.append(f"Nothing found for {g.name}: {why.removeprefix(f'{g.name}: ').rstrip('.')}.")
    return said


def _who(groups: list[GroupAdvice], starved: list[GroupAdvice], target: Target) -> str:
    judged = [g for g in groups if g.weight is not None]
    if not judged:
        return "Nothing can be said of this fleet: no group has a slot in this horizon."
    if not starved:
        lowest = min(judged, key=lambda g: g.weight or 0.0)
        years = f" in the supply as given and in {target.needed} of {target.years} drawn years" if target.years else ""
        least = f"the lowest weight is {lowest.weight:.3f} ({lowest.name})"
        all_ = "all" if len(judged) == len(groups) else "all that have a slot"
        return f"No group is starved: {all_} have a weight of at least {target.weight:g}{years}; {least}."
    parts = [f"{g.name} (weight {g.weight:.3f}, {_why(g, target)})" for g in starved]
    return f"{len(starved)} of {counted(len(groups), 'group')} {'is' if len(starved) == 1 else 'are'} starved: " + (
        some(parts, _MOST_NAMED).replace("), ", "); ") + "."
    )


def _why(g: GroupAdvice, target: Target) -> str:
    """The largest causes, which together make most of what is skipped."""
    total = sum(g.skipped.values())
    if (g.weight or 0.0) >= target.weight:
        return f"but only {g.years.low:.3f} in {target.needed} of {target.years} drawn years"
    causes = sorted(((share, name) for name, share in g.skipped.items() if share > 0.0), reverse=True)
    told, sum_ = [], 0.0
    for share, name in causes:
        told.append(name)
        sum_ += share
        if sum_ >= 0.7 * total:
            break
    return f"skips {total:.1%} of its slots: {', '.join(told)}"


def _seldom(g: GroupAdvice, horizon: Horizon) -> str:
    """Of a group that is promised less than one round in the horizon, and by whom."""
    days = 1.0 / g.promised_per_day
    if g.weight is None:
        return (
            f"{g.name} has no slot in this horizon, which is shorter than its cycle: {horizon.days:,.4g} days, and one "
            f"round in {days:,.4g} days is promised. So its weight is not known, and no size is advised; ask for more "
            "rounds."
        )
    if g.model.set_cycle:
        return f"{g.name} hardly trains: its cycle promises one round in {days:,.0f} days."
    return f"{g.name} hardly trains: one round in {days:,.0f} days is all that its mean supply pays for."


def _unkept(g: GroupAdvice, horizon: Horizon, unable: int, least_w: float) -> str:
    """Of a group whose supply does not keep it: it died, or lives off what it began with.

    unable: devices that cannot idle. least_w: what reaches the least supplied one on average.
    """
    hours = horizon.rounds * horizon.round_s / 3600.0
    asleep = g.model.standby_j * g.model.discharging / horizon.round_s
    offered = g.flows_j.harvested / g.count / hours / 3600.0 * g.model.charging * g.model.discharging
    arrive = f"{power(offered)} arrive on average after losses, and"
    if g.dead_since and unable < g.count:
        cycle = "" if g.model.set_cycle != once_a_day(horizon.round_s) else ", and all are looked at with a round a day"
        return (
            f"{g.name}: {unable} of {g.count} devices cannot even idle on their supply{cycle}. {power(least_w)} reach "
            f"the least supplied one on average after losses, and {power(asleep)} are drawn asleep. The first runs "
            f"dry on {day_and_month(g.dead_since)}; batteries are empty for {g.dry_h / hours:.0%} of the time, the "
            "mean over all."
        )
    if g.dead_since:
        return (
            f"{g.name} cannot even idle on its supply: {arrive} {power(asleep)} are drawn asleep. Its batteries first "
            f"run dry on {day_and_month(g.dead_since)}, and are empty for {g.dry_h / hours:.0%} of the time."
        )
    promised = asleep + g.model.unit_j * g.model.discharging * g.promised_per_day / DAY_S
    whose = "The charge of its first device" if unable else "Its charge"
    return (
        f"{g.name} lives off its initial charge: {arrive} {power(asleep)} are drawn asleep, {power(promised)} with the "
        f"promised rounds. {whose} lasts {_until(g.charge_days or 0.0, horizon)}; then it starves, which this horizon "
        "does not show."
    )


def _until(days: float, horizon: Horizon) -> str:
    if days > 100 * YEAR_DAYS:
        return "more than a hundred years"
    end = Calendar(horizon.round_s, horizon.start[5:10]).date(days * DAY_S / horizon.round_s)
    return f"about {days:,.0f} days, until {day_and_month(end)} of year {int(end[:4]) - FIRST_YEAR + 1}"


def told(change: Change, g: GroupAdvice, target: Target, prices: Prices) -> str:
    """A change with what it does and costs."""
    size: Size = getattr(g.sizes, change.kind)
    years = f", the target in {size.years_reached} of {target.years} drawn years" if target.years else ""
    price = f"; {_price(change, prices)}" if prices.per_wp is not None else ""
    return (
        f"{g.name}: {change.text}, with cycle = {size.cycle} in the file; weight {change.weight_before:.2f} to "
        f"{change.weight_after:.3f}{years}{price}"
    )


def _cycle(change: Change, g: GroupAdvice, horizon: Horizon) -> str:
    cycle = int(change.settings["cycle"])
    often = 86_400.0 / horizon.round_s / cycle
    return f"{g.name} with cycle = {cycle}, {often:.2g} rounds a day in place of {g.promised_per_day:.2g}"


def _price(change: Change, prices: Prices) -> str:
    if change.cost is None:
        return "of unknown price, since the size of the panel behind its trace is not given"
    return money(change.cost)


def money(amount: float) -> str:
    return f"{amount:,.0f} €" if amount >= 100.0 else f"{amount:,.2f} €"


def notes(groups: list[GroupAdvice], horizon: Horizon, target: Target, design: Design, still: list[str]) -> list[str]:
    """What to keep in mind, the most important first."""
    said = []
    if horizon.partial:
        from_, to = day_and_month(horizon.start), day_and_month(horizon.end)
        said.append(
            f"the horizon covers {horizon.days:.4g} days, {from_} to {to}, and not whole years: seasons outside it "
            "are not judged."
        )
        if horizon.days < YEAR_DAYS - 1:
            said.append("sizes are for this horizon alone: a larger battery may reach the target by its first charge.")
    said += _records(design)
    if target.years:
        said.append(
            "drawn years are made of the days of the supply itself, in blocks of 5 days from within 15 days of the "
            "calendar; real years differ more."
        )
    else:
        said.append("one year of weather is judged; --years 20 draws others.")
    several = [label for label, s in zip(design.labels, design.supplies, strict=True) if s.period_s >= 730 * DAY_S]
    if target.years and several:
        said.append(f"{some(several)}: the first drawn years are the recorded ones, as they were.")
    if still:
        said.append(f"{some(still)}: too short a record to draw other years from.")
    large = [g for g in groups if g.simulated < g.count]
    if large:
        said.append(f"{some(g.name for g in large)}: {large[0].simulated:,} devices stand for all of the group.")
    if design.fleet.storage.cost_spread > 0.0:
        said.append("rounds of random cost: a larger size may do worse by chance, and sizes were sought from the top.")
    uneven = [g.name for g in groups if g.cycles[0] != g.cycles[1]]
    if uneven:
        said.append(
            f"{some(uneven, _MOST_NAMED)}: devices differ, and have cycles of their own today; sizes are for one "
            "cycle for the whole group, with as many rounds a day."
        )
    guesses = sorted({guess for g in design.spec.groups for guess in g.guesses})
    if guesses:
        said.append(f"guesses among the values (replace them with your own): {', '.join(guesses)}.")
    said.append(
        "shading is the same all year; no snow, no ageing within the horizon, no effect of the cold on batteries."
    )
    return said


def _records(design: Design) -> list[str]:
    """What records do not know, and what was made up in them."""
    said = []
    for label, g, supply in zip(design.labels, design.spec.groups, design.supplies, strict=True):
        if supply.filled:
            rule = g.gaps if g.trace else g.own.sites[g.site].gaps
            said.append(f'{label}: {supply.filled:.2%} of its record was missing and was filled in (gaps = "{rule}").')
        if supply.repeats and supply.period_s < SEASONAL_DAYS * DAY_S:
            said.append(
                f"{label}: its record lasts {length(supply.period_s)} and is repeated; what it does not contain, such "
                "as other seasons, is not judged."
            )
        if supply.begins:
            said.append(
                f"{label}: its record has its {supply.begins} where the fleet's clock has {design.spec.start_day}, so "
                f'that dates and months are not those of the record; start_day = "{supply.begins}" makes them so.'
            )
    return said
