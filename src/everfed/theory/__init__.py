"""What can be said before a run: the convergence bound of the paper, corrected (docs/theory.md)."""

from everfed.theory.theorem import CONSTANTS, VALIDITY, Bound, bound

__all__ = ["CONSTANTS", "VALIDITY", "Bound", "bound"]
