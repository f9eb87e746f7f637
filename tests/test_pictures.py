"""Pictures of Hugging Face data sets: numbers mean what is seen, whatever the file holds."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest

from everfed.data.huggingface import FromHub
from everfed.data.on_demand_hf import HuggingFace
from everfed.data.pictures import pictures
from everfed.errors import InputError

Image = pytest.importorskip("PIL.Image")
COLOURS = [(250, 20, 20), (20, 250, 20), (20, 20, 250)]


def picture(colour):
    pixels = np.zeros((3, 4, 3), np.uint8)
    pixels[:, 1:] = colour
    return Image.fromarray(pixels)


def stored(one, kind):
    """As a file has it; the library opens it again."""
    file = io.BytesIO()
    one.save(file, kind)
    return {"bytes": file.getvalue(), "path": None}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")

    def table(files, labels=None):
        kinds = datasets.Features(client=datasets.Value("int64"), x=datasets.Image(), label=datasets.Value("int64"))
        columns = {"client": [i % 2 for i in range(len(files))], "x": files, "label": labels or [0] * len(files)}
        return datasets.Dataset.from_dict(columns, features=kinds)

    def load(files, test=None):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        if test is None:
            table(files).save_to_disk(place)
            return FromHub(name=str(place), test_part=0).load()
        datasets.DatasetDict(train=table(files), test=table(test)).save_to_disk(place)
        return FromHub(name=str(place), test_split="test").load()

    load.table, load.datasets = table, datasets
    return load


WAYS = {
    "png": lambda one: stored(one, "PNG"),
    "quantised": lambda one: stored(one.quantize(8), "PNG"),
    "gif": lambda one: stored(one, "GIF"),
}


@pytest.mark.parametrize("ways", [*itertools.combinations(WAYS, 1), *itertools.combinations(WAYS, 2)])
def test_a_picture_is_its_colours_in_every_file(hub, ways):
    files = [WAYS[way](picture(colour)) for colour in COLOURS for way in ways]
    shown = [np.asarray(picture(colour)).transpose(2, 0, 1) for colour in COLOURS for _ in ways]
    data = hub(files)
    assert (data.x == np.array(shown)).all()
    source = HuggingFace.by_column(hub.table(files), "client")
    x, _ = source.read(np.arange(2))
    assert sorted(map(bytes, x)) == sorted(np.ascontiguousarray(one).tobytes() for one in shown)


def test_a_palette_with_a_transparent_colour_becomes_rgba(hub):
    one = picture(COLOURS[0]).quantize(4)
    file = io.BytesIO()
    one.save(file, "PNG", transparency=one.getpixel((0, 0)))
    data = hub([{"bytes": file.getvalue(), "path": None}] * 2)
    assert data.x.shape == (2, 4, 3, 4)
    assert data.x[0, 3, 0].tolist() == [0, 255, 255, 255]
    assert data.x[0, :3, 0, 1].tolist() == list(COLOURS[0])


def test_black_and_white_is_grey_from_0_to_255(hub):
    grey = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8))
    data = hub([stored(grey.convert("1"), "PNG")] * 2)
    assert data.x.tolist() == [[[[0, 255], [255, 0]]]] * 2


def test_kinds_that_are_mixed_become_the_poorest_that_loses_nothing():
    holds = {"L": {"L"}, "LA": {"L", "A"}, "RGB": {"L", "RGB"}, "RGBA": {"L", "A", "RGB"}}
    for one, other in itertools.product(holds, holds):
        grey = picture((90, 90, 90))
        found = pictures([grey.convert(one), grey.convert(other)], "x")
        wanted = holds[one] | holds[other]
        assert found.shape[1] == (3 if "RGB" in wanted else 1) + ("A" in wanted)
        assert (found[:, 0, :, 1:] == 90).all()


def test_other_kinds_stay_if_all_are_alike_and_are_refused_if_mixed():
    one = picture(COLOURS[0])
    for kind, channels in (("CMYK", 4), ("YCbCr", 3), ("HSV", 3)):
        assert (pictures([one.convert(kind)] * 2, "x")[0] == np.asarray(one.convert(kind)).transpose(2, 0, 1)).all()
        assert pictures([one.convert(kind)] * 2, "x").shape[1] == channels
        with pytest.raises(InputError, match=f"pictures of the kinds {kind}, RGB|pictures of the kinds RGB, {kind}"):
            pictures([one.convert(kind), one], "x")
    with pytest.raises(InputError, match="pictures of the kinds L, RGB"):
        pictures([one, one.convert("L")], "x", mix=False)  # rows of some clients do not decide for others
    for deep in ("I", "I;16"):
        with pytest.raises(InputError, match=f"more than 8 bits .mode {deep}"):
            pictures([one.convert("L").convert(deep)], "x")
    with pytest.raises(InputError, match="has no picture in row 1"):
        pictures([one, None], "x")
    with pytest.raises(InputError, match=r"differ in shape .4x3, 5x5"):
        pictures([one, one.resize((5, 5))], "x")


def test_a_grey_and_a_coloured_set_are_both_in_colour(hub):
    colour, grey = picture((90, 90, 90)), picture((90, 90, 90)).convert("L")
    for train, test in itertools.permutations((colour, grey)):
        data = hub([stored(train, "PNG")] * 4, [stored(test, "PNG")] * 2)
        assert data.x.shape[1:] == data.test_x.shape[1:] == (3, 3, 4)
        assert (data.x[0] == data.test_x[0]).all()


@pytest.mark.parametrize("names", [3, 5])
def test_classes_in_lists_are_counted_by_their_names(hub, tmp_path, names):
    datasets = hub.datasets
    label = datasets.ClassLabel(names=list("abcde"[:names]))
    kinds = datasets.Features(
        client=datasets.Value("int64"), x=datasets.List(datasets.Value("int32")), label=datasets.List(label)
    )
    columns = {"client": [0, 1] * 5, "x": [[1, 2, 30]] * 10, "label": [[0, 1, 2]] * 10}
    datasets.Dataset.from_dict(columns, features=kinds).save_to_disk(tmp_path / "t")
    assert FromHub(name=str(tmp_path / "t")).load().classes == names
    columns["label"] = [[0, 1, 1]] * 10
    datasets.Dataset.from_dict(columns, features=kinds).save_to_disk(tmp_path / "u")
    assert (
        FromHub(name=str(tmp_path / "u"), task="multilabel").load().classes == 3
    )  # labels, each of which is or is not
