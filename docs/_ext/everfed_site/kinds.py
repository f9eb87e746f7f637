"""The directive `kinds`: the rows of a table such as POLICIES, each with its first sentence."""

from __future__ import annotations

import inspect
import re
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import everfed
from everfed import registry


def sentence(kind: Any) -> str:
    """The first sentence of a docstring, or what a method says about itself."""
    about = getattr(kind, "about", "") if not inspect.isclass(kind) else ""
    text = " ".join((about or inspect.getdoc(kind) or "").split("\n\n")[0].split())
    found = re.match(r"(.+?[.:])(?= [A-Z(]|$)", text)
    return (found[1] if found else text).rstrip(":")


def rows(word: str) -> list[tuple[str, str, str]]:
    """(name in files, name in Python if it is public, first sentence) of every kind of a word."""
    out = []
    for name, kind in registry.kinds(word).items():
        public = getattr(kind, "__name__", "")
        out.append((name, public if public in everfed.__all__ else "", sentence(kind)))
    return out


def row(*cells: str) -> str:
    """A row of a table of Markdown; a bar in a text, such as |x|, does not end its cell."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


class Kinds(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines = ["| name | in Python | |", "|---|---|---|"]
        for name, public, text in rows(self.arguments[0]):
            python = f"{{py:obj}}`ef.{public} <everfed.{public}>`" if public else ""
            lines.append(row(f"`{name}`", python, text))
        return self.parse_text_to_nodes("\n".join(lines))


def parsed(directive: SphinxDirective, lines: list[str]) -> list[nodes.Node]:
    """Lines of Markdown as a part of the page, headings included."""
    place = nodes.section()
    place.document = directive.state.document
    directive.state.nested_parse(StringList(lines, source=directive.get_source_info()[0]), 0, place, match_titles=True)
    return place.children


def setup(app: Sphinx) -> None:
    app.add_directive("kinds", Kinds)
