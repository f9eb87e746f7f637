"""Errors as sentences: what the command prints where Python would print a traceback. Light to import."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from everfed.errors import ClusterError, DivergenceError, InputError, first_line

# Control characters but line breaks and tabs, marks that turn the direction of writing, and halves of characters, which
# stand for bytes of a file's name that are no text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with what a terminal would obey as escapes, such as \x1b: names come from files of others.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@contextmanager
def spoken(*failures: type[Exception]) -> Iterator[None]:
    """Bad input prints one sentence to standard error and exits with code 2, a failure with code 1.

    failures: others that are such, where nothing in the input was wrong.
    """
    debug = "--debug" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a path with characters that the terminal lacks must not end a run
    try:
        yield
    except BrokenPipeError:  # `everfed plan | head`
        sys.stderr.close()
        raise SystemExit(0) from None
    except Exception as error:
        if debug:
            raise
        code, said = _said(error, (ClusterError, DivergenceError, *failures))
        print(f"everfed: {printable(said)}", file=sys.stderr)
        raise SystemExit(code) from None


def _said(error: Exception, failures: tuple[type[Exception], ...]) -> tuple[int, str]:
    """The exit code and the sentence."""
    if isinstance(error, InputError):
        return 2, str(error)
    if isinstance(error, failures):
        return 1, str(error)
    if isinstance(error, OSError | MemoryError):  # a full disk, a folder without permission
        place = f"'{error.filename}': " if isinstance(error, OSError) and error.filename else ""
        what = (error.strerror if isinstance(error, OSError) else "") or first_line(error)
        return 2, f"{place}{what}."
    what = f"{type(error).__name__}: {first_line(error)}"
    return 70, f"{what}. This is a defect of everfed or of a plugin; --debug shows where."
