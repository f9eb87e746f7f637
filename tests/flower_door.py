"""A fleet's door on this machine, without Flower behind it, and calls to it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.client
import http.server
import socket
import ssl
import threading
import time

import uvicorn

from everfed.flower import certificates, serve
from everfed.flower.device_check import signed
from everfed.flower.door import Door
from everfed.flower.fleet_folder import FleetFolder
from everfed.flower.identity import read_private_key
from everfed.flower.testing import free_port


def make_fleet(folder):
    made = FleetFolder.make(folder, f"127.0.0.1:{free_port()}", ["localhost"], free_port())
    certificates.make_certificates(made.trust.parent, ["127.0.0.1"])  # as SuperLink has it when it runs
    return made


@contextlib.contextmanager
def listening(fleet):
    """The fleet's door, on its port; there is no SuperLink behind it. Its TLS context."""
    chain = fleet.certificates / "server.pem", fleet.certificates / "server.key"
    door = Door(fleet.control, fleet.trust, fleet.certificates, fleet.keys)
    config = serve.door_config(door, "127.0.0.1", int(fleet.address.split(":")[1]), *chain)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        _await(lambda: server.started)
        yield config.ssl
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def served(fleet):
    """The same as `everfed devices serve` opens it, with all that it looks after; the door itself."""
    running = [True]

    class SuperLink:
        def poll(self):
            return None if running else 0

    host, port = fleet.address.split(":")
    door = Door(fleet.control, fleet.trust, fleet.certificates, fleet.keys)
    thread = threading.Thread(target=lambda: asyncio.run(serve._open(fleet, door, host, int(port), SuperLink())))
    thread.start()
    try:
        _await(lambda: serve._listens(host, int(port)))
        yield door
    finally:
        running.clear()
        thread.join()


@contextlib.contextmanager
def superlink(fleet):
    """Something that answers in SuperLink's place: the calls that reach it, as (path, body)."""
    came = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            came.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_): ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(fleet.control.split(":")[1])), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(fleet.trust.parent / "server.pem", fleet.trust.parent / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def call(fleet, method, path, headers=None, body=b""):
    trusted = ssl.create_default_context(cafile=str(fleet.certificates / "ca.crt"))
    connection = http.client.HTTPSConnection(*fleet.address.split(":"), context=trusted, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def connected(fleet, context=None):
    """A TLS connection to the door, on which nothing has been said."""
    trusted = context or ssl.create_default_context(cafile=str(fleet.certificates / "ca.crt"))
    host, port = fleet.address.split(":")
    return trusted.wrap_socket(socket.create_connection((host, int(port)), timeout=30), server_hostname=host)


def proof(key, off_s=0.0):
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=off_s)
    return signed(read_private_key(key), moment.isoformat())


def _await(condition):
    until = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
