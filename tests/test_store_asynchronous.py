"""Folders of asynchronous runs: what arrived is in the records, and a run that was killed ends as one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

import everfed as ef
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.energy.work import Work
from everfed.learning.compress import Qsgd
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.start import start
from everfed.scheduling.policies import Greedy
from everfed.server.arrivals import FedBuff
from everfed.server.optimizers import ServerMomentum
from everfed.store import open_run, stored_rounds
from everfed.store.check import check_run
from everfed.store.checkpoint import checkpoints
from everfed.store.records import parsed
from everfed.store.trackers import scalars

TRICKLE = CycleFleet(8, (1, 2, 4, 8), arrivals="trickle")
# Batteries that brown out and works whose cost varies, so that some are cut short.
DEVICES = DeviceFleet(
    tuple(
        DeviceGroup(name=site, count=4, site=site, device="esp32", radio="lora-sf7", panel_wp=panel, battery_wh=0.05)
        for site, panel in (("miami", 0.05), ("sand-point", 0.1))
    ),
    round_s=3600.0,
    cost_spread=0.4,
)
BASE = Experiment(
    fleet=TRICKLE, rounds=24, batch_size=4, eval_every=6, device="cpu", client=ef.SGD(0.1, momentum=0.9),
    work=Work(0.7, spread=0.3, local_steps="affordable"),
)  # fmt: skip
BUFFERED = replace(
    BASE, policy=Greedy(), server=FedBuff(size=3), server_optimizer=ServerMomentum(lr=0.1, beta=0.9),
    client=ef.Adam(0.01),
)  # fmt: skip
CASES = {
    "renewal": BASE.with_method("renewal"),
    "renewal-discounted, quantised": replace(BASE.with_method("renewal-discounted"), compression=Qsgd(bits=4)),
    "fedbuff, with momentum": BUFFERED,
    "fedasync, one by one": replace(BASE.with_method("fedasync"), trainer="one-by-one"),
    "area, adam": replace(BASE.with_method("area"), client=ef.Adam(0.01)),
    "devices that send what they have": replace(
        BASE.with_method("renewal"), fleet=DEVICES, work=Work(spread=0.2, partial="send"), rounds=48
    ),
    "greedy, without rounds": replace(BASE.with_method("greedy"), mode="asynchronous"),
}


def run(experiment: Experiment, folder: Path, **options) -> ef.StoredRun:
    for _ in stored_rounds(experiment, folder, **options):
        pass
    return open_run(folder)


def assert_same(one: ef.StoredRun, other: ef.StoredRun) -> None:
    assert one.state == other.state == "done"
    assert [r.to_dict() for r in one.rounds] == [r.to_dict() for r in other.rounds]
    assert (one.path / "model.safetensors").read_bytes() == (other.path / "model.safetensors").read_bytes()


def every(rounds: int):
    """A stop after this many rounds."""
    seen = iter(range(1, 10_000))
    return lambda: next(seen) >= rounds


@pytest.fixture(scope="module", params=CASES)
def whole(request, tmp_path_factory) -> ef.StoredRun:
    """Runs that were never cut off."""
    return run(CASES[request.param], tmp_path_factory.mktemp("whole") / "run")


def test_the_records_are_those_of_the_run(whole):
    made = list(start(whole.experiment))
    assert [replace(r, seconds=0.0).to_dict() for r in made] == [r.to_dict() for r in whole.rounds]
    for mine, stored in zip(made, whole.rounds, strict=True):
        for name in ("times", "staleness", "steps"):
            one, other = getattr(mine.arrived, name), getattr(stored.arrived, name)
            assert one.dtype == other.dtype
            assert one.tolist() == other.tolist()
        assert stored.arrived.version == mine.arrived.version
        assert json.loads(json.dumps(stored.to_dict()))["arrived"] == mine.arrived.to_dict()
    assert sum(len(r.arrived.times) for r in whole.rounds) > 20


def test_a_run_that_is_stopped_after_every_round_is_the_same(whole, tmp_path):
    folder = tmp_path / "cut"
    starts = 1
    while run(whole.experiment, folder, stop=every(5)).state != "done":
        starts += 1
    assert starts >= whole.experiment.rounds // 5
    assert_same(open_run(folder), whole)


def test_a_finished_run_goes_on_to_more_rounds(tmp_path):
    long = replace(BUFFERED, rounds=30)
    expected = run(long, tmp_path / "long")
    run(replace(BUFFERED, rounds=17), tmp_path / "short")
    extended = run(long, tmp_path / "short")
    # The shorter run was evaluated at its end, and what was evaluated there stays.
    for one, other in zip(extended.rounds, expected.rounds, strict=True):
        assert replace(one, metrics=None).to_dict() == replace(other, metrics=None).to_dict()
    assert all(torch.equal(value, expected.params[name]) for name, value in extended.params.items())


def test_only_asynchronous_runs_have_the_columns(tmp_path):
    plain = run(replace(BASE, work=Work(), rounds=4), tmp_path / "plain")
    mine = run(replace(BUFFERED, rounds=4), tmp_path / "mine")
    columns = [pa.ipc.open_stream(r.path / "records.arrow").schema.names for r in (plain, mine)]
    more = ["arrived_times", "arrived_staleness", "arrived_steps", "arrived_version"]
    assert columns[1] == columns[0] + more
    assert all(record.arrived is None for record in plain.rounds)
    assert "arrived" not in plain.rounds[0].to_dict()


def test_early_stopping_has_its_columns_beside_them(tmp_path):
    found = run(replace(BUFFERED, early_stopping=ef.EarlyStopping(part=0.2), rounds=12), tmp_path / "run")
    assert found.rounds[5].validation is not None
    assert found.rounds[5].arrived is not None


def test_trackers_are_told_versions_and_staleness():
    record = next(r for r in start(CASES["renewal"]) if len(r.participants))
    told = scalars(record)
    assert told["round/version"] == record.arrived.version > 0
    assert told["round/staleness"] == record.arrived.staleness.mean()


def test_damage_of_the_records_is_noticed_and_repaired_by_running(tmp_path):
    folder = tmp_path / "run"
    whole = run(BUFFERED, tmp_path / "whole")
    run(BUFFERED, folder)
    content = (folder / "records.arrow").read_bytes()
    for place in (len(content) // 3, len(content) - 40):
        (folder / "records.arrow").write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert check_run(folder).damaged
        assert_same(run(BUFFERED, folder), whole)


def test_records_that_were_cut_off_are_read_up_to_there(whole):
    content = (whole.path / "records.arrow").read_bytes()
    lengths = {len(parsed(content[:length])) for length in range(0, len(content), 997)}
    assert lengths <= set(range(len(whole.rounds) + 1))
    assert len(lengths) > 2


_CODE = """
import sys
from pathlib import Path
from everfed.run import config
from everfed.store import stored_rounds
experiment = config.from_dict(config.read(Path(sys.argv[1])))
for _ in stored_rounds(experiment, Path(sys.argv[2]), checkpoint_s=0.02):
    pass
"""


@pytest.mark.parametrize(
    ("case", "kills"),
    [("fedbuff, with momentum", 1), *(pytest.param(case, 3, marks=pytest.mark.long) for case in CASES)],
)
def test_killed_at_random_moments_it_ends_bit_identical(case, kills, tmp_path):
    experiment = replace(CASES[case], rounds=40 + 60 * kills, eval_every=50)
    file, folder = tmp_path / "experiment.toml", tmp_path / "killed"
    file.write_text(config.to_file(experiment), encoding="utf-8")
    expected = run(experiment, tmp_path / "whole")
    chance, reached = random.Random(case), -1
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(file), str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        # Until it is further than it was (a kill before that would test nothing), and then a little longer.
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline and newest(folder) <= reached:
            time.sleep(0.003)
        time.sleep(chance.uniform(0.0, 0.08))
        assert process.poll() is None, "the run was over before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        reached = newest(folder)
    assert_same(run(experiment, folder), expected)


def newest(folder: Path) -> int:
    """The round of the last checkpoint."""
    return max((int(path.name.split("-")[1]) for path in checkpoints(folder)), default=-1)
