"""The signals that ask a process to stop. Light to import: until they are heeded, Python answers with a traceback."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def heeding(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Signals go to a handler, but for those that are ignored, as SIGHUP is below nohup."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heeded = {number: was for number, was in before.items() if was not in (signal.SIG_IGN, None)}
    if threading.current_thread() is not threading.main_thread():  # no other can change handlers
        heeded = {}
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in heeded.items():
            signal.signal(number, was)
