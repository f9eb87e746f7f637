"""What the studies share: runs that depend on one another, each a folder of a sweep; their JSON; and their tables.

A study says which runs there are, given what is known of those that have ended: a rate is chosen before it is used.
`everfed.studies.sweep` does them: what is done is not done again, what was cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from everfed.run.experiment import Experiment
from everfed.run.loop import Run
from everfed.store import StoredRun, open_run
from everfed.studies.sweep import Planned, Progress, folder_name, run_all

Record = dict[str, Any]  # a run in short: what it is, and its figures
Done = Mapping[str, Record]  # by name


class Description(Protocol):
    """A run of a study: a value that tells it from all others."""

    @property
    def name(self) -> str: ...


class Study(Protocol):
    def runs(self, done: Done) -> Sequence[Any]:
        """Every run that is known so far, the most telling first."""
        ...

    def experiment(self, run: Any) -> Experiment: ...

    def record(self, run: Any, stored: StoredRun) -> Record: ...

    def start(self, experiment: Experiment) -> Run:
        """Sets a run up; sent to other processes, so the study must be small."""
        ...


def planned(study: Study, run: Description, root: Path) -> Planned:
    experiment = study.experiment(run)
    return Planned(experiment, {"run": run.name}, root / folder_name(experiment))


def read(study: Study, root: Path) -> dict[str, Record]:
    """The runs of a study that have ended, by name."""
    done: dict[str, Record] = {}
    while True:
        known = {run.name: (run, planned(study, run, root).folder) for run in study.runs(done) if run.name not in done}
        ended = {name: of for name, of in known.items() if (of[1] / "result.json").exists()}
        if not ended:
            return dict(sorted(done.items()))
        done |= {name: study.record(run, open_run(folder)) for name, (run, folder) in ended.items()}


def carry_out(study: Study, root: Path, jobs: int = 1, limit_s: float = math.inf) -> dict[str, Record]:
    """Do what is still to do, within the limit; returns all runs that have ended, those of earlier calls included."""
    began = time.monotonic()

    def late() -> bool:
        return time.monotonic() - began > limit_s

    done = read(study, root)
    before = -1
    while len(done) > before:
        todo = [planned(study, run, root) for run in study.runs(done) if run.name not in done]
        print(f"{len(done)} runs are done, {len(todo) or 'none'} left that are known", flush=True)
        if not todo or late():
            break
        ended: set[int] = set()

        def tell(now: Progress, of: list[Planned] = todo, ended: set[int] = ended) -> None:
            if now.round == of[now.run].experiment.rounds and now.run not in ended:
                ended.add(now.run)
                found = "" if now.accuracy is None else f"  accuracy {100 * now.accuracy:.1f}"
                print(f"{time.monotonic() - began:6.0f} s  {now.note or of[now.run].label + found}", flush=True)

        run_all(todo, jobs=jobs, on_progress=tell, stop=late, make=study.start)
        before, done = len(done), read(study, root)
    return done


# ---- files ----


def rounded(value: float | None, digits: int = 6) -> float | None:
    """For JSON, which has no NaN."""
    return None if value is None or math.isnan(value) else round(float(value), digits)


def write_json(out: Path, settings: Any, runs: Iterable[Record]) -> None:
    """The runs in short as JSON, one a line, so that a change to one run is a change to one line."""
    listed = ",\n  ".join(json.dumps(run) for run in runs)
    out.write_text(f'{{"settings": {json.dumps(settings)},\n "runs": [\n  {listed}\n]}}\n')


def read_json(path: Path) -> list[Record]:
    """The runs of such a file; what is the late variation now was called wiggle."""
    runs = json.loads(path.read_text())["runs"]
    return [{"late_variation" if key == "wiggle" else key: value for key, value in run.items()} for run in runs]


def fill_page(page: Path, blocks: Mapping[str, str]) -> None:
    """Put tables into a page, each in the place of what stands between its name in a comment and the next one."""
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        before, mark, rest = text.partition(f"<!-- table: {name} -->")
        _, end, after = rest.partition("<!-- end -->")
        if not (mark and end):
            raise SystemExit(f"{page} has no place for a table: '<!-- table: {name} -->' and then '<!-- end -->'.")
        text = f"{before}{mark}\n\n{block}\n\n{end}{after}"
    page.write_text(text, encoding="utf-8")


# ---- tables ----


def percent(values: Sequence[float]) -> str:
    """Mean ± standard deviation of fractions, in per cent; a single value has no spread."""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ---- the command line ----


def parser(about: str | None, commands: Sequence[str], results: str) -> argparse.ArgumentParser:
    """The options that every study has."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("command", choices=commands)
    made.add_argument("--results", type=Path, default=Path(results), help="the folder of the runs, or JSON of them")
    made.add_argument("--out", type=Path, help="what is written; run and table need none")
    made.add_argument("--limit-s", type=float, default=math.inf, help="seconds after which runs are put off")
    made.add_argument("--jobs", type=int, default=1, help="processes that share the device")
    return made


def out_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Path:
    """The place to write to, for a command that does."""
    if options.out is None:
        parser.error(f"{options.command} needs --out")
    out: Path = options.out
    return out
