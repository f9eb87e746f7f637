"""Tables of pandas, which is an extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everfed.errors import extra


def frame(columns: Mapping[str, Any], index: str | None = None) -> Any:
    """A pandas DataFrame. index: the column that names the rows."""
    pandas = extra("pandas", "a table of pandas needs", "pandas")
    if index is not None and not columns:  # of nothing: no rows, under the usual name
        return pandas.DataFrame(index=pandas.Index([], name=index))
    made = pandas.DataFrame(dict(columns))
    return made if index is None else made.set_index(index)
