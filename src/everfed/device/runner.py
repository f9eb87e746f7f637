"""A node in one process: it reports, is asked, trains, answers, and sleeps until the server needs it again.

Flower's SuperNode keeps a server of its own and starts a process per message. Here the app that is installed on the
device runs in the process that holds the connection, and nothing that the server sends is executed.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
from flwr.app import Context, Error, Message, RecordDict

from everfed.device.session import Place, Session
from everfed.flower.sleep import spare_s
from everfed.flower.wire import RECORD

log = logging.getLogger("everfed.device")

_RAISED = 2  # Flower's error code of an app that raised
_BACK_OFF_S = (1.0, 60.0)  # the first wait after a failure, doubled up to the last
_EARLY_S = 3.0  # that a node wakes before its round begins,
_DRIFT = 0.002  # and this part of the time it slept: clocks of small devices drift
_FETCH_S = 5.0  # in which a server fetches a reply
_WORTH_S = 10.0  # shorter sleeps cost more than they save: to connect takes several exchanges
_NAP_S = 60.0  # at most, between two looks at the clock


class App(Protocol):
    """Flower's ClientApp, or anything that answers messages as it does."""

    def __call__(self, message: Message, context: Context) -> Message: ...


@dataclass(frozen=True)
class Habits:
    """How often a node speaks, and what that costs it.

    poll_s: the longest wait between two looks for messages; after an exchange it looks more often. check_in_s: the
    longest sleep without a look. j_per_question, j_per_poll: joules; the client reports their sum.
    """

    poll_s: float = 3.0
    check_in_s: float = 3600.0
    j_per_question: float = 0.0
    j_per_poll: float = 0.0


@dataclass
class Traffic:
    """Questions answered and looks for messages, since the state folder was made, and the node's number."""

    questions: int = 0
    polls: int = 0
    node: int = 0


