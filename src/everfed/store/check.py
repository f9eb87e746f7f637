"""Verify a run's folder, and rebuild what its other files tell."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from everfed.errors import InputError
from everfed.run.early_stopping import course_of
from everfed.run.experiment import Experiment
from everfed.run.history import RoundRecord
from everfed.store.checkpoint import checkpoints, is_damaged, notes_about
from everfed.store.digests import Digests, write_of_run
from everfed.store.files import (
    DamagedError,
    ForeignError,
    StoreError,
    check_plain,
    digest,
    digest_of,
    disk_error,
    sweep_up,
    write_tensors,
)
from everfed.store.lock import Place, is_running
from everfed.store.reading import (
    damaged_traces,
    is_over,
    model_from_checkpoint,
    open_run,
    read_experiment,
    read_result,
    read_starts,
    reason,
    whole_model,
)
from everfed.store.records import whole_records


@dataclass(frozen=True)
class Verdict:
    """What was found in a run's folder. `state` is that of the run, or "running", "damaged" or "unreadable"."""

    path: Path
    state: str
    damaged: tuple[str, ...] = ()  # what is wrong and stays so
    repaired: tuple[str, ...] = ()


def check_run(folder: Path, repair: bool = True) -> Verdict:
    """Compare every file with its digest. repair: write again what others tell, and remove what was left behind."""
    try:
        check_plain(folder)
    except (OSError, DamagedError) as error:
        return Verdict(folder, "unreadable", (reason(error),))
    if is_running(folder):
        return Verdict(folder, "running")
    repaired: list[str] = []
    failure = ""
    try:
        if repair:
            try:
                repaired = repair_run(folder)
                for bad in filter(is_damaged, checkpoints(folder)):
                    bad.unlink(missing_ok=True)
                    repaired.append(f"removed the damaged checkpoint '{bad.name}'.")
            except (OSError, StoreError) as error:
                failure = reason(error)
        state, damaged = damage(folder)
    except Exception as error:  # a folder may hold anything
        return Verdict(folder, "unreadable", (reason(error),), tuple(repaired))
    if damaged and failure:
        damaged.append(f"it could not be repaired: {failure}")
    return Verdict(folder, state, tuple(damaged), tuple(repaired))


def damage(folder: Path) -> tuple[str, list[str]]:
    """(the run's state, what is damaged in its folder, in sentences)."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run = open_run(folder)
        except (DamagedError, ForeignError) as error:
            return "damaged", [reason(error)]
    bad = [f"the checkpoint '{path.name}' is damaged." for path in checkpoints(folder) if is_damaged(path)]
    bad += [f"the copied trace '{path}' is damaged or missing." for path in damaged_traces(run.experiment)]
    return run.state, [*(str(each.message) for each in said), *bad]


def repair_run(folder: Path, place: Place | None = None) -> list[str]:
    """Rebuild what can be without training; returns what was done. place: held by the caller, if it holds it."""
    try:
        held = place or Place(folder)
    except OSError as error:
        raise disk_error(folder, error) from error
    try:
        held.check()
        return list(_repairs(folder))
    except OSError as error:
        raise disk_error(folder, error) from error
    finally:
        if place is None:
            held.leave()


def _repairs(folder: Path) -> Iterator[str]:
    if freed := sweep_up(folder):
        yield f"removed {freed / 1e6:,.1f} MB that interrupted writes had left."
    if not (folder / "experiment.toml").exists():
        return
    digests = Digests(folder)
    if not digests.known and not _told(folder):
        return  # of an older version, whose files are as they are
    yield from _repair_digests(folder, digests)
    try:
        yield from _repair_environment(folder)
        ended = _is_whole(read_result, folder)
        experiment = read_experiment(folder)
    except (StoreError, InputError):  # told by whoever reads the folder next
        return
    rounds, complete = whole_records(folder)
    if not complete or not is_over(experiment, rounds):
        return
    if not _is_whole(whole_model, folder):
        model = model_from_checkpoint(folder, experiment, len(rounds))
        if model is None:  # without it the run is not done
            return
        save_model(folder, model)
        yield "the model was damaged or missing; it was written again, from the last checkpoint."
    if not ended:
        write_result(folder, experiment, rounds)
        yield "the result was damaged or missing; it was written again, from the records."


def _is_whole(read: Callable[[Path], object], folder: Path) -> bool:
    """Whether a file is there and as it was written; one of another run is an error."""
    try:
        return read(folder) is not None
    except (DamagedError, FileNotFoundError):
        return False


def _repair_environment(folder: Path) -> Iterator[str]:
    try:
        read_starts(folder)
    except DamagedError as error:
        path = folder / "environment.json"
        path.replace(path.with_suffix(".damaged"))
        write_of_run(folder, path.name, {"starts": []})
        yield f"{error}; it was moved to 'environment.damaged', and what it said of the run's starts is lost."


def _repair_digests(folder: Path, digests: Digests) -> Iterator[str]:
    """A file that is what the result or a checkpoint says is right, and `digests` wrong."""
    told = _told(folder)
    if told and told["experiment.toml"] not in digests.entries.get("experiment.toml", []):
        digests.entries = {}  # of another run, perhaps: none of its lines is relied on
    for name, (length, sha256) in told.items():
        path = folder / name
        if not path.exists() or (length, sha256) in digests.entries.get(name, []):
            continue
        if digest_of(path.read_bytes()[:length]) == sha256:
            digests.replace(name, [*digests.entries.get(name, []), (length, sha256)])
            yield f"'digests' was damaged; the entry of '{name}' was written again."


def _told(folder: Path) -> dict[str, tuple[int, str]]:
    """Lengths and digests of files according to the result, or else to the newest checkpoint of this experiment."""
    try:
        result = read_result(folder)
    except (DamagedError, ForeignError):
        result = None
    good = (notes_about(path) for path in checkpoints(folder) if not is_damaged(path))
    mine = digest(folder / "experiment.toml")
    for listed in ((about or {}).get("files", {}) for about in (result, *good)):
        if listed.get("experiment.toml", ["", ""])[1] == mine:
            return {name: (int(length), str(sha256)) for name, (length, sha256) in listed.items()}
    return {}


def write_result(folder: Path, experiment: Experiment, records: Sequence[RoundRecord]) -> None:
    """The word that a run is done, with the digests of its files. records: all of them, or only the last one if there
    is no early stopping."""
    entries, last, about = Digests(folder).entries, records[-1], {}
    of_model = last
    if experiment.early_stopping.part:
        course = course_of(experiment.early_stopping, records)
        of_model = records[course.kept(len(records)) - 1]
        about = {
            "stopped_early": len(records) < experiment.rounds,
            "rounds_done": len(records),
            "model_round": of_model.round + 1,
            "validation": of_model.validation.to_dict() if of_model.validation else None,
        }
    result = {
        "state": "done",
        "rounds": experiment.rounds,
        **about,
        "metrics": of_model.metrics.to_dict() if of_model.metrics else None,
        "energy": last.energy.to_dict(),
        "files": {name: listed[-1] for name, listed in entries.items() if listed},
    }
    write_of_run(folder, "result.json", result)


def save_model(folder: Path, model: dict[str, Tensor]) -> None:
    """Write the trained model. Its digest is there before it is."""
    written, sha256 = write_tensors(folder, "model.unfinished", model, {})
    Digests(folder).replace("model.safetensors", [(written.stat().st_size, sha256)])
    written.replace(folder / "model.safetensors")
