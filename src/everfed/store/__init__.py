"""Runs on disk, in folders that survive kills, power cuts and full disks, and that notice when they were damaged."""

from everfed.store.export import export_model
from everfed.store.files import DamagedError, StoreError
from everfed.store.folder import RunFolder
from everfed.store.reading import StoredRun, Unreadable, find_runs, open_run, open_runs
from everfed.store.runner import stored_rounds

__all__ = [
    "DamagedError", "RunFolder", "StoreError", "StoredRun", "Unreadable", "export_model", "find_runs", "open_run",
    "open_runs", "stored_rounds",
]  # fmt: skip
