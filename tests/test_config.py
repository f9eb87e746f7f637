"""Experiments as files: what is written is what is read, and mistakes are told where they are."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace

import jsonschema
import pytest

from everfed import presets
from everfed.data.partition import ByEnergy
from everfed.energy.fleet import Fleet
from everfed.errors import InputError
from everfed.learning.gradients import Clip, Proximal
from everfed.learning.optim import SGD, Adam, Cosine, InverseTime
from everfed.methods import METHODS
from everfed.run import config
from everfed.run.experiment import TABLES, Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.schema import schema
from everfed.run.start import start
from everfed.scheduling.policies import Greedy
from everfed.scheduling.table import POLICIES
from everfed.server.last_updates import Varp
from everfed.server.optimizers import ServerAdam, ServerSGD, ServerYogi


def experiments():
    yield Experiment()
    yield Experiment(client=Adam(0.01, schedule=InverseTime(7.5)), fleet=CycleFleet(3, (1, 2), (0, 4)))
    yield Experiment(server_optimizer=ServerYogi(0.03), gradients=(Clip(0.5), Proximal(), Clip()))
    for name in METHODS:
        yield Experiment().with_method(name)


@pytest.mark.parametrize("experiment", list(experiments()), ids=lambda e: e.method)
def test_toml_out_and_in_is_the_same_experiment(experiment):
    assert config.from_dict(config.parse(config.to_toml(experiment))) == experiment


@pytest.mark.parametrize("table", list(TABLES.values()), ids=lambda t: next(iter(t)))
def test_every_row_of_every_table_can_be_written_and_read(table):
    for name, kind in table.items():
        assert config.to_dict(kind())["kind"] == name


def changed(*settings: str) -> Experiment:
    raw = {key: value for key, value in presets.content("digits").items() if key != "methods"}
    for text in settings:
        config.change(raw, *config.parse_setting(text))
    return config.from_dict(raw)


def test_a_new_policy_is_available_without_touching_the_config_code(monkeypatch):
    @dataclass(frozen=True)
    class Lazy(Greedy):
        patience: int = 3

    monkeypatch.setitem(POLICIES, "lazy", Lazy)
    experiment = changed("policy=lazy", "policy.patience=5")
    assert experiment.policy == Lazy(patience=5)
    assert 'kind = "lazy"' in config.to_toml(experiment)
    assert '"lazy"' in json.dumps(schema())


def test_settings_reach_every_depth():
    assert changed("client.lr=0.01").client == SGD(0.01, schedule=Cosine(0.1))
    assert changed("client.schedule.final=0.5").client == SGD(0.2, schedule=Cosine(0.5))
    assert changed("fleet.cycles=[1, 3]", "fleet.clients=6").make_fleet().cycles().tolist() == [1, 3] * 3
    assert changed("rounds=7").rounds == 7


def test_a_new_kind_drops_the_options_of_the_old_one():
    assert config.to_dict(changed("split=iid").split) == {"kind": "iid"}
    assert config.to_dict(changed("split.kind=dirichlet").split)["alpha"] == 0.3
    assert changed("client=adam").client == Adam()


def test_the_servers_optimiser_and_changes_to_gradients_are_parts_like_others():
    assert changed("server_optimizer=adam", "server_optimizer.lr=0.01").server_optimizer == ServerAdam(0.01)
    assert changed("server_optimizer.lr=0.5").server_optimizer == ServerSGD(0.5)
    assert changed("server=ht-varp", "server.memory=0.3").server == Varp(0.3)
    assert changed('gradients=[{kind="clip", norm=2.0}, "proximal"]').gradients == (Clip(2.0), Proximal())
    experiment = config.from_dict(config.parse('[[gradients]]\nkind = "proximal"\nmu = 0.1\n'))
    assert experiment == Experiment(gradients=(Proximal(0.1),))
    jsonschema.validate(config.to_dict(experiment), schema())
    for wrong in ([{"kind": "clip", "mu": 1.0}], ["clipp"], "clip"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"gradients": wrong}, schema())


def test_method_stands_for_policy_and_server_rule():
    assert changed("method=greedy-normalized").method == "greedy-normalized"
    assert changed("policy=greedy").method == "greedy"
    assert changed("method=greedy", "policy.scaled=true").method == "greedy-scaled"
    assert changed("server=normalized").method == "algorithm1+normalized"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["clinet.lr=0.1"], "Did you mean 'client'?"),
        (["client.lrr=0.1"], "unknown key 'client.lrr'. Did you mean 'client.lr'?"),
        (["client.momentum=0.9", "client=adam", "client.momentum=0.9"], "unknown key 'client.momentum'"),
        (["split=iid", "split.alpha=1"], "the kind 'iid' does not have it, only dirichlet"),
        (["round=3"], "Did you mean 'rounds'?"),
        (["rounds=1.5"], "rounds is 1.5; it must be a whole number"),
        (["rounds=true"], "must be a whole number"),
        (["rounds=0"], "at least 1"),
        (["eval_every=-1"], "at least 0"),
        (["client.lr=fast"], 'client.lr is "fast"; it must be a number'),
        (["client.lr=-0.1"], "client: lr is -0.1; it must be a positive number"),
        (["client.schedule.final=2"], "client.schedule: final is 2.0"),
        (["keep_state=1"], "true or false"),
        (["split.strength=1.5"], "strength is 1.5; it must be from 0 to 1"),
        (["split=by-enery"], "Did you mean 'by-energy'?"),
        (["policy=greddy"], "Did you mean 'greedy'?"),
        (["method=algorithm"], "Did you mean 'algorithm1'?"),
        (["model=resnet"], "unknown model kind 'resnet'"),
        (["model=7"], "a name or a table with a kind"),
        (["fleet.cycles=5"], "must be a list"),
        (["gradients=clip"], "must be a list"),
        (['gradients=["clipp"]'], "Did you mean 'clip'?"),
        (['gradients=[{kind="clip", norm=-1}]'], "gradients[0]: norm is -1.0"),
        (['gradients=["clip", {kind="proximal", nu=1}]'], "unknown key 'gradients[1].nu'"),
        (["server_optimizer.beta=0.5"], "unknown key 'server_optimizer.beta'"),
        (["server.lr=0.5"], "'server' takes no options"),
        (['fleet.cycles=["a"]'], "fleet.cycles[0]"),
        (["trainer=bached"], "Did you mean 'batched'?"),
        (["device=tpu"], "device is 'tpu'"),
        (["seed=-3"], "from 0 to 2**64 - 1"),
        (["rounds"], "write key=value"),
        (["rounds.x=3"], "not a table of options"),
    ],
)
def test_mistakes_say_where_and_what_would_be_right(settings, told):
    with pytest.raises(InputError) as error:
        changed(*settings)
    assert told in str(error.value)


def test_method_and_policy_together_are_refused():
    with pytest.raises(InputError, match="both given"):
        config.from_dict({"method": "greedy", "policy": "greedy"})


def test_a_file_that_is_not_toml_says_where(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(InputError, match=r"broken\.toml is not valid TOML.*line 1"):
        config.read(path)
    with pytest.raises(InputError, match="no experiment file"):
        config.read(tmp_path / "absent.toml")


@pytest.mark.parametrize("name", list(presets.texts()))
def test_every_preset_is_valid_and_says_what_it_is(name):
    text = presets.texts()[name]
    assert text.startswith("# ")
    jsonschema.validate(config.parse(text), schema())
    experiment = config.from_dict(presets.content(name))
    assert isinstance(experiment.make_fleet(), Fleet)


def test_the_default_experiment_is_the_digits_preset_without_what_was_tuned():
    shared = {key: value for key, value in presets.content("digits").items() if key != "methods"}
    assert config.from_dict(shared) == Experiment()


def test_cifar10_by_energy_is_the_papers_but_for_split_and_optimiser():
    paper, skewed = (config.from_dict(presets.content(name)) for name in ("paper-cifar10", "cifar10-by-energy"))
    assert skewed == replace(paper, split=ByEnergy(0.5), client=SGD(0.2))


def test_the_schema_accepts_what_is_written_and_refuses_unknown_keys():
    content = config.to_dict(Experiment())
    jsonschema.validate(content, schema())
    for wrong in (
        {**content, "lr": 1},
        {**content, "client": {"kind": "sgd", "lrr": 1}},
        {**content, "rounds": "many"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema())


def test_differences_name_the_keys():
    other = replace(Experiment(), rounds=7, client=SGD(0.5, schedule=Cosine(0.1)))
    assert config.differences(Experiment(), other) == {"rounds": (400, 7), "client.lr": (0.2, 0.5)}


def test_every_experiment_key_is_used_by_the_simulation():
    """A key that nothing reads would pass silently: each must change the run or be read by it."""
    read = set()

    class Spied(Experiment):
        def __getattribute__(self, name):
            read.add(name)
            return super().__getattribute__(name)

    spied = Spied(rounds=1, device="cpu")
    read.clear()  # of what was checked when it was made
    list(start(spied))
    assert {f.name for f in dataclasses.fields(Experiment)} - {"plugins"} <= read  # which its parts come from
