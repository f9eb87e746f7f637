"""One's own files as a data set, and data sets of Hugging Face, with a column that names the clients."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import nn

import everfed as ef
from everfed.data.folder import Folder
from everfed.data.huggingface import FromHub
from everfed.data.text import characters
from everfed.errors import InputError


@pytest.fixture
def table():
    """30 rows of three clients; every row's label and place can be told from its input."""
    row = np.arange(30)
    x = np.stack([row, row % 4], axis=1).astype(np.float32)
    return {"x": x, "y": row % 4, "client": np.array(["zoe", "ann", "bob"])[row % 3], "age": 20 + row % 3}


def write_arrays(folder, arrays):
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def write_parquet(folder, table, parts=1):
    folder.mkdir(exist_ok=True)
    for i in range(parts):
        some = {name: (a[i::parts].tolist() if a.ndim > 1 else pa.array(a[i::parts])) for name, a in table.items()}
        parquet.write_table(pa.table(some), folder / f"part-{i}.parquet")
    return str(folder)


def write_npz(folder, table):
    folder.mkdir(exist_ok=True)
    np.savez(folder / "all.npz", **table)
    return str(folder)


@pytest.mark.parametrize("write", [write_arrays, write_npz, write_parquet])
def test_a_folder_becomes_a_data_set_with_its_clients(table, tmp_path, write):
    data = Folder(path=write(tmp_path / "mine", table), about=("age",)).load()
    assert (data.name, data.task, data.classes) == ("mine", "classification", 4)
    assert data.owners.names == ("ann", "bob", "zoe")
    assert data.owners.columns == {"age": (21.0, 22.0, 20.0)}
    assert data.owners.sizes().tolist() == [8, 8, 8]
    assert np.bincount(data.owners.test).tolist() == [2, 2, 2]
    rows = np.concatenate([data.x, data.test_x])
    assert sorted(rows[:, 0].tolist()) == list(range(30))
    assert (rows[:, 1] == np.concatenate([data.y, data.test_y])).all()
    owners = np.concatenate([data.owners.train, data.owners.test])
    assert all(data.owners.names[o] == table["client"][int(r)] for o, r in zip(owners, rows[:, 0], strict=True))


def test_all_layouts_give_the_same_data(table, tmp_path):
    sets = [Folder(path=w(tmp_path / w.__name__, table)).load() for w in (write_arrays, write_npz, write_parquet)]
    for other in sets[1:]:
        assert (other.x == sets[0].x).all()
        assert (other.test_y == sets[0].test_y).all()
        assert (other.owners.train == sets[0].owners.train).all()


def test_a_single_file_and_clients_that_are_numbers(table, tmp_path):
    numbered = table | {"client": 10 - np.arange(30) % 3}
    write_npz(tmp_path, numbered)
    assert Folder(path=str(tmp_path / "all.npz")).load().owners.names == ("8", "9", "10")


def test_texts_of_clients_in_several_parquet_files_are_the_same_clients(table, tmp_path):
    data = Folder(path=write_parquet(tmp_path / "p", table, parts=4)).load()
    assert data.owners.names == ("ann", "bob", "zoe")
    who = np.array(data.owners.names)[data.owners.train]
    assert (who == table["client"][data.x[:, 0].astype(int)]).all()


@pytest.mark.parametrize("write", [write_arrays, write_parquet])
def test_a_test_set_of_its_own_may_hold_strangers(table, tmp_path, write):
    folder = tmp_path / "mine"
    strange = {"x": table["x"][:3], "y": table["y"][:3], "client": np.array(["bob", "eve", "ann"])}
    if write is write_arrays:
        write_arrays(folder, table | {f"test_{name}": array for name, array in strange.items()})
    else:
        write_parquet(folder, strange)
        (folder / "part-0.parquet").rename(folder / "test.parquet")
        write_parquet(folder, table)
    data = Folder(path=str(folder)).load()
    assert data.owners.test.tolist() == [1, -1, 0]
    assert len(data.x) == 30
    assert (data.test_x == strange["x"]).all()


