"""Files made to do harm, or to take all memory, are refused in a sentence; so is what a terminal would obey."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everfed.cli import main
from everfed.cli.screen import TextScreen, printable, table
from everfed.data import fetch, images
from everfed.data.fetch import Arrays, Known, Origin, obtain
from everfed.data.on_demand import OnDemand
from everfed.data.on_demand_parquet import Parquet
from everfed.data.on_demand_sources import Arrays as OnDisk
from everfed.data.packages import Archive, unpack
from everfed.energy.trace import read_trace
from everfed.errors import InputError
from everfed.files import read_file

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and devices are files only there")


@pytest.fixture(autouse=True)
def own_place(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERFED_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def frugal(monkeypatch):
    """Memory enough for what is honest: 50 MB."""
    monkeypatch.setenv("EVERFED_MEMORY", "0.05")


def refusal(call, seconds=10.0):
    """The sentence with which a call is refused, in time; one that waits for ever fails here."""
    said = []

    def attempt():
        try:
            call()
        except InputError as error:
            said.append(str(error))

    worker = threading.Thread(target=attempt, daemon=True)
    worker.start()
    worker.join(seconds)
    assert not worker.is_alive(), "still at it"
    assert said, "nothing was refused"
    return said[0]


# -- CIFAR-10: pickles -------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    """Pictures in CIFAR-10's layout, 2 a batch, that pass for it."""
    chance = np.random.default_rng(0)
    x, y = chance.integers(0, 256, (12, 32, 32, 3), np.uint8), chance.integers(0, 10, 12, np.uint8)
    arrays = Arrays(x[:10], y[:10], x[10:], y[10:])
    monkeypatch.setattr(images, "_CIFAR10", Known(10, 2, (32, 32, 3), arrays.digests()))
    return arrays


def batch_files(arrays, folder, write):
    folder.mkdir(parents=True)
    x = np.concatenate([arrays.train_x, arrays.test_x]).transpose(0, 3, 1, 2).reshape(12, -1)
    y = np.concatenate([arrays.train_y, arrays.test_y])
    for i, name in enumerate(images._BATCHES):
        (folder / name).write_bytes(write(x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2].tolist()))
    return str(folder)


def as_python_2_wrote_it(x, y):
    """The opcodes of the official files, but for the memo: protocol 2, byte strings, labels in a list."""

    def text(t):
        return b"U" + bytes([len(t)]) + t

    data = b"T" + struct.pack("<i", x.size) + x.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01"
    array += b"K\x02M\x00\x0c\x86cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R\x89" + data + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    names = b"](" + text(b"a.png") * 2 + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + labels + text(b"filenames") + names + b"u."


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_batches_pickled_by_today_s_python_are_read(tiny, tmp_path, protocol):
    def write(x, y):
        return pickle.dumps({b"batch_label": b"1 of 5", b"labels": y, b"data": x, b"filenames": [b"a", b"b"]}, protocol)

    found = images.Cifar10(folder=batch_files(tiny, tmp_path / "c", write)).fetch()
    assert found.digests() == tiny.digests()


def test_the_official_layout_is_read(tiny, tmp_path):
    found = images.Cifar10(folder=batch_files(tiny, tmp_path / "c", as_python_2_wrote_it)).fetch()
    assert found.digests() == tiny.digests()


class Runs:
    def __reduce__(self):
        return (exec, ("open('was-here', 'w')",))


