"""The site: complete, and built without a warning, without a network and without a link that leads nowhere."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import everfed
from everfed import registry
from everfed.run.experiment import TABLES, Experiment
from everfed.run.meanings import meanings, names_of
from test_architecture import LAYERS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))
pytest.importorskip("everfed_site.keys", reason="needs the extra docs")

from everfed_site import commands, diagrams, keys, mathml  # noqa: E402

PUBLIC = sorted(everfed.__all__)
DESCRIBED = [name for name in PUBLIC if callable(getattr(everfed, name))]
# Arguments that one description has together.
ELSEWHERE = {
    "start": "simulate", "compare": "simulate sweep", "AsynchronousAudit": "Audit", "Run": "start",
}  # fmt: skip
MADE_BY_FUNCTIONS = {"Audit", "AsynchronousAudit", "Run"}  # whose fields are results, described beside them


def test_the_page_of_the_api_lists_every_public_name_once():
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"\.\. autosummary::.*?```", page, re.DOTALL)
    listed = [name for block in blocks for name in re.findall(r"^   (\w+)$", block, re.MULTILINE)]
    listed += re.findall(r"^### ef\.(\w+)$", page, re.MULTILINE)
    listed += re.findall(r"automodule:: everfed\.(\w+)$", page, re.MULTILINE)
    assert sorted(listed) == PUBLIC


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_public_name_has_an_example(name):
    assert ">>>" in (inspect.getdoc(getattr(everfed, name)) or "")


@pytest.mark.parametrize("name", [name for name in DESCRIBED if name not in MADE_BY_FUNCTIONS])
def test_a_public_name_describes_its_arguments(name):
    thing = getattr(everfed, name)
    told = meanings(thing)
    for other in ELSEWHERE.get(name, "").split():
        told |= meanings(getattr(everfed, other))
    missing = [argument for argument in names_of(thing) if argument not in told]
    assert not missing


def kinds_of_experiments():
    found = {Experiment: "experiment"}
    for table in TABLES.values():
        found |= {cls: f"{cls.__name__}" for cls in table.values()}
    for cls in list(found):
        found |= {inner: inner.__name__ for _, inner, *_ in keys.parts_of(cls) if not isinstance(inner, dict)}
    return list(found)


@pytest.mark.parametrize("kind", kinds_of_experiments(), ids=lambda kind: kind.__name__)
def test_every_key_of_an_experiment_has_a_meaning(kind):
    told = meanings(kind)
    assert not [option.name for option in registry.options(kind) if not told.get(option.name)]


def test_the_page_of_keys_names_every_key_and_kind_that_a_file_may_have():
    page = "\n".join(keys.page())
    schema = json.dumps(everfed_schema())
    for name in set(re.findall(r'"const": "([^"]+)"', schema)):
        assert f"`{name}`" in page
    for option in registry.options(Experiment):
        assert option.metadata.get("live") or f"`{option.name}`" in page


def test_rows_of_the_page_of_keys_are_whole():
    """A bar in a text would end its cell, and a semicolon at its end belongs to the text after it."""
    pages = ["\n".join(keys.page()), *("\n".join(keys.table(keys.keys_of(kind))) for kind in kinds_of_experiments())]
    for line in "\n".join(pages).splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            assert len(cells) in (2, 4), line
            assert not any(cell.strip().endswith((";", ",")) for cell in cells), line


def everfed_schema():
    from everfed.run.schema import schema

    return schema()


def test_the_page_of_commands_has_every_command_and_option():
    page = "\n".join(commands.page())
    named = dict(commands.commands())
    assert {"everfed run", "everfed devices serve"} <= set(named)
    for name, command in named.items():
        assert f"## {name}\n" in page
        for option in command.params:
            assert getattr(option, "hidden", False) or all(
                f"`{word}`" in page for word in option.opts if word[0] == "-"
            )


def test_the_drawn_house_has_the_floors_of_the_source():
    drawn = [{name for name, _ in floor} for floor in diagrams.HOUSE[1:]]
    assert drawn == [row - {"__main__"} for row in LAYERS[1:]]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_formulas_are_understood(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", text)
    for block, inline in re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$", text, flags=re.DOTALL):
        assert "<math" in mathml.mathml(block or inline, block=bool(block))


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {value for value in (found.get("id"), found.get("name")) if value}
        self.links += [found[name] for name in ("href", "src") if found.get(name) and tag not in ("base",)]


@pytest.mark.long
def test_the_site_is_built_without_a_warning_and_no_link_leads_nowhere(tmp_path):
    site = tmp_path / "site"
    offline = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https")}
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", "-d", tmp_path / "trees"]
    made = subprocess.run(
        [*command, DOCS, site], env={**os.environ, **offline}, capture_output=True, text=True, timeout=1200
    )
    assert made.returncode == 0, made.stderr
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 100
    lost, fetched = [], []
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if not link.startswith(("https://", "http://", "mailto:", "data:")):
                    lost.append(link)
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchored = (
                not parts.fragment
                or target.suffix != ".html"
                or unquote(parts.fragment) in (pages[target].anchors if target in pages else ())
            )
            if not target.exists() or not anchored:
                lost.append(f"{page.relative_to(site)}: {link}")
        fetched += [
            link
            for link in re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?://[^"]+)"', page.read_text("utf-8"))
            if 'rel="canonical"' not in link
        ]
    assert not lost
    assert not fetched, "a page fetches something from the network"
    assert (site / "searchindex.js").stat().st_size > 100_000
