"""What a model is to predict: a class, a class per position, several labels, or numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from everfed.arrays import parts
from everfed.errors import InputError, some, warn

CLASSIFICATION, NEXT_TOKEN, MULTILABEL, REGRESSION = "classification", "next-token", "multilabel", "regression"
AUTO = "auto"  # follows from the targets
TASKS = (CLASSIFICATION, NEXT_TOKEN, MULTILABEL, REGRESSION)

# A position without a target, such as padding; torch's own value for it.
IGNORED = -100


def task_of(y: npt.NDArray[Any], classes: int) -> str:
    """The task of plain labels (`plain.labels`) if it is not named. classes: 0 for regression."""
    if y.dtype.kind == "b":
        return MULTILABEL
    if not classes:
        return REGRESSION
    if y.dtype.kind != "i" or y.ndim != 2:
        return CLASSIFICATION
    if y.size and set(np.unique(y)) <= {0, 1}:
        raise InputError(
            f"the labels are 0 and 1 in rows of {y.shape[1]}: name the task, 'multilabel' or 'next-token'; for a class "
            "per sample give its number, not one-hot rows."
        )
    return NEXT_TOKEN


def warn_of_labels(y: npt.NDArray[Any]) -> None:
    """Say that targets which look like labels make a regression, unless a regression was asked for."""
    if y.dtype.kind == "f" and y.size and set(np.unique(y[:1000])) <= {0.0, 1.0} and set(np.unique(y)) == {0.0, 1.0}:
        warn(
            "the targets are floats that are all 0 or 1, which makes the task a regression; for labels name "
            "task='multilabel', for classes give whole numbers, and if it is meant, task='regression'.",
            3,
        )


def warn_of_copies(x: Any, y: npt.NDArray[Any]) -> None:
    """Say that tokens are to be predicted which the model sees at the same position."""
    for part in parts(x).values():
        if part.dtype.kind == "i" and part.shape == y.shape and y.size and (part == y)[y != IGNORED].all():
            warn(
                "every target equals the input at its position; targets are not shifted for you: for the next token "
                "give x = tokens[:, :-1] and y = tokens[:, 1:].",
                3,
            )


def as_targets(y: npt.NDArray[Any], task: str) -> npt.NDArray[Any]:
    """Plain labels in the type that the task's loss takes."""
    return y.astype(np.float32) if task in (MULTILABEL, REGRESSION) and y.dtype.kind in "bi" else y


def classes_in(y: npt.NDArray[Any], *others: npt.NDArray[Any], task: str = AUTO) -> int:
    """The number of classes in these labels; 0 for regression."""
    if task == AUTO:
        task = task_of(y, int(y.dtype.kind != "f"))
    if task == REGRESSION:
        return 0
    if task == MULTILABEL:
        return y.shape[1] if y.ndim == 2 else 0
    return int(max(labels.max(initial=0) for labels in (y, *others))) + 1


def check_targets(y: npt.NDArray[Any], classes: int, task: str, where: str) -> None:
    """Refuse targets that the task cannot have. where: 'training', 'test', or whose they are."""
    if task == REGRESSION:
        if not np.isfinite(y).all():
            bad = np.flatnonzero(~np.isfinite(y.reshape(len(y), -1)).all(axis=1))
            raise InputError(f"the target of {where} sample {some(bad)} is NaN or infinite.")
    elif task == MULTILABEL:
        _check_multilabel(y, classes, where)
    elif task == NEXT_TOKEN:
        _check_tokens(y, classes, where)
    else:
        check_labels(y, classes, where)


def check_labels(y: npt.NDArray[Any], classes: int, where: str) -> None:
    if y.dtype.kind == "f" and len(y):
        raise InputError(f"the {where} labels are floats; classes are whole numbers, such as y.astype(int).")
    if y.ndim != 1:
        raise InputError(
            f"the {where} labels have shape {y.shape}; give one class number per sample, not one-hot rows."
        )
    bad = np.flatnonzero((y < 0) | (y >= classes))
    if len(bad):
        raise InputError(
            f"the label of {where} sample {some(bad)} is {y[bad[0]]}; "
            f"labels of {classes} classes run from 0 to {classes - 1}."
        )


def _check_tokens(y: npt.NDArray[Any], classes: int, where: str) -> None:
    if y.dtype.kind != "i" or y.ndim != 2:
        raise InputError(
            f"the {where} targets are {y.dtype} of shape {y.shape}; for next tokens give whole numbers, one per "
            "position: (samples, length)."
        )
    counts = y != IGNORED
    bad = np.argwhere(counts & ((y < 0) | (y >= classes)))
    if len(bad):
        sample, place = bad[0]
        raise InputError(
            f"the target of {where} sample {sample} at position {place} is {y[sample, place]}; a vocabulary of "
            f"{classes} runs from 0 to {classes - 1}, and {IGNORED} stands for no target."
        )
    empty = np.flatnonzero(~counts.any(axis=1))
    if len(empty):
        raise InputError(
            f"the targets of {where} sample {some(empty)} are all {IGNORED}, that is ignored; leave out samples "
            "without a target."
        )


def _check_multilabel(y: npt.NDArray[Any], classes: int, where: str) -> None:
    if y.ndim != 2 or y.shape[1] != classes:
        raise InputError(
            f"the {where} targets have shape {y.shape}; for several labels give (samples, {classes}), 1 where a "
            "label applies and 0 where not."
        )
    bad = np.flatnonzero(((y != 0) & (y != 1)).any(axis=1))
    if len(bad):
        raise InputError(f"the labels of {where} sample {some(bad)} are not all 0 or 1, as several labels must be.")
