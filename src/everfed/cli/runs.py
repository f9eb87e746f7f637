"""`everfed report`, `figure` and `presets`: show runs and presets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from everfed import presets
from everfed.cli import options as o
from everfed.cli.screen import Debug, Screen, TextScreen
from everfed.errors import InputError
from everfed.report.distinct import distinct
from everfed.report.figure import KINDS, figure
from everfed.report.lines import lines
from everfed.report.notes import notes
from everfed.report.page import page
from everfed.run import config
from everfed.run.schema import schema
from everfed.store import StoredRun, Unreadable, find_runs, open_runs

Folders = Annotated[list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Run folders, or folders of them.")]


@o.grouped
def make_report(
    folders: Folders = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    plugin: o.Plugin = None,
    *,
    screen: TextScreen,
) -> None:
    """Write a self-contained HTML report: curves, energy groups, which clients trained when, tables.

    The page works offline.

    Example: everfed report everfed-out/compare -o report.html
    """
    found = _open(screen, folders, plugin)
    path = page(found, output, title)
    for note in notes(distinct(found), lines(found)):
        screen.note(note)
    screen.out.print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


@o.grouped
def make_figure(
    folders: Folders = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .pdf, .png or .svg file.")] = Path("figure.pdf"),
    title: Annotated[str | None, typer.Option(help="A line above the panels.")] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="curves: over time, as in the paper; sweep: the last evaluation against each setting that was varied; "
            "auto: a sweep if there is one.",
            click_type=click.Choice(KINDS),
        ),
    ] = "auto",
    plugin: o.Plugin = None,
    *,
    screen: TextScreen,
) -> None:
    """Draw runs for print: the paper's figure, or what the settings of a sweep do.

    Example: everfed figure everfed-out/compare -o figure.pdf
    """
    screen.out.print(str(figure(_open(screen, folders, plugin), output, title, kind)))


def _open(screen: TextScreen, folders: list[Path] | None, named: list[str] | None) -> list[StoredRun]:
    """The readable runs in folders, at least one; a note explains why others cannot be read."""
    o.load_plugins(named)
    runs, unreadable = open_runs(found_in(screen, folders or [Path("everfed-out")]))
    if not runs:
        raise InputError(f"none of the {len(unreadable)} runs there can be read; {_why(unreadable[0])}")
    tell_unreadable(screen, unreadable)
    return runs


def tell_unreadable(screen: TextScreen, unreadable: list[Unreadable]) -> None:
    for one in unreadable:
        screen.note(_why(one))


def _why(one: Unreadable) -> str:
    return f"'{one.path}' cannot be read: {one.reason}"


def found_in(screen: TextScreen, folders: list[Path], none_is_fine: bool = False) -> list[Path]:
    """The run folders in folders, each once."""
    found: dict[Path, Path] = {}  # by resolved path, so that links count once

    def slow(seen: int) -> None:
        screen.note(f"looking for runs: {seen:,} folders so far.")

    def closed(error: OSError) -> None:
        screen.note(f"the folder '{error.filename}' cannot be read: {error.strerror}.")

    for folder in folders:
        if not folder.is_dir() and (folder.exists() or not none_is_fine):
            raise InputError(f"there is no folder '{folder}'.")
        again = 0
        for path in find_runs(folder, slow, closed):
            again += path.resolve() in found
            found.setdefault(path.resolve(), path)
        if again:
            screen.note(f"'{folder}' contains {again} run{'s' * (again > 1)} of the folders before it; counted once.")
    if not found and not none_is_fine:
        raise InputError(f"there are no runs in {', '.join(map(str, folders))}; create some with everfed run.")
    return list(found.values())


presets_app = typer.Typer(help="Built-in experiments, to run or to start from.", invoke_without_command=True)


@presets_app.callback()
def list_presets(context: typer.Context) -> None:
    """List the built-in experiments.

    Example: everfed presets show digits > mine.toml
    """
    if context.invoked_subcommand is None:
        width = max(map(len, presets.texts()))
        for name, text in presets.texts().items():
            typer.echo(f"{name:<{width}}  {presets.about(text)}")


@presets_app.command("show")
def show_preset(
    name: Annotated[str, typer.Argument(help="A preset's name.")],
    full: Annotated[bool, typer.Option("--full", help="Include every default.")] = False,
    debug: Debug = False,
) -> None:
    """Print a preset as TOML, to start your own experiment file from."""
    content = presets.content(name)
    # Keys that are not fields of Experiment are kept as they are.
    own = {key: value for key, value in content.items() if key in ("methods", "tuned_on")}
    content = {key: value for key, value in content.items() if key not in own}
    whole = {"format": config.FORMAT, **config.to_dict(config.from_dict(content)), **own}
    typer.echo(config.raw_to_toml(whole) if full else presets.texts()[name], nl=False)


@presets_app.command("schema")
def show_schema(plugin: o.Plugin = None) -> None:
    """Print the JSON Schema of experiment files, for editors that complete and check TOML."""
    o.load_plugins(plugin)
    Screen().json(schema())
