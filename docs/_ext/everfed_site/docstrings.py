"""Docstrings for autodoc: descriptions of arguments become a list, public names in backticks become links."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

import everfed
from everfed.run.meanings import meanings, names_of, split
from everfed_site import shown


class Name(SphinxRole):
    """`text` in a docstring: a link where it is a public name, otherwise code."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        name = self.text.removesuffix("(...)").removesuffix("()").removeprefix("everfed.").removeprefix("ef.")
        if not _has_page(name):
            return [nodes.literal(self.rawtext, self.text)], []
        target = pending_xref(
            "", nodes.literal(self.text, self.text), refdomain="py", reftype="obj", reftarget=f"everfed.{name}",
            refexplicit=True, refwarn=False, refdoc=self.env.docname,
        )  # fmt: skip
        return [target], []


def _has_page(name: str) -> bool:
    """Whether this is a public function or class, or a method of one."""
    first, _, method = name.partition(".")
    found = getattr(everfed, first) if first in everfed.__all__ else None
    return callable(found) and (not method or callable(getattr(found, method, None)))


def describe(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn `name: text` into fields, with the type and the default of each."""
    names = names_of(thing)
    text, found = split("\n".join(lines), names)
    if inspect.isclass(thing):
        found = meanings(thing) | found
    out = [_plain(line) for line in text.splitlines()]
    if found:
        out.append("")
    types = shown.types(thing)
    for argument in names:
        if argument in found:
            kind = types.get(argument, "")
            default = shown.default(thing, argument)
            aside = ", ".join(part for part in (kind, f"default {default}" if default else "") if part)
            out.append(f":param {argument}: {f'({aside}) ' if aside else ''}{_plain(found[argument])}")
    lines[:] = [*out, ""]


def _plain(line: str) -> str:
    """A line in which bars and stars are no markup, since docstrings write |x| and a * b."""
    if ">>>" in line or line.startswith("    "):
        return line
    return re.sub(r"(?<!\w)\*(?=[\s*])|\|", lambda found: "\\" + found[0], line)


def signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Classes with many fields are made by name; their signature would fill a page."""
    if inspect.isclass(thing) and is_dataclass(thing) and len(fields(thing)) > 8:
        return "(...)", returns
    if arguments:
        arguments = re.sub(r"<function [^>]*>", "...", arguments)
        arguments = re.sub(r"=(\w+)\([^()]*\)", r"=\1()", arguments)  # the defaults of a default
    return arguments, returns


def skip(app: Sphinx, what: str, name: str, thing: Any, skipped: bool, options: Any) -> bool | None:
    """Members without a docstring of their own, and fields, which are described as arguments, are left out."""
    if inspect.isfunction(thing) or isinstance(thing, property):
        return None if getattr(thing, "__doc__", None) else True
    return True if thing is MISSING or not callable(thing) else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", describe)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skip)
    app.add_role("name", Name())
