"""Data that only the devices hold: what the server knows of them, and what it tells the devices.

No single client can know the number of classes, since it may lack some. The server knows it, from its test set or in
words, and tells it with the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from everfed.data.federated import FederatedData, from_arrays
from everfed.data.on_demand import OnDemand
from everfed.data.targets import AUTO
from everfed.errors import InputError
from everfed.flower.wire import CONFIG
from everfed.run.experiment import Experiment

Told = dict[str, Any]  # the task, and its number of classes


def sized(sizes: Sequence[int], test: Any, *, task: str = AUTO, classes: int | None = None) -> FederatedData:
    """What a server needs of data that it does not have: each client's number of samples, and a test set.

    test: one (x, y), or a list with one for each client, by which clients and energy groups are then evaluated.
    classes: their number, or the vocabulary of tokens; None: as many as there are in the test set.
    """
    counts = np.asarray(sizes)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or not len(counts) or counts.min() < 1:
        raise InputError(f"sizes is {sizes!r}; give each client's number of samples, a whole number of at least 1.")
    if test is None:
        raise InputError("sizes are given without a test set; give test=(x, y): a few samples show what data are like.")
    own = isinstance(test, list) and len(test) == len(counts)
    found = from_arrays(test if own else [test], task=task, classes=classes)
    owner = np.repeat(np.arange(len(found)), found.sizes()) if own else np.full(len(found.y), -1)
    # Nothing is trained on the server: the first test sample stands for all samples of the clients.
    order, starts = np.zeros(int(counts.sum()), np.int64), np.concatenate([[0], np.cumsum(counts)])
    return replace(found, order=order, starts=starts, test_x=found.x, test_y=found.y, test_owner=owner)


def told_of(data: FederatedData | OnDemand) -> Told:
    """What clients are told with the model."""
    return {"classes": data.classes, "task": data.task}


def told_in(content: RecordDict) -> Told:
    """What a message says of the task; nothing, if the server is of an older version."""
    record = content.get(CONFIG)
    if not isinstance(record, ConfigRecord) or not {"classes", "task"} <= set(record):
        return {}
    return {"classes": record["classes"], "task": record["task"]}


def data_of_client(pair: Any, experiment: Experiment, told: Told) -> FederatedData:
    """The samples of one client, as a task of the whole federation. told: by the server, or in the app."""
    task = told.get("task") or experiment.task
    classes = told.get("classes")
    if classes is None:
        classes = getattr(experiment.data, "classes", None)
    if classes is None:
        classes = experiment.make_data(experiment.make_fleet()).classes
    return from_arrays([pair], task=task, classes=classes)
