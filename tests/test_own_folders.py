"""Folders of several files: all of what lies there is read, or refused by name."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from everfed.data.folder import Folder
from everfed.data.on_demand_parquet import Parquet
from everfed.errors import InputError

ROWS = np.arange(24)
TABLE = {"x": np.stack([ROWS, ROWS % 4], axis=1).astype(np.float32), "y": ROWS % 4, "client": ROWS % 3}


def some(rows, table=TABLE):
    return {name: array[rows] for name, array in table.items()}


def as_npz(path, table):
    with open(path, "wb") as file:  # np.savez would add an ending in small letters
        np.savez(file, **table)


def as_parquet(path, table):
    columns = {name: pa.array(a.tolist(), pa.list_(pa.from_numpy_dtype(a.dtype))) if a.ndim > 1 else pa.array(a)
               for name, a in table.items()}  # fmt: skip
    parquet.write_table(pa.table(columns), path)


WRITE = {"npz": as_npz, "parquet": as_parquet}
both = pytest.mark.parametrize("kind", list(WRITE))


def load(folder, **options):
    return Folder(path=str(folder), **options).load()


def refusal(folder, **options):
    with pytest.raises(InputError) as error:
        load(folder, **options)
    return str(error.value)


def rows_of(data):
    return sorted(np.concatenate([data.x, data.test_x])[:, 0].tolist())


@both
@pytest.mark.parametrize("ending", [str.lower, str.upper, str.title])
def test_files_are_joined_row_by_row(tmp_path, kind, ending):
    WRITE[kind](tmp_path / f"a.{kind}", some(slice(0, 5)))
    WRITE[kind](tmp_path / f"b.{ending(kind)}", some(slice(5, 6)))
    WRITE[kind](tmp_path / f"c.{ending(kind)}", some(slice(6, 24)))
    data = load(tmp_path)
    assert rows_of(data) == list(range(24))
    assert (data.x[:, 1] == data.y).all()
    assert (data.x[:, 0] % 3 == data.owners.train).all()


@both
def test_files_that_begin_with_test_are_the_test_set(tmp_path, kind):
    WRITE[kind](tmp_path / f"a.{kind}", some(slice(0, 12)))
    WRITE[kind](tmp_path / f"b.{kind}", some(slice(12, 20)))
    WRITE[kind](tmp_path / f"Test-0.{kind}", some(slice(20, 22)))
    WRITE[kind](tmp_path / f"test-1.{kind}", some(slice(22, 24)))
    data = load(tmp_path)
    assert data.x[:, 0].tolist() == list(range(20))
    assert data.test_x[:, 0].tolist() == [20, 21, 22, 23]
    for path in list(tmp_path.iterdir()):
        if not path.name.lower().startswith("test"):
            path.unlink()
    assert "of a test set alone" in refusal(tmp_path)


def test_arrays_named_test_are_joined_too(tmp_path):
    for number, part in enumerate((slice(0, 10), slice(10, 24))):
        test = {f"test_{name}": array[:2] for name, array in some(part).items()}
        as_npz(tmp_path / f"{number}.npz", some(part) | test)
    data = load(tmp_path)
    assert len(data.x) == 24
    assert data.test_x[:, 0].tolist() == [0, 1, 10, 11]


@both
def test_several_inputs_are_joined_by_name(tmp_path, kind):
    table = {"x_number": TABLE["x"], "x_on": TABLE["x"] > 3, "y": TABLE["y"], "client": TABLE["client"]}
    WRITE[kind](tmp_path / f"a.{kind}", some(slice(0, 9), table))
    WRITE[kind](tmp_path / f"b.{kind}", some(slice(9, 24), table))
    data = load(tmp_path, test_part=0)
    assert data.x["number"][:, 0].tolist() == list(range(24))
    assert data.x["on"].dtype == np.bool_
    table.pop("x_on")
    WRITE[kind](tmp_path / f"b.{kind}", some(slice(9, 24), table))
    said = refusal(tmp_path)
    assert f"b.{kind}'" in said
    assert "x_on" in said
    WRITE[kind](tmp_path / f"b.{kind}", TABLE)
    assert "has the inputs x and x_number" in refusal(tmp_path)


def test_a_column_that_is_named_may_have_others_beside_it(tmp_path):
    as_parquet(tmp_path / "a.parquet", {"image": TABLE["x"], "image_id": ROWS, "y": TABLE["y"], "client": ROWS % 3})
    assert load(tmp_path, x="image").x.shape == (18, 2)


TYPES = ["u1", "i4", "i8", "u4", "f4", "f8", "?"]
MEANING = {"i4": "whole", "i8": "whole", "u4": "whole", "f4": "float", "f8": "float", "?": "truth"}


@both
@pytest.mark.parametrize("name", ["x", "y"])
def test_types_that_mean_the_same_are_joined_and_others_named_with_file_and_column(tmp_path, kind, name):
    """Bytes are pixels as inputs, and labels like others as targets."""
    meaning = MEANING | {"u1": "bytes" if name == "x" else "whole"}
    for first, second in itertools.product(TYPES, TYPES):
        WRITE[kind](tmp_path / f"a.{kind}", some(slice(0, 12)) | {name: TABLE[name][:12].astype(first)})
        WRITE[kind](tmp_path / f"b.{kind}", some(slice(12, 24)) | {name: TABLE[name][12:].astype(second)})
        if meaning[first] == meaning[second]:
            data = load(tmp_path, test_part=0)
            joined = np.concatenate([TABLE[name][:12].astype(first), TABLE[name][12:].astype(second)])
            assert (getattr(data, name) == joined).all(), (first, second)
        else:
            called = [np.dtype(one).name for one in (second, first)]
            assert (
                f"'{name}' is {called[0]} in '{tmp_path}/b.{kind}' and {called[1]} in '{tmp_path}/a.{kind}'"
                in refusal(tmp_path)
            )


@both
def test_shapes_rows_and_names_that_differ_are_named_with_their_file(tmp_path, kind):
    def second(**changed):
        WRITE[kind](tmp_path / f"b.{kind}", some(slice(12, 24)) | changed)
        return refusal(tmp_path, about=("age",) if "age" in changed else ())

    WRITE[kind](tmp_path / f"a.{kind}", some(slice(0, 12)))
    assert f"shape (3,) in '{tmp_path}/b.{kind}' and (2,) in '{tmp_path}/a.{kind}'" in second(x=np.ones((12, 3), "f4"))
    texts = np.array(["a", "bb"] * 6)
    assert f"'client' is text in '{tmp_path}/b.{kind}' and int64" in second(client=texts)
    assert f"a.{kind}'" in second(age=np.ones(12))
    if kind == "npz":
        assert "b.npz' has 11 rows in y and 12 in client" in second(y=np.ones(11, int))
        as_npz(tmp_path / "b.npz", {"x": TABLE["x"], "client": TABLE["client"]})
        assert "b.npz' has no array 'y', which" in refusal(tmp_path)
        as_npz(tmp_path / "b.npz", {"X": TABLE["x"], "Y": TABLE["y"]})
        assert "b.npz' has none of the arrays that are read (x, y, client)" in refusal(tmp_path)
    else:
        assert f"in '{tmp_path}/b.parquet': the column 'y' has missing values" in second(
            y=np.array([1, None] * 6, object)
        )


def test_texts_of_different_lengths_are_joined(tmp_path):
    for number, name in enumerate(("al", "barbara")):
        as_npz(tmp_path / f"{number}.npz", some(slice(0, 6)) | {"client": np.array([name] * 6)})
    assert load(tmp_path).owners.names == ("al", "barbara")


@both
def test_a_test_set_of_other_samples_is_refused(tmp_path, kind):
    WRITE[kind](tmp_path / f"a.{kind}", TABLE)
    for other in (TABLE["x"].astype(np.uint8), TABLE["x"].astype(np.int64), TABLE["x"][:, :1]):
        WRITE[kind](tmp_path / f"test.{kind}", TABLE | {"x": other})
        assert "of the training and the test set are float32 of shape (2,) and" in refusal(tmp_path)


def test_what_would_not_be_read_is_refused_by_name(tmp_path):
    def folder(name, **files):
        place = tmp_path / name
        place.mkdir()
        for file, table in files.items():
            stem, _, ending = file.rpartition("_")
            if ending == "npy":
                np.save(place / f"{stem}.npy", table)
            else:
                WRITE[ending](place / f"{stem}.{ending}", table)
        return place

    loose = {f"{name}_npy": array for name, array in TABLE.items()}
    for name in TABLE:
        said = refusal(folder(f"twice {name}", **loose, a_npz={name: TABLE[name]}))
        assert f"the array '{name}' is in" in said
        assert f"{name}.npy'" in said
        assert "a.npz'" in said
    said = refusal(
        folder("beside", y_npy=TABLE["y"], **{f"{n}_npz": {k: TABLE[k] for k in ("x", "client")} for n in "ab"})
    )
    assert "y.npy'" in said
    assert "an array is in several files" in said
    for name, files in {"arrays": loose, "npz": {"a_npz": TABLE}}.items():
        said = refusal(folder(f"mixed {name}", **files, b_parquet=TABLE))
        assert "has 'b.parquet' and '" in said
    for kind in WRITE:
        place = folder(f"deep {kind}", **{f"a_{kind}": TABLE})
        assert len(load(place).y) == 18  # and after a hidden folder is there
        (place / ".checkpoints").mkdir()
        WRITE[kind](place / ".checkpoints" / f"a.{kind}", TABLE)
        (place / "notes").mkdir()
        assert len(load(place).y) == 18
        (place / "notes" / "older").mkdir()
        np.save(place / "notes" / "older" / "x.npy", TABLE["x"])
        assert "older/x.npy' lies in a folder beside 'a." in refusal(place)
        (place / f"a.{kind}").unlink()
        assert "older/x.npy' lies deeper" in refusal(place)


def test_arrays_in_one_place_each_may_lie_in_files_of_both_kinds(tmp_path):
    np.save(tmp_path / "y.npy", TABLE["y"])
    as_npz(tmp_path / "a.npz", {"x": TABLE["x"]})
    as_npz(tmp_path / "b.npz", {"client": TABLE["client"]})
    assert rows_of(load(tmp_path)) == list(range(24))


def test_a_joined_folder_is_pinned_by_all_of_its_files(tmp_path):
    for number in range(3):
        as_npz(tmp_path / f"{number}.npz", some(slice(8 * number, 8 * number + 8)))
    pinned = Folder(path=str(tmp_path)).pinned()
    assert len(pinned.load().y) == 18  # of 24
    as_npz(tmp_path / "1.npz", some(slice(0, 7)))
    with pytest.raises(InputError, match="are not those that this run began with"):
        pinned.load()


def test_on_demand_files_may_end_in_capitals_and_must_mean_the_same(tmp_path):
    as_parquet(tmp_path / "a.parquet", some(slice(0, 6)) | {"client": np.zeros(6, int)})
    as_parquet(tmp_path / "b.PARQUET", some(slice(6, 9)) | {"client": np.ones(3, int)})
    assert Parquet(tmp_path).sizes().tolist() == [6, 3]
    as_parquet(tmp_path / "b.PARQUET", some(slice(6, 9)) | {"client": np.ones(3, int), "y": np.ones(3)})
    with pytest.raises(InputError, match=r"the column 'y' is double in '.*b\.PARQUET' and int64 in '.*a\.parquet'"):
        len(Parquet(tmp_path))
