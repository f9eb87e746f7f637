"""Which trainer a task gets, and the check of it against plain autograd."""

from everfed.trainers.choose import TRAINERS

__all__ = ["TRAINERS"]
