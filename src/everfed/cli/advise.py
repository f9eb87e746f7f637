"""`everfed advise`: which group of devices is starved, why, and what to change first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from everfed.advising.advise import advise as run_advise, promised
from everfed.checks import Count, CountOrZero, check_file
from everfed.cli import options as o
from everfed.cli.advice import show
from everfed.cli.outlook import fresh_pilot, outlook_of, stored_pilot, tell as tell_outlook, with_rounds_of
from everfed.cli.screen import PANEL, Screen
from everfed.energy.physical import DeviceFleet
from everfed.errors import InputError
from everfed.report.advice_page import advice_page
from everfed.run import config
from everfed.run.history import History
from everfed.store.files import write_atomically

_SIZES, _PRICES, _PILOT = "Sizes", "Prices", "Expected accuracy"


@o.takes_experiment("two-cities", tuple(s for s in o.SHORT if s.flag in ("--rounds", "--local-steps")))
def advise(
    raw: dict[str, Any],
    source: str,
    target_weight: Annotated[
        float,
        "(0, 1]",
        typer.Option(help="Weight that every group shall have; 1 is unbiased.", rich_help_panel=_SIZES),
    ] = 0.99,
    years: Annotated[
        CountOrZero,
        typer.Option(help="Years drawn from the supply, to judge sizes by; 0: as given.", rich_help_panel=_SIZES),
    ] = 20,
    sure: Annotated[
        float,
        "(0, 1]",
        typer.Option(help="Share of these years in which the target must be reached.", rich_help_panel=_SIZES),
    ] = 0.9,
    cycle: Annotated[
        int | None,
        "[1, 2147483647]",
        typer.Option(
            help="Promise asked of every group: one training per so many rounds (default: as the file sets, or as the "
            "mean supply allows).",
            show_default=False,
            rich_help_panel=_SIZES,
        ),
    ] = None,
    rounds_per_day: Annotated[
        float | None,
        "(0, inf)",
        typer.Option(help="The same as rounds of a device per day.", show_default=False, rich_help_panel=_SIZES),
    ] = None,
    price_wp: Annotated[
        float | None,
        "[0, inf)",
        typer.Option(help="Price of a watt-peak of panel.", show_default=False, rich_help_panel=_PRICES),
    ] = None,
    price_wh: Annotated[
        float | None,
        "[0, inf)",
        typer.Option(help="Price of a watt-hour of battery.", show_default=False, rich_help_panel=_PRICES),
    ] = None,
    budget: Annotated[
        float | None,
        "[0, inf)",
        typer.Option(help="What may be spent on the fleet.", show_default=False, rich_help_panel=_PRICES),
    ] = None,
    trace_wp: Annotated[
        list[str] | None,
        typer.Option(
            "--trace-wp",
            metavar="GROUP=WP",
            help="Size of the panel behind a group's recorded trace, to price it. Repeatable.",
            rich_help_panel=_PRICES,
        ),
    ] = None,
    times: Annotated[Count, typer.Option(help="How often the model shall have seen every group.")] = 100,
    pilot: Annotated[
        Path | None,
        typer.Option(
            help="Folder of stored runs of your data and model: what accuracy to expect after 30, 90 and 365 days.",
            show_default=False,
            rich_help_panel=_PILOT,
        ),
    ] = None,
    pilot_experiment: Annotated[
        str | None,
        typer.Option(
            "--experiment",
            help="Experiment file or preset whose first rounds are trained on this fleet, as a pilot.",
            show_default=False,
            rich_help_panel=_PILOT,
        ),
    ] = None,
    pilot_rounds: Annotated[
        Count, typer.Option(help="Rounds of the pilot of --experiment.", rich_help_panel=_PILOT)
    ] = 60,
    metric: Annotated[
        str, typer.Option(help="What to expect of the pilot: accuracy, loss, f1, ...", rich_help_panel=_PILOT)
    ] = "accuracy",
    page: Annotated[
        Path | None,
        typer.Option(
            help="Also write one HTML page with pictures and sliders, which works offline.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Also write the result as JSON to this file; as a page if it ends in .html.",
            show_default=False, rich_help_panel=PANEL,
        ),
    ] = None,
    *,
    screen: Screen,
) -> None:  # fmt: skip
    """Who is starved, why, and which panel or battery to enlarge first.

    For fleets of devices (fleet.kind = "devices"), under Algorithm 1: rounds a day, skipped slots and their causes,
    energy flows, and the smallest panel, battery and pair that bring each group to the target weight. The horizon is a
    year unless the file or --rounds sets another.

    With a pilot, also what accuracy to expect and what a percent costs. --page writes it all as one HTML page, with
    sliders for panel, battery, local steps and upload.

    Example: everfed advise fleet.toml --price-wp 2 --price-wh 0.5 --budget 500 --page advice.html
    """
    file, page = _files(output, page)
    if pilot is not None and pilot_experiment is not None:
        raise InputError(
            "--pilot and --experiment are given; a pilot is either stored or trained, so give one of them."
        )
    stored = stored_pilot(pilot) if pilot is not None else None
    trial = o.load_experiment(pilot_experiment) if pilot_experiment is not None else None
    experiment = config.from_dict(raw)
    for tried in [run.experiment for run in stored or []][:1] + ([trial] if trial else []):
        experiment = with_rounds_of(tried, experiment, raw, screen)
    with screen.err.status("reading the fleet") as status:
        result = run_advise(
            experiment,
            rounds=experiment.rounds if "rounds" in raw else None,
            cycle=cycle,
            rounds_per_day=rounds_per_day,
            target_weight=target_weight,
            years=years,
            sure=sure,
            price_wp=price_wp,
            price_wh=price_wh,
            budget=budget,
            trace_wp=_by_group(trace_wp or []),
            times=times,
            on_progress=status.update,
        )
    runs: Sequence[History] | None = stored
    if trial is not None and isinstance(experiment.fleet, DeviceFleet):
        runs = [fresh_pilot(trial, promised(experiment.fleet, cycle, rounds_per_day), pilot_rounds, screen)]
    found = outlook_of(result, runs, metric) if runs else None
    text = json.dumps(result.to_dict() | ({"expected": found.to_dict()} if found else {}), indent=2)
    if page is not None:
        advice_page(result, page, found, f"Advice for {Path(source).stem}")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text + "\n")
    if screen.as_json:
        print(text)
        return
    show(screen, result)
    if found:
        tell_outlook(screen, found)
    if page is not None:
        screen.note(f"the page: {page}")
    if file is not None:
        screen.note(f"the result as JSON: {file}")


def _files(output: Path | None, page: Path | None) -> tuple[Path | None, Path | None]:
    """(of the JSON, of the page), both checked before anything is computed."""
    if output is not None and output.suffix in (".html", ".htm"):
        if page is not None and page != output:
            raise InputError(f"--page is '{page}' and --output '{output}', two pages; give one of them.")
        output, page = None, output
    return tuple(None if path is None else check_file(path) for path in (output, page))  # type: ignore[return-value]


def _by_group(texts: list[str]) -> dict[str, float]:
    """['roof=20'] as {'roof': 20.0}."""
    found = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            name = ""
        if not name:
            raise InputError(f"--trace-wp is '{text}'; write GROUP=WP, such as roof=20.")
    return found
