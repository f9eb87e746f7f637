"""Types, ranges and defaults, as a reader wants to see them."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from everfed import checks, registry
from everfed.errors import shown as in_words

_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def interval(text: str) -> str:
    """An interval in words.

    >>> interval("(0, inf)"), interval("[0, 1)"), interval("[1, inf)")
    ('above 0', '0 to below 1', 'at least 1')
    """
    low, high = text[1:-1].split(", ")
    if high == "inf":
        return f"{'at least' if text[0] == '[' else 'above'} {low}"
    if high == "18446744073709551615":
        high = "2⁶⁴ − 1"
    low = f"above {low}" if text[0] == "(" else low
    return f"{low} to {'below ' if text[-1] == ')' else ''}{high.replace('1000000', '10⁶').replace('1e6', '10⁶')}"


def default(thing: Any, name: str) -> str:
    """The default of an argument or field as code; empty if there is none, or if it says nothing."""
    if inspect.isclass(thing) and is_dataclass(thing):
        field = next(field for field in fields(thing) if field.name == name)
        value = field.default if field.default is not MISSING else None
    else:
        value = inspect.signature(thing).parameters[name].default
    if value is inspect.Parameter.empty or value is None or callable(value) or is_dataclass(value):
        return f"``{type(value).__name__}()``" if is_dataclass(value) and not isinstance(value, type) else ""
    text = in_words(value)
    return f"``{text}``" if len(text) < 60 and text != "''" else ""


def types(thing: Any) -> dict[str, str]:
    """The type of each argument or field, in the source's words, with its range."""
    if inspect.isclass(thing):
        hints = checks.field_hints(thing) if is_dataclass(thing) else {}
        out = {}
        for name, hint in hints.items():
            bare, within, texts = checks.limits(hint)
            if bare in _WORDS:
                out[name] = " or ".join(f'``"{text}"``' for text in texts) if texts else _WORDS[bare]
                out[name] += f" {interval(within)}" if within else ""
        return out
    try:
        return {
            name: re.sub(r"everfed\.[\w.]*\.", "", str(hint))
            for name, hint in inspect.get_annotations(thing).items()
            if name not in ("settings", "return") and len(str(hint)) < 60
        }
    except (TypeError, NameError):
        return {}


def word_table(word: str) -> dict[str, Any]:
    """The kinds of a word."""
    return registry.kinds(word)
