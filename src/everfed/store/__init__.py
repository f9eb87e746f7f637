"""Runs on disk: folders that survive kills, power cuts and full disks."""

from everfed.store.folder import RunFolder, StoreError, find_runs, open_run
from everfed.store.run import StoredRun
from everfed.store.runner import stored_rounds

__all__ = ["RunFolder", "StoreError", "StoredRun", "find_runs", "open_run", "stored_rounds"]
