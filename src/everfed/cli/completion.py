"""Shell completion of commands, options, presets, methods, keys of --set and other names.

A shell asks for completions with every Tab. The names come from classes that need PyTorch, which takes seconds to
import, so they are kept in a small file in the cache folder, made anew when everfed or the installed packages change.
Nothing here imports more than click and typer while that file is good.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete

_PACKAGE = Path(__file__).parents[1]


def complete(variable: str) -> int:
    """Print what the shell asks for in this variable of the environment."""
    from typer._completion_classes import completion_init  # its classes for shells have no other door
    from typer.completion import shell_complete

    completion_init()
    instruction, command = os.environ[variable], _command("everfed", known())
    if instruction == "complete_bash":
        print("\n".join(_for_bash(command)))
        return 0
    return shell_complete(command, {}, "everfed", variable, instruction)


def known() -> dict[str, Any]:
    """All commands with their options and names, from the cache if it is good."""
    from platformdirs import user_cache_path

    path, mark = user_cache_path("everfed") / "completion.json", _mark()
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["mark"] == mark:
            return dict(found["command"])
    from everfed.cli.names import described

    made = described()
    with suppress(OSError):  # a home that cannot be written to: slow, but right
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"mark": mark, "command": made}), encoding="utf-8")
        new.replace(path)
    return made


def _mark() -> list[Any]:
    """Changes with the code of everfed, and with what is installed beside it, such as plugins."""
    latest = max(path.stat().st_mtime_ns for path in _PACKAGE.rglob("*.py"))
    beside = [os.stat(path).st_mtime_ns for path in sys.path if path.endswith("-packages") and os.path.isdir(path)]
    return [str(_PACKAGE), sys.version, latest, beside]


def _command(name: str, about: Mapping[str, Any]) -> click.Command:
    """A command of click that only completes."""
    params = [_param(one) for one in about["params"]]
    if "commands" in about:
        inner = {sub: _command(sub, one) for sub, one in about["commands"].items()}
        return click.Group(name, inner, params=params, help=about["help"])
    return click.Command(name, params=params, help=about["help"])


def _param(about: Mapping[str, Any]) -> click.Parameter:
    def names(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return list(_matching(about["values"], about["way"], incomplete))

    # Without names, click completes files.
    how: dict[str, Any] = {"shell_complete": names} if about["values"] else {}
    if about["argument"]:
        return click.Argument([about["name"]], required=False, nargs=about["nargs"], **how)
    return click.Option(
        [*about["opts"], about["name"]], is_flag=about["flag"], multiple=about["multiple"], help=about["help"], **how
    )


def _matching(values: Mapping[str, Any], way: str, incomplete: str) -> Iterator[CompletionItem]:
    """way: one name; "list", several with commas between; "setting", key=value; "grid", key=value,value."""
    if way == "list":
        before, comma, last = incomplete.rpartition(",")
        taken = before.split(",")
        for item in _matching({k: v for k, v in values.items() if k not in taken}, "one", last):
            yield CompletionItem(before + comma + item.value, help=item.help)
    elif way in ("setting", "grid"):
        key, equals, value = incomplete.partition("=")
        if not equals:
            yield from (CompletionItem(f"{name}=") for name in values if name.startswith(key))
            return
        rest = dict.fromkeys(values.get(key, ()), "")
        for item in _matching(rest, "list" if way == "grid" else "one", value):
            yield CompletionItem(f"{key}={item.value}")
    else:
        for name, about in values.items():
            if name.startswith(incomplete):
                yield CompletionItem(name, help=str(about) or None)


def _for_bash(command: click.Command) -> Sequence[str]:
    """Bash takes key=value for three words, and replaces the last of them alone."""
    from click.shell_completion import split_arg_string

    words = split_arg_string(os.environ["COMP_WORDS"])
    at = int(os.environ["COMP_CWORD"])
    before, current = words[1:at], words[at] if at < len(words) else ""
    glued = ""
    if current == "=" or (before and before[-1] == "="):
        glued = f"{before.pop()}=" if current == "=" else f"{before.pop(-2)}{before.pop()}"
        current = "" if current == "=" else current
    joined: list[str] = []
    for word in before:
        if word == "=" or (joined and joined[-1].endswith("=") and not joined[-1].startswith("--")):
            joined[-1] += word
        else:
            joined.append(word)
    items = ShellComplete(command, {}, "everfed", "").get_completions(joined, glued + current)
    return [item.value.removeprefix(glued) for item in items]
