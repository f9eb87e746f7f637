"""Tasks in processes side by side: a lost process costs no other task, and none outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from time import monotonic, sleep
from typing import Any, NoReturn

from everfed.errors import InputError
from everfed.studies.signals import SIGNALS
from everfed.studies.worker import serve

# Spawned, not forked: a forked child of a process that has used torch's threads can hang.
_CONTEXT = multiprocessing.get_context("spawn")
_NAME = "everfed-worker"
_UNGUARDED = 97  # the exit code of a worker that was about to start workers while it imported the main script
_TICK_S = 0.1  # how often to ask whether to stop
_GROUP_S = 1.0  # how long after a worker its parent may get a signal that was sent to both

Tell = Callable[[Any], None]
OnLoss = Callable[[int, str, bool], None]  # (task, how its worker ended, whether it is done again)


@dataclass
class Crew:
    """Worker processes that call work(*task, tell, stop, under_way) for every task.

    work: calls under_way(True) once it would rather finish a round than be killed, asks `stop` after each, and passes
    what it has to tell to `tell`, here. Its errors are raised here, after the others have saved. A task whose worker is
    lost is done again, once.
    """

    work: Callable[..., None]
    tasks: Sequence[tuple[Any, ...]]
    order: Iterable[int]
    most: int  # workers
    threads: int  # of each
    tell: Tell
    on_loss: OnLoss
    stop: Callable[[], bool]

    def run(self) -> None:
        process = multiprocessing.current_process()
        if process.name == _NAME and getattr(process, "_inheriting", False):
            os._exit(_UNGUARDED)
        try:
            pickle.dumps((self.work, self.tasks))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"jobs is above 1, and an object of the experiment cannot be sent to another process ({error}); define "
                "it at the top level of a module, or leave jobs at 1."
            ) from error
        self.waiting, self.losses = deque(self.order), Counter[int]()
        self.workers: list[_Worker] = []
        try:
            self._work_off()
        except BaseException:
            if not self.stop():  # else it is the second Ctrl-C, which waits for nothing
                self._wind_down()
            raise
        finally:
            with _held_back():
                for worker in self.workers:
                    if worker.process.pid is not None:
                        worker.kill()

    def _work_off(self) -> None:
        """Until no task is left, or `stop` says so; then those under way finish their rounds and save."""
        while self.waiting or any(worker.task is not None for worker in self.workers):
            if self.stop():
                break
            while self.waiting and len(self.workers) < self.most:
                worker = _Worker(self.waiting.popleft(), self.threads)
                self.workers.append(worker)  # before it starts: whatever happens then, it can be killed
                worker.start()
            for worker in self._over():
                self._lost(worker)
        self._wind_down()

    def _wind_down(self) -> None:
        self.workers = [worker for worker in self.workers if worker.process.pid is not None]  # None: it cannot start
        for worker in self.workers:
            if worker.under_way or worker.task is None:
                worker.send(b"")
            else:
                worker.kill()
        while self.workers:
            with suppress(Exception):  # of one, which must not cost the others their last round
                self._over()

    def _over(self) -> list[_Worker]:
        """Listen to all for a moment; returns the workers that are dead, which are no longer of the crew."""
        wait([worker.pipe for worker in self.workers], _TICK_S)
        for worker in self.workers:
            for kind, said in worker.heard():
                if kind == "told":
                    self.tell(said)
                elif kind == "under way":
                    worker.under_way = said
                elif kind == "failed":
                    raise said
                else:  # ready for a task: the one it was started for, or another
                    if worker.ready:
                        worker.task = self.waiting.popleft() if self.waiting and not self.stop() else None
                    worker.ready = True
                    worker.send(b"" if worker.task is None else pickle.dumps((self.work, self.tasks[worker.task])))
        over = [worker for worker in self.workers if worker.over]
        self.workers = [worker for worker in self.workers if not worker.over]
        for worker in over:
            worker.process.join()
        return over

    def _lost(self, worker: _Worker) -> None:
        code = worker.process.exitcode or 0
        if not worker.ready and 0 < code < 128:
            _could_not_start(code)
        if worker.task is None:
            return
        until = monotonic() + _GROUP_S
        while not self.stop() and monotonic() < until:
            sleep(_TICK_S)
        if self.stop():
            return
        self.losses[worker.task] += 1
        again = self.losses[worker.task] == 1
        if again:
            self.waiting.appendleft(worker.task)
        self.on_loss(worker.task, _ending(code), again)


class _Worker:
    """A process, and the task that it is for."""

    def __init__(self, task: int, threads: int) -> None:
        self.task: int | None = task
        self.ready = self.under_way = self.over = False
        self.pipe, self._far = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=serve, args=(self._far, threads), name=_NAME)

    def start(self) -> None:
        if os.name == "posix":
            resource_tracker.ensure_running()  # it lets signals through where it is started
        with _held_back(), _importable_main():
            self.process.start()
            self._far.close()

    def send(self, message: bytes) -> None:
        with suppress(OSError):  # it is dead, as will be noticed
            self.pipe.send_bytes(message)

    def heard(self) -> Iterator[tuple[str, Any]]:
        """What it has said; afterwards `over` tells whether it is dead."""
        over = self.process.exitcode is not None  # asked first: nothing can be said after it
        try:
            while self.pipe.poll():
                yield self.pipe.recv()
        except (EOFError, OSError):
            over = True
        self.over = over

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _could_not_start(code: int) -> NoReturn:
    if code == _UNGUARDED:
        raise InputError(
            "with jobs above 1 the main script is imported by worker processes, so what starts them must stand below "
            '`if __name__ == "__main__":` in it; add that line, or leave jobs at 1.'
        )
    raise InputError(f"a worker process could not start (exit code {code}); its own error is above.")


def _ending(code: int) -> str:
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
    return name + (", perhaps for want of memory" if name == "SIGKILL" else "")


@contextmanager
def _held_back() -> Iterator[None]:
    """Signals wait: a process that is started meanwhile gets them once it heeds them, and not before."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _importable_main() -> Iterator[None]:
    """A script from standard input has the name of a file that is none, which no worker can import."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    absent = file is not None and getattr(main, "__spec__", None) is None and not os.path.exists(file)
    if absent:
        del main.__file__
    try:
        yield
    finally:
        if absent:
            main.__file__ = file
