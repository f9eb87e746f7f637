"""The trained model of a run as a file for other programs.

The suffix chooses the format. Every file is read back and compared with the run's own model before it gets its name.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from everfed.arrays import Inputs, each, taken
from everfed.checks import check_file
from everfed.errors import InputError, extra, first_line, unknown, warn
from everfed.learning.calling import outputs_of
from everfed.run.live import Live
from everfed.store.files import StoreError, commit
from everfed.store.reading import StoredRun
from everfed.store.rebuild import made_up
from everfed.versions import package_version

_COMPARED = 8  # samples
_ABSOLUTE, _RELATIVE = 1e-4, 1e-3  # other programs add in another order


def export_model(
    run: StoredRun,
    path: str | Path,
    module: nn.Module | None = None,
    *,
    inputs: Inputs | None = None,
    force: bool = False,
) -> Path:
    """Write the trained model of a finished run as .safetensors, .pt2 (torch.export) or .onnx; returns the path.

    run: from `open_run`.
    path: of the file; its suffix says the format.
    module: one like the trained one, where the folder holds only the weights of a model that was an object.
    inputs: at least two samples as the model sees them, to trace and to compare with: a tensor, or several by name.
        None: test samples of the run, or made-up ones where its data were objects or cannot be loaded.
    force: overwrite an existing file.

    >>> import tempfile, everfed as ef
    >>> data, fleet = ef.from_arrays([([[0.0], [1.0]], [0, 1])] * 2), ef.Fleet.from_cycles([1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = ef.simulate("logistic", data, fleet, rounds=4, batch_size=2, out=f"{folder}/run")
    ...     ef.export_model(run, f"{folder}/model.safetensors").stat().st_size > 0
    True
    """
    target = check_file(path)
    if target.suffix not in FORMATS:
        raise InputError(unknown("suffix", target.suffix or target.name, FORMATS))
    if target.exists() and not force:
        raise InputError(f"'{target}' exists; choose another name, or overwrite it with --force (force=True).")
    write = FORMATS[target.suffix]
    about = _about(run)
    with _room(target) as unfinished:
        if write is _safetensors:
            _safetensors(run, unfinished, about)
        else:
            made = run.model(module)
            given = _examples(run) if inputs is None else inputs
            with torch.no_grad(), _quiet():
                read_back = write(made, given, unfinished, about)
                _compare(made, read_back, given, target)
        commit(unfinished, target)
    return target


def _about(run: StoredRun) -> dict[str, str]:
    """What a file says of itself, as texts."""
    known = run.environment.get("model", {})
    built_for = known.get("built_for", {})
    told = {
        "run": run.name,
        "method": run.experiment.method,
        "rounds": run.model_round,
        "inputs": known.get("inputs"),  # after scaling and cropping, with the batch as first axis
        "input_shape": built_for.get("shape"),
        "task": built_for.get("task"),
        "classes": built_for.get("classes"),
    }
    return {"everfed": package_version("everfed") or "", **{name: _text(value) for name, value in told.items()}}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextmanager
def _room(target: Path) -> Iterator[Path]:
    """A place for an unfinished file on the target's disk; whatever is left there is removed."""
    room = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(prefix=".everfed-", dir=target.parent))
        yield room / target.name
    except OSError as error:
        said = error.strerror or first_line(error)
        raise StoreError(f"'{target}' cannot be written: {said}. Choose another place.") from error
    finally:
        if room:
            shutil.rmtree(room, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch tells about its own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _examples(run: StoredRun) -> Inputs:
    """A few samples as the model sees them."""
    if not isinstance(run.experiment.data, Live):
        try:
            data = run.experiment.make_data(run.experiment.make_fleet())
            x = data.test_x if len(data.test_y) else data.x  # type: ignore[union-attr]
            few = each(torch.tensor, taken(x, slice(_COMPARED)))
            return each(lambda part: data.augment.evaluate(part).contiguous(), few)
        except (OSError, InputError) as error:
            warn(f"the run's data cannot be loaded ({first_line(error)}); the export is compared on made-up inputs.", 3)
    if "model" not in run.environment:
        raise InputError("the run's data are not at hand; pass some as inputs: export_model(run, path, inputs=x).")
    return made_up(run.environment["model"]["inputs"], _COMPARED)


def _safetensors(run: StoredRun, path: Path, about: dict[str, str]) -> None:
    """The state_dict; a program that knows the architecture loads it."""
    params = run.trained()
    save_file({name: value.contiguous() for name, value in params.items()}, path, metadata={"format": "pt", **about})
    found = load_file(path)
    with safe_open(path, framework="pt") as file:
        same = file.metadata()["run"] == about["run"]
    if not same or found.keys() != params.keys() or not all(torch.equal(found[name], params[name]) for name in params):
        raise StoreError(f"'{path.name}' reads back as something else than was written; it is not kept.")


def _plain(module: nn.Module, inputs: Inputs) -> nn.Module:
    """The module, or one around it that names its inputs and returns the outputs alone, as tracing wants it."""
    names = list(inputs) if isinstance(inputs, dict) else []
    known = inspect.signature(module.forward).parameters
    copies = each(torch.clone, inputs)  # since a model may change its inputs in place
    if all(name in known for name in names) and isinstance(module(**copies) if names else module(copies), Tensor):
        return module

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Tensor, **named: Tensor) -> Tensor:
            return outputs_of(self.module, named or args[0])

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in ("self", *(names or ["x"]))])
    Plain.forward.__signature__ = signature  # type: ignore[attr-defined]
    return Plain()


