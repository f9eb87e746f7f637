"""Texts as samples: windows of characters, in which the next character is to be predicted.

The alphabet is LEAF's for Shakespeare: 80 characters, `\n !"&'(),-.0123456789:;>?A-Z[]a-z}`. Two tokens come before
them: 0 fills windows up, and 1 stands for any other character, so that the vocabulary has 82 tokens. (The alphabet of
TensorFlow Federated and FedJAX has 86 characters and 4 tokens besides, 90 in all.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from everfed.arrays import Ints
from everfed.data.dataset import Dataset
from everfed.data.owners import Owners
from everfed.data.targets import IGNORED, NEXT_TOKEN
from everfed.data.times import Times
from everfed.errors import InputError, warn

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
PADDING, OTHER = 0, 1
VOCABULARY = len(ALPHABET) + 2

# Shares of characters outside the alphabet above which a data set is told of it, or refused. Accents of French or
# German are 2 to 4 %, other alphabets 80 %.
_TOLD, _REFUSED = 0.02, 0.2

_TOKENS = np.full(128, OTHER, np.int64)
_TOKENS[[ord(character) for character in ALPHABET]] = np.arange(2, VOCABULARY)


def tokens(text: str) -> Ints:
    """A token for each character.

    >>> tokens("A}~").tolist()
    [27, 81, 1]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.where(codes < 128, _TOKENS[np.minimum(codes, 127)], OTHER)


def characters(numbers: Iterable[int]) -> str:
    """The text of tokens, without padding; '~' for characters outside the alphabet."""
    return "".join("~" if n == OTHER else ALPHABET[n - 2] for n in map(int, numbers) if n != PADDING)


def windows(text: str, length: int) -> tuple[Ints, Ints]:
    """x and y [windows, length]: y is the character after x at every place, -100 where there is none.

    The windows' inputs do not overlap; the last one is filled up.

    >>> x, y = windows("abcd", 2)
    >>> [characters(window) for window in x], y[1].tolist()
    (['ab', 'c'], [58, -100])
    """
    numbers = tokens(text)
    count = -(-(len(numbers) - 1) // length) if len(numbers) > 1 else 0
    x = np.full(count * length, PADDING, np.int64)
    y = np.full(count * length, IGNORED, np.int64)
    x[: max(0, len(numbers) - 1)] = numbers[:-1]
    y[: max(0, len(numbers) - 1)] = numbers[1:]
    return x.reshape(count, length), y.reshape(count, length)


@dataclass(frozen=True)
class Writer:
    """One natural client of a data set of texts."""

    name: str
    text: str
    about: dict[str, str | float]


def next_character(name: str, writers: Iterable[Writer], length: int, least: int, test_part: float) -> Dataset:
    """A data set of those whose text has at least so many characters, and the last part of their windows its test set.

    Each keeps at least one window for training.
    """
    kept = [writer for writer in writers if len(writer.text) >= max(2, least)]
    if not kept:
        raise InputError(f"{name} has no text of {least:,} characters or more; lower least.")
    _check_alphabet(name, kept)
    train: list[tuple[Ints, Ints]] = []
    test: list[tuple[Ints, Ints]] = []
    for writer in kept:
        x, y = windows(writer.text, length)
        cut = len(x) - min(len(x) - 1, round(test_part * len(x)))
        train.append((x[:cut], y[:cut]))
        test.append((x[cut:], y[cut:]))
    (x, y, owner), (test_x, test_y, test_owner) = _joined(train), _joined(test)
    columns = {key: tuple(writer.about[key] for writer in kept) for key in kept[0].about}
    owners = Owners(owner, test_owner, tuple(writer.name for writer in kept), columns)
    place = np.arange(len(owner)) - np.searchsorted(
        owner, owner
    )  # of a window in its text; their inputs do not overlap
    times = Times(owner, place, 1)
    return Dataset(name, x, y, test_x, test_y, VOCABULARY, task=NEXT_TOKEN, owners=owners, times=times)


def _check_alphabet(name: str, writers: list[Writer]) -> None:
    """Refuse texts that are mostly outside the alphabet, in which there is next to nothing to learn."""
    other = np.array([(tokens(writer.text) == OTHER).sum() for writer in writers])
    shares = other / [len(writer.text) for writer in writers]
    whole, worst = other.sum() / sum(len(writer.text) for writer in writers), int(np.argmax(shares))
    remedy = (
        f"The alphabet is {ALPHABET!r}; write the texts in it, or give tokens of your own as columns of numbers, x and "
        "the same shifted by one as y."
    )
    if whole > _REFUSED:
        raise InputError(
            f"{whole:.0%} of the characters of {name} are outside the alphabet and would all be one token. {remedy}"
        )
    if whole > _TOLD:
        warn(f"{whole:.0%} of the characters of {name} are outside the alphabet and are all one token. {remedy}", 4)
    elif shares[worst] > _REFUSED:
        warn(
            f"{shares[worst]:.0%} of the characters of the client '{writers[worst].name}' of {name} are outside the "
            f"alphabet and are all one token. {remedy}",
            4,
        )


def _joined(parts: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints, Ints]:
    owner = np.repeat(np.arange(len(parts)), [len(x) for x, _ in parts])
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), owner