class Shapes:
    """An array whose state claims more memory than it has: numpy's own reconstruction, which once was allowed."""

    def __reduce__(self):
        rebuild, kind, state = np.zeros(1, np.uint8).__reduce__()
        return rebuild, kind, (state[0], (1 << 40,), *state[2:])


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Runs()),
        pickle.dumps(Shapes()),
        pickle.dumps({b"data": Shapes(), b"labels": [1, 2]}),
        pickle.dumps({b"data": b"x" * 6144, b"labels": [1, 2, 3]}),
        pickle.dumps({b"data": b"x" * 6144, b"labels": [1, 200]}),
        pickle.dumps({b"data": b"x" * 6144}),
        b"\x80\x04" + b"N0" * 100_000,
        b"\x80\x02T\xff\xff\xff\x7f",
        b"(" * 5000,
        b"",
        b"\x80",
        pickle.dumps(b"x" * 100_000),
    ],
    ids=["runs", "state", "nested", "labels", "range", "none", "long", "claim", "marks", "empty", "cut", "large"],
)
def test_a_batch_that_is_something_else_is_refused_and_never_followed(tiny, tmp_path, content):
    folder = batch_files(tiny, tmp_path / "c", as_python_2_wrote_it)
    (tmp_path / "c" / "data_batch_1").write_bytes(content)
    assert "cifar10 could not be loaded" in refusal(images.Cifar10(folder=folder).fetch)
    assert not Path("was-here").exists()


# -- other files of known data sets ------------------------------------------------------------------


def idx_folder(folder, changed=b"", packed=True):
    folder.mkdir()
    for key, name in images._IDX.items():
        shape = images._MNIST.shapes()[key][:3]
        data = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
        content = changed or data + bytes(int(np.prod(shape)))
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content, 1) if packed else content)
    return str(folder)


@pytest.mark.parametrize("kind", [images.Mnist, images.FashionMnist])
def test_black_pictures_are_refused(tmp_path, kind):
    assert "content does not match" in refusal(kind(folder=idx_folder(tmp_path / "f")).fetch)


def test_a_gzip_that_unpacks_to_more_than_the_file_is_not_unpacked(tmp_path):
    bomb = idx_folder(tmp_path / "f", changed=b"\0\0\x08\x03" + bytes(60_000_000))
    assert "has more bytes, where 47,040,016 were expected" in refusal(images.Mnist(folder=bomb).fetch)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x0d\x03" + bytes(47_040_012), b"\x1f\x8b\x08broken"])
def test_idx_files_that_are_cut_or_of_other_numbers_are_refused(tmp_path, content):
    assert "mnist could not be loaded" in refusal(images.Mnist(folder=idx_folder(tmp_path / "f", content, False)).fetch)


def npz(path, members):
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)


def npy(shape, kind="|u1", data=b"", version=(1, 0)):
    head = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode().ljust(118) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H", len(head)) + head + data


@pytest.mark.parametrize(
    "member",
    [
        npy((10**12,)),
        npy((4, 2, 2, 1), "|O"),
        npy((4, 2, 2, 1), ">i4", bytes(64)),
        npy((4, 2, 2, 1), data=bytes(50_000_000)),
        npy((4, 2, 2, 1), data=bytes(3)),
        npy((4, 2, 2, 1), version=(9, 9)),
        b"nothing",
    ],
    ids=["claims", "objects", "endian", "bomb", "cut", "version", "other"],
)
def test_a_crafted_cache_is_fetched_anew(tmp_path, member):
    x, y = np.zeros((4, 2, 2, 1), np.uint8), np.zeros(4, np.uint8)
    good = Arrays(x, y, x, y)
    known = Known(4, 4, (2, 2, 1), good.digests())
    label = npy((4,), data=bytes(4))
    npz(tmp_path / "cache" / "some.npz", {"train_x": member, "train_y": label, "test_x": member, "test_y": label})
    assert "some could not be loaded" in refusal(lambda: obtain("some", [], known, ""))
    assert obtain("some", [Origin("here", lambda p: good)], known, "").digests() == good.digests()
    assert obtain("some", [], known, "").digests() == good.digests()  # now cached


# -- archives ----------------------------------------------------------------------------------------


