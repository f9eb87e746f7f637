"""What a participant does with a round."""

from everfed.learning.batched import Batched
from everfed.learning.evaluate import METRICS, Metrics
from everfed.learning.gradients import GRADIENT_RULES, Clip, Proximal
from everfed.learning.models import MODELS, build
from everfed.learning.one_by_one import OneByOne
from everfed.learning.optim import OPTIMIZERS, SCHEDULES, SGD, Adam, Constant, Cosine, InverseTime
from everfed.learning.task import PlainTrained, Task, Trained, Trainer

__all__ = [
    "GRADIENT_RULES",
    "METRICS",
    "MODELS",
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "Adam",
    "Batched",
    "Clip",
    "Constant",
    "Cosine",
    "InverseTime",
    "Metrics",
    "OneByOne",
    "PlainTrained",
    "Proximal",
    "Task",
    "Trained",
    "Trainer",
    "build",
]
