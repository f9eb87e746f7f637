"""A gateway that speaks for microcontrollers: it holds their keys and their nodes, they hold data, energy and trainer.

A board is asked over a plain line: text lines, and arrays of little-endian float32 with a checksum after some of them.
It speaks when it is spoken to, except for its first line:

    board    HELLO 7                                   the client that it is
    gateway  ENERGY                                    how many rounds does your energy pay for?
    board    ENERGY 1.25
    gateway  TRAIN round steps batch lr seed n         then n float32, and their CRC-32 (4 bytes, little-endian)
    board    DONE loss n                               then n float32 and their CRC-32, in the same order
    board    FAIL reason                               instead, in words

Lines end with \\n and have at most 200 bytes. `serve` takes boards over TCP; a serial port, opened for reading and
writing bytes, is a `Board`'s stream as well.
"""

from __future__ import annotations

import logging
import math
import socketserver
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from flwr.clientapp import ClientApp

from everfed.device.app import Parameters, Work
from everfed.device.runner import Habits, Runner
from everfed.device.session import Place
from everfed.errors import InputError
from everfed.flower.meters import MeterError

log = logging.getLogger("everfed.device")

_LONGEST = 200  # bytes of a line
_ANSWER_S = 10.0  # for a short answer


class BoardError(RuntimeError):
    """A board is away, or says something that the protocol does not have."""


class Board:
    """One microcontroller, as the gateway sees it: a meter, and a trainer for `device_app`."""

    def __init__(self, client: int, train_s: float = 600.0) -> None:
        """train_s: how long a round of training may take."""
        self.client, self.train_s = client, train_s
        self._stream: BinaryIO | None = None
        self._patience: Callable[[float], None] = lambda seconds: None
        self._turn = threading.Lock()  # one question at a time

    def attach(self, stream: BinaryIO, patience: Callable[[float], None] = lambda seconds: None) -> None:
        """Speak over this from now on. patience: sets how many seconds a read may take."""
        self._stream, self._patience = stream, patience

    def detach(self, stream: BinaryIO) -> None:
        if self._stream is stream:
            self._stream = None

    def uses(self, stream: BinaryIO) -> bool:
        return self._stream is stream

    def rounds(self) -> float:
        """The energy at hand, as a `Meter` says it."""
        try:
            said = self._ask(b"ENERGY\n", b"", _ANSWER_S)[0]
            value = float(said[1]) if said[0] == "ENERGY" and len(said) == 2 else math.nan
            if not 0.0 <= value < math.inf:
                raise BoardError(f"board {self.client} says '{' '.join(said)}' when it is asked for its energy")
            return value
        except (BoardError, ValueError) as error:
            raise MeterError(str(error)) from None

    def train(self, parameters: Parameters, data: Any, work: Work) -> tuple[Parameters, float]:
        flat = np.concatenate([value.reshape(-1) for value in parameters.values()]).astype("<f4")
        line = f"TRAIN {work.round} {work.local_steps} {work.batch_size} {work.lr!r} {work.seed} {len(flat)}\n"
        said, made = self._ask(line.encode(), flat.tobytes(), self.train_s, len(flat))
        if said[0] != "DONE" or made is None:
            raise BoardError(f"board {self.client} did not train: {' '.join(said)}")
        ends = np.cumsum([value.size for value in parameters.values()])[:-1]
        parts = zip(parameters.items(), np.split(made, ends), strict=True)
        return {name: part.reshape(value.shape) for (name, value), part in parts}, float(said[1])

    def _ask(self, line: bytes, body: bytes, seconds: float, expects: int = 0) -> tuple[list[str], Any]:
        """The words of the answer, and the array after it, if there is one."""
        with self._turn:
            stream = self._stream
            if stream is None:
                raise BoardError(f"board {self.client} is not connected")
            try:
                self._patience(seconds)
                stream.write(line + body + (_checksum(body) if body else b""))
                stream.flush()
                said = _line(stream)
                if said[0] != "DONE":
                    return said, None
                if len(said) != 3 or said[2] != str(expects) or not math.isfinite(float(said[1])):
                    raise BoardError(
                        f"board {self.client} says '{' '.join(said)}'; DONE, a loss and {expects} were expected"
                    )
                content = _exactly(stream, 4 * expects)
                if _exactly(stream, 4) != _checksum(content):
                    raise BoardError(f"the update of board {self.client} was damaged on its way")
                return said, np.frombuffer(content, "<f4").astype(np.float32)
            except (OSError, ValueError, BoardError) as error:
                self.detach(stream)  # what comes next could be the rest of this answer
                raise BoardError(str(error)) from None


def _line(stream: BinaryIO) -> list[str]:
    line = stream.readline(_LONGEST + 1)
    if not line.endswith(b"\n"):
        raise BoardError("the board left" if not line else "the board sent a line that does not end")
    words = line.decode("ascii", "replace").split()
    if not words:
        raise BoardError("the board sent an empty line")
    return words


def _exactly(stream: BinaryIO, size: int) -> bytes:
    content = stream.read(size)
    if len(content) != size:
        raise BoardError("the board left in the middle of an array")
    return content


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")


def serve(address: str, boards: Mapping[int, Board]) -> socketserver.ThreadingTCPServer:
    """Take the connections of boards, in threads, until the server's `shutdown`. A newer one replaces an older."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.connection.settimeout(_ANSWER_S)
            try:
                words = _line(self.rfile)  # type: ignore[arg-type]
            except (OSError, BoardError):
                return
            board = (
                boards.get(int(words[1])) if words[0] == "HELLO" and len(words) == 2 and words[1].isdigit() else None
            )
            if board is None:
                log.warning("%s says '%s' and is turned away", self.client_address[0], " ".join(words)[:_LONGEST])
                return
            stream: Any = self.connection.makefile("rwb")
            board.attach(stream, self.connection.settimeout)
            log.info("board %d is connected from %s", board.client, self.client_address[0])
            while board.uses(stream):
                time.sleep(0.2)
            stream.close()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise InputError(f"the address is '{address}'; it must be host:port, such as 127.0.0.1:7070.")
    server = Server((host, int(port)), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def run_gateway(
    listen: str,
    places: Mapping[int, Place],
    app_for: Callable[[Board], ClientApp],
    node_config: Mapping[str, Any],
    state_dir: Path,
    habits: Habits,
    stop: threading.Event,
) -> None:
    """One node per board, each with its own key and its own thread, until `stop` is set.

    app_for: makes a board's ClientApp, such as device_app(board.train, energy=Measured(board), ...).
    """
    boards = {client: Board(client) for client in places}
    runners = []
    for client, place in places.items():
        place.private_key()
        config = {**node_config, "client": client, "state-dir": str(state_dir / str(client))}
        runners.append(Runner(place, app_for(boards[client]), config, habits, stop))
    with serve(listen, boards) as server:
        threads = [threading.Thread(target=runner.run) for runner in runners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.shutdown()