@dataclass
class Runner:
    """A client's node. `stop` ends it: it leaves the server, once the message at hand is answered."""

    place: Place
    app: App
    node_config: Mapping[str, Any]
    habits: Habits = field(default_factory=Habits)
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        folder = self.node_config.get("state-dir")
        self.file = Path(os.path.expanduser(str(folder))) / "traffic.json" if folder else None
        self.traffic = Traffic(**_read(self.file))
        self.contexts: dict[int, Context] = {}
        self.failures = 0
        self.replied = -math.inf  # when the last reply was sent
        self.due = 0.0  # when the node is needed again, by `_now`; 0: not known

    def run(self) -> None:
        """Until `stop` is set."""
        while not self.stop.is_set():
            try:
                with Session(self.place, self.traffic.node) as session:
                    self.traffic.node = session.node.node_id
                    self._note()
                    log.info("connected as node %d", session.node.node_id)
                    while not self.stop.is_set():
                        self._serve(session)
                        self._sleep(session)
                    self._linger()
            except Exception as error:  # whatever a server or a network does, a device that gives up is lost
                self._back_off(error)
            self._note()

    def _serve(self, session: Session) -> None:
        """Answer messages until the node may sleep."""
        quiet = 0
        while not self.stop.is_set():
            try:
                heard = self._exchange(session)
                self.failures = 0
            except httpx.TransportError as error:  # the session outlives that; a new one would be refused for a minute
                self._back_off(error)
                continue
            if self.due - _now() > _WORTH_S:
                return
            # At first often: who said yes is sent a model next, and the next round may follow at once.
            quiet = 0 if heard else quiet + 1
            if not heard:
                self.stop.wait(min(self.habits.poll_s, 0.2 * 1.2**quiet) * random.uniform(0.9, 1.1))

    def _exchange(self, session: Session) -> bool:
        """Look for a message, and answer it; whether there was one."""
        self.traffic.polls += 1
        message = session.receive()
        if message is None:
            return False
        heard = _now()
        reply = self._answer(session, message)
        self._deliver(session, message, reply, _now() - heard)
        self.replied = time.monotonic()
        self._note()
        spare = _spare(message, reply)
        self.due = heard + spare if spare else 0.0
        return True

    def _answer(self, session: Session, message: Message) -> Message:
        """What the app says; an error of its own is an answer, too."""
        run, asked = message.metadata.run_id, message.metadata.message_type
        self.traffic.questions += asked.startswith("query")
        try:
            if run not in self.contexts:
                self.contexts = {run: Context(run, session.node.node_id, {}, RecordDict(), session.settings(run))}
            context = self.contexts[run]
            context.node_config = {**self.node_config, **self._spent()}
            began = time.monotonic()
            reply = self.app(message, context)
            log.info("round %s: answered '%s' in %.2f s", message.metadata.group_id, asked, time.monotonic() - began)
        except httpx.HTTPError:
            raise
        except Exception as error:  # an app's error must not end the node
            log.exception("the app could not answer '%s'", asked)
            reply = Message(Error(_RAISED, f"{type(error).__name__}: {error}"[:500]), reply_to=message)
        return reply

    def _spent(self) -> dict[str, float]:
        """Joules that were spent on being asked, for the client's books."""
        traffic, habits = self.traffic, self.habits
        joules = traffic.questions * habits.j_per_question + traffic.polls * habits.j_per_poll
        return {"asking-j": joules} if joules else {}

    def _deliver(self, session: Session, message: Message, reply: Message, seconds: float) -> None:
        """Send a reply; while the network fails, again and again until the server has stopped waiting for it."""
        wait = 1.0
        while True:
            try:
                return session.send(reply, seconds)
            except httpx.TransportError:
                left = message.metadata.created_at + message.metadata.ttl - time.time()
                if self.stop.is_set() or left < wait:
                    raise
            except httpx.HTTPStatusError as error:  # the run has ended, say
                log.warning("the server does not take the reply: status %d", error.response.status_code)
                return None
            self.stop.wait(wait * random.uniform(0.5, 1.0))
            wait = min(2.0 * wait, 15.0)

    def _back_off(self, error: Exception) -> None:
        """Wait after a failure: longer each time, and not all devices of a fleet at the same moment."""
        first, last = _BACK_OFF_S
        wait = min(first * 2.0**self.failures, last) * random.uniform(0.5, 1.0)
        self.failures += 1
        log.warning("%s; again in %.0f s", _words(error), wait)
        self.stop.wait(wait)

    def _linger(self) -> None:
        """Before the node leaves: of one that has left, the server fetches no reply."""
        time.sleep(max(self.replied + _FETCH_S - time.monotonic(), 0.0))

    def _sleep(self, session: Session) -> None:
        """Disconnected, until shortly before the round, or until it is time to look whether there is another run."""
        if self.stop.is_set():
            return
        session.pause()
        left = self.due - _now()
        wake = self.due - _EARLY_S - _DRIFT * left
        until = min(wake, _now() + self.habits.check_in_s)
        if until > _now():
            log.info("asleep for %.0f s", until - _now())
        while (left := until - _now()) > 0.0 and not self.stop.wait(min(left, _NAP_S)):
            pass
        if until == wake:
            self.due = 0.0
        if not self.stop.is_set():
            session.resume()

    def _note(self) -> None:
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.file.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(vars(self.traffic)), encoding="utf-8")
            os.replace(unfinished, self.file)


def _spare(message: Message, reply: Message) -> float:
    """Seconds until the round that a reply names begins, if the node need not be there before; otherwise 0."""
    if not (message.has_content() and reply.has_content()):
        return 0.0
    return spare_s(message.content.get(RECORD), reply.content.get(RECORD))


def _now() -> float:
    """Seconds, of a clock that goes on while the device is suspended, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _read(file: Path | None) -> dict[str, int]:
    """Counters as they were; from 0 again if the file is lost or damaged."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8")) if file else {}
        return {name: max(int(kept[name]), 0) for name in ("questions", "polls", "node") if name in kept}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _words(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"the server answers with status {error.response.status_code}: {error.response.text[:200]}"
    return f"{type(error).__name__}: {error}"