def test_several_inputs_are_named_by_their_files(table, tmp_path):
    write_arrays(
        tmp_path,
        {"x_image": np.zeros((30, 1, 4, 4), np.uint8), "x_age": table["x"], "y": table["y"], "client": table["client"]},
    )
    data = Folder(path=str(tmp_path)).load()
    assert {name: part.shape for name, part in data.x.items()} == {"age": (24, 2), "image": (24, 1, 4, 4)}
    assert (data.x["age"][:, 1] == data.y).all()


@pytest.mark.parametrize(
    ("y", "task", "classes"),
    [
        (np.linspace(0, 1, 30, dtype=np.float32), "regression", 0),
        (np.arange(90).reshape(30, 3) % 2 == 0, "multilabel", 3),
        (np.arange(90).reshape(30, 3) % 7, "next-token", 9),
        (np.arange(90, dtype=np.uint16).reshape(30, 3) % 7, "next-token", 9),
    ],
)
def test_the_task_follows_from_the_targets(table, tmp_path, y, task, classes):
    x = np.arange(90, dtype=y.dtype).reshape(30, 3) % 9 if task == "next-token" else table["x"]
    data = Folder(path=write_arrays(tmp_path, table | {"x": x, "y": y})).load()
    assert (data.task, data.classes) == (task, classes)
    assert data.x.dtype == (np.int64 if task == "next-token" else np.float32)


@pytest.mark.parametrize(
    "x",
    [
        {"x": np.full((30, 3), 0.5)},
        {"x": np.full((30, 3), 200, np.uint8)},
        {"x": np.full((30, 3), True)},
        {"x_tokens": np.full((30, 3), 4), "x_position": np.tile([7, 8, 9], (30, 1))},
        {"x_tokens": np.full((30, 3), 4), "x_image": np.full((30, 1, 4, 4), 255, np.uint8)},
    ],
)
def test_the_vocabulary_is_not_read_off_inputs_that_may_not_be_of_it(table, tmp_path, x):
    rest = {"y": np.arange(90).reshape(30, 3) % 7, "client": table["client"]}
    assert Folder(path=write_arrays(tmp_path, x | rest)).load().classes == 7


KINDS = ["u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", ">i4", "f2", "f4", "f8", ">f8", "?"]


class Reads(nn.Module):
    """Takes any numbers, at each place or all together, and writes down their type."""

    def __init__(self, outputs, per_place):
        super().__init__()
        torch.manual_seed(0)
        self.per_place, self.out = per_place, nn.Linear(1 if per_place else 5, outputs)
        self.seen = set()

    def forward(self, x):
        self.seen.add(x.dtype)
        inside = (~x if x.dtype == torch.bool else x).float()
        return self.out(inside[..., None] if self.per_place else inside)


def hugging_face(folder, table):
    datasets = pytest.importorskip("datasets")
    names = {name.removeprefix("test_") for name in table}

    def part(prefix):
        columns = {"label" if name == "y" else name: table[prefix + name] for name in names}
        kinds = {}
        for name, a in columns.items():
            kind = datasets.Value("bool" if a.dtype.kind == "b" else a.dtype.newbyteorder("=").name)
            kinds[name] = datasets.List(kind) if a.ndim > 1 else kind
        lists = {name: a.tolist() for name, a in columns.items()}
        return datasets.Dataset.from_dict(lists, features=datasets.Features(kinds))

    datasets.DatasetDict(train=part(""), test=part("test_")).save_to_disk(str(folder))
    return FromHub(name=str(folder), test_split="test")


def own_parquet(folder, table):
    folder.mkdir()
    for file, prefix in (("part.parquet", ""), ("test.parquet", "test_")):
        columns = {}
        for name in {name.removeprefix("test_") for name in table}:
            a = table[prefix + name].astype(table[prefix + name].dtype.newbyteorder("="))
            flat = pa.array(a.reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, a.shape[1]) if a.ndim > 1 else flat
        parquet.write_table(pa.table(columns), folder / file)
    return Folder(path=str(folder))


def own_arrays(folder, table):
    return Folder(path=write_arrays(folder, table))


