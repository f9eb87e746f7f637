"""What this process may use of the machine it runs on."""

from __future__ import annotations

import os

import psutil


def cores() -> int:
    """Processor cores that this process may use: those it is bound to, where the system binds processes to some."""
    process = psutil.Process()
    return len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Bytes of main memory that are available."""
    return int(psutil.virtual_memory().available)
