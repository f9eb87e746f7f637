"""One self-contained page: everything about some runs in a single HTML file, without any network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from everfed.checks import check_file
from everfed.report.data import page_data
from everfed.store.reading import StoredRun

# Joined in this order into the one script of the page.
_SCRIPTS = (
    "dom.js", "axes.js", "linechart.js", "bars.js", "sweeps.js", "arrivals.js", "raster.js", "tables.js",
    "energy.js", "chips.js", "theme.js", "page.js",
)  # fmt: skip


def page(runs: Sequence[StoredRun], path: Path, title: str | None = None) -> Path:
    """Write the page and return its path."""
    path = check_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Bytes of a name or a title that are no text: as escapes, which JSON reads.
    path.write_text(render(page_data(runs, title)), encoding="utf-8", errors="backslashreplace")
    return path


def render(data: dict[str, Any]) -> str:
    """The page of these data. Texts from the data are escaped here or set as text by the script."""
    return assembled(
        "page.html",
        _SCRIPTS,
        ("page.css",),
        data,
        title=html.escape(data["title"]),
        headline=html.escape(data["headline"]),
        summary=html.escape(data["summary"]),
        notes="".join(f'\n  <p class="note">{html.escape(note)}</p>' for note in data["notes"]),
    )


def assembled(page: str, scripts: Sequence[str], sheets: Sequence[str], data: dict[str, Any], **texts: str) -> str:
    """A page of its parts. texts: escaped already."""
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in scripts) + "\n})();\n"
    return Template(_asset(page)).substitute(
        css="".join(map(_asset, sheets)) + _colours(data),
        script=script,
        # Only this very script may run, and nothing may be fetched: a text that slipped through
        # the escaping would still be no more than a text.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=_embedded(data),
        **texts,
    )


def _asset(name: str) -> str:
    return files("everfed.report").joinpath(name).read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _colours(data: dict[str, Any]) -> str:
    """The lines' colours as CSS variables, so that a change of theme recolours without redrawing."""
    looks = {f"line-{i}": line["style"] for i, line in enumerate(data["lines"])}
    for i, sweep in enumerate(data.get("sweeps", ())):
        for part in ("series", "others"):
            looks |= {f"{part}-{i}-{k}": one["style"] for k, one in enumerate(sweep[part])}
    light, dark = ("".join(f"--{name}:{look[of]};" for name, look in looks.items()) for of in ("colour", "dark"))
    return (
        f":root{{{light}}}\n:root[data-theme=dark]{{{dark}}}\n"
        f"@media screen and (prefers-color-scheme: dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
    )
