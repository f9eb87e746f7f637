"""Plugins: modules that register kinds, named in a file or on the command line, or installed.

An installed package names its module in the entry point group `everfed.plugins`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from everfed.errors import InputError, first_line, warn

GROUP = "everfed.plugins"


def load(names: Any, folders: Iterable[Path | str] = (), *, trusted: bool = True) -> None:
    """Import modules that register kinds. folders: where to look for them besides the installed ones.

    trusted: whether the current folder may be one of the places, as it is in a notebook.
    """
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f'plugins is {names!r}; it must be a list of modules, such as ["mylab"].')
    for name in names:
        if name in sys.modules:
            continue
        if not all(part.isidentifier() for part in name.split(".")):
            raise InputError(f"the plugin is '{name}'; give the name of an importable module, such as mylab.")
        with _looking_in(folders, trusted):
            try:
                importlib.import_module(name)
            except (Exception, SystemExit) as error:
                raise InputError(_why(name, error)) from error


def load_installed() -> None:
    """Import the plugins of installed packages, once; one that is broken is a warning."""
    complaints = import_installed()
    while complaints:
        warn(complaints.pop(0))


@cache
def import_installed() -> list[str]:
    """The same, returning the warnings."""
    complaints = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.value):
        try:
            load([entry.module])
        except InputError as error:
            package = entry.dist.name if entry.dist else "a package"
            complaints.append(f"the entry point '{entry.name}' of {package} is ignored: {error}")
    return complaints


class Needed:
    """Pickled before values whose classes plugins define, it loads them first where it is unpickled."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return load, (self.names, [folder for name in self.names for folder in _found_in(name)])


def _found_in(name: str) -> list[str]:
    """Where a loaded module lies: a process that stands elsewhere looks there too."""
    top = sys.modules.get(name.partition(".")[0])
    file = getattr(top, "__file__", None)
    return [str(Path(place).parent) for place in getattr(top, "__path__", [file] if file else [])]


@contextmanager
def _looking_in(folders: Iterable[Path | str], trusted: bool) -> Iterator[None]:
    """Installed modules come first, and what is loaded later does not look in these folders."""
    before = list(sys.path)
    added = [folder for folder in dict.fromkeys(map(str, folders)) if folder not in before]
    sys.path[:] = [place for place in before if trusted or place not in ("", ".")] + added
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _why(name: str, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{name}.".startswith(f"{missing}."):
        return (
            f"plugin '{name}' not found: no module '{missing}' is installed; install it, or run in its folder with "
            f"--plugin {name}."
        )
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return f"plugin '{name}' cannot be imported: {kind}{first_line(error)}."