@pytest.mark.parametrize("write", [own_arrays, own_parquet, hugging_face])
@pytest.mark.parametrize("task", ["classification", "next-token", "multilabel", "regression"])
def test_files_train_as_the_same_arrays_do_whatever_their_types(tmp_path, write, task):
    draw = np.random.default_rng(0)
    y = {
        "classification": draw.integers(0, 3, 24),
        "next-token": draw.integers(0, 3, (24, 5)),
        "multilabel": draw.integers(0, 2, (24, 3)) == 1,
        "regression": draw.normal(size=(24, 3)).astype(np.float32),
    }[task]
    client, fleet = np.arange(24) % 3, ef.Fleet.from_cycles([1, 1, 2])
    train, test = np.arange(24) < 18, np.arange(24) >= 18
    for kind in KINDS:
        x = draw.normal(0, 0.3, (24, 5)) if "f" in kind else draw.integers(0, 2 if kind == "?" else 3, (24, 5))
        x = x.astype(kind)
        rows = {"x": x, "y": y, "client": client}
        table = {name: a[train] for name, a in rows.items()} | {f"test_{name}": a[test] for name, a in rows.items()}
        place = tmp_path / kind.replace(">", "big").replace("?", "b")
        mine = write(place, table).load().partition(clients=3, how="natural", fleet=fleet)
        order = [int(name) for name in mine.names]
        same = ef.from_arrays(
            [(x[train & (client == i)], y[train & (client == i)]) for i in order],
            test=[(x[test & (client == i)], y[test & (client == i)]) for i in order],
        )
        assert mine.classes == same.classes, kind
        for one, other in ((mine.test_x, same.test_x), (mine.test_y, same.test_y)):
            order = np.argsort(mine.test_owner, kind="stable")  # a file's rows lie in any order
            assert one.dtype == other.dtype, kind
            assert (one[order] == other).all(), kind
        found, models = [], [Reads(3, task == "next-token") for _ in range(2)]
        for data, model in zip((mine, same), models, strict=True):
            little = replace(data, test_x=data.test_x[:0], test_y=data.test_y[:0], test_owner=None)  # no evaluation
            found.append(ef.simulate(model, little, fleet, rounds=2, client=ef.SGD(0.1), trainer="one-by-one"))
        assert models[0].seen == models[1].seen, kind
        assert all(torch.equal(found[0].params[name], value) for name, value in found[1].params.items()), kind


def test_lists_in_parquet_are_reshaped(table, tmp_path):
    wide = table | {"x": np.arange(360).reshape(30, 12) % 200}
    path = write_parquet(tmp_path / "p", wide)
    assert Folder(path=path, shape=(3, 2, 2)).load().x.shape == (24, 3, 2, 2)
    with pytest.raises(InputError, match=r"samples of 12 numbers do not have the shape \(5,\)"):
        Folder(path=path, shape=(5,)).load()


def test_what_is_wrong_is_said_in_one_sentence(table, tmp_path):
    arrays, tables = write_arrays(tmp_path / "a", table), write_parquet(tmp_path / "p", table)
    (tmp_path / "empty").mkdir()

    def refusal(**options):
        with pytest.raises(InputError) as error:
            Folder(**options).load()
        return str(error.value)

    assert "unknown array 'cleint'. Did you mean 'client'?" in refusal(path=arrays, client="cleint")
    assert "unknown column 'ages'. Did you mean 'age'?" in refusal(path=tables, about=("ages",))
    assert "part-0.parquet" in refusal(path=tables, y="z")
    assert "'nowhere', which is not there" in refusal(path="nowhere")
    assert "is '', which is not there" in refusal()
    assert "has no .npy, .npz or .parquet files" in refusal(path=str(tmp_path / "empty"))
    assert "the column 'client' holds string" in refusal(path=tables, x="client")
    np.save(tmp_path / "a" / "y.npy", table["y"][:7])
    assert "has 7 rows in y and 30 in client" in refusal(path=arrays)
    np.save(tmp_path / "a" / "y.npy", table["y"])
    np.save(tmp_path / "a" / "age.npy", np.arange(30))
    assert "'age' differs within the client 'zoe'" in refusal(path=arrays, about=("age",))
    np.save(tmp_path / "a" / "client.npy", np.linspace(0, 1, 30))
    assert "must name a client in each row, by a text or a whole number" in refusal(path=arrays)
    for name in ("x", "y", "client"):
        np.save(tmp_path / "a" / f"{name}.npy", table[name][:0])
    assert "has no training rows" in refusal(path=arrays)


