"""What people look at after a run: a table in the terminal, a figure, and a page."""

from everfed.report.conclusion import Conclusion, conclude
from everfed.report.distinct import Distinct, distinct
from everfed.report.figure import figure
from everfed.report.lines import lines
from everfed.report.measures import with_measures
from everfed.report.notes import notes, silence, silences
from everfed.report.page import page
from everfed.report.table import table

__all__ = [
    "Conclusion",
    "Distinct",
    "conclude",
    "distinct",
    "figure",
    "lines",
    "notes",
    "page",
    "silence",
    "silences",
    "table",
    "with_measures",
]
