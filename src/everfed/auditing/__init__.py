"""Audits of a schedule before training: bias, variance, energy, and the distance from the optimum."""

from everfed.auditing.audit import Audit, audit
from everfed.auditing.figures import Figures
from everfed.auditing.judge import ERROR_RATE, Judgement
from everfed.auditing.limit import Limit
from everfed.auditing.upgrade import Upgrade
from everfed.auditing.variance import Variance

__all__ = ["ERROR_RATE", "Audit", "Figures", "Judgement", "Limit", "Upgrade", "Variance", "audit"]
