"""`everfed check`: verify run folders and repair what can be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everfed.cli import options as o
from everfed.cli.runs import Folders, found_in
from everfed.cli.screen import Screen, table
from everfed.errors import counted
from everfed.store.check import check_run


@o.grouped
def check(
    folders: Folders = None,
    repair: Annotated[
        bool, typer.Option("--repair/--no-repair", help="Write again what other files tell; or only look.")
    ] = True,
    plugin: o.Plugin = None,
    *,
    screen: Screen,
) -> None:
    """Compare every file of the runs in a folder (default: everfed-out) with its digest, and repair what can be.

    A result is written again from the records, a model from the last checkpoint, and what interrupted writes left is
    removed. What stays damaged is named, and the exit code is then 1: the command that made the run makes it again.

    Example: everfed check everfed-out/compare
    """
    o.load_plugins(plugin)
    verdicts = [check_run(path, repair) for path in found_in(screen, folders or [Path("everfed-out")])]
    if screen.as_json:
        screen.json([{**vars(verdict), "path": str(verdict.path)} for verdict in verdicts])
    else:
        out = table(counted(len(verdicts), "run"), ("run", "state", "found"), left=("run", "state", "found"))
        for verdict in verdicts:
            said = [*(f"repaired: {what}" for what in verdict.repaired), *verdict.damaged]
            out.add_row(str(verdict.path), verdict.state, "\n".join(said) or "whole")
        screen.out.print(out)
    if any(verdict.damaged for verdict in verdicts):
        raise typer.Exit(1)
