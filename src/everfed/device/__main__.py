"""The command of a small device: `python -m everfed.device run`, and `gateway` for microcontrollers."""

from __future__ import annotations

import argparse
import importlib
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from flwr.common.config import parse_config_args

from everfed.device.gateway import run_gateway
from everfed.device.runner import Habits, Runner
from everfed.device.session import Place
from everfed.errors import InputError


def main(words: list[str] | None = None) -> int:
    given = _parser().parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would tell every request
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        habits = Habits(given.poll_s, given.check_in_s, given.j_per_question, given.j_per_poll)
        made = _load(given.app)
        if given.command == "run":
            place = Place(given.superlink, given.key, given.root_certificates)
            config = {**_config(given), "client": given.client, "state-dir": str(given.state_dir)}
            place.private_key()  # what cannot get better is said at once
            place.authorities()
            Runner(place, made, config, habits, stop).run()
        else:
            keys = dict(_key(text) for text in given.key)
            places = {client: Place(given.superlink, key, given.root_certificates) for client, key in keys.items()}
            run_gateway(given.listen, places, made, _config(given), given.state_dir, habits, stop)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m everfed.device", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="one client's node, in one process")
    run.add_argument("--client", type=int, required=True, help="the client's number, from 0")
    run.add_argument("--key", type=Path, required=True, help="the node's private key, in OpenSSH's format")
    run.add_argument("app", help="module:name of the ClientApp")
    gateway = commands.add_parser("gateway", help="nodes of several microcontrollers, in one process")
    gateway.add_argument("--listen", default="127.0.0.1:7070", help="where the microcontrollers connect")
    gateway.add_argument("--key", action="append", required=True, help="client=path of its key; once per client")
    gateway.add_argument("app", help="module:name of the function that makes a board's ClientApp")
    for command in (run, gateway):
        command.add_argument("--superlink", required=True, help="host:port")
        command.add_argument("--root-certificates", type=Path, help="of the server's authority; default: the system's")
        command.add_argument("--state-dir", type=Path, required=True, help="what must survive a power cut")
        command.add_argument("--node-config", default="", help="'key=value ...', for the app")
        command.add_argument("--poll-s", type=float, default=Habits.poll_s, help="longest wait between two looks")
        command.add_argument("--check-in-s", type=float, default=Habits.check_in_s, help="longest sleep")
        command.add_argument("--j-per-question", type=float, default=0.0, help="joules, for the books")
        command.add_argument("--j-per-poll", type=float, default=0.0, help="joules, for the books")
    return parser


def _config(given: argparse.Namespace) -> dict[str, Any]:
    return dict(parse_config_args([given.node_config] if given.node_config else None))


def _key(text: str) -> tuple[int, Path]:
    client, _, path = text.partition("=")
    if not client.isdigit() or not path:
        raise InputError(f"--key is '{text}'; it must be client=path, such as 7=/var/lib/everfed/7.")
    return int(client), Path(path)


def _load(reference: str) -> Any:
    """An object by `module:name`, from this folder or from what is installed."""
    module, _, name = reference.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"the app '{reference}' cannot be loaded ({error}); give module:name.") from error


if __name__ == "__main__":
    sys.exit(main())
