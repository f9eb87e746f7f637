"""A study of many runs: one line of a results file each, within a time limit, by processes that share a device.

A line is written when its run ends; what is there is not done again. With a time limit, no run is started that
would not fit, going by how long its like have taken; one that overruns all the same is given up and leaves no
trace. What differs between studies is a `Study`. Only numpy and torch are needed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol

import torch

from everfed.data.dataset import Dataset
from everfed.errors import EverfedWarning

SLACK = 1.2  # a run may take this much longer than the slowest of its like
Line = dict[str, Any]


class Run(Protocol):
    """One run: a value that tells it from all others of its study."""

    @property
    def name(self) -> str: ...

    @property
    def like(self) -> dict[str, Any]:
        """The part of a line that says how long such a run takes."""
        ...


class Study(Protocol):
    """What there is to do, and how a run of it is done. It is sent to every process, so keep it small."""

    def read(self, results: Path) -> dict[str, Line]:
        """The lines of a results file that belong to this study, by name."""
        ...

    def runs(self, done: Mapping[str, Line]) -> Sequence[Any]:
        """Every run that is known so far, the most telling first."""
        ...

    def total(self) -> int: ...

    def load(self) -> Any:
        """The data, once in every process."""
        ...

    def execute(self, data: Any, run: Any, deadline: float) -> Line | None:
        """Do one run; None if the deadline (of time.time) came first."""
        ...

    def told(self, line: Line) -> str:
        """What came out, in a few words for the screen."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A data set that is in memory already, in the place of its source."""

    dataset: Dataset

    def load(self) -> Dataset:
        return self.dataset


def rounded(value: Any) -> float:
    return round(float(value), 5)


# ---- the results file ----


def append(results: Path, line: Line) -> None:
    """One line more, on the disk before the next run starts; a line cut off by a kill is closed first."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("ab+") as file:
        torn = file.tell() > 0 and (file.seek(-1, 2), file.read(1))[1] != b"\n"
        file.write(b"\n" * torn + json.dumps(line).encode() + b"\n")


def read_lines(results: Path) -> list[Line]:
    """All lines of a results file, in their order."""
    lines = []
    for text in results.read_text().splitlines() if results.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            print("a line of the results file was cut off and is left out", flush=True)
    return lines


def by_name(lines: Iterable[Line]) -> dict[str, Line]:
    """In the order of their names, since runs that share a device end in any order; the last of a name counts."""
    return {line["name"]: line for line in sorted(lines, key=lambda a: a["name"])}


def read(results: Path, settings: Mapping[str, Any] | None = None) -> dict[str, Line]:
    """The lines of a results file by name: those with these settings, or with those of the last line."""
    lines = read_lines(results)
    wanted = settings or (lines[-1]["settings"] if lines else None)
    return by_name(line for line in lines if line["settings"] == wanted)


def write_json(out: Path, settings: Any, runs: Iterable[Mapping[str, Any]]) -> None:
    """The runs in short as JSON, one a line, so that a change to one run is a change to one line."""
    listed = ",\n  ".join(json.dumps(run) for run in runs)
    out.write_text(f'{{"settings": {json.dumps(settings)},\n "runs": [\n  {listed}\n]}}\n')


# ---- tables ----


def percent(values: Sequence[float]) -> str:
    """Mean ± standard deviation of fractions, in per cent; a single value has no spread."""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


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


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ---- many runs ----

_study: Study  # in a worker process: set when it starts
_data: Any


def _end_with_parent() -> None:
    """A killed parent leaves its workers waiting for work that never comes."""
    parent = parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _start(study: Study) -> None:
    global _study, _data
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore", EverfedWarning)
    torch.set_num_threads(1)  # the processes share the cores as they share the GPU
    _study, _data = study, study.load()


def _work(run: Run, deadline: float) -> Line | None:
    return _study.execute(_data, run, deadline)


class Here(Executor):
    """One run after the other in this process, where starting another would gain nothing."""

    def __init__(self, study: Study) -> None:
        self.study, self.data = study, study.load()

    def submit(self, work: Any, run: Run, deadline: float) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_result(self.study.execute(self.data, run, deadline))
        return future


def executor(study: Study, jobs: int) -> Executor:
    if jobs == 1:
        return Here(study)
    # Spawned, not forked: a forked child of a process that has used CUDA cannot use it.
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_start, initargs=(study,))


def fitting(runs: Iterable[Any], done: Mapping[str, Line], left_s: float) -> Any | None:
    """The first run that the time left is enough for, as far as one can tell."""
    for run in runs:
        wanted = run.like.items()
        like = [line["seconds"] for line in done.values() if all(line[key] == value for key, value in wanted)]
        like = like or [line["seconds"] for line in done.values()]
        if left_s > 0 and SLACK * max(like, default=0.0) <= left_s:
            return run
    return None


def carry_out(study: Study, results: Path, jobs: int = 1, limit_s: float = math.inf) -> dict[str, Line]:
    """Do what is still to do, within the limit; returns all lines by name, those of earlier calls included."""
    began = time.time()
    deadline = began + limit_s
    done = study.read(results)
    total = study.total()

    def finished() -> int:
        return sum(run.name in done for run in study.runs(done))

    print(f"{finished()} of {total} runs are done already", flush=True)

    def keep(line: Line | None, run: Run) -> None:
        if line is None:
            print(f"{time.time() - began:6.0f} s  given up, out of time: {run.name}", flush=True)
            return
        append(results, line)
        done[run.name] = line
        now = f"{time.time() - began:6.0f} s  {finished()}/{total}  {run.name}"
        print(f"{now}  {study.told(line)}  ({line['seconds']:.0f} s)", flush=True)

    with executor(study, jobs) as pool:
        pending: dict[Future[Line | None], Run] = {}
        while True:
            while len(pending) < jobs:
                waiting = [r for r in study.runs(done) if r.name not in done and r not in pending.values()]
                run = fitting(waiting, done, deadline - time.time())
                if run is None:
                    break
                pending[pool.submit(_work, run, deadline)] = run
            if not pending:
                break
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                keep(future.result(), pending.pop(future))
    left = sum(run.name not in done for run in study.runs(done))  # more may follow from what these find
    print(f"{left} runs or more are left: start this again" if left else "all runs are done", flush=True)
    return study.read(results)


# ---- the command line ----


def parser(about: str | None, commands: Sequence[str], results: str) -> argparse.ArgumentParser:
    """The options that every study has."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("command", choices=commands)
    made.add_argument("--results", type=Path, default=Path(results))
    made.add_argument("--out", type=Path, help="the file that is written; run and table need none")
    made.add_argument("--limit-s", type=float, default=math.inf, help="seconds after which this call must be over")
    made.add_argument("--jobs", type=int, default=1, help="processes that share the device")
    return made


def write_out(
    parser: argparse.ArgumentParser, options: argparse.Namespace, writers: Mapping[str, Callable[[Path, Path], None]]
) -> bool:
    """Write the file that the command asks for, if it is one that writes a file."""
    if options.command not in writers:
        return False
    if options.out is None:
        parser.error(f"{options.command} needs --out")
    writers[options.command](options.results, options.out)
    return True
