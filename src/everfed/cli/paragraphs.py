"""Help texts as paragraphs, which the terminal wraps; line breaks of a docstring would be kept beside its own."""

from __future__ import annotations

import inspect
import re

import typer


def flowing(text: str) -> str:
    r"""The same text with one line per paragraph.

    >>> flowing("One\nparagraph.\n\nAnother\none.")
    'One paragraph.\n\nAnother one.'
    """
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip()))


def with_flowing_help(app: typer.Typer) -> typer.Typer:
    """The same app; every command's help wraps once, wherever the terminal ends."""
    for command in app.registered_commands:
        command.help = flowing(inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            with_flowing_help(group.typer_instance)
    if app.registered_callback and app.registered_callback.callback and app.registered_callback.callback.__doc__:
        app.registered_callback.help = flowing(inspect.getdoc(app.registered_callback.callback) or "")
    return app
