"""`everfed fleets`: fleets of devices to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from everfed.cli.screen import Debug
from everfed.presets import about
from everfed.registry import lookup
from everfed.run.files import fleet_texts

fleets_app = typer.Typer(help="Fleets of devices to start from, as files.", invoke_without_command=True)


@fleets_app.callback()
def list_fleets(context: typer.Context) -> None:
    """List fleets to start from.

    A fleet file describes devices, radios, sites and groups in watts, watt-hours, joules and seconds. Use it with
    --fleet, or in an experiment as fleet = "mine.toml".

    Example: everfed fleets show two-cities > mine.toml, then: everfed plan --fleet mine.toml --rounds 24
    """
    if context.invoked_subcommand is None:
        texts = fleet_texts()
        width = max(map(len, texts))
        for name, text in texts.items():
            typer.echo(f"{name:<{width}}  {about(text)}")


@fleets_app.command("show")
def show_fleet(
    name: Annotated[str, typer.Argument(help="A fleet's name.")],
    debug: Debug = False,
) -> None:
    """Print a fleet as TOML, with units in comments, to start your own fleet file from."""
    typer.echo(lookup(fleet_texts(), name, "fleet"), nl=False)
