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
    """Bad input from the user; the message is meant to be read as it is.

    >>> import everfed as ef
    >>> ef.SGD(lr=-1.0)
    Traceback (most recent call last):
    ...
    everfed.errors.InputError: lr is -1.0; it must be a positive number.
    """


class MissingExtraError(InputError):
    """An optional dependency is needed; the message names the extra that brings it.

    >>> str(MissingExtraError("ONNX needs the extra: pip install 'everfed[onnx]'."))
    "ONNX needs the extra: pip install 'everfed[onnx]'."
    """


class DivergenceError(RuntimeError):
    """Training left the finite numbers; the message names the round and the clients.

    >>> import everfed as ef
    >>> data, fleet = ef.from_arrays([([[1e30]], [0.0])]), ef.Fleet.from_cycles([1])
    >>> ef.simulate(
    ...     "logistic", data, fleet, rounds=2, batch_size=1, client=ef.SGD(1e30)
    ... )  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    everfed.errors.DivergenceError: training diverged in round 0: the updates of client 0 are not finite. Lower the ...
    """


class ClusterError(RuntimeError):
    """A cluster failed where nothing in the input was wrong; the message says how to go on."""


class EverfedWarning(UserWarning):
    """Something legal but worth knowing, such as a horizon that no cycle divides.

    >>> import warnings, everfed as ef
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     plan = list(ef.plan(ef.Fleet.from_cycles([4]), "algorithm1", rounds=6))
    >>> said[0].category.__name__
    'EverfedWarning'
    """


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


def unknown(kind: str, name: object, valid: Iterable[str], inside: str = "") -> str:
    """The sentence for a name that is not among the valid ones. inside: what comes before all of them."""
    names, given = sorted(valid), str(name)[:200]
    # 'client_optimizer' means 'client' and not 'server_optimizer', whatever the share of equal letters.
    begins = [known for known in names if len(known) > 2 and given.startswith((f"{known}_", f"{known}-"))]
    near = begins or difflib.get_close_matches(given, names, n=1, cutoff=0.65)
    hint = f" Did you mean '{inside}{near[0]}'?" if near else ""
    listed = ", ".join(names) or "none, unless a plugin brings one"
    return f"unknown {kind} '{inside}{given}'.{hint} Valid: {listed}."


def close_to(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that another one is probably a slip of; None if it is a name of its own."""
    near = difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.8)
    return near[0] if near else None


def shown(value: object) -> str:
    """A value in an error: whole if it is short."""
    try:
        text = repr(value)
    except Exception:  # such as an integer of more digits than Python prints
        text = f"a {type(value).__name__}"
    if hasattr(type(value), "_card"):  # it describes itself in several lines, the first of which is a title
        text = text.partition("\n")[0]
    return text if len(text) <= 80 else f"{text[:60]}...{text[-10:]}"


def counted(number: int, what: str) -> str:
    """'1 seed', '5 seeds'."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"  # NumPy's truth values do not multiply texts


def some(items: Iterable[object], limit: int = 5) -> str:
    """'3, 7, 9 and 12 more': a long list of culprits, short enough for one sentence."""
    everything = list(items)
    shown = ", ".join(str(item) for item in everything[:limit])
    return shown if len(everything) <= limit else f"{shown} and {len(everything) - limit} more"
