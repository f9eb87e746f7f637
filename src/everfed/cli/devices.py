"""`everfed devices`: a fleet's server, its devices' keys, its certificates, and a check on the device.

Imports nothing heavy: `check` runs on small devices, and a key is registered in a second.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everfed.cli.paragraphs import with_flowing_help
from everfed.cli.spoken import printable, spoken
from everfed.errors import InputError

if TYPE_CHECKING:
    from everfed.flower.fleet_folder import FleetFolder

devices_app = typer.Typer(
    help="A fleet of devices on Flower: its server, keys, certificates, and checks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Fleet = Annotated[Path, typer.Option("--fleet", "-f", help="The fleet's folder on the server.")]
Client = Annotated[int, typer.Argument(help="The client's number, from 0.", min=0)]
Key = Annotated[Path | None, typer.Option("--key", help="Its public key; default: that of its bundle.")]
_FLEET = Path("fleet")
_STATES = {
    "registered": "never seen",
    "unregistered": "was removed before, and needs a new key",
    "unknown": "not told to SuperLink yet",
}


class Step(StrEnum):
    """What to do with the certificates."""

    show = "show"
    renew = "renew"
    begin = "begin"
    switch = "switch"
    retire = "retire"


@devices_app.command("init")
def init(
    address: Annotated[str, typer.Argument(help="Where devices reach the server, such as fleet.example:8000.")],
    fleet: Fleet = _FLEET,
    name: Annotated[list[str] | None, typer.Option(help="Another name or address of the server; repeatable.")] = None,
    control_port: Annotated[
        int, typer.Option(help="SuperLink's port on 127.0.0.1; default: one above the address's.")
    ] = 0,
) -> None:
    """Make a fleet's folder on the server, with a certificate authority of its own.

    Example: everfed devices init fleet.example:8000
    """
    from everfed.flower.fleet_folder import FleetFolder

    made = FleetFolder.make(fleet, address, name or (), control_port)
    _say(f"{made.path} is the fleet's folder; keep certificates/ca.key secret. Next: everfed devices serve")


@devices_app.command("serve")
def serve(
    fleet: Fleet = _FLEET,
    host: Annotated[str, typer.Option(help="The address of this machine on which devices are served.")] = "0.0.0.0",
    most_mib: Annotated[int, typer.Option(help="The longest call of a device, in MiB.", min=6)] = 32,
) -> None:
    """Run the fleet's server until it is stopped: SuperLink for this machine alone, and a door for the devices.

    Keys and certificates may change while it runs.
    """
    from everfed.flower.serve import serve as run

    run(_open(fleet), host, most_mib)


@devices_app.command("bundle")
def bundle(
    client: Client,
    fleet: Fleet = _FLEET,
    key_on_device: Annotated[
        bool, typer.Option("--key-on-device", help="Put no key in: the device makes its own ('everfed devices key').")
    ] = False,
    node_config: Annotated[str, typer.Option(help="More for Flower's node configuration, as in 'cycle=20'.")] = "",
    folder: Annotated[str, typer.Option(help="Where it is unpacked on the device.")] = "/var/lib/everfed",
    programs: Annotated[str, typer.Option(help="The environment on the device with everfed.")] = "/opt/everfed",
) -> None:
    """Make the archive that is carried to a device: key, authority, configuration, service and start script.

    Example: everfed devices bundle 7
    """
    from everfed.flower.bundle import make_bundle

    found = _open(fleet)
    made = make_bundle(found, client, with_key=not key_on_device, folder=folder, programs=programs, config=node_config)
    word = "replace" if (found.keys / f"{client}.pub").exists() else "register"
    rest = " --key KEY.pub, with the device's key" if key_on_device else ""
    _say(f"{made} is for client {client}'s device. Next: everfed devices {word} {client}{rest}")


@devices_app.command("register")
def register(client: Client, key: Key = None, fleet: Fleet = _FLEET) -> None:
    """Let a device in: at once, and into the rounds of a running app, too.

    Example: everfed devices register 7
    """
    _enrol(_open(fleet), client, key, replace=False)


@devices_app.command("replace")
def replace(client: Client, key: Key = None, fleet: Fleet = _FLEET) -> None:
    """Exchange a client's key: from now on the new one is its own, and the old one nobody's."""
    _enrol(_open(fleet), client, key, replace=True)


@devices_app.command("remove")
def remove(client: Client, fleet: Fleet = _FLEET) -> None:
    """Send a device away: it is not asked again, and cannot connect. Its key is never accepted again."""
    found = _open(fleet)
    found.expel(client)
    _say(f"client {client} is removed{_told(found)}")


@devices_app.command("list")
def show(
    fleet: Fleet = _FLEET, as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False
) -> None:
    """Every client with a key, and whether its device is online."""
    states = _open(fleet).states()
    if as_json:
        typer.echo(json.dumps({str(client): state for client, state in states.items()}))
    else:
        for client, state in states.items():
            _say(f"{client:>6}  {_STATES.get(state, state)}")


@devices_app.command("certificates")
def certificates(
    step: Annotated[Step, typer.Argument(help="show, renew, begin, switch or retire.")] = Step.show,
    fleet: Fleet = _FLEET,
    name: Annotated[list[str] | None, typer.Option(help="With renew: the server's names, instead of today's.")] = None,
) -> None:
    """The server's certificate and the authority; without a restart.

    [bold]renew[/bold]: a new server certificate from the same authority. A new authority takes three steps:
    [bold]begin[/bold] adds it to ca.crt, which devices fetch when they start; [bold]switch[/bold], once all have,
    lets it issue the server's certificate; [bold]retire[/bold] drops the old one.
    """
    from everfed.flower import certificates as made

    folder = _open(fleet).certificates
    if name and step is not Step.renew:
        raise InputError("--name is for renew.")
    if step is Step.renew:
        made.issue_server(folder, name or ())
    elif step is not Step.show:
        getattr(made, step.value)(folder)
    server = made.read(folder / made.SERVER)[0]
    _say(f"server: {', '.join(made.server_names(folder))}; {made.days_left(server):.0f} days left")
    for authority in made.read(folder / made.CA):
        word = "issues" if authority.subject == server.issuer else "is trusted"
        _say(f"authority {authority.serial_number:x} {word}; {made.days_left(authority):.0f} days left")


@devices_app.command("key")
def key_command(folder: Annotated[Path, typer.Argument(help="The device's folder.")] = Path()) -> None:
    """On the device: make its key, if it has none. Prints the public half, which the server needs."""
    from everfed.flower.identity import make_key

    public = folder / "key.pub"
    if not (folder / "key").exists():
        public = make_key(folder / "key")
    _say(public.read_text(encoding="utf-8").strip())


@devices_app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="The device's folder.")] = Path(),
    update: Annotated[bool, typer.Option("--update", help="Take over new authorities from the server.")] = False,
) -> None:
    """On the device: can its node join? Looks at key, clock, name, certificate and disk; exits with 2 if not."""
    from everfed.flower.device_check import Device, check

    for note in check(Device.open(folder), update=update):
        _say(note)


def _open(path: Path) -> FleetFolder:
    from everfed.flower.fleet_folder import FleetFolder

    return FleetFolder.open(path)


def _enrol(fleet: FleetFolder, client: int, key: Path | None, *, replace: bool) -> None:
    chosen = key or fleet.bundles / f"{client}.pub"
    if not chosen.exists():
        raise InputError(
            f"there is no key '{chosen}'; give the device's with --key, or make one: everfed devices bundle {client}"
        )
    fleet.enrol(client, chosen, replace=replace)
    _say(f"client {client} is {'registered with its new key' if replace else 'registered'}{_told(fleet)}")


def _told(fleet: FleetFolder) -> str:
    """Tell SuperLink; if it does not run, it will look when it starts."""
    from everfed.flower.fleet_folder import NotServingError

    try:
        fleet.synchronise()
    except NotServingError:
        return "; the server does not run, and takes it over when it starts"
    return ""


def _say(text: str) -> None:
    typer.echo(printable(text))


def main() -> None:
    """`everfed devices` alone."""
    with spoken():
        with_flowing_help(devices_app)(args=sys.argv[2:], prog_name="everfed devices")
