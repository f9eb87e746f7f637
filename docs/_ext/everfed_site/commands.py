"""The directive `commands`: every command with its arguments and options, read off the command itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from everfed.cli.app import app as everfed_command


def commands(command: Any = None, name: str = "everfed") -> Iterator[tuple[str, Any]]:
    """(its name, the command) of every command that does something."""
    command = command or typer.main.get_command(everfed_command)
    inner = getattr(command, "commands", None)
    if not inner:
        yield name, command
    for word, below in (inner or {}).items():
        yield from commands(below, f"{name} {word}")


def _markdown(text: str) -> str:
    """Help as the command prints it, in Markdown."""
    text = re.sub(r"\[/?bold\]", "**", text.replace("\b", ""))
    return re.sub(r"\\?\[/?(?:dim|cyan|green|yellow|red)\]", "", text).replace("<", r"\<").strip()


def _told(text: str) -> list[str]:
    """The help of a command: its examples become code."""
    lines = []
    for paragraph in _markdown(text).split("\n\n"):
        if example := re.match(r"Example: (everfed .+)", paragraph, re.DOTALL):
            one = " ".join(example[1].split())
            lines += ["```text", *one.replace(", or: ", "\n").splitlines(), "```", ""]
        else:
            lines += [paragraph, ""]
    return lines


def _default(option: Any) -> str:
    value = option.default
    if value is None or value == [] or value is False or value == "" or callable(value):
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.param_type_name == "argument":
        names = f"`{option.name.upper()}`"
    cells = [names, _markdown(getattr(option, "help", "") or "").replace("\n", " "), _default(option)]
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def page() -> list[str]:
    """The whole reference as lines of Markdown."""
    lines: list[str] = []
    for name, command in commands():
        lines += ["", f"## {name}", "", *_told(command.help or "")]
        panels: dict[str, list[Any]] = {}
        for option in command.params:
            if not getattr(option, "hidden", False):
                panel = getattr(option, "rich_help_panel", None) or ""
                panels.setdefault(panel, []).append(option)
        for panel, options in panels.items():
            lines += ["", f"**{panel}**" if panel else "", "", "| | | default |", "|---|---|---|", *map(_row, options)]
    return lines


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        return self.parse_text_to_nodes("\n".join(page()), allow_section_headings=True)


def setup(app: Sphinx) -> None:
    app.add_directive("commands", Commands)