def test_objects_and_claims_beyond_memory_are_refused(table, tmp_path):
    path = write_arrays(tmp_path / "a", table)
    np.save(tmp_path / "a" / "client.npy", np.array(table["client"].tolist(), object), allow_pickle=True)
    with pytest.raises(InputError, match=r"client\.npy holds Python objects"):
        Folder(path=path).load()
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 8)})
    (tmp_path / "a" / "x.npy").write_bytes(head.getvalue())
    with pytest.raises(InputError, match=r"x\.npy would take about 128 TB"):
        Folder(path=path).load()
    (tmp_path / "a" / "x.npy").unlink()
    with zipfile.ZipFile(tmp_path / "a" / "x.npz", "w", zipfile.ZIP_DEFLATED) as stored:
        stored.writestr("x.npy", head.getvalue() + bytes(10**6))
    with pytest.raises(InputError, match="would take about 128 TB"):
        Folder(path=path).load()
    (tmp_path / "a" / "x.npz").unlink()
    for content in (b"", b"\x93NUMPY\x01\x00", b"not an array at all"):
        (tmp_path / "a" / "x.npy").write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as an array of NumPy"):
            Folder(path=path).load()


def test_a_missing_name_in_parquet_is_refused(table, tmp_path):
    path = write_parquet(tmp_path / "p", table | {"client": np.array([None] + ["a"] * 29, object)})
    with pytest.raises(InputError, match="'client' has missing values"):
        Folder(path=path).load()


# -- Hugging Face ------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("datasets")


def pictures(datasets, rows=30):
    pixels = np.repeat(np.arange(rows, dtype=np.uint8), 16).reshape(rows, 4, 4)
    kinds = datasets.Features(
        {
            "image": datasets.Image(),
            "character": datasets.ClassLabel(names=["a", "b", "c", "d", "e"]),
            "writer_id": datasets.Value("string"),
            "hand": datasets.Value("string"),
        }
    )
    writer = [f"w{i % 3}" for i in range(rows)]
    hand = ["left" if w == "w1" else "right" for w in writer]
    columns = {"image": list(pixels), "character": [i % 4 for i in range(rows)], "writer_id": writer, "hand": hand}
    return datasets.Dataset.from_dict(columns, features=kinds)


def test_a_table_on_disk_becomes_a_data_set_with_its_clients(hub, tmp_path):
    pictures(hub).save_to_disk(tmp_path / "t")
    source = FromHub(name=str(tmp_path / "t"), client="writer_id", x="image", y="character", about=("hand",))
    data = source.load()
    assert (data.x.shape, data.x.dtype, data.classes) == ((24, 1, 4, 4), np.uint8, 5)  # e does not occur
    assert data.owners.names == ("w0", "w1", "w2")
    assert data.owners.columns == {"hand": ("right", "left", "right")}
    assert (data.x[:, 0, 0, 0] % 3 == data.owners.train).all()
    assert (data.x[:, 0, 0, 0] % 4 == data.y).all()
    with pytest.raises(InputError, match=r"unknown column 'writer'\. Did you mean 'writer_id'\?"):
        FromHub(name=str(tmp_path / "t"), client="writer", x="image", y="character").load()


def test_splits_on_disk_are_training_and_test(hub, tmp_path):
    hub.DatasetDict(train=pictures(hub), test=pictures(hub, 6)).save_to_disk(tmp_path / "t")
    options = {"name": str(tmp_path / "t"), "client": "writer_id", "x": "image", "y": "character"}
    data = FromHub(**options, test_split="test").load()
    assert (len(data.x), len(data.test_x)) == (30, 6)
    assert data.owners.test.tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(InputError, match="no split 'validation'; it has train, test"):
        FromHub(**options, test_split="validation").load()


