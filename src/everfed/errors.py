"""The one exception users meet, and the helpers that make its message useful.

Every refusal says what is wrong, where, and what would be right, in one sentence. The
command line prints that sentence and exits with 2; the library raises it as a ValueError.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from importlib import import_module
from typing import Any


class InputError(ValueError):
    """Bad input from the user; the message is meant to be read as it is."""


class MissingExtraError(InputError):
    """An optional dependency is needed; the message names the extra that brings it."""


class DivergenceError(RuntimeError):
    """Training left the finite numbers; the message names the round and the clients."""


class ClusterError(RuntimeError):
    """A cluster failed where nothing in the input was wrong; the message says how to go on."""


class EverfedWarning(UserWarning):
    """Something legal but worth knowing, such as a horizon that no cycle divides."""


def warn(message: str, stacklevel: int = 1) -> None:
    """stacklevel: how many frames up the reported line is; 1: the call of the caller."""
    warnings.warn(message, EverfedWarning, stacklevel=stacklevel + 2)


def extra(module: str, what: str, name: str) -> Any:
    """Import a module that an extra installs, or raise an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"{what} the extra: pip install 'everfed[{name}]'.") from error


def first_line(error: BaseException) -> str:
    """The first line of another library's error, without a full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
    """The sentence for a name that is not among the valid ones."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"unknown {kind} '{name}'.{hint} Valid: {', '.join(names) or 'none, unless a plugin brings one'}."


def counted(number: int, what: str) -> str:
    """'1 seed', '5 seeds'."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def some(items: Iterable[object], limit: int = 5) -> str:
    """'3, 7, 9 and 12 more': a long list of culprits, short enough for one sentence."""
    everything = list(items)
    shown = ", ".join(str(item) for item in everything[:limit])
    return shown if len(everything) <= limit else f"{shown} and {len(everything) - limit} more"
