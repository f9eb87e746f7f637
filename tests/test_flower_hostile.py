"""Nodes that send what they must not: the run ends, the model is the honest clients', the sender is named."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord
from hypothesis import given, settings, strategies as st

import everfed as ef
from everfed.energy.battery import Storage
from everfed.flower import FromFile, Measured, Roster, RoundLimits, client_app, payload, remote_run
from everfed.flower.energy import own_plan, planned_choice
from everfed.flower.ledger import read
from everfed.flower.norms import NormBound
from everfed.flower.server import stored_remote_rounds
from everfed.flower.standing import Standing
from everfed.flower.supply import Supply
from everfed.flower.wire import RefusedError
from everfed.methods import plan
from everfed.run.fleets import CycleFleet
from flower_arrivals import SlowGrid, assert_replayed, run_stored, task
from flower_grid import CLIENTS, QUICK, SHORT, SMALL, InProcessGrid, Node, fleet_of, run

pytestmark = pytest.mark.filterwarnings("ignore")

EVIL = 101  # the node of client 1
BOOKS = ("harvested", "spent", "wasted", "stored", "shortfall", "initial", "standby", "leaked", "lost")
COUNTS = ("violations", "brownouts")


def packed(values, save=np.save, **more):
    file = io.BytesIO()
    save(file, values, **more)
    return file.getvalue()


def claims():
    """(name, key of the answer, value): every field with values of every wrong kind."""
    for name in (*BOOKS, *COUNTS):
        for bad in (float("nan"), float("inf"), -1.0, 1e300, "x" * 50, True, [1.0, 2.0], b"\0" * 9):
            yield f"energy.{name}", bad
    for name in COUNTS:
        yield f"energy.{name}", 2**62
    for bad in (float("nan"), float("inf"), -1.0, 0.0, 1e-9, 0.5, 1e30, 1.0001, "1", [1.0], 1):
        yield "scale", bad
    for key in ("client", "round", "planned"):
        for bad in (-1, 10**9, 1.0, "0", True, [0], float("nan")):
            yield key, bad
    for bad in (0, "yes", 1.0, [True]):
        yield "join", bad


def honest_model(experiment):
    nodes = fleet_of(client_app(experiment), CLIENTS)
    nodes[1].online = False
    made, *_ = run(experiment, nodes)
    return made.params


@pytest.fixture(scope="module")
def alone():
    return honest_model(SHORT)


def assert_repelled(change, alone, experiment=SHORT, limits=QUICK):
    made, records, server = run(experiment, change=change, limits=limits)
    assert len(records) == experiment.rounds
    assert not any(1 in record.participants for record in records)
    for name, value in alone.items():
        assert made.params[name].numpy().tobytes() == value.numpy().tobytes(), name
    said = [why for e in server.ledger.entries for why in (*e.turned_away.values(), *e.refused.values())]
    assert said
    assert all(len(why) < 400 and why.isprintable() for why in said)
    named = [e for e in server.ledger.entries if 1 in e.refused or any("client 1" in w for w in e.turned_away.values())]
    anonymous = [e for e in server.ledger.entries if any(w.startswith("node 101") for w in e.turned_away.values())]
    assert named or anonymous  # before it has said which client it is, a node without a key has only its number
    return server


def of_evil(what):
    """Change the replies of one node: what(reply) returns another, or changes it."""

    def change(reply, number):
        return (what(reply) or reply) if number == EVIL and not reply.has_error() else reply

    return change


@pytest.mark.parametrize(("key", "bad"), [pytest.param(k, v, id=f"{k}={v!r:.12}") for k, v in claims()])
def test_no_field_of_an_answer_is_believed(key, bad, alone):
    def claim(reply):
        reply.content["everfed"][key] = bad

    assert_repelled(of_evil(claim), alone)


def with_arrays(make):
    """Replace the first array of an update by make(array's numbers), an Array."""

    def change(reply):
        arrays = reply.content.get("arrays")
        if arrays is not None:
            name, first = next(iter(arrays.items()))
            reply.content["arrays"] = ArrayRecord({**arrays, name: make(first.numpy())})

    return change


def enveloped(data, like, **more):
    said = {"dtype": "float32", "shape": like.shape, "stype": "numpy.ndarray", **more}
    return Array(data=data, **said)


PAYLOADS = {
    "npz": lambda v: enveloped(packed(v, np.savez), v),
    "npz-named": lambda v: enveloped(packed(v, np.savez_compressed), v),
    "pickle": lambda v: enveloped(packed(np.array([{}], object), allow_pickle=True), v),
    "object": lambda v: enveloped(packed(v).replace(b"<f4", b"|O8", 1), v),
    "other-shape-inside": lambda v: enveloped(packed(v.reshape(-1)[:-1]), v),
    "other-type-inside": lambda v: enveloped(packed(v.astype(np.float64)), v),
    "big-endian": lambda v: enveloped(packed(v.astype(">f4")), v),
    "cut": lambda v: enveloped(packed(v)[:-3], v),
    "longer": lambda v: enveloped(packed(v) + b"\0" * 8, v),
    "huge-shape": lambda v: enveloped(packed(v).replace(b"(", b"(9", 1), v),
    "long-head": lambda v: enveloped(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + packed(v)[12:], v),
    "code": lambda v: enveloped(packed(v).replace(b"False", b"print", 1), v),
    "empty": lambda v: enveloped(b"", v),
    "torch": lambda v: enveloped(packed(v), v, stype="torch"),
    "1e30": lambda v: Array(np.full_like(v, 1e30)),
    "largest": lambda v: Array(np.full_like(v, np.finfo(np.float32).max)),
    "nan": lambda v: Array(np.full_like(v, np.nan)),
    "one-inf": lambda v: Array(np.where(np.arange(v.size).reshape(v.shape) == 0, np.float32(np.inf), v)),
    "long": lambda v: Array(v + np.float32(1e4)),
}


@pytest.mark.parametrize("how", PAYLOADS)
def test_no_payload_reaches_the_model(how, alone):
    assert_repelled(of_evil(with_arrays(PAYLOADS[how])), alone)


def test_an_array_in_another_order_is_still_an_array():
    """Legal, if unusual: columns first, as a Fortran program would write it."""
    turned = with_arrays(lambda v: enveloped(packed(np.asfortranarray(v)), v))
    expected, *_ = run(SHORT)
    made, *_ = run(SHORT, change=of_evil(turned))
    for name, value in expected.params.items():
        assert made.params[name].numpy().tobytes() == value.numpy().tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "float16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (1, 1, 1, 1)])
def test_arrays_are_read_as_numpy_reads_them(dtype, shape):
    values = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
    for sent in (values, np.asfortranarray(values)):
        got = payload.read(Array(sent))
        assert got.dtype == values.dtype
        np.testing.assert_array_equal(got, values)


def large(reply):
    reply.content["metrics"] = MetricRecord({f"m{i}": float(i) for i in range(100_000)})


RECORDS = {
    "no-records": lambda reply: reply.content.clear(),
    "metrics-for-settings": lambda reply: reply.content.update({"everfed": MetricRecord({"client": 1})}),
    "arrays-for-settings": lambda reply: reply.content.update({"everfed": ArrayRecord({})}),
    "nothing-said": lambda reply: reply.content.update({"everfed": ConfigRecord({})}),
    "large": large,
    "long-text": lambda reply: reply.content["everfed"].update({"client": "\n\x1b[31m" * 500_000}),
    "settings-for-arrays": lambda reply: (
        reply.content.update({"arrays": ConfigRecord({"w": 1.0})}) if "arrays" in reply.content else None
    ),
    "loss-nan": lambda reply: reply.content.update({"metrics": MetricRecord({"train_loss": float("nan")})}),
    "loss-huge": lambda reply: reply.content.update({"metrics": MetricRecord({"train_loss": 1e300})}),
    "loss-list": lambda reply: reply.content.update({"metrics": MetricRecord({"train_loss": [1.0]})}),
    "no-model": lambda reply: reply.content.pop("arrays", None) and None,
    "another-model": lambda reply: (
        reply.content.update({"arrays": ArrayRecord({"\x1bw" * 1000: Array(np.zeros(2, np.float32))})})
        if "arrays" in reply.content
        else None
    ),
}


@pytest.mark.parametrize("how", RECORDS)
def test_no_record_gets_past(how, alone):
    def change(reply):
        RECORDS[how](reply)

    assert_repelled(of_evil(change), alone)


def test_a_strangers_words_are_one_short_line_of_the_log():
    def fail(reply, number):
        if number != EVIL:
            return reply
        reply.__dict__["_error"], reply.__dict__["_content"] = Error(2, "\x1b[2Jred\n" * 100_000), None
        return reply

    _, records, server = run(SHORT, change=fail)
    assert len(records) == SHORT.rounds
    said = [why for e in server.ledger.entries for why in e.failed.values()]
    assert any("its app raised an error: [2Jred" in why for why in said)
    assert all(len(why) < 260 and why.isprintable() for why in said)


@settings(deadline=None)
@given(data=st.data())
def test_drawn_answers_never_end_the_run(data):
    value = st.one_of(
        st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=20), st.binary(max_size=9),
        st.lists(st.floats(), max_size=3), st.lists(st.integers(-9, 9), max_size=3),
    )  # fmt: skip
    keys = ("client", "round", "join", "scale", "planned", *(f"energy.{n}" for n in (*BOOKS, *COUNTS)))
    changes = data.draw(st.dictionaries(st.sampled_from(keys), value, min_size=1))

    def claim(reply):
        reply.content["everfed"].update(changes)

    experiment = replace(SHORT, rounds=1, eval_every=1)
    _, records, _ = run(experiment, change=of_evil(claim), limits=replace(QUICK, query_s=60.0, train_s=60.0))
    assert len(records) == 1
    energy = records[0].energy
    assert all(np.isfinite(v) and v >= 0.0 for v in energy.to_dict().values())
    assert abs(energy.imbalance()) < 1e-5


