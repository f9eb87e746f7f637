"""What a device needs to join, in one archive: its key, the authority, its configuration, a service and its script."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
import tempfile
from pathlib import Path

from everfed.errors import InputError
from everfed.flower.certificates import CA
from everfed.flower.fleet_folder import FleetFolder
from everfed.flower.identity import make_key, write_secret

_START = """\
#!/bin/sh
# Starts this device's node, after a look at whether it can join. More options of flower-supernode may follow.
cd "$(dirname "$0")" || exit 1
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
everfed devices check --update . || exit 1
exec flower-supernode --superlink {server} --root-certificates ca.crt --auth-supernode-private-key key \\
    --node-config {config} "$@"
"""

# Restart=always: after a power cut SuperLink keeps the key's old session, and refuses a new one, for up to a minute.
_SERVICE = """\
[Unit]
Description=everfed client {client}
After=network-online.target time-sync.target
Wants=network-online.target

[Service]
User=everfed
Environment=PATH={programs}/bin:/usr/bin:/bin
ExecStart={folder}/start.sh
Restart=always
RestartSec=15

[Install]
WantedBy=multi-user.target
"""


def make_bundle(
    fleet: FleetFolder,
    client: int,
    *,
    with_key: bool = True,
    folder: str = "/var/lib/everfed",
    programs: str = "/opt/everfed",
    config: str = "",
) -> Path:
    """Write bundles/CLIENT.tar, and with a key of the device bundles/CLIENT.pub beside it; returns the archive.

    folder: where it is unpacked on the device; programs: the environment there that everfed is installed in; config:
    more for Flower's node configuration, as in 'cycle=20 data="/srv/data"'.
    """
    if client < 0:
        raise InputError(f"clients are numbered from 0; {client} is none.")
    state = f"{folder}/state"
    node = f"client={client} state-dir={json.dumps(state)} {config}".strip()
    about = f"client = {client}\nserver = {json.dumps(fleet.address)}\nstate-dir = {json.dumps(state)}\n"
    files = {
        "device.toml": (about.encode(), 0o644),
        "ca.crt": ((fleet.certificates / CA).read_bytes(), 0o644),
        "start.sh": (_START.format(server=shlex.quote(fleet.address), config=shlex.quote(node)).encode(), 0o755),
        "everfed.service": (_SERVICE.format(client=client, programs=programs, folder=folder).encode(), 0o644),
    }
    fleet.bundles.mkdir(mode=0o700, exist_ok=True)
    public = fleet.bundles / f"{client}.pub"
    public.unlink(missing_ok=True)
    if with_key:
        with tempfile.TemporaryDirectory(dir=fleet.bundles) as room:
            made = make_key(Path(room) / "key")
            files["key"] = ((Path(room) / "key").read_bytes(), 0o600)
            files["key.pub"] = (made.read_bytes(), 0o644)
        public.write_bytes(files["key.pub"][0])
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, (data, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    target = fleet.bundles / f"{client}.tar"
    write_secret(target, content.getvalue())
    return target
