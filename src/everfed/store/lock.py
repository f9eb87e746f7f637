"""One writer per folder: a lock of the system, and a mark that shows a writer whether it still has its place.

Some network disks grant a lock twice. The second writer then puts its own mark into the lock file, and the first one,
which looks before it writes, stops.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
from pathlib import Path
from typing import IO

from filelock import lock_descriptor

from everfed.store.files import StoreError

# A reader that asks whether a run is alive holds its lock for a moment; a starter waits that out, and so does
# another reader.
_STARTER_PATIENCE_S = 1.0
_READER_PATIENCE_S = 0.1
_OWNER = "process "  # on Windows no other process can read the first byte of a locked file


class Place:
    """The right to write into a folder, until `leave` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lock"
        self.file: IO[bytes] | None = open(self.path, "a+b")  # noqa: SIM115 - held for the length of a run
        if not _locked(self.file, _STARTER_PATIENCE_S):
            owner = _owner(self.file).split(",")[0]
            self.leave()
            raise StoreError(
                f"the run folder '{folder}' is in use by {owner or 'another process'}; wait for it to end, or choose "
                "another folder."
            )
        self.mark = f"{_OWNER}{os.getpid()} on {platform.node()}, {secrets.token_hex(8)}"
        self.file.truncate(0)
        self.file.write(self.mark.encode())
        self.file.flush()

    def check(self) -> None:
        """Raise an error if another process has taken the place."""
        try:
            with open(self.path, "rb") as file:  # anew: network disks may answer an open file from memory
                owner = _owner(file)
        except FileNotFoundError:
            owner = "another process, which removed its lock"
        if owner != self.mark:
            raise StoreError(
                f"the run folder '{self.path.parent}' has been taken over by {owner or 'another process'}; this "
                "process stops without writing."
            )

    def leave(self) -> None:
        if self.file:
            self.file.close()
            self.file = None


def is_running(folder: Path) -> bool:
    """Whether a live process holds the folder."""
    lock = folder / "lock"
    try:
        # Opened to be written where that is allowed: network disks lock no other file.
        with open(lock, "r+b" if os.access(lock, os.W_OK) else "rb") as file:
            return not _locked(file, _READER_PATIENCE_S)
    except OSError:  # there is no lock, or the disk knows of none
        return False


def _owner(file: IO[bytes]) -> str:
    """Who the file names, if anyone."""
    file.seek(len(_OWNER))
    owner = file.read(1000).decode(errors="replace").strip()
    return _OWNER + owner if owner else ""


def _locked(file: IO[bytes], patience_s: float) -> bool:
    """Lock an open file until it is closed; False if another process keeps holding it."""
    until = time.monotonic() + patience_s
    while not lock_descriptor(file.fileno(), blocking=False):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
