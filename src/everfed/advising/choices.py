"""Which change helps the fleet most, and which ones fit into a budget."""

from __future__ import annotations

from everfed.advising.advice import Change, GroupAdvice, Prices, Size


def changes(groups: list[GroupAdvice], prices: Prices) -> list[Change]:
    """All changes that bring a starved group to the target, the best first.

    With prices: by how much the mean weight over all devices rises per unit of money. Without, or if all is free:
    groups by how much that rises, and the least enlargement of each first. Longer cycles cost nothing but rounds, and
    come last.
    """
    everyone = sum(g.count for g in groups)
    found = [change for g in groups if g.starved for change in _of_group(g, everyone)]
    hardware = [change for change in found if change.kind != "cycle"]
    cycles = sorted((change for change in found if change.kind == "cycle"), key=lambda change: -change.helps)
    sizes = {g.name: g for g in groups}
    if prices.per_wp is not None and not prices.free:
        hardware.sort(key=lambda c: (c.cost is None, -_per_cost(c), _enlargement(c, sizes[c.group])))
    else:
        best = {g.name: max((c.helps for c in hardware if c.group == g.name), default=0.0) for g in groups}
        hardware.sort(key=lambda c: (-best[c.group], c.group, _enlargement(c, sizes[c.group])))
    return hardware + cycles


def within(budget: float, ranked: list[Change]) -> list[Change]:
    """One change per group, the best first, as long as the money lasts."""
    chosen: list[Change] = []
    for change in ranked:
        fits = change.cost is not None and change.cost <= budget - sum(c.cost or 0.0 for c in chosen) + 1e-9
        if fits and change.kind != "cycle" and change.group not in [c.group for c in chosen]:
            chosen.append(change)
    return chosen


def _per_cost(change: Change) -> float:
    return 0.0 if change.cost is None else change.helps / max(change.cost, 1e-12)


def _enlargement(change: Change, g: GroupAdvice) -> float:
    now = {"panel_wp": g.panel, "trace_scale": g.panel, "battery_wh": g.battery_wh}
    return sum(value / now[key] - 1.0 for key, value in change.settings.items() if key in now)


def _of_group(g: GroupAdvice, everyone: int) -> list[Change]:
    kinds = {"panel": g.sizes.panel, "battery": g.sizes.battery, "pair": g.sizes.pair, "cycle": g.sizes.cycle}
    found: list[Change] = []
    before = g.weight or 0.0
    for kind, size in kinds.items():
        if size is None:
            continue
        grows = size.panel > g.panel, size.battery_wh > g.battery_wh
        # A pair that enlarges one of the two only is that one; sizes that need not grow call for a cycle alone.
        if grows != {"panel": (True, False), "battery": (False, True), "pair": (True, True)}.get(kind, (False, False)):
            continue
        gain = max(min(size.weight, 1.0) - before, 0.0) * g.count / everyone
        found.append(Change(g.name, kind, _text(g, size), size.cost, gain, before, size.weight, _settings(g, size)))
    return found


def _settings(g: GroupAdvice, size: Size) -> dict[str, float | int]:
    """Keys of the group, as `--set fleet.groups.NAME.KEY=VALUE` takes them."""
    out: dict[str, float | int] = {}
    if size.panel > g.panel:
        out["panel_wp" if g.panel_unit == "Wp" else "trace_scale"] = size.panel
    if size.battery_wh > g.battery_wh:
        out["battery_wh"] = size.battery_wh
    out["cycle"] = size.cycle
    return out


def _text(g: GroupAdvice, size: Size) -> str:
    parts = []
    if size.panel > g.panel:
        panel = f"{size.panel:g} Wp (now {g.panel:g})" if g.panel_unit == "Wp" else _times(size.panel, g.panel)
        parts.append(f"a panel of {panel}")
    if size.battery_wh > g.battery_wh:
        parts.append(f"a battery of {size.battery_wh:g} Wh (now {g.battery_wh:g})")
    if not parts:
        return f"one training per {size.cycle} rounds (now {g.cycle})"
    return " and ".join(parts)


def _times(after: float, before: float) -> str:
    return f"{after / before:.3g} times the size"
