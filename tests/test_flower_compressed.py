"""Compressed updates on the wire: small, read as the simulator reads them, and refused if they are anything else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import everfed as ef
from everfed.flower import client_app, wire
from everfed.flower.codec import Codec
from everfed.flower.thinning import RECORD
from everfed.flower.wire import RefusedError
from everfed.learning.compress import COMPRESSORS
from flower_arrivals import SlowGrid, assert_replayed, run_stored, task
from flower_grid import CLIENTS, QUICK, SMALL, fleet_of, run

pytestmark = pytest.mark.filterwarnings("ignore")

WAYS = {
    **{f"qsgd-{bits}": COMPRESSORS["qsgd"](bits=bits) for bits in (2, 3, 4, 7, 8, 11, 16)},
    "qsgd-small-buckets": COMPRESSORS["qsgd"](bits=4, bucket=3),
    "qsgd-one-bucket": COMPRESSORS["qsgd"](bits=4, bucket=100_000),
    "rand-k": COMPRESSORS["rand-k"](keep=0.3),
    "rand-all": COMPRESSORS["rand-k"](keep=1.0),
}


def update(size, kind):
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    return {"normal": values, "zero": torch.zeros(size), "one": torch.eye(1, size)[0], "tiny": values * 1e-38}[kind]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("size", [1, 2, 511, 512, 513, 4810])
@pytest.mark.parametrize("kind", ["normal", "zero", "one", "tiny"])
def test_the_server_reads_what_the_simulator_reads(how, size, kind):
    delta = update(size, kind)
    for client, round, seed in ((0, 0, 0), (3, 17, 5)):
        codec = Codec(WAYS[how], None, seed)
        sent = codec.encode(delta, client, round)
        bits = torch.tensor([WAYS[how].choices()[0]])
        expected = WAYS[how].compress(delta[None], bits, torch.tensor([client]), round, seed)[0].numpy()
        assert np.array_equal(codec.compress(delta.numpy(), client, round), expected)
        if sent is None:
            assert how == "rand-all"
            continue
        read = codec.decode(RecordDict({RECORD: sent}), client, round, size)
        assert np.array_equal(read, expected)  # but for the sign of zeros, which adds nothing


def test_a_million_numbers_at_four_bits_are_half_a_megabyte():
    sent = Codec(COMPRESSORS["qsgd"](bits=4), None, 0).encode(update(10**6, "normal"), 0, 0)
    assert wire.size(RecordDict({RECORD: sent})) < 0.51e6


@pytest.mark.parametrize("how", ["qsgd-4", "rand-k"])
def test_a_compressed_run_is_the_simulators(how):
    experiment = replace(SMALL, compression=WAYS[how], trainer="one-by-one", client=ef.Adam(1e-3))
    made, records, server = run(experiment)
    simulated = ef.start(experiment)
    expected = list(simulated)
    assert [r.participants.tolist() for r in records] == [r.participants.tolist() for r in expected]
    for name, value in simulated.params.items():
        np.testing.assert_allclose(made.params[name].numpy(), value.numpy(), atol=1e-6)
    whole, _, plain = run(replace(experiment, compression=COMPRESSORS["none"]()))
    del whole
    part = {"qsgd-4": 0.15, "rand-k": 0.33}[how]
    received, before = (s.ledger.summary()["bytes_received"] for s in (server, plain))
    assert received < part * before + 2000 * len(records) * CLIENTS
    assert server.ledger.summary()["bytes_sent"] == pytest.approx(plain.ledger.summary()["bytes_sent"], rel=0.01)


def test_without_rounds_too(tmp_path):
    experiment = task("renewal", rounds=4, compression=WAYS["qsgd-8"])
    run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS), slow_s=0.02))
    log, _ = assert_replayed(experiment, tmp_path)
    assert log


def test_devices_that_send_whole_models_are_compressed_by_the_server():
    """As a device without torch does: the model is the same."""
    experiment = replace(SMALL, compression=WAYS["qsgd-8"], trainer="one-by-one")
    made, *_ = run(experiment)
    whole = client_app(replace(experiment, compression=COMPRESSORS["none"]()))
    mixed = fleet_of(client_app(experiment), CLIENTS)
    mixed[1].app = whole
    again, _, server = run(experiment, mixed)
    assert not any(e.refused or e.turned_away for e in server.ledger.entries)
    for name, value in made.params.items():
        np.testing.assert_allclose(again.params[name].numpy(), value.numpy(), atol=1e-4)


def spoilt():
    codec = Codec(WAYS["qsgd-4"], None, 0)
    good = dict(codec.encode(update(1000, "normal"), 0, 0).items())
    lengths = good["lengths"].numpy()
    return {
        "no-codes": {"lengths": good["lengths"]},
        "no-lengths": {"codes": good["codes"]},
        "short": {**good, "codes": Array(good["codes"].numpy()[:-1])},
        "long": {**good, "codes": Array(np.zeros(10**6, np.uint8))},
        "type": {**good, "codes": Array(good["codes"].numpy().astype(np.int32))},
        "nan": {**good, "lengths": Array(lengths * np.float32(np.nan))},
        "negative": {**good, "lengths": Array(-lengths)},
        "infinite": {**good, "lengths": Array(lengths + np.float32(np.inf))},
        "shape": {**good, "lengths": Array(lengths[None])},
        "other": {"kept": Array(np.zeros(300, np.float32))},
    }


@pytest.mark.parametrize("how", spoilt())
def test_what_is_no_compressed_update_is_refused(how):
    codec = Codec(WAYS["qsgd-4"], None, 0)
    with pytest.raises(RefusedError, match="compressed update"):
        codec.decode(RecordDict({RECORD: ArrayRecord(spoilt()[how])}), 0, 0, 1000)


def test_a_compressed_update_is_refused_where_none_is_expected():
    with pytest.raises(RefusedError, match="the experiment's are not"):
        Codec(COMPRESSORS["none"](), None, 0).decode(RecordDict({RECORD: ArrayRecord({})}), 0, 0, 5)
    with pytest.raises(RefusedError, match="no record of arrays"):
        Codec(WAYS["qsgd-4"], None, 0).decode(RecordDict({RECORD: ConfigRecord({})}), 0, 0, 5)


def test_a_long_compressed_update_is_held_to_the_usual_length():
    experiment = replace(SMALL.with_method("fedavg"), rounds=3, compression=WAYS["qsgd-8"])

    def stretch(reply, number):
        record = reply.content.get(RECORD)
        if number == 101 and record is not None:
            lengths = record["lengths"].numpy() * np.float32(1e4)
            reply.content[RECORD] = ArrayRecord({**record, "lengths": Array(lengths)})
        return reply

    _, records, server = run(experiment, change=stretch, limits=QUICK)
    assert all(1 not in r.participants for r in records)
    assert all("above the bound" in e.refused[1] for e in server.ledger.entries)


def test_a_compressed_update_beside_a_whole_model_is_refused_where_none_is_expected():
    """Which of the two would count? A reply has one update."""

    def both(reply, number):
        if number == 101 and "arrays" in reply.content:
            reply.content[RECORD] = ArrayRecord({"codes": Array(np.zeros(9, np.uint8))})
        return reply

    _, records, server = run(replace(SMALL.with_method("fedavg"), rounds=2), change=both)
    assert all(1 not in r.participants for r in records)
    assert all("the experiment's are not" in e.refused[1] for e in server.ledger.entries)