# Weight over time


def test_an_unscaled_policy_takes_no_scale():
    """Scale E was accepted from anybody whose cycle is E, whatever the policy."""
    greedy = SMALL.with_method("greedy")

    def claim(reply, number):
        if number == 102:  # client 2 has a cycle of 4
            reply.content["everfed"]["scale"] = 4.0
        return reply

    _, records, server = run(greedy, change=claim)
    assert not any(2 in r.participants for r in records)
    assert any("above its limit of 1" in w for e in server.ledger.entries for w in e.turned_away.values())


@pytest.mark.parametrize("method", ["algorithm1", "greedy", "greedy-scaled", "algorithm1-unscaled"])
@pytest.mark.parametrize("scale", [1.0, None])
def test_nobody_takes_part_more_often_than_its_energy_allows(method, scale):
    """A rare client that says yes in every round, with a scale of 1 or with its own."""
    experiment = replace(SMALL.with_method(method), rounds=12)

    def insist(reply, number):
        if number == 102:
            answer = reply.content["everfed"]
            answer["join"] = True
            answer["scale"] = answer["scale"] if scale is None else scale
        return reply

    lenient = replace(QUICK, strikes=0)
    _, records, _ = run(experiment, change=insist, limits=lenient)
    rounds = [r.round for r in records if 2 in r.participants]
    assert len(rounds) <= 3  # a unit arrives in rounds 0, 4 and 8
    assert all(sum(first <= r < first + 4 for r in rounds) <= 1 for first in (0, 4, 8))