def test_texts_become_windows_of_characters(hub, tmp_path):
    said = {"who": ["bob", "ann", "bob"], "text": ["a" * 30, "b" * 41, "c" * 30], "born": [1, 2, 1]}
    hub.Dataset.from_dict(said).save_to_disk(tmp_path / "t")
    options = {"name": str(tmp_path / "t"), "client": "who", "x": "text", "y": "", "length": 10}
    data = FromHub(**options, about=("born",)).load()
    assert data.task == "next-token"
    assert data.owners.names == ("ann", "bob")
    assert data.owners.columns == {"born": (2.0, 1.0)}
    bob = np.concatenate([data.x[data.owners.train == 1], data.test_x[data.owners.test == 1]])
    assert characters(bob.reshape(-1)) == "a" * 30 + "\n" + "c" * 29
    with pytest.raises(InputError, match="the column 'born' is not a text"):
        FromHub(**options | {"x": "born"}).load()


def test_what_cannot_be_loaded_is_refused(hub, tmp_path):
    with pytest.raises(InputError, match=r"data\.name is empty"):
        FromHub().load()
    with pytest.raises(InputError, match="the data set 'nobody/nothing-at-all' cannot be loaded"):
        FromHub(name="nobody/nothing-at-all").load()


def test_a_split_that_is_not_there_is_refused(hub, tmp_path):
    pictures(hub).save_to_disk(tmp_path / "one")
    hub.DatasetDict(train=pictures(hub), test=pictures(hub, 6)).save_to_disk(tmp_path / "two")
    options = {"client": "writer_id", "x": "image", "y": "character"}

    def refusal(place, **more):
        with pytest.raises(InputError) as error:
            FromHub(name=str(tmp_path / place), **options, **more).load()
        return str(error.value)

    assert "without splits, so there is no 'trian'" in refusal("one", split="trian")
    assert "without splits, so there is no 'test'" in refusal("one", test_split="test")
    assert "no split 'trian'; it has train, test" in refusal("two", split="trian")
    for place in ("one", "two"):
        assert "'train', which is trained on" in refusal(place, test_split="train")
    assert len(FromHub(name=str(tmp_path / "two"), **options, split="test").load().x) == 6


def test_texts_that_are_missing_or_empty_are_told_by_name(hub, tmp_path):
    options = {"client": "who", "x": "text", "y": "", "length": 5}

    def source(texts):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        hub.Dataset.from_dict({"who": ["a", "b", "c"] * 2, "text": texts}).save_to_disk(place)
        return FromHub(name=str(place), **options)

    with pytest.raises(InputError, match="the column 'text' has no text in row 1"):
        source(["hello", None, "there", "you", "all", "now"]).load()
    with pytest.warns(ef.EverfedWarning, match="client b, c has only empty texts and is left out"):
        data = source(["hello", "", "", "you", "", ""]).load()
    assert data.owners.names == ("a",)
    assert characters(data.x.reshape(-1)) == "hello\nyo"
    assert source(["hello", "", "there", "you", "all", "now"]).load().owners.names == ("a", "b", "c")


@pytest.mark.parametrize("prefix", ["", "test_"])
def test_one_input_beside_named_ones_is_refused(table, tmp_path, prefix):
    rows = {name: table[name] for name in ("x", "y", "client")}
    both = rows | {f"test_{name}": array for name, array in rows.items()} | {f"{prefix}x_b": rows["x"]}
    with pytest.raises(InputError, match=f"has the inputs {prefix}x and {prefix}x_b"):
        Folder(path=write_arrays(tmp_path / "a", both)).load()
    named = {"x": rows["x"], "x_label": rows["y"], "x_who": rows["client"], "x_age": table["age"]}
    found = Folder(path=write_arrays(tmp_path / "b", named), y="x_label", client="x_who", about=("x_age",)).load()
    assert found.x.shape == (24, 2)
