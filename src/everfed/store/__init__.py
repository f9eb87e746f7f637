"""Runs on disk, in folders that survive kills, power cuts and full disks."""

from everfed.store.folder import RunFolder, StoredRun, StoreError, Unreadable, find_runs, open_run, open_runs
from everfed.store.runner import stored_rounds

__all__ = ["RunFolder", "StoreError", "StoredRun", "Unreadable", "find_runs", "open_run", "open_runs", "stored_rounds"]
