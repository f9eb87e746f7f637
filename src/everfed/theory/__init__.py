"""What can be said before a run: the convergence bound of the paper, corrected (docs/theory.md)."""

from everfed.theory.constants import CONSTANTS, PROVEN
from everfed.theory.theorem import Bound, bound

__all__ = ["CONSTANTS", "PROVEN", "Bound", "bound"]