def test_hoarded_silence_is_no_energy():
    """A client that was silent for many windows has the energy of one: its battery holds no more."""
    supply = Supply(ef.Fleet.from_cycles([4]), ef.UniformWindow(), 0)
    supply.advance(40)
    supply.check_join(0, 4.0)
    supply.charge(0)
    for round in (41, 42, 43):
        supply.advance(round)
        with pytest.raises(RefusedError, match="without energy"):
            supply.check_join(0, 4.0)
    supply.advance(44)
    supply.check_join(0, 4.0)


FLEETS = {
    "lump": ef.Fleet.from_cycles([1, 3, 7], [0, 2, 5]),
    "trickle": ef.Fleet.from_cycles([1, 3, 7], arrivals="trickle"),
    "bernoulli": ef.Fleet.from_cycles([1, 3, 7], arrivals="bernoulli", capacity=3.0),
    "losses": ef.Fleet.from_cycles(
        [1, 3, 7], arrivals="trickle", capacity=2.5,
        storage=Storage(charging=0.9, leak=0.01, standby=0.01, start=0.7, cost_spread=0.2, browns_out=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FLEETS)
@pytest.mark.parametrize("policy", [name for name, kind in ef.POLICIES.items() if not kind().coordinated])
@pytest.mark.parametrize("seed", [0, 5])
def test_honest_clients_are_never_refused(kind, policy, seed):
    """Whatever the energy and the policy: each client's own plan, books included, passes the server's checks."""
    fleet, rule, rounds = FLEETS[kind], ef.POLICIES[policy](), 120
    supply = Supply(fleet, rule, seed)
    plans = [own_plan(fleet, rule, seed, client, rounds) for client in range(len(fleet))]
    for round in range(rounds):
        supply.advance(round)
        for client, own in enumerate(plans):
            choice = planned_choice(own, round)
            supply.check_books(client, round, choice.energy)
            assert choice.next <= supply.asleep_until(client, round, choice.simulated)
            if choice.join:
                supply.check_join(client, choice.scale)
                supply.charge(client)
        assert (supply.due == [bool(own["join"][round]) for own in plans]).all()


# Sleep


def rare(method="algorithm1"):
    return replace(SMALL.with_method(method), fleet=CycleFleet(clients=CLIENTS, cycles=(4,)), rounds=12)


def lying(**said):
    """Of client 1's answers: other entries."""

    def change(reply, number):
        if number == EVIL and reply.has_content():
            for key, value in said.items():
                reply.content["everfed"][key] = value
        return reply

    return change


@pytest.mark.parametrize("said", [{"join": False, "next": 60}, {"join": False}], ids=["sleeps", "says no"])
def test_who_sleeps_through_its_round_or_says_no_in_it_is_found_out(said):
    experiment = rare()
    *_, server = run(experiment, change=lying(**said), limits=replace(QUICK, round_s=0.05))
    slots = [step.round for step in plan(experiment.make_fleet(), experiment.policy, 12) if 1 in step.clients]
    assert len(slots) == 3
    absent = [e.round for e in server.ledger.entries if 1 in e.absent]
    assert absent == slots
    assert all("due by the experiment's fleet" in server.ledger.entries[r].absent[1] for r in slots)
    summary = server.ledger.summary()
    assert (summary["worst_client"], summary["worst_delivered"], summary["missed"]) == (1, 0.0, 3)
    assert summary["bias"] == pytest.approx(0.25, abs=0.01)  # a quarter of the data


def test_who_sleeps_where_nobody_can_tell_is_asked_in_every_second_window():
    """A meter may say anything, but a window has a slot."""
    experiment = rare()
    nodes = fleet_of(client_app(experiment), CLIENTS)
    change = lying(join=False, next=60, simulated=False)
    _, _, server = run(experiment, nodes, change=change, limits=replace(QUICK, round_s=0.05))
    asked = [int(m.metadata.group_id) for m in nodes[1].received]
    assert asked == [0, 8]
    assert all(not e.absent for e in server.ledger.entries)


def test_a_sleeper_that_is_gone_is_missed_from_its_round_on():
    experiment = rare()
    nodes = fleet_of(client_app(experiment), CLIENTS)
    grid = InProcessGrid(nodes, lying(next=60))
    slots = [step.round for step in plan(experiment.make_fleet(), experiment.policy, 12) if 1 in step.clients]
    made = remote_run(experiment, grid, limits=replace(QUICK, round_s=0.05))
    for record in made:
        if record.round == 0 and slots[0] > 0:
            nodes[1].online = False
    summary = made.source.ledger.summary()
    assert summary["worst_client"] == 1
    assert summary["missed"] == len([slot for slot in slots if slot > 0])


def test_a_run_that_goes_on_knows_its_sleepers_rounds():
    fleet, policy = rare().make_fleet(), ef.UniformWindow()
    fresh, restored = (Supply(fleet, policy, 3) for _ in range(2))
    for round in range(9):
        fresh.advance(round)
        fresh.asleep_until(2, round, True)
    restored.advance(8)
    for client in range(CLIENTS):
        assert fresh.asleep_until(client, 8, True) == restored.asleep_until(client, 8, True)
    assert (fresh.due == restored.due).all()


# Lengths


@pytest.mark.parametrize("clients", [4, 6, 10, 3, 5])
def test_exactly_half_of_the_clients_cannot_have_longer_updates_taken_nor_others_refused(clients):
    def after(length, rounds=60):
        bound = NormBound(np.ones(clients), 20.0)
        usual, scales, everybody = np.linspace(1.0, 1.5, clients), np.ones(clients), np.arange(clients)
        assert bound.check(everybody, usual, scales, 8.0) == [1.0] * clients
        for _ in range(rounds):
            sent = np.where(everybody < clients // 2, length(bound), usual)
            found = bound.check(everybody, sent, scales, 8.0)
        return [(fate, size) for fate, size in zip(found, sent.tolist(), strict=True)]

    long = after(lambda bound: 0.99 * 10 * 20 * np.nanmax(bound.latest))  # as long as is not refused
    taken = [fate * size for fate, size in long if not isinstance(fate, str)]
    assert max(taken) <= 20 * 1.5 + 1e-6
    assert all(fate == 1.0 for fate, _ in long[clients // 2 :])
    short = after(lambda bound: 1e-12)
    honest = [fate * size for fate, size in short[clients // 2 :]]  # none is a refusal
    assert min(honest) >= min(1.0, 0.01 * 8.0)


def test_a_length_is_usual_by_the_median_and_scaled():
    bound = NormBound(np.array([1.0, 5.0, 20.0, 1.0]), 5.0)

    def check(clients, lengths, scales):
        return bound.check(np.array(clients), np.array(lengths), np.array(scales), 8.0)

    assert "the model's was 8 at first" in check([0], [1e9], [1.0])[0]  # nothing else to compare it with
    assert check(range(4), [1.0, 1.2, 0.8, 1.1], [1.0, 5.0, 20.0, 1.0]) == [1.0] * 4
    assert check([2], [4.0], [20.0]) == [1.0]
    assert check([2], [10.0], [20.0]) == [pytest.approx(0.55)]  # shortened to 5 times 1.1, the lower median
    assert check([2], [10.0], [1.0]) == [pytest.approx(0.55)]  # a smaller scale earns nothing: not all rules use it
    assert check([2], [10.0], [40.0]) == [pytest.approx(0.275)]  # a larger one costs
    assert "above the bound" in check([2], [100.0], [20.0])[0]
    # One of four cannot move it, however patient it is, nor can all that come at once.
    for _ in range(50):
        check([3], [49.0], [1.0])
    assert check([3], [11.0], [1.0])[0] == pytest.approx(0.5, rel=0.1)
    assert all(isinstance(why, str) for why in check([1, 2, 3], [1e3] * 3, [5.0, 20.0, 1.0]))
    assert NormBound(np.ones(2), 0.0).check(np.array([0]), np.array([1e30]), np.array([1.0]), 1.0) == [1.0]


def test_who_has_nothing_to_learn_does_not_make_others_too_long():
    bound = NormBound(np.ones(4), 20.0)
    for _ in range(3):
        assert bound.check(np.arange(4), np.array([0.0, 0.0, 3.0, 4.0]), np.ones(4), 0.0) == [1.0] * 4


def test_a_small_fleet_may_learn_as_fast_as_it_likes():
    """Two clients, a model that starts at nothing, and long steps: nothing is known that would call them too long."""
    bound = NormBound(np.ones(2), 20.0)
    for length in (1.0, 3000.0, 5.0, 900_000.0):
        assert bound.check(np.arange(2), np.array([length, length / 2]), np.ones(2), 0.0) == [1.0, 1.0]
    assert isinstance(bound.check(np.array([0]), np.array([1e30]), np.ones(1), 5.0)[0], str)


def test_one_client_alone_cannot_carry_the_model_away_round_by_round():
    bound, length = NormBound(np.ones(8), 20.0), 5.0
    for _ in range(6):
        (fate,) = bound.check(np.array([0]), np.array([9e5 * length]), np.ones(1), length)
        length += 0.0 if isinstance(fate, str) else fate * 9e5 * length
    assert length <= 5.0 + 6 * 100 * 5.0
    # As soon as another one comes, the shorter of the two is usual.
    found = bound.check(np.arange(2), np.array([9e5, 1.0]), np.ones(2), 5.0)
    assert found[1] == 1.0
    assert isinstance(found[0], str) or found[0] * 9e5 <= 20.0


def test_an_honest_update_is_not_refused_because_the_others_have_learnt():
    bound = NormBound(np.ones(4), 20.0)
    for _ in range(3):
        assert bound.check(np.arange(3), np.full(3, 4e-6), np.ones(3), 3.0) == [1.0] * 3
    (fate,) = bound.check(np.array([3]), np.array([3.1]), np.ones(1), 3.0)  # one that comes late, with other data
    assert fate * 3.1 == pytest.approx(0.01 * 3.0)


@pytest.mark.parametrize("name", ["last-updates", "mifa", "fedvarp", "ht-varp", "fedau", "echo", "greedy-normalized"])
def test_no_rule_lets_a_small_scale_carry_a_long_update(name):
    policy = ef.METHODS[name].policy
    supply = Supply(ef.Fleet.from_cycles([1, 2, 4]), policy, 0)
    supply.advance(0)
    for client in range(3):
        for scale in (0.0, 1e-9, 0.5):
            with pytest.raises(RefusedError, match="below 1"):
                supply.check_join(client, scale)
    bound = NormBound(supply.fair, 20.0)
    assert bound.check(np.arange(3), np.ones(3), supply.fair, 8.0) == [1.0] * 3
    for scale in (1.0, *supply.fair.tolist()):
        (fate,) = bound.check(np.array([2]), np.array([70.0]), np.array([scale]), 8.0)
        assert isinstance(fate, str) or fate * 70.0 <= 20.0 + 1e-9


def test_a_long_update_is_shortened_and_named():
    factor = 12.0

    def stretch(reply, number):
        arrays = reply.content.get("arrays")
        if number == EVIL and arrays is not None:
            sent = {n: a.numpy() for n, a in nodes[1].received[-1].content["arrays"].items()}
            longer = {n: Array(sent[n] + np.float32(factor) * (a.numpy() - sent[n])) for n, a in arrays.items()}
            reply.content["arrays"] = ArrayRecord(longer)
        return reply

    nodes = fleet_of(client_app(SHORT), CLIENTS)
    _, records, server = run(SHORT, nodes, change=stretch, limits=replace(QUICK, norm_factor=5.0))
    assert all(1 in r.participants for r in records)
    assert all(set(e.shortened) == {1} and 0.2 < e.shortened[1] < 0.9 for e in server.ledger.entries)
    assert server.ledger.summary()["shortened"] == SHORT.rounds


def test_a_flipped_sign_at_any_length_is_held_to_the_usual_one():
    """Before, only an absolute bound could be set, and was not."""

    def flip(reply, number):
        arrays = reply.content.get("arrays")
        if number == EVIL and arrays is not None:
            flipped = {n: Array(a.numpy() * np.float32(-1e4)) for n, a in arrays.items()}
            reply.content["arrays"] = ArrayRecord(flipped)
        return reply

    _, _, server = run(replace(SHORT, rounds=4), change=flip)
    refused = [e.refused[1] for e in server.ledger.entries if 1 in e.refused]
    assert len(refused) == 3
    assert refused[-1].endswith("left out until round 23")


# Standing


def test_quarantine_grows_and_survives_a_restart(tmp_path):
    experiment = replace(SHORT, rounds=9)
    limits = replace(QUICK, strikes=2, quarantine_rounds=2)

    def spoil(reply, number):
        if number == EVIL:
            reply.content["everfed"]["energy.violations"] = float("inf")
        return reply

    keys = [f"key {c}".encode() for c in range(CLIENTS)]
    roster = Roster({key: c for c, key in enumerate(keys)})
    app = client_app(experiment)
    grid = InProcessGrid([Node(app, {"client": c}, public_key=keys[c]) for c in range(CLIENTS)], spoil)
    for record, _ in stored_remote_rounds(experiment, grid, tmp_path, limits=limits, roster=roster):
        if record.round == 2:
            break
    list(stored_remote_rounds(experiment, grid, tmp_path, limits=limits, roster=roster))
    turned = [e.round for e in read(tmp_path) if e.turned_away]
    assert turned == [0, 1, 4, 5]  # then out for two rounds, then for four
    assert [e.absent[1] for e in read(tmp_path) if e.round in (2, 6)] == [
        "in quarantine until round 4", "in quarantine until round 10",
    ]  # fmt: skip


def test_every_other_reply_must_not_be_wrong():
    standing = Standing(1, RoundLimits())
    for round in range(3):
        standing.right(0)
        standing.wrong(7, 0, round)
    assert standing.objection(7, 0, 3) == "in quarantine until round 23"
    standing = Standing(1, RoundLimits())
    for round in range(100):  # a fault now and then is forgiven
        if round % 20 == 0:
            standing.wrong(7, 0, round)
        else:
            standing.right(0)
        assert standing.objection(7, 0, round) is None


def test_a_node_that_hangs_is_asked_less_and_less_often():
    standing = Standing(1, RoundLimits())
    asked = []
    for round in range(40):
        if not standing.objection(7, None, round):
            asked.append(round)
            standing.silent(7, round)
    assert asked == [0, 1, 3, 6, 11, 20, 37]
    standing.gone(set())  # it has left, and may come back well
    assert standing.objection(7, None, 40) is None


def test_a_node_is_given_what_it_usually_takes():
    standing = Standing(1, RoundLimits())
    assert standing.deadline(7, "train", 120.0) == 120.0
    standing.answered(7, "train", 2.0)
    assert standing.deadline(7, "train", 120.0) == 40.0
    standing.answered(7, "train", 12.0)
    assert standing.deadline(7, "train", 120.0) == 60.0
    for _ in range(5):
        standing.answered(7, "train", 300.0)
    assert standing.deadline(7, "train", 120.0) == 120.0


def test_a_node_that_is_restarted_without_keys_is_not_left_out():
    """Its old self still counts as connected for a while, and answers for the same client."""
    nodes = fleet_of(client_app(SMALL), CLIENTS)
    nodes.append(Node(client_app(SMALL), {"client": 1}))
    grid = InProcessGrid(nodes)
    made = remote_run(SMALL, grid, limits=QUICK)
    for record in made:
        nodes[1].online = record.round < 3
    entries = made.source.round_server.ledger.entries
    assert all(not e.absent for e in entries)
    assert [sorted(e.planned) for e in entries] == [
        s.clients.tolist() for s in plan(SMALL.make_fleet(), SMALL.policy, 8)
    ]


def test_quarantine_cannot_be_left_by_going_away(tmp_path):
    """Without keys, a node that comes back is not known until it answers."""
    limits, bad = replace(QUICK, strikes=2), [True]

    def spoil(reply, number):
        if number == EVIL and bad[0] and not reply.has_error():
            reply.content["everfed"]["energy.spent"] = 1e9
        return reply

    experiment = replace(SHORT, rounds=8)
    nodes = fleet_of(client_app(experiment), CLIENTS)
    grid = InProcessGrid(nodes, spoil)
    made = remote_run(experiment, grid, limits=limits)
    counted = []
    for record in made:
        counted.append(1 in record.participants)
        bad[0] = record.round in (0, 1, 2)  # good in round 0, so that it is known
        nodes[1].online = record.round != 4
    assert not any(counted[2:])


# Books


def test_what_being_asked_has_cost_survives_a_restart(tmp_path):
    grid = InProcessGrid(fleet_of(client_app(SMALL), CLIENTS, **{"asking-j": 100.0}))
    for record, _ in stored_remote_rounds(SMALL, grid, tmp_path, limits=QUICK):
        if record.round == 3:
            break
    left = InProcessGrid(fleet_of(client_app(SMALL), CLIENTS, **{"asking-j": 100.0})[1:])
    list(stored_remote_rounds(SMALL, left, tmp_path, limits=QUICK))
    assert [e.asking_j for e in read(tmp_path)] == [100.0 * CLIENTS] * SMALL.rounds


def test_a_client_cannot_invent_what_it_missed():
    def boast(reply, number):
        if number == 102:  # cycle 4
            reply.content["everfed"]["planned"] = reply.content["everfed"]["round"] + 1
        return reply

    _, _, server = run(replace(SMALL, rounds=12), change=boast)
    assert server.ledger.own[2] <= 4  # three units have come, and one was there perhaps


def test_energy_of_a_round_that_was_lost_is_not_spent(tmp_path):
    """A metered client that said yes and was cut off still has its energy, and is not taken for a liar."""
    paths = [tmp_path / str(c) for c in range(CLIENTS)]
    for path in paths:
        path.write_text("1")
    experiment = replace(SMALL.with_method("greedy"), fleet=CycleFleet(clients=CLIENTS, cycles=(1, 4, 4, 4)))
    apps = [client_app(experiment, energy=Measured(FromFile(str(path), cost=1.0))) for path in paths]
    nodes = [Node(app, {"client": c}) for c, app in enumerate(apps)]
    rounds = [0]

    def power(reply, number):
        client = number - 100
        if not reply.has_error() and "arrays" in reply.content:
            if client == 2 and rounds[0] == 0:
                return None  # cut off before it trained
            paths[client].write_text("0")
        return reply

    state = nodes[2].app

    def cut(message, context):  # the first model never reaches it
        if rounds[0] == 0 and message.has_content() and "arrays" in message.content:
            raise ConnectionError("cut off")
        return state(message, context)

    nodes[2].app = cut
    made = remote_run(experiment, InProcessGrid(nodes, power), limits=replace(QUICK, train_s=3.0))
    done = []
    for record in made:
        done.append(record.participants.tolist())
        rounds[0] = record.round + 1
        for client, cycle in enumerate((1, 4, 4, 4)):
            if rounds[0] % cycle == 0:
                paths[client].write_text("1")
    entries = made.source.round_server.ledger.entries
    assert 2 in entries[0].lost
    assert not any(e.turned_away or e.refused for e in entries)
    assert 2 in done[1]


def test_the_absent_count_in_what_was_delivered():
    """A fleet with a silent fifth reported that all was delivered."""
    nodes = fleet_of(client_app(SMALL), CLIENTS)
    nodes[0].online = False  # never heard
    _, _, server = run(SMALL, nodes)
    summary = server.ledger.summary()
    share = float(server.ledger.shares[0])
    assert summary["delivered"] == pytest.approx(1.0 - share)
    assert summary["bias"] == pytest.approx(share)
    assert (summary["worst_client"], summary["worst_delivered"]) == (0, 0.0)
    assert all(e.absent == {0: "not connected"} for e in server.ledger.entries)


def test_the_energy_of_the_departed_survives_a_restart(tmp_path):
    grid = InProcessGrid(fleet_of(client_app(SMALL), CLIENTS))
    for record, _ in stored_remote_rounds(SMALL, grid, tmp_path, limits=QUICK):
        if record.round == 3:
            break
    left = InProcessGrid(fleet_of(client_app(SMALL), CLIENTS)[1:])
    list(stored_remote_rounds(SMALL, left, tmp_path, limits=QUICK))
    energy = [r.energy for r in ef.open_run(tmp_path).rounds]
    expected = [r.energy for r in ef.start(SMALL)]
    assert energy[3] == expected[3]
    assert energy[4].spent >= energy[3].spent
    own = energy[3].spent - sum(1 for e in read(tmp_path)[:4] for c in e.done if c != 0)
    assert own == 4.0  # client 0 had trained in every round, and still counts


# Without rounds


@pytest.mark.parametrize(
    ("key", "bad"),
    [("energy.violations", float("inf")), ("energy.harvested", -1.0), ("energy.spent", 1e9), ("planned", -1),
     ("slot", 1.5), ("steps", True), ("again", "never")],
)  # fmt: skip
def test_without_rounds_no_field_is_believed_either(tmp_path, key, bad):
    experiment = task("renewal", rounds=4)

    def claim(reply, number):
        if number == EVIL:
            reply.content["everfed"][key] = bad
        return reply

    run_stored(experiment, tmp_path, SlowGrid(fleet_of(client_app(experiment), CLIENTS), claim, 0.0))
    log, _ = assert_replayed(experiment, tmp_path)
    assert not any(work.client == 1 and work.added for work in log)
    assert any(e.turned_away for e in read(tmp_path))


def test_a_rare_client_without_rounds_is_rationed_for_any_arrivals(tmp_path):
    poor = CycleFleet(clients=CLIENTS, cycles=(1, 1, 8, 1), arrivals="bernoulli")
    experiment = task("renewal", fleet=poor, rounds=6)
    rich = replace(experiment, fleet=CycleFleet(clients=CLIENTS, cycles=(1,)))
    nodes = fleet_of(client_app(experiment), CLIENTS)
    nodes[2] = fleet_of(client_app(rich), CLIENTS)[2]
    run_stored(experiment, tmp_path, SlowGrid(nodes, slow_s=0.0))
    arrived = sum(experiment.make_fleet().harvest(r, experiment.seeds.schedule)[2] for r in range(7))
    assert sum(e.done.count(2) for e in read(tmp_path)) <= arrived
