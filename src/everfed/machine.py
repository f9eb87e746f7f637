"""What this process may use of the machine it runs on, and the refusal of what would not fit."""

from __future__ import annotations

import os
from pathlib import Path

from everfed.errors import InputError

_GROUP = Path("/sys/fs/cgroup")  # of this process, where a container or a batch system limits it


def cores() -> int:
    """Processor cores that this process may use: those it is bound to, where the system binds processes to some."""
    import psutil  # here, as below: a small device draws a few random numbers, and has no use for it

    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else os.cpu_count() or 1


def total_memory() -> int:
    """Bytes of main memory that the machine has."""
    import psutil

    return int(psutil.virtual_memory().total)


def free_memory() -> int:
    """Bytes of main memory that are available to this process."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        most = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        kept = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return max(0, min(free, most - used + int(kept["inactive_file"])))  # cached files make room when asked
    except (OSError, ValueError, KeyError):
        return free


def check_memory(what: str, wanted: float, instead: str, *, part: float = 1.0, free: int | None = None) -> None:
    """Refuse what needs more than this part of the free memory, or more than EVERFED_MEMORY (in GB) if that is set.

    what: the subject of the sentence. wanted: a lower bound in bytes. instead: what to do about it. free: bytes on a
    device other than the processor.
    """
    own = os.environ.get("EVERFED_MEMORY", "")
    try:
        limit = float(own) * 1e9 if own else part * (free_memory() if free is None else free)
    except ValueError:
        limit = -1.0
    if own and not limit > 0.0:
        raise InputError(f"EVERFED_MEMORY is '{own}'; it must be a number of gigabytes, such as 16.")
    if not wanted <= limit:
        room = f"EVERFED_MEMORY allows {readable(limit)}" if own else f"{readable(limit)} are free"
        if not own and part < 1.0:
            room = f"at most {readable(limit)} may be taken, {part:g} of what is free"
        raise InputError(f"{what} would take about {readable(wanted)} of memory, but {room}; {instead}.")


def readable(size: float) -> str:
    """'3.2 GB': bytes, rounded."""
    for unit, width in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= width:
            return f"{size / width:.3g} {unit}"
    return f"{size:.0f} B"
