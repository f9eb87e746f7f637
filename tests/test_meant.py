"""Data that are legal but probably meant otherwise: what is refused, and what is told."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import everfed as ef
from everfed.data.datasets import DATASETS
from everfed.data.folder import Folder
from everfed.data.on_demand_sources import Generated
from everfed.errors import InputError
from everfed.run import config

N = 6
TOKENS = np.arange(N * 8).reshape(N, 8) % 5


def said(make):
    """The warnings, as one text."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make()
    return " ".join(str(one.message) for one in found)


def inputs(**x):
    return ef.from_arrays([(x, np.zeros(N, int))], classes=2)


@pytest.mark.parametrize("shape", [(), (8,), (4, 4)])
def test_bytes_beside_other_inputs_that_are_no_picture_are_refused(shape):
    with pytest.raises(
        InputError, match=r"the input 'mask' of client 0 is bytes .uint8. of shape .* give a mask as bool"
    ):
        inputs(tokens=TOKENS, mask=np.ones((N, *shape), np.uint8))
    for kind in (bool, np.int64, np.float32, np.int8, np.uint16):
        kept = inputs(tokens=TOKENS, mask=np.ones((N, *shape), kind)).x["mask"]
        assert (kept == 1).all()
    source = Generated([N], lambda _: ({"a": TOKENS, "b": np.ones((N, *shape), np.uint8)}, np.zeros(N, int)))
    with pytest.raises(InputError, match="the input 'b' of client"):
        ef.OnDemand(source, classes=2)


def test_pictures_and_single_inputs_of_bytes_stay_bytes():
    bright = np.full((N, 1, 4, 4), 255, np.uint8)
    assert said(lambda: inputs(tokens=TOKENS, image=bright)) == ""
    assert inputs(tokens=TOKENS, image=bright).x["image"].dtype == np.uint8
    assert "'image' is bytes of 0 and 1 alone" in said(lambda: inputs(tokens=TOKENS, image=bright // 255))
    for shape in ((), (8,), (4, 4), (1, 4, 4)):
        single = np.ones((N, *shape), np.uint8)
        assert said(lambda single=single: ef.from_arrays([(single, np.zeros(N, int))], classes=2)) == ""
        assert said(lambda single=single: inputs(only=single)) == ""


HOT = np.eye(3)[np.arange(N) % 3]


@pytest.mark.parametrize("y", [HOT, HOT[:, 0], HOT[:, :1], HOT.astype(np.float16)])
def test_floats_of_0_and_1_say_that_they_make_a_regression(y, tmp_path):
    x = np.ones((N, 2))
    assert "task='multilabel'" in said(lambda: ef.from_arrays([(x, y)]))
    assert "task='multilabel'" in said(lambda: ef.OnDemand(Generated([N], lambda _: (x, y))))
    assert said(lambda: ef.from_arrays([(x, y)], task="regression")) == ""
    assert said(lambda: ef.from_arrays([(x, y + 0.5)])) == ""
    assert said(lambda: ef.from_arrays([(x, 0 * y)])) == ""
    np.savez(tmp_path / "a.npz", x=x, y=y.astype(float), client=np.arange(N) % 2)
    start = {
        "rounds": 1,
        "model": "logistic",
        "batch_size": 1,
        "fleet": {"kind": "cycles", "clients": 2, "cycles": [1]},
    }
    data = {"kind": "folder", "path": str(tmp_path)}
    for more, told in (({}, True), ({"task": "regression"}, False)):
        for place in ("experiment", "data"):
            given = {**start, "data": data, **more} if place == "experiment" else {**start, "data": {**data, **more}}
            words = said(lambda given=given: ef.start(config.from_dict(given)))
            assert words.count("task='multilabel'") == told
    assert Folder(path=str(tmp_path)).load().task == "regression"


def test_targets_that_equal_the_inputs_are_told():
    ignored = np.where(TOKENS == 3, -100, TOKENS)
    for y in (TOKENS, ignored):
        assert "targets are not shifted for you" in said(lambda y=y: ef.from_arrays([(TOKENS, y)]))
        both = {"tokens": TOKENS, "mask": TOKENS > 0}
        assert "targets are not shifted for you" in said(lambda y=y, both=both: ef.from_arrays([(both, y)]))
    assert said(lambda: ef.from_arrays([(TOKENS[:, :-1], TOKENS[:, 1:])])) == ""
    assert said(lambda: ef.from_arrays([(TOKENS.astype(np.float32), TOKENS)])) == ""


def test_built_in_data_have_nothing_to_tell():
    assert said(lambda: DATASETS["digits"]().load().partition(4)) == ""
