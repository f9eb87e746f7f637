"""Problems whose every constant is known, to hold the theory against what the simulator really does."""

from everfed.testbed.logistic import logistic
from everfed.testbed.measure import Gaps, measure
from everfed.testbed.problem import Problem
from everfed.testbed.quadratics import quadratics

__all__ = ["Gaps", "Problem", "logistic", "measure", "quadratics"]
