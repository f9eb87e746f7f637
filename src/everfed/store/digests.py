"""The file `digests` of a run's folder: what every other file must contain.

One line per entry, only ever added to: a file's name, a length in bytes, and the SHA-256 of that many bytes of it. A
file that is written at once has one line for each version of it, which is there before the file is; the records, which
grow, have one line for every batch, which is there after it. JSON files are not listed: they carry their own
(`files.write_sealed`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everfed.store.files import DamagedError, digest_of, write_atomically, write_sealed

NAME = "digests"
FORMAT = 2  # of run folders; 1 had no digests
_LARGEST = 256 << 20  # bytes: some million batches of records
_FIRST = f"everfed run folder, format {FORMAT}"
_LINE = re.compile(r"(\S+) (\d{1,18}) ([0-9a-f]{64})")

Entry = tuple[int, str]


class Digests:
    """The entries of a folder. `known` is False for folders of older versions, which have none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.entries: dict[str, list[Entry]] = {}
        try:
            if self.path.stat().st_size > _LARGEST:
                raise DamagedError(f"'{self.path}' is damaged: it has {self.path.stat().st_size:,} bytes")
            text = self.path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            text = ""
            self.known = False
        else:
            self.known = True
        # Lines that are cut off or damaged guard nothing; what they stood for is then found wanting.
        for line in text.splitlines():
            if match := _LINE.fullmatch(line):
                self.entries.setdefault(match[1], []).append((int(match[2]), match[3]))

    def add(self, name: str, length: int, sha256: str, *, sync: bool = True) -> None:
        if not self.known:
            self.replace(name, [])
        with open(self.path, "a", encoding="ascii", newline="\n") as file:
            file.write(f"{name} {length} {sha256}\n")
        if sync:
            self.sync()
        self.entries.setdefault(name, []).append((length, sha256))

    def sync(self) -> None:
        with open(self.path, "r+b") as file:
            os.fsync(file.fileno())

    def replace(self, name: str, entries: list[Entry]) -> None:
        """Put other entries in the place of a file's own."""
        self.entries[name] = entries
        lines = (f"{file} {length} {sha256}" for file, listed in self.entries.items() for length, sha256 in listed)
        write_atomically(self.path, "\n".join([_FIRST, *lines]) + "\n")
        self.known = True

    def match(self, name: str, content: bytes) -> bool:
        """Whether a file that is written at once is one of its versions."""
        return (len(content), digest_of(content)) in self.entries.get(name, [])

    def whole_part(self, name: str, content: bytes) -> int:
        """How many of a growing file's bytes are as they were written."""
        so_far, done, right = hashlib.sha256(), 0, 0
        for length, sha256 in sorted(self.entries.get(name, [])):
            if length > len(content):
                break
            so_far.update(content[done:length])
            done = length
            if so_far.hexdigest() == sha256:
                right = length
        return right

    def sha256s(self, name: str) -> list[str]:
        return [sha256 for _, sha256 in self.entries.get(name, [])]

    def promised(self, name: str) -> int:
        """The length that a growing file had at last."""
        return max((length for length, _ in self.entries.get(name, [])), default=0)


def write_of_run(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    """Write a sealed JSON file that belongs to the run in this folder."""
    experiment = Digests(folder).sha256s("experiment.toml")
    write_sealed(folder / name, {"format": FORMAT, "experiment": experiment[-1] if experiment else "", **content})
