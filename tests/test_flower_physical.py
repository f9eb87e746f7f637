"""Fleets described by their devices, over Flower: panels, batteries and radios, through restarts and late comers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")
pytest.importorskip("pvlib", reason="pvlib is not installed; install it with: pip install 'everfed[solar]'")

import everfed as ef
from everfed.energy.physical import DeviceFleet, DeviceGroup
from everfed.flower import client_app, remote_run
from everfed.flower.server import stored_remote_rounds
from everfed.learning.compress import COMPRESSORS
from flower_arrivals import SlowGrid, assert_replayed, limits, read_log
from flower_grid import CLIENTS, QUICK, SMALL, InProcessGrid, Node, fleet_of, run

pytestmark = pytest.mark.filterwarnings("ignore")

GROUPS = (
    DeviceGroup(count=2, panel_wp=6.0, spread=0.2, battery_wh=2.0, start=0.5, step_s=60.0),
    DeviceGroup(count=2, device="raspberry-pi-4b", panel_wp=60.0, battery_wh=20.0, start=0.5, step_s=60.0),
)
FLEET = DeviceFleet(GROUPS, model_mb=4.0, cost_spread=0.2, start_day="06-01")
FIELD = replace(SMALL, fleet=FLEET, rounds=14, eval_every=14, trainer="one-by-one")
THIN = replace(FIELD, compression=COMPRESSORS["adaptive-qsgd"](), downlink="bf16", client=ef.Adam(1e-3))


def assert_simulated(experiment, made, records, tolerance):
    simulated = ef.start(experiment)
    expected = list(simulated)
    assert [r.participants.tolist() for r in records] == [r.participants.tolist() for r in expected]
    assert [r.scales.tolist() for r in records] == [r.scales.tolist() for r in expected]
    assert records[-1].energy.to_dict() == pytest.approx(expected[-1].energy.to_dict())
    assert sum(len(r.participants) for r in records) > CLIENTS
    for name, value in simulated.params.items():
        np.testing.assert_allclose(made.params[name].numpy(), value.numpy(), atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", ["algorithm1", "greedy", "known-arrivals", "wait-for-all", "self-weighted"])
@pytest.mark.parametrize("two_phase", [True, False])
def test_devices_take_part_as_their_simulation_says_and_nobody_is_refused(method, two_phase):
    experiment = FIELD.with_method(method)
    if experiment.policy.coordinated and not two_phase:
        pytest.skip("the server decides")
    made, records, server = run(experiment, limits=replace(QUICK, two_phase=two_phase))
    assert_simulated(experiment, made, records, 1e-6)
    entries = server.ledger.entries
    assert not any(e.refused or e.lost or e.turned_away or e.absent or e.shortened for e in entries)
    assert (server.ledger.summary()["delivered"], server.ledger.summary()["bias"]) == (1.0, 0.0)


def test_sleepers_with_few_bytes_and_kept_state_are_simulated_to_the_last_bit():
    made, records, server = run(THIN, limits=replace(QUICK, round_s=0.02), differences=True)
    assert_simulated(THIN, made, records, 0.0)
    assert not any(e.absent or e.refused for e in server.ledger.entries)


def test_restarts_of_server_and_devices_change_no_bit(tmp_path):
    nodes = [Node(client_app(THIN), {"client": c, "state-dir": str(tmp_path / str(c))}) for c in range(CLIENTS)]
    grid, records = InProcessGrid(nodes), []
    state = None
    while len(records) < THIN.rounds:  # the server is started anew after every four rounds, a device with it
        made = remote_run(THIN, grid, limits=QUICK, differences=True)
        if state is not None:
            made.load_state_dict(state)
        for record in made:
            records.append(record)
            if len(records) % 4 == 0:
                state = made.state_dict()
                nodes[len(records) // 4 % CLIENTS].state.clear()
                break
    assert_simulated(THIN, made, records, 0.0)


def test_late_comers_with_differences_have_their_shares_from_then_on():
    experiment = replace(FIELD.with_method("fedavg"), downlink="bf16", rounds=4)
    models = []
    for differences in (False, True):
        nodes = fleet_of(client_app(experiment), CLIENTS)
        nodes[2].online = False
        made = remote_run(experiment, InProcessGrid(nodes), limits=QUICK, late_joiners=True, differences=differences)
        scales = []
        for record in made:
            scales.append(record.scales.tolist())
            nodes[2].online = record.round >= 1
        shares = made.setup.data.shares()
        factor = 1.0 / (1.0 - shares[2])
        assert scales[:2] == [pytest.approx([factor] * 3)] * 2
        assert scales[2:] == [[1.0] * 4] * 2
        assert [e.joined for e in made.source.ledger.entries] == [[0, 1, 3], [], [2], []]
        models.append(made.params)
    for name, value in models[0].items():
        assert np.array_equal(models[1][name].numpy(), value.numpy())


def test_without_rounds_every_work_counts_once_through_a_restart(tmp_path):
    """Thin links, physical fleets, kept state: the log of a run that was restarted gives its model again."""
    experiment = replace(THIN.with_method("renewal"), rounds=6, local_steps=3)
    grid = SlowGrid(fleet_of(client_app(experiment), CLIENTS), slow_s=0.01)
    settings = {"limits": limits(), "differences": True}
    for number, _ in enumerate(stored_remote_rounds(experiment, grid, tmp_path, **settings)):
        if number == 2:
            break
    for _ in stored_remote_rounds(experiment, grid, tmp_path, **settings):
        pass
    assert_replayed(experiment, tmp_path)
    works = [(work.client, work.slot) for work in read_log(tmp_path) if work.added]
    assert len(works) == len(set(works)) > 0
