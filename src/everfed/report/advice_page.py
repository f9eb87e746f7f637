"""One self-contained page of advice: verdict, pictures and sliders in a single HTML file, without any network."""

from __future__ import annotations

import html
from dataclasses import asdict
from pathlib import Path
from typing import Any

from everfed.advising.advice import Advice
from everfed.advising.dates import day_and_month
from everfed.advising.outlook import Outlook
from everfed.checks import check_file
from everfed.report.page import assembled
from everfed.report.style import styles
from everfed.report.whatif import packed
from everfed.store.files import write_atomically
from everfed.units import duration

# Joined in this order into the one script of the page.
_SCRIPTS = (
    "dom.js", "axes.js", "theme.js", "battery.js", "advice_parts.js", "advice_charts.js", "advice_whatif.js",
    "advice_more.js", "advice.js",
)  # fmt: skip


def advice_page(advice: Advice, path: Path, outlook: Outlook | None = None, title: str = "Advice for a fleet") -> Path:
    """Write one offline page with pictures and sliders, and return its path.

    advice: from `everfed.advise`.
    path: of the page.
    outlook: what to expect of the model, from `everfed.outlook`, if there is a pilot.
    title: of the page.

    >>> import tempfile
    >>> import everfed as ef
    >>> from everfed.energy.physical import DeviceFleet, DeviceGroup
    >>> lamps = DeviceGroup(name="lamps", count=2, panel_wp=0.2, battery_wh=3.0, step_s=60.0, switched_off=True)
    >>> found = ef.advise(DeviceFleet((lamps,), round_s=86_400.0), years=0)
    >>> ef.advice_page(found, Path(tempfile.mkdtemp()) / "advice.html").name
    'advice.html'
    """
    path = check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render(advice, outlook, title))
    return path


def render(advice: Advice, outlook: Outlook | None = None, title: str = "Advice for a fleet") -> str:
    first, *others = advice.verdict
    devices = sum(g.count for g in advice.groups)
    horizon = advice.horizon
    summary = (
        f"{devices:,} devices in {len(advice.groups)} groups, {horizon.rounds:,} rounds of "
        f"{duration(horizon.round_s)}, {day_and_month(horizon.start)} to {day_and_month(horizon.end)}; target: a "
        f"weight of {advice.target.weight:g}."
    )
    if horizon.partial:
        summary += " This is not a whole year: seasons that it leaves out are in no number below."
    return assembled(
        "advice.html",
        _SCRIPTS,
        ("page.css", "advice.css"),
        _data(advice, outlook),
        title=html.escape(title),
        headline=html.escape(first),
        verdict="".join(f'\n  <p class="verdict-line">{html.escape(sentence)}</p>' for sentence in others),
        summary=html.escape(summary),
    )


def _data(advice: Advice, outlook: Outlook | None) -> dict[str, Any]:
    """What the scripts read. lines, measure and clock are what the report's scripts want; lines are the groups here."""
    looks = styles(g.name for g in advice.groups)
    content = advice.to_dict()
    for group in content["groups"]:
        del group["model"]  # the sliders have their own
    return {
        "lines": [{"label": g.name, "style": asdict(s)} for g, s in zip(advice.groups, looks, strict=True)],
        "measure": {"percent": True},
        "clock": {"title": "rounds", "per_round": 1, "dark": []},
        "advice": content,
        "whatif": packed(advice),
        "expected": outlook.to_dict() if outlook else None,
    }
