"""Sizes for every group, all groups side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from everfed.advising.advice import Prices, Size, Sizes, Target
from everfed.advising.sizing import (
    LEAST,
    MOST,
    Pair,
    Search,
    ladder,
    longer_cycles,
    must_last,
    smallest,
    together,
    years_reached,
)  # fmt: skip
from everfed.advising.world import Query, World

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Scales:
    """The present sizes of a group and what more of them costs. wp: watts-peak of one `panel`; None: not known."""

    panel: float
    battery_wh: float
    count: int
    wp: float | None

    def cost(self, prices: Prices) -> Callable[[float, float], float]:
        """Of a panel and a battery that are at least the present ones; only what is added counts."""
        if prices.per_wp is None or prices.per_wh is None or self.wp is None or prices.free:
            return self.enlargement
        per_panel, per_wh = prices.per_wp * self.wp * self.count, prices.per_wh * self.count
        # What costs nothing is not taken without need: of equal prices, the smaller enlargement is the cheaper.
        tie = 1e-9 * (per_panel * self.panel + per_wh * self.battery_wh) if not (per_panel and per_wh) else 0.0
        return lambda panel, wh: (
            max(panel - self.panel, 0.0) * per_panel
            + max(wh - self.battery_wh, 0.0) * per_wh
            + tie * self.enlargement(panel, wh)
        )

    def enlargement(self, panel: float, wh: float) -> float:
        return panel / self.panel + wh / self.battery_wh - 2.0

    def priced(self, prices: Prices, panel: float, wh: float) -> float | None:
        """None: the panel behind a trace has no size, so what is added to it has no price."""
        if prices.per_wp is not None and self.wp is None and panel > self.panel:
            return None
        if prices.per_wp is None:
            return max(panel / self.panel - 1.0, 0.0) + max(wh / self.battery_wh - 1.0, 0.0)
        wp = (self.wp or 0.0) * prices.per_wp
        added = max(panel - self.panel, 0.0) * wp + max(wh - self.battery_wh, 0.0) * (prices.per_wh or 0.0)
        return added * self.count


def find_sizes(world: World, scales: list[Scales], target: Target, prices: Prices, tell: Tell) -> list[Sizes]:
    """Of every group, in order. Groups whose round does not fit have none, nor those without a slot to judge by."""
    without = dict(world.design.unfit)
    for g, label in enumerate(world.design.labels):
        if g not in without and not (world.has_slots(g) and world.has_slots(g, world.design.promise(g))):
            without[g] = f"{label} has no slot in this horizon"
    groups = [g for g in range(len(scales)) if g not in without]
    finder = _Finder(world, scales, target, prices, {g: world.design.promise(g) for g in groups})
    tell("the smallest panels")
    panels = finder.run({g: finder.panel_search(g) for g in groups}, lambda g, i: ladder(scales[g].panel)[i])
    tell("the smallest batteries")
    batteries = finder.run({g: finder.battery_search(g) for g in groups}, lambda g, i: ladder(scales[g].battery_wh)[i])
    tell("the cheapest pairs")
    pairs = finder.pairs(panels, batteries)
    tell("the shortest cycles")
    cycles = finder.run({g: finder.cycle_search(g) for g in groups}, lambda g, i: finder.cycles(g)[i])
    return [
        Sizes(None, None, None, None, {"all": without[g]})
        if g in without
        else finder.sizes(g, panels.get(g), batteries.get(g), pairs.get(g), cycles.get(g))
        for g in range(len(scales))
    ]


class _Finder:
    def __init__(
        self, world: World, scales: list[Scales], target: Target, prices: Prices, cycle: dict[int, int]
    ) -> None:
        self.world, self.scales, self.target, self.prices, self.cycle = world, scales, target, prices, cycle
        self.monotone = world.design.fleet.storage.cost_spread == 0.0

    def query(self, g: int, panel: float, wh: float, cycle: int = 0) -> Query:
        s = self.scales[g]
        return Query(g, panel / s.panel, wh / s.battery_wh, cycle or self.cycle[g])

    def run(self, searches: dict[int, Search], value: Callable[[int, int], float]) -> dict[int, float]:
        found = together(searches, self.world, self.target.weight, self.target.needed)
        return {g: value(g, i) for g, i in found.items() if i is not None}

    def panel_search(self, g: int) -> Search:
        sizes, wh = ladder(self.scales[g].panel), self.scales[g].battery_wh
        room = self.world.room(list(self.cycle))
        return smallest(lambda i: self.query(g, sizes[i], wh), 0, len(sizes) - 1, room, self.monotone)

    def battery_search(self, g: int) -> Search:
        sizes, panel = ladder(self.scales[g].battery_wh), self.scales[g].panel
        room = self.world.room(list(self.cycle))
        return smallest(lambda i: self.query(g, panel, sizes[i]), 0, len(sizes) - 1, room, self.monotone)

    def cycles(self, g: int) -> list[int]:
        return longer_cycles(self.cycle[g], self.world.rounds)

    def cycle_search(self, g: int) -> Search:
        cycles, s = self.cycles(g), self.scales[g]
        # Other cycles have other slots: each takes its time to draw, so one is tried at a time.
        return smallest(lambda i: self.query(g, s.panel, s.battery_wh, cycles[i]), 0, len(cycles) - 1, 1)

    def pairs(self, panels: dict[int, float], batteries: dict[int, float]) -> dict[int, tuple[float, float]]:
        made: dict[int, Pair] = {}
        for g in self.cycle:
            s = self.scales[g]
            known = [(panels[g], s.battery_wh)] if g in panels else []
            known += [(s.panel, batteries[g])] if g in batteries else []
            known = [(max(panel, s.panel), max(wh, s.battery_wh)) for panel, wh in known]
            cost = s.cost(self.prices)
            made[g] = Pair(
                query=lambda panel, wh, g=g: self.query(g, panel, wh),  # type: ignore[misc]
                panels=[size for size in ladder(s.panel) if size >= s.panel],
                batteries=[size for size in ladder(s.battery_wh) if size >= s.battery_wh],
                cost=cost,
                at_once=self.world.room(list(self.cycle)),
                monotone=self.monotone,
                best=min(known, key=lambda pair: cost(*pair)) if known else None,
            )
        together({g: pair.search() for g, pair in made.items()}, self.world, self.target.weight, self.target.needed)
        return {g: pair.best for g, pair in made.items() if pair.best is not None}

    def sizes(
        self, g: int, panel: float | None, wh: float | None, pair: tuple[float, float] | None, cycle: float | None
    ) -> Sizes:
        s = self.scales[g]
        why, for_long = {}, " holds the target for ten years" if must_last(self.world) else ""
        for name, found in (("panel", panel), ("battery", wh), ("pair", pair), ("cycle", cycle)):
            if found is None:
                least = LEAST if name in ("panel", "battery") else 1
                why[name] = f"none from {least:g} to {MOST:g} times the present{for_long}"
        return Sizes(
            None if panel is None else self.size(g, panel, s.battery_wh),
            None if wh is None else self.size(g, s.panel, wh),
            None if pair is None else self.size(g, *pair),
            None if cycle is None else self.size(g, s.panel, s.battery_wh, int(cycle)),
            why,
        )

    def size(self, g: int, panel: float, wh: float, cycle: int = 0) -> Size:
        (weights,) = self.world.weights([self.query(g, panel, wh, cycle)])
        reached = years_reached(weights, self.target.weight)
        cost = self.scales[g].priced(self.prices, panel, wh)
        return Size(panel, wh, cycle or self.cycle[g], float(weights[0]), reached, cost)
