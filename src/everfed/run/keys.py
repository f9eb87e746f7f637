"""Dotted keys of the command line, such as client.lr, fleet.groups[2].battery_wh and fleet.groups.phones.battery_wh."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everfed.energy.group import DEFAULT_SITE, DeviceGroup
from everfed.errors import InputError, some, unknown

_PART = re.compile(r"""(?:^|(?<=.)\.)(?:"([^"]*)"|'([^']*)'|([^."'\[\]]+))|\[(\d{1,9})\]""")
_SETTING = re.compile(r"""((?:[^"'=]|"[^"]*"|'[^']*')*)=(.*)""", re.DOTALL)


def split(key: str) -> list[str | int]:
    """The names of a key and its places in lists; a name with a dot stands in quotes.

    >>> split("fleet.groups[2].battery_wh"), split('fleet.groups."phone @ a.csv".count')
    (['fleet', 'groups', 2, 'battery_wh'], ['fleet', 'groups', 'phone @ a.csv', 'count'])
    """
    parts: list[str | int] = []
    at = 0
    for found in _PART.finditer(key):
        if found.start() != at:
            break
        at = found.end()
        parts.append(int(found[4]) if found[4] is not None else next(t for t in found.groups()[:3] if t is not None))
    return parts if at == len(key) and parts and isinstance(parts[0], str) else list(key.split("."))


def split_setting(text: str) -> tuple[str, str, str]:
    """'key=value' as (key, '=', value), the key with its quotes; ('...', '', '') without an equals sign."""
    found = _SETTING.fullmatch(text)
    return (found[1].strip(), "=", found[2].strip()) if found else (text, "", "")


def place(listed: Sequence[Any], which: str | int, key: str) -> int:
    """The place in a list of tables that a number, or the name of a group, stands for."""
    names = [name_of(entry) for entry in listed]
    if isinstance(which, int):
        if which < len(listed):
            return which
        raise InputError(
            f"'{key}': there is no [{which}]; the list has {len(listed)}, numbered from 0: {some(names, 12)}."
        )
    found = [number for number, name in enumerate(names) if name == which]
    if not found:
        raise InputError(f"'{key}': {unknown('group', which, names)}")
    if len(found) > 1:
        raise InputError(
            f"'{key}': {len(found)} groups are called '{which}'; say which by its number, such as [{found[0]}] or "
            f"[{found[1]}]."
        )
    return found[0]


def name_of(entry: Any) -> str:
    """What a group is called in tables."""
    if not isinstance(entry, dict):
        return str(entry)
    if entry.get("name") or "kind" in entry:
        return str(entry.get("name") or entry["kind"])
    source = Path(str(entry["trace"])).name if entry.get("trace") else entry.get("site") or DEFAULT_SITE
    return f"{entry.get('device', DeviceGroup.device)} @ {source}"


def numbered(raw: Any, key: str) -> str:
    """The key with numbers in the place of groups' names, so that two keys that mean one value are alike."""
    out = ""
    for part in split(key):
        if isinstance(raw, list):
            try:
                part = place(raw, part, key)
            except InputError:
                return key
        if isinstance(part, int):
            out += f"[{part}]"
            raw = raw[part] if isinstance(raw, list) and part < len(raw) else None
        else:
            out += f".{part}" if out else part
            raw = raw.get(part) if isinstance(raw, dict) else None
    return out
