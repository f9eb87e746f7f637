"""A worker process: what it does with tasks, signals, and the end of its parent.

Light to import: signals are heeded before PyTorch is imported, which takes seconds.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

from everfed.errors import EverfedWarning, InputError, first_line
from everfed.studies.signals import SIGNALS, heeding

_PR_SET_PDEATHSIG = 1


def serve(pipe: Connection, threads: int) -> None:
    """A worker's life. The parent sends tasks, one at a time, or nothing: during a task that means to save and end."""
    asked: list[int] = []  # signals
    under_way = False

    def heed(number: int, frame: Any) -> None:
        if not under_way:
            os._exit(128 + number)
        asked.append(number)

    def stop() -> bool:
        return bool(asked) or pipe.poll()

    def say(kind: str, said: Any = None) -> None:
        try:
            pipe.send((kind, said))
        except OSError:  # the parent is dead
            os._exit(1)

    def tell_under_way(rounds: bool) -> None:
        nonlocal under_way
        under_way = rounds
        say("under way", rounds)

    with heeding(heed):
        _end_with_parent()
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        import torch

        torch.set_num_threads(threads)
        warnings.simplefilter("ignore", EverfedWarning)  # the parent has said them once
        say("ready")
        while not asked and (message := _received(pipe)):
            try:
                work, task = _loaded(message)
                work(*task, lambda said: say("told", said), stop, tell_under_way)
            except Exception as error:
                say("failed", _sendable(error))
            tell_under_way(False)
            if not stop():
                say("ready")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(128 + asked[0] if asked else 0)  # all is saved and said, and to take Python down would take a second


def _received(pipe: Connection) -> bytes:
    try:
        return pipe.recv_bytes()
    except (EOFError, OSError):
        return b""


def _loaded(message: bytes) -> Any:
    try:
        return pickle.loads(message)
    except Exception as error:
        raise InputError(
            f"jobs is above 1, and a worker process cannot load an object of the experiment ({first_line(error)}); "
            "define it in a module that can be imported, or leave jobs at 1."
        ) from error


def _sendable(error: Exception) -> Exception:
    """The error with the worker's traceback, which does not travel, as a note."""
    said = traceback.format_exc()
    if not isinstance(error, InputError):
        error.add_note(said)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(said)
    return error


def _end_with_parent() -> None:
    """Whatever ends the parent ends its workers: they would hold their folders, and wait for tasks for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, daemon=True).start()  # elsewhere, and if it is dead already


def _watch_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
