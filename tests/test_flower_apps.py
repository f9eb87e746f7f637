"""Apps in Flower's own shape: mods, evaluation on clients, and a quickstart that a few lines make energy-aware."""

from __future__ import annotations

import difflib
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import everfed as ef
from everfed.errors import InputError
from everfed.flower import EnergyMod, EnergyStrategy, Loopback, Simulated
from everfed.methods import plan
from flower_grid import QUICK, InProcessGrid, Node, adding_its_number, fleet_of, own_app

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

QUICKSTART = Path(__file__).parents[1] / "examples" / "flower-quickstart"
FLEET, SHARES = ef.Fleet.from_cycles([1, 2, 3]), np.array([0.5, 0.25, 0.25])


def with_mods(*mods):
    """The app of `own_app`, put together as Flower's documentation does."""
    return adding_its_number(ClientApp(mods=list(mods)))


def start(app, rounds=6, **settings):
    strategy = EnergyStrategy(FLEET, ef.UniformWindow(), SHARES, **{"limits": QUICK, **settings})
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    return strategy.start(InProcessGrid(fleet_of(app, 3)), first, num_rounds=rounds), strategy


def test_a_mod_in_the_list_works_as_its_own_app_does():
    seen = []

    def after(message, context, call_next):
        seen.append(message.content["arrays"])  # the mods behind it see models only
        return call_next(message, context)

    listed, strategy = start(with_mods(EnergyMod(ef.UniformWindow(), Simulated(FLEET)), after))
    made, _ = start(own_app(FLEET, ef.UniformWindow()))
    assert np.array_equal(listed.arrays["w"].numpy(), made.arrays["w"].numpy())
    trained = sum(len(step.clients) for step in plan(FLEET, ef.UniformWindow(), 6))
    summary = strategy.round_server.ledger.summary()
    assert len(seen) == trained == summary["done"] == summary["models_sent"]


def test_a_mod_without_energy_says_what_is_missing():
    mod = EnergyMod(ef.Greedy())
    reply = Node(with_mods(mod), {"partition-id": 0}).handle(question(), 7)
    assert "this node's energy is not known" in reply.error.reason
    assert "meter" in reply.error.reason


def question():
    from everfed.flower.wire import TRAIN, Ask

    InProcessGrid([])  # sets the run that messages belong to
    return Message(RecordDict({"everfed": Ask(0).to_record()}), 7, TRAIN)


def test_clients_evaluate_if_they_are_asked_to(caplog):
    app = own_app(FLEET, ef.UniformWindow())

    @app.evaluate()
    def evaluate(message, context):
        client = context.node_config["partition-id"]
        if client == 2 and message.content["config"]["server-round"] == 4:
            raise ValueError("no test set\nhere")
        assert message.content["config"]["part"] == "all"
        metrics = {"eval_acc": (client + 1) / 4, "num-examples": 10**client}  # shares count, and no claims
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    strategy = EnergyStrategy(FLEET, ef.UniformWindow(), SHARES, limits=QUICK, evaluate_every=2)
    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    from flwr.app import ConfigRecord

    asked = ConfigRecord({"part": "all"})
    found = strategy.start(InProcessGrid(fleet_of(app, 3)), first, num_rounds=5, evaluate_config=asked)
    assert {r: dict(m) for r, m in found.evaluate_metrics_clientapp.items()} == {
        2: {"eval_acc": pytest.approx(np.dot(SHARES, [0.25, 0.5, 0.75])), "clients": 3, "limited": 0},
        4: {"eval_acc": pytest.approx(np.dot(SHARES[:2], [0.25, 0.5]) / sum(SHARES[:2])), "clients": 2, "limited": 0},
    }
    assert "client 2 is left out: its app raised an error: no test set here" in caplog.text
    plain, _ = start(own_app(FLEET, ef.UniformWindow()), rounds=5)
    assert np.array_equal(found.arrays["w"].numpy(), plain.arrays["w"].numpy())
    assert plain.evaluate_metrics_clientapp == {}
    with pytest.raises(InputError, match="evaluate_every"):
        EnergyStrategy(FLEET, ef.Greedy(), SHARES, evaluate_every=-1)


# Flower's quickstart


def changed_lines():
    """The lines that make the quickstart energy-aware: what `diff` prints with + or -, without blank lines."""
    changed = []
    for path in sorted((QUICKSTART / "plain").rglob("*.*")):
        if "__pycache__" not in path.parts:
            other = QUICKSTART / "energy" / path.relative_to(QUICKSTART / "plain")
            pair = (p.read_text(encoding="utf-8").splitlines() for p in (path, other))
            changed += [line for line in difflib.ndiff(*pair) if line[0] in "+-" and line[1:].strip()]
    return changed


def test_fewer_than_ten_lines_make_the_quickstart_energy_aware():
    names = [
        sorted(str(p.relative_to(QUICKSTART / kind)) for p in (QUICKSTART / kind).rglob("*.*") if p.suffix != ".pyc")
        for kind in ("plain", "energy")
    ]
    assert names[0] == names[1]
    changed = changed_lines()
    assert 0 < len(changed) < 10, changed
    page = (QUICKSTART.parents[1] / "docs" / "flower.md").read_text(encoding="utf-8")
    for line in changed:
        assert line in page, f"docs/flower.md shows another difference: {line}"


@pytest.mark.parametrize("kind", ["plain", "energy"])
def test_the_quickstart_runs_as_it_is_and_energy_aware(kind, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(QUICKSTART / kind)
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        monkeypatch.delitem(sys.modules, name)
    client, server = (importlib.import_module(f"quickstart.{name}_app").app for name in ("client", "server"))
    model = tmp_path / "model.npz"
    config = {"num-server-rounds": 8, "local-epochs": 3, "learning-rate": 0.5, "model": str(model)}
    nodes = fleet_of(client, 3, config)
    server(InProcessGrid(nodes), Context(1, 1, {}, RecordDict(), config))
    assert np.load(model)["accuracy"] > 0.8
    trained = [sum("arrays" in m.content and m.metadata.message_type == "train" for m in n.received) for n in nodes]
    assert trained == ([8, 8, 8] if kind == "plain" else [8, 4, 2])
    for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
        del sys.modules[name]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["plain", "energy"])
def test_the_quickstart_runs_over_the_network(kind, tmp_path):
    with Loopback(tmp_path / "fleet", clients=3) as fleet:
        fleet.start_server()
        for client in range(3):
            fleet.register(client)
        for client in range(3):
            fleet.start_node(client, **{"partition-id": client})
        model = tmp_path / "model.npz"
        run = fleet.submit(QUICKSTART / kind, {"num-server-rounds": 4, "model": str(model)})
        ended = fleet.wait(run, 500.0, model)
        assert ended["status"].startswith("finished:completed"), json.dumps(ended) + fleet.log("superlink", 5000)
        assert np.load(model)["accuracy"] > 0.8
