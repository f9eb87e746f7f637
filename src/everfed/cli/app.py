"""The command: its subcommands, and the conversion of errors to messages."""

from __future__ import annotations

import io
import sys
from itertools import pairwise

import typer

from everfed.cli import bound, check, data, export, fleet, run, runs, sweep, tune
from everfed.cli.screen import printable
from everfed.errors import ClusterError, DivergenceError, InputError, first_line
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
app.command("runs")(runs.runs)
app.command("check")(check.check)
app.command("report")(runs.make_report)
app.command("figure")(runs.make_figure)
app.command("export")(export.export)
app.add_typer(runs.presets_app, name="presets")
app.add_typer(data.data_app, name="data")
app.command("plan")(fleet.plan)
app.command("audit")(fleet.audit)
app.command("bound")(bound.bound)


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
    """The command. Bad input prints one sentence to standard error and exits with code 2."""
    debug = "--debug" in sys.argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a path with characters that the terminal lacks must not end a run
    try:
        _refuse_empty_paths(sys.argv[1:])
        app()
    except InputError as error:
        if debug:
            raise
        print(f"everfed: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    except (ClusterError, DivergenceError, StoreError) as error:
        if debug:
            raise
        print(f"everfed: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(1) from None
    except BrokenPipeError:  # `everfed plan | head`
        sys.stderr.close()
        raise SystemExit(0) from None
    except (OSError, MemoryError) as error:  # a full disk, a folder without permission
        if debug:
            raise
        place = f"'{error.filename}': " if isinstance(error, OSError) and error.filename else ""
        said = (error.strerror if isinstance(error, OSError) else "") or first_line(error)
        print(f"everfed: {printable(place + said)}.", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:
        if debug:
            raise
        what = f"{type(error).__name__}: {first_line(error)}"
        print(
            f"everfed: {printable(what)}. This is a defect of everfed or of a plugin; --debug shows where.",
            file=sys.stderr,
        )
        raise SystemExit(70) from None


def _refuse_empty_paths(given: list[str]) -> None:
    """An empty text would mean the current folder, but is mostly a variable of the shell that is not set."""
    for before, text in pairwise(["", *given]):
        named = before in ("--out", "-o", "--output") or (before in given[:1] and before in _TAKE_FOLDERS)
        if (text == "" and named) or text in ("--out=", "--output="):
            raise InputError(
                f"the path after '{before if text == '' else text}' is empty; write . for the current folder."
            )