def _traced(module: nn.Module, inputs: Inputs) -> torch.export.ExportedProgram:
    """The module's computation, for batches of any size."""
    batch = torch.export.Dim.DYNAMIC
    args, named = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
    shapes: Any = {name: {0: batch} for name in named} or ({0: batch},)
    try:
        return torch.export.export(_plain(module, inputs), args, named, dynamic_shapes=shapes)
    except Exception as error:  # the user's own module, which may do anything
        raise InputError(
            f"the model cannot be traced by torch.export: {first_line(error)}; export its weights, as .safetensors."
        ) from error


def _pt2(module: nn.Module, inputs: Inputs, path: Path, about: dict[str, str]) -> Callable[[Inputs], Tensor]:
    torch.export.save(_traced(module, inputs), path, extra_files={"everfed.json": json.dumps(about)})
    again = torch.export.load(path).module()
    return lambda given: outputs_of(again, given)


def _onnx(module: nn.Module, inputs: Inputs, path: Path, about: dict[str, str]) -> Callable[[Inputs], Tensor]:
    onnx = extra("onnx", "an export to ONNX needs", "onnx")
    extra("onnxscript", "an export to ONNX needs", "onnx")
    traced = _traced(module, inputs)
    try:
        program = torch.onnx.export(traced, dynamo=True, verbose=False, external_data=False)
        assert program is not None
        program.save(str(path), external_data=False)
    except Exception as error:  # an operation that ONNX does not have, say
        raise InputError(f"the model cannot be converted to ONNX: {first_line(error)}; export it as .pt2.") from error
    model = onnx.load(str(path))
    onnx.helper.set_model_props(model, about)
    onnx.save(model, str(path))
    evaluator = extra("onnx.reference", "an export to ONNX needs", "onnx").ReferenceEvaluator(str(path))

    def run(given: Inputs) -> Tensor:
        named = given if isinstance(given, dict) else {evaluator.input_names[0]: given}
        return torch.from_numpy(evaluator.run(None, {name: value.numpy() for name, value in named.items()})[0])

    return run


def _compare(module: nn.Module, read_back: Callable[[Inputs], Tensor], inputs: Inputs, target: Path) -> None:
    """Both on the samples together, and on the first alone, since a batch may have any size."""
    for given in (inputs, taken(inputs, slice(1))):
        # Copies, since a model may change its inputs in place.
        try:
            ours = outputs_of(module, each(torch.clone, given))
        except Exception as error:
            raise InputError(
                f"the model fails on the samples to compare with ({first_line(error)}); pass some as inputs: "
                "export_model(run, path, inputs=x)."
            ) from error
        try:
            theirs = read_back(each(torch.clone, given))
            alike = torch.allclose(ours, theirs, atol=_ABSOLUTE, rtol=_RELATIVE)
        except Exception as error:
            raise InputError(f"'{target.name}' does not run once it is read back: {first_line(error)}.") from error
        if not alike:
            off = (ours - theirs).abs().max().item()
            raise InputError(f"'{target.name}' computes something else than the model, up to {off:.3g} off.")


FORMATS: dict[str, Callable[..., Any]] = {".safetensors": _safetensors, ".pt2": _pt2, ".onnx": _onnx}
