"""TOML texts as plain data, and back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from everfed.errors import InputError, first_line, shown
from everfed.run import live
from everfed.run.keys import split_setting

DEEPEST = 8  # tables inside tables
_MOST_DOTS = 1000  # in what may be a key


def parse(text: str, source: str = "the experiment") -> dict[str, Any]:
    """The content of a TOML text, or an error that names its source."""
    try:
        if any(line.partition("=")[0].count(".") > _MOST_DOTS for line in text.splitlines()):
            raise RecursionError  # dotted keys take the time of their length squared
        raw = tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{source} is not valid TOML: its values are nested too deeply.") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not valid TOML: {first_line(error)}.") from None
    except ValueError:
        raise InputError(f"{source} is not valid TOML: a number in it has thousands of digits.") from None
    level: list[Any] = [raw]
    for _ in range(DEEPEST):
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        level = [part for part in level if isinstance(part, dict | list)]
    if level:
        raise InputError(f"{source} nests tables more than {DEEPEST} deep; an experiment has no such keys.")
    return raw


def parse_value(text: str) -> Any:
    """A value from the command line: TOML if it parses, else the text itself."""
    try:
        found = parse(f"value = {text}")
    except InputError:
        return text
    return found["value"] if len(found) == 1 else text  # a line break would begin a second key


def parse_setting(text: str) -> tuple[str, Any]:
    """'client.lr=0.01' as (key, value)."""
    key, equals, value = split_setting(text)
    if not equals or not key:
        raise InputError(f"'{text}' is not a setting; write key=value, such as client.lr=0.01.")
    return key, parse_value(value)


def raw_to_toml(raw: Mapping[str, Any]) -> str:
    """The content of an experiment file as TOML; settings of one method alone as one dotted key a line."""
    raw = _given(raw)
    lines = [f"{key} = {written(value)}" for key, value in raw.items() if not isinstance(value, dict)]
    for name, part in raw.items():
        if isinstance(part, dict) and name != "methods":
            lines += ["", f"[{name}]", *(f"{key} = {written(value)}" for key, value in part.items())]
    for method, table in raw.get("methods", {}).items():
        lines += ["", f"[methods.{method}]", *(f"{key} = {written(value)}" for key, value in flat(table).items())]
    return "\n".join(lines) + "\n"


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; a live object is one value, its name with a mark of its content."""
    out: dict[str, Any] = {}
    for key, value in content.items():
        if known := live.recall(value):
            value = known.label
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def show(value: Any) -> str:
    """A value in an error, as a file has it."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # dates, and numbers of thousands of digits
        return shown(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-10:]}"


def _given(value: Any) -> Any:
    """Without what is left out: TOML has no word for it."""
    if isinstance(value, dict):
        return {key: _given(part) for key, part in value.items() if part is not None}
    return [_given(part) for part in value] if isinstance(value, list) else value


def written(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {written(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(written(v) for v in value) + "]"
    # But for infinity and one control character, numbers, true/false and quoted texts are alike in JSON.
    return str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f")
