"""The command and its subcommands."""

from __future__ import annotations

import sys
from itertools import pairwise

import typer

from everfed.cli import advise, bound, check, data, devices, export, fleet, fleets, listing, new, run, runs, sweep, tune
from everfed.cli.paragraphs import with_flowing_help
from everfed.cli.spoken import spoken
from everfed.errors import InputError
from everfed.store import StoreError

_TAKE_FOLDERS = ("runs", "report", "figure", "check", "export")

app = typer.Typer(
    name="everfed",
    help="Federated learning for devices that harvest their energy.\n\n"
    "Start with [bold]everfed compare[/bold]: the paper's comparison on included data, in under a minute.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compare")(sweep.compare)
app.command("run")(run.run)
app.command("sweep")(sweep.sweep_command)
app.command("tune")(tune.tune_command)
app.command("runs")(listing.runs)
app.command("check")(check.check)
app.command("report")(runs.make_report)
app.command("figure")(runs.make_figure)
app.command("export")(export.export)
app.command("new")(new.new)
app.add_typer(runs.presets_app, name="presets")
app.add_typer(fleets.fleets_app, name="fleets")
app.add_typer(data.data_app, name="data")
app.add_typer(devices.devices_app, name="devices")
app.command("plan")(fleet.plan)
app.command("audit")(fleet.audit)
app.command("advise")(advise.advise)
app.command("bound")(bound.bound)
with_flowing_help(app)


def version(show: bool) -> None:
    if show:
        from everfed import __version__

        typer.echo(f"everfed {__version__}")
        raise typer.Exit


@app.callback()
def root(
    show_version: bool = typer.Option(
        False, "--version", callback=version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """The command, with all its subcommands."""
    with spoken(StoreError):
        _refuse_empty_paths(sys.argv[1:])
        app()


def _refuse_empty_paths(given: list[str]) -> None:
    """An empty text would mean the current folder, but is mostly a variable of the shell that is not set."""
    for before, text in pairwise(["", *given]):
        named = before in ("--out", "-o", "--output") or (before in given[:1] and before in _TAKE_FOLDERS)
        if (text == "" and named) or text in ("--out=", "--output="):
            raise InputError(
                f"the path after '{before if text == '' else text}' is empty; write . for the current folder."
            )