def packed(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../out", tarfile.REGTYPE),
        ("a/../../out", tarfile.REGTYPE),
        ("/tmp/everfed-out-of-it", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("hard", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
        ("device", tarfile.CHRTYPE),
    ],
)
def test_an_archive_makes_files_in_its_folder_and_nothing_else(tmp_path, name, kind):
    content = b"x" if kind == tarfile.REGTYPE else b""
    sha256 = packed(tmp_path / "a.tgz", ("fine", tarfile.REGTYPE, b"1"), (name, kind, content))
    (tmp_path / "in").mkdir()
    assert "a link, a device, a path out of it" in refusal(lambda: unpack(tmp_path / "a.tgz", tmp_path / "in", sha256))
    assert {p.name for p in (tmp_path / "in").iterdir()} <= {"fine"}
    assert not (tmp_path / "out").exists()


def test_archives_are_hashed_before_they_are_opened_and_their_files_are_counted(tmp_path):
    sha256 = packed(tmp_path / "a.tgz", ("d", tarfile.DIRTYPE, b""), ("d/e/f", tarfile.REGTYPE, b"123"))
    assert "is not the expected file" in refusal(lambda: unpack(tmp_path / "a.tgz", tmp_path, "0" * 64))
    assert "a huge file" in refusal(lambda: unpack(tmp_path / "a.tgz", tmp_path, sha256, most=2))
    unpack(tmp_path / "a.tgz", tmp_path / "in", sha256)
    assert (tmp_path / "in/d/e/f").read_bytes() == b"123"


def test_a_download_ends_where_it_is_larger_than_expected(tmp_path):
    (tmp_path / "large").write_bytes(bytes(10_000))
    with pytest.raises(OSError, match="more than the expected 1 kB"):
        fetch.download((tmp_path / "large").as_uri(), tmp_path / "got", fetch.silent, most=1000)
    assert isinstance(images.Mnist.package, Archive)
    assert images.FashionMnist.url.startswith("https://")


# -- traces ------------------------------------------------------------------------------------------


def table_of(path, **columns):
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def repeated(value, kind, rows):
    """One value many times: next to nothing in the file."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value], kind))


def test_a_parquet_trace_of_few_bytes_and_many_rows_is_refused(tmp_path, frugal):
    rows = 2_000_000
    path = table_of(
        tmp_path / "t.parquet", time=repeated(0, pa.int64(), rows), power_w=repeated(1.0, pa.float64(), rows)
    )
    assert path.stat().st_size < 50_000
    said = refusal(lambda: read_trace(path))
    assert "reading the 2,000,000 rows of" in said
    assert "set EVERFED_MEMORY" in said


def test_long_texts_in_a_trace_are_refused_while_they_are_stored_once(tmp_path):
    text = "1" * 5_000_000
    path = table_of(tmp_path / "t.parquet", time=repeated(text, pa.string(), 10_000), power_w=np.ones(10_000))
    assert "a text of 5,000,000 bytes" in refusal(lambda: read_trace(path))


def test_lists_in_a_trace_are_refused(tmp_path):
    path = table_of(tmp_path / "t.parquet", seconds=[0, 1], power_w=pa.array([[1.0], [2.0]]))
    assert "the column 'power_w' holds list" in refusal(lambda: read_trace(path))


def test_texts_and_categories_in_a_parquet_trace_are_read(tmp_path):
    times = ["2026-06-01T12:00:00Z", "2026-06-01T13:00:00Z", "2026-06-01T14:00:00Z"]
    kinds = pa.array(["1", "2", "1"]).dictionary_encode()
    found = read_trace(table_of(tmp_path / "t.parquet", time=times, power_w=kinds))
    assert (found.power_w.tolist(), found.step_s) == ([1.0, 2.0, 1.0], 3600.0)


def test_a_csv_of_many_rows_is_refused_before_it_is_parsed(tmp_path, frugal):
    (tmp_path / "t.csv").write_bytes(b"seconds,power_w\n" + b"0,1\n" * 1_000_000)
    assert "reading the 1,000,001 rows of" in refusal(lambda: read_trace(tmp_path / "t.csv"))


@pytest.mark.parametrize("content", [b"seconds,power_w\n" + b"1" * 1_000_000, b'seconds,power_w\n"' + b"\n" * 200_000])
def test_a_csv_of_one_endless_field_is_refused(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    assert "cannot be read as CSV" in refusal(lambda: read_trace(tmp_path / "t.csv"))


def test_a_file_larger_than_memory_is_not_read(tmp_path, frugal):
    with open(tmp_path / "t.csv", "wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    assert "would take about 1.1 TB" in refusal(lambda: read_trace(tmp_path / "t.csv"))


@posix
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_pipes_devices_and_folders_are_no_traces(tmp_path, suffix):
    pipe, device, folder, nothing = (tmp_path / f"{name}{suffix}" for name in ("pipe", "device", "folder", "nothing"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    folder.mkdir()
    (tmp_path / f"loop{suffix}").symlink_to(tmp_path / f"loop{suffix}")
    nothing.symlink_to(tmp_path / "gone")
    assert "not a file but a pipe" in refusal(lambda: read_trace(pipe))
    assert "not a file but a device" in refusal(lambda: read_trace(device))
    assert "not a file but a folder" in refusal(lambda: read_trace(folder))
    assert "cannot be read" in refusal(lambda: read_trace(tmp_path / f"loop{suffix}"))
    assert "there is no trace" in refusal(lambda: read_trace(nothing))


@pytest.mark.parametrize("seed", range(8))
def test_damaged_parquet_files_are_refused(tmp_path, seed):
    """Bytes changed at random, and cut at random; what is still readable is read."""
    path = table_of(tmp_path / "t.parquet", seconds=np.arange(100), power_w=np.ones(100))
    chance, content = np.random.default_rng(seed), bytearray(path.read_bytes())
    for place in chance.integers(4, len(content), 3):
        content[place] = chance.integers(256)
    path.write_bytes(content[: chance.integers(8, len(content) + 1)] if seed % 2 else content)
    said = ""
    try:
        said = f"t.parquet with {len(read_trace(path).power_w)} rows"
    except InputError as error:
        said = str(error)
    assert "t.parquet" in said


# -- samples on demand -------------------------------------------------------------------------------


def test_parquet_samples_of_few_bytes_and_many_rows_are_refused(tmp_path, frugal):
    rows = 3_000_000
    columns = {name: repeated(0, pa.int64(), rows).cast(pa.int64()) for name in ("client", "x", "y")}
    path = table_of(tmp_path / "p.parquet", **columns)
    assert path.stat().st_size < 50_000
    assert "3,000,000 rows of" in refusal(lambda: OnDemand(Parquet(path), classes=2))


def test_parquet_lists_that_would_not_fit_are_refused(tmp_path, frugal):
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(8_000_000, np.float32)), 80_000)
    path = table_of(tmp_path / "p.parquet", client=np.zeros(100, np.int64), x=lists, y=np.zeros(100, np.int64))
    assert "reading the columns x, y of" in refusal(lambda: OnDemand(Parquet(path), classes=2))


def test_parquet_texts_are_refused_before_they_are_read(tmp_path):
    text = repeated("x" * 1_000_000, pa.string(), 100_000)
    path = table_of(tmp_path / "p.parquet", client=np.zeros(100_000, np.int64), x=text, y=np.zeros(100_000, np.int64))
    assert "the column 'x' holds" in refusal(lambda: OnDemand(Parquet(path), classes=2))


@posix
def test_a_pipe_among_parquet_files_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.parquet")
    assert "not a file but a pipe" in refusal(lambda: OnDemand(Parquet(tmp_path), classes=2))
    (tmp_path / "a.parquet").unlink()
    (tmp_path / "a.parquet").write_bytes(b"PAR1nonsensePAR1")
    assert "cannot be read as Parquet" in refusal(lambda: OnDemand(Parquet(tmp_path), classes=2))


@pytest.mark.parametrize(
    "content",
    [
        npy((10**12,), "<i8"),
        npy((3,), "|O", bytes(24)),
        npy((-3,), "<i8"),
        b"PK\x03\x04",
        b"",
        npy((2**62, 2**62), "<i8"),
    ],
    ids=["claims", "objects", "negative", "zip", "empty", "overflow"],
)
@pytest.mark.parametrize("which", ["x.npy", "y.npy", "starts.npy"])
def test_crafted_arrays_are_refused(tmp_path, content, which):
    for name in ("x.npy", "y.npy"):
        np.save(tmp_path / name, np.zeros(4))
    np.save(tmp_path / "starts.npy", np.array([0, 4]))
    (tmp_path / which).write_bytes(content)
    assert f"{which} cannot be read as an array of numbers" in refusal(lambda: OnDisk.open(tmp_path))


def test_arrays_of_another_byte_order_are_read_as_the_numbers_they_are(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4, dtype=">f4").reshape(4, 1))
    np.save(tmp_path / "y.npy", np.array([0, 1, 0, 1], ">i4"))
    np.save(tmp_path / "starts.npy", np.array([0, 2, 4], ">i8"))
    x, y = OnDemand(OnDisk.open(tmp_path), classes=2).read(np.array([1]))
    assert (x.ravel().tolist(), y.tolist()) == ([2.0, 3.0], [0, 1])


def test_a_file_is_read_to_the_size_that_was_looked_at(tmp_path):
    (tmp_path / "f").write_bytes(b"123")
    assert read_file(tmp_path / "f", 3) == b"123"
    assert "at most 2 B were expected" in refusal(lambda: read_file(tmp_path / "f", 2))
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "g")


# -- the terminal ------------------------------------------------------------------------------------

HOSTILE = "x[/b][red]\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil\r:smile:"


@pytest.mark.parametrize("show", ["line", "note", "say", "cell", "title", "caption"])
def test_no_text_is_obeyed_by_the_terminal_or_read_as_markup(show, capsys):
    screen = TextScreen()
    if show == "note":
        screen.note(HOSTILE)
    elif show == "say":
        screen.say(HOSTILE, HOSTILE)
    elif show == "line":
        screen.out.print(HOSTILE)
    else:
        out = table(HOSTILE if show == "title" else "t", ["name"], caption=HOSTILE if show == "caption" else None)
        out.add_row(HOSTILE if show == "cell" else "c")
        screen.out.print(out)
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert not set("\x1b\x07\x9b\u202e\r") & set(text)
    whole = "".join(text.split()).replace("│", "")
    for part in ("x[/b][red]", r"\x1b[2J", r"\x9b31m", r"\u202eevil", ":smile:"):
        assert part in whole


def test_what_is_printable_stays_as_it_is():
    for text in ("E=5, Zürich, Γ ≤ 日本語 👩‍🔬", "two\nlines\tand a tab", "[bold]not markup[/bold]"):
        assert printable(text) == text
    assert printable("\udcff\x00\x7f") == r"\udcff\x00\x7f"


def test_a_folder_with_a_hostile_name_is_trained_in_listed_and_reported_on(monkeypatch, capsys, tmp_path):
    """Names are shown harmlessly everywhere, and are exact where programs read them."""
    name = "x[/b]\x1b[31m<script>alert(1)</script>".replace("/", "_") if os.name == "posix" else "x[b]"

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["everfed", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code
        return capsys.readouterr()

    small = ("--rounds", "2", "--clients", "4", "--device", "cpu", "--model", "logistic")
    for shown in (call("run", *small, "--out", name), call("runs", name)):
        assert "\x1b" not in shown.out + shown.err
    assert (tmp_path / name / "result.json").exists()
    assert printable(name) in "".join(shown.out.split()).replace("│", "")
    assert json.loads(call("runs", name, "--json").out)[0]["run"] == name
    call("report", name, "-o", "page.html", "--title", "<script>alert(2)</script>\x1b[0m\udcff")
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 2  # the data and the page's own
    assert "alert(1)</script>" not in page
    assert "alert(2)</script>" not in page


def test_an_error_that_quotes_a_hostile_name_is_printed_harmlessly(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["everfed", "report", "gone\x1b[2J[/b]"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == "everfed: there is no folder 'gone\\x1b[2J[/b]'.\n"
