"""What a participant does with a round."""

from everfed.learning.batched import Batched
from everfed.learning.choose import TRAINERS
from everfed.learning.evaluate import Metrics
from everfed.learning.gradients import GRADIENT_RULES, Clip, Proximal
from everfed.learning.local import PlainTrained, Task, Trained, Trainer
from everfed.learning.models import MODELS, build
from everfed.learning.one_by_one import OneByOne
from everfed.learning.optim import OPTIMIZERS, SCHEDULES, SGD, Adam, Constant, Cosine, InverseTime

__all__ = [
    "GRADIENT_RULES",
    "MODELS",
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "TRAINERS",
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
