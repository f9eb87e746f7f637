"""Python processes whose clock is off: their environment makes them import a `sitecustomize` that shifts time."""

from __future__ import annotations

import os

_SHIFT = """\
import datetime, time

_real, _off = time.time, {off!r}
time.time = lambda: _real() + _off


class datetime_(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=_off)


datetime.datetime = datetime_
"""


def wrong_clock(folder, off_s):
    """What to add to the environment of a process whose clock is this far ahead."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_SHIFT.format(off=off_s))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}
