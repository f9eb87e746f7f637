"""What the command does when it is asked to stop: by Ctrl-C, by SIGTERM, or because its terminal is closed (SIGHUP).

The exit code is 128 plus the signal's number, as in a shell. Light to import, so that signals are heeded before PyTorch
is imported, which takes seconds.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from everfed.studies.signals import heeding

if TYPE_CHECKING:
    from everfed.cli.screen import TextScreen

_RESUMING = ("run", "sweep", "compare", "tune")
_ONE_S = 0.03  # `timeout` and a terminal that closes may send one signal twice


def leave(number: int, frame: Any = None) -> NoReturn:
    """Exit at once. What is on the disk can be resumed; workers end with this process."""
    said = "everfed: stopped."
    if len(sys.argv) > 1 and sys.argv[1] in _RESUMING:
        said += f" Resume with:\n{resuming()}"
    with suppress(Exception):  # it may be in the middle of writing, or closed
        sys.stdout.flush()
    with suppress(OSError):
        shown = "\x1b[?25h\n" if os.isatty(2) else ""  # a progress display has hidden the cursor
        os.write(2, f"{shown}{said}\n".encode(errors="replace"))
    os._exit(128 + number)


def resuming() -> str:
    """The command that was given, which resumes."""
    return f"  everfed {shlex.join(sys.argv[1:])}"


class Stop:
    """The first signal ends the rounds that are under way after the current one; any other exits immediately."""

    def __init__(self, screen: TextScreen) -> None:
        self.screen = screen
        self.number: int | None = None  # the signal
        self.heard_at = 0.0
        self.rounds = False

    def __call__(self) -> bool:
        return self.number is not None

    def under_way(self, rounds: bool) -> None:
        """Whether there are rounds to finish and save."""
        self.rounds = rounds

    def __enter__(self) -> Stop:
        self.stack = ExitStack()
        self.stack.enter_context(heeding(self._heed))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def _heed(self, number: int, frame: Any) -> None:
        _drop_closed_terminal()
        if self.number is None and self.rounds:
            self.number, self.heard_at = number, time.monotonic()
            with suppress(Exception):  # as in `leave`
                self.screen.note("stopping after this round and saving; press Ctrl-C again to exit immediately.")
        elif time.monotonic() - self.heard_at > _ONE_S:
            leave(number)

    def exit(self, said: str) -> NoReturn:
        """After a stop: print how to resume, and exit."""
        self.screen.err.print(f"{said}\n{resuming()}", markup=False)
        raise SystemExit(128 + (self.number or signal.SIGINT))


def _drop_closed_terminal() -> None:
    """Output to a terminal that is gone fails, which must not keep a run from saving."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
