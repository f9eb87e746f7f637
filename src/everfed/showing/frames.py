"""Tables of pandas, which is an extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everfed.errors import extra


def frame(columns: Mapping[str, Any], index: str | None = None) -> Any:
    """A pandas DataFrame. index: the column that names the rows."""
    pandas = extra("pandas", "a table of pandas needs", "pandas")
    made = pandas.DataFrame(dict(columns))
    return made if index is None else made.set_index(index)
