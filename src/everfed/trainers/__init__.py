"""The choice of a trainer, and its check against plain autograd."""

from everfed.trainers.choose import TRAINERS

__all__ = ["TRAINERS"]
