"""What a participant does with a round, and what the server does with the answers."""

from collections.abc import Callable

from everfed.learning import choose
from everfed.learning.batched import Batched
from everfed.learning.evaluate import Metrics
from everfed.learning.local import PlainTrained, Task, Trained, Trainer
from everfed.learning.models import MODELS, build
from everfed.learning.one_by_one import OneByOne
from everfed.learning.optim import OPTIMIZERS, SCHEDULES, SGD, Adam, Constant, Cosine, InverseTime
from everfed.learning.server import SERVER_RULES, Normalized, ServerRule, Sum

TRAINERS: dict[str, Callable[[Task], Trainer]] = {
    "auto": choose.auto,
    "kernels": choose.kernels,
    "batched": Batched,
    "one-by-one": OneByOne,
}

__all__ = [
    "MODELS",
    "OPTIMIZERS",
    "SCHEDULES",
    "SERVER_RULES",
    "SGD",
    "TRAINERS",
    "Adam",
    "Batched",
    "Constant",
    "Cosine",
    "InverseTime",
    "Metrics",
    "Normalized",
    "OneByOne",
    "PlainTrained",
    "ServerRule",
    "Sum",
    "Task",
    "Trained",
    "Trainer",
    "build",
]
