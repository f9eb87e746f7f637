"""Kinds of a user's own package, as the command meets them; what is refused, and what happens where it is missing."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import everfed as ef
from everfed import plugins, registry
from everfed.cli import main
from everfed.run import config
from everfed.run.experiment import TABLES, Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.schema import schema
from everfed.scheduling.policies import Greedy

PACKAGE = (Path(__file__).parent / "plugin_package.py").read_text()
SOURCE = str(Path(ef.__file__).parents[1])

EXPERIMENT = """
data = "blobs"
split = "in-turn"
policy = { kind = "every-other", parity = 1 }
server = "halved"
server_optimizer = "slow"
model = "one-layer"
client = { kind = "sign", lr = 0.02, schedule = "halving" }
gradients = ["doubled"]
compression = "coarse"
fleet = { kind = "pairs", arrivals = "late-lump" }
trainer = "my-batched"
metrics = ["top-two"]
rounds = 8
eval_every = 4
device = "cpu"
"""


class Result:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def json(self):
        assert self.code == 0, self.err
        return json.loads(self.out)


def command(folder: Path, *arguments: str, path: str = "") -> Result:
    """The command in a process of its own, which stands in a folder and has some folders on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [SOURCE, path]))}
    whole = [sys.executable, "-m", "everfed", *arguments]
    return Result(subprocess.run(whole, cwd=folder, env=environment, capture_output=True, text=True))


def folder_with(place: Path, **files: str) -> Path:
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / ".".join(name.rsplit("_", 1))).write_text(text)
    return place


def installed(place: Path, module: str, text: str) -> str:
    """A folder for PYTHONPATH with a package as pip installs it, which names its module as a plugin."""
    package = place / module
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import parts\n")
    (package / "parts.py").write_text(text)
    about = place / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[everfed.plugins]\nkinds = {module}\n")
    return str(place)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a plugin and an experiment, and a run of it by --plugin."""
    place = folder_with(tmp_path_factory.mktemp("lab") / "here", mylab_py=PACKAGE, mine_toml=EXPERIMENT)
    done = command(place, "run", "mine.toml", "--plugin", "mylab", "--json").json()
    return place, done


def test_a_run_takes_every_part_from_the_plugin(here):
    _, done = here
    stored = done["experiment"]
    assert stored["plugins"] == ["mylab"]
    assert stored["policy"] == {"kind": "every-other", "parity": 1}
    assert {record["round"] % 2 for record in done["rounds"] if record["participants"]} == {1}
    assert done["rounds"][1]["energy"]["harvested"] == 3  # late-lump: only clients of cycle 1 have some by then
    own = [record["metrics"]["own"]["top-two"] for record in done["rounds"] if record["metrics"]]
    assert len(own) == 2
    assert all(0 <= value <= 1 for value in own)
    assert own[-1] == done["final"]["own"]["top-two"] >= done["final"]["accuracy"]


def test_the_same_run_has_the_same_folder_and_records_however_its_plugin_is_named(here, tmp_path):
    _, by_flag = here
    in_file = folder_with(tmp_path / "files", mylab_py=PACKAGE, mine_toml='plugins = ["mylab"]\n' + EXPERIMENT)
    elsewhere = folder_with(tmp_path / "elsewhere")
    by_file = command(elsewhere, "run", str(in_file / "mine.toml"), "--json").json()
    assert by_file["folder"] == by_flag["folder"]
    assert by_file["experiment"] == by_flag["experiment"]
    for one, two in zip(by_flag["rounds"], by_file["rounds"], strict=True):
        assert one | {"seconds": 0} == two | {"seconds": 0}


@pytest.mark.long
def test_an_installed_package_needs_no_naming(here, tmp_path):
    place, by_flag = here
    path = installed(tmp_path / "site", "otherlab", PACKAGE)
    broken = installed(tmp_path / "site2", "brokenlab", "import no_such_thing\n")
    both = os.pathsep.join([path, broken])
    result = command(tmp_path, "run", str(place / "mine.toml"), "--json", path=both)
    done = result.json()
    assert done["experiment"] == by_flag["experiment"] | {"plugins": ["otherlab.parts"]}
    assert done["final"] == by_flag["final"]
    assert "the entry point 'kinds' of brokenlab is ignored" in result.err
    assert "no_such_thing" in result.err
    assert "one-layer" in command(tmp_path, "run", "--help", path=path).out


@pytest.mark.long
def test_sweeps_in_processes_compare_and_audit(here, tmp_path):
    place, _ = here
    sweep = command(place, "sweep", "mine.toml", "--plugin", "mylab", "--seeds", "1", "--jobs", "2", "--json",
                    "--grid", "policy=every-other,greedy", "--out", "swept").json()  # fmt: skip
    assert set(sweep["methods"]) == {"every-other", "greedy"}
    assert sweep["own_settings"] == {}
    few = ["--seeds", "1", "--jobs", "1", "--rounds", "4", "--clients", "4", "--device", "cpu"]
    compared = command(
        place, "compare", "--plugin", "mylab", "--methods", "mine,greedy", *few, "--json", "--out", "compared"
    ).json()
    assert set(compared["methods"]) == {"mine", "greedy"}
    (plain,) = (place / "compared").rglob("greedy*/experiment.toml")
    assert "plugins" not in plain.read_text()  # its parts are all built in
    audit = command(place, "audit", "mine.toml", "--plugin", "mylab", "--seeds", "5", "--json").json()
    assert audit["participation_rate"][0] == 0.5


def test_runs_are_read_with_the_plugin_and_told_of_without_it(here):
    place, done = here
    named = command(place, "runs", "everfed-out", "--plugin", "mylab", "--json").json()
    assert [row["state"] for row in named] == ["done"]
    assert named[0]["metrics"] == done["final"]["own"]
    page = command(place, "report", "everfed-out", "--plugin", "mylab", "-o", "page.html")
    assert page.code == 0, page.err
    # The module lies in this very folder, and is not imported for being named in a folder of runs.
    (row,) = command(place, "runs", "everfed-out", "--json").json()
    assert row["state"] == "unreadable"
    assert row["reason"].startswith("plugin 'mylab' not found")
    assert "--plugin mylab" in row["reason"]


def test_code_in_a_folder_of_runs_is_not_run(tmp_path):
    """Neither beside the experiment of a run nor in the current folder."""
    trap = "from pathlib import Path\nPath(__file__).with_name('sprung').touch()\n"
    folder_with(tmp_path / "runs" / "one", trap_py=trap, experiment_toml='plugins = ["trap"]\n', environment_json="[]")
    (tmp_path / "runs" / "trap.py").write_text(trap)
    (row,) = command(tmp_path / "runs", "runs", ".", "--json").json()
    assert row["reason"].startswith("plugin 'trap' not found")
    assert not list(tmp_path.rglob("sprung"))


def test_unreadable_folders_do_not_end_a_command(tmp_path, monkeypatch, capsys):
    list(ef.stored_rounds(Experiment(rounds=2, device="cpu", fleet=CycleFleet(clients=4)), tmp_path / "good"))
    folder_with(tmp_path / "broken", experiment_toml="rounds = = 3", environment_json="[]")
    folder_with(tmp_path / "newer", experiment_toml="unheard_of = 3", environment_json="[]")
    folder_with(tmp_path / "cut-off", experiment_toml="rounds = 2", result_json="{")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["everfed", *arguments])
        try:
            main()
        except SystemExit as stop:
            return stop.code or 0, *capsys.readouterr()
        return 0, *capsys.readouterr()

    code, out, _ = call("runs", str(tmp_path), "--json")
    states = {Path(row["run"]).name: row["state"] for row in json.loads(out)}
    assert code == 0
    assert states == {"good": "done", "broken": "unreadable", "newer": "unreadable", "cut-off": "unreadable"}
    code, out, err = call("runs", str(tmp_path))
    assert (code, out.count(" unreadable ")) == (0, 3)
    assert "unknown key 'unheard_of'" in err
    code, _, err = call("report", str(tmp_path), "-o", str(tmp_path / "page.html"))
    assert (code, err.count("cannot be read")) == (0, 3)
    listed = os.scandir

    def scandir(path):
        if str(path).endswith("newer"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    with monkeypatch.context() as others:
        others.setattr(os, "scandir", scandir)
        code, out, err = call("runs", str(tmp_path))
    assert (code, out.count(" unreadable ")) == (0, 2)
    assert "newer' cannot be read: Permission denied" in err
    code, _, err = call("figure", str(tmp_path / "broken"), "-o", str(tmp_path / "figure.png"))
    assert code == 2
    assert "not valid TOML" in err


@pytest.fixture
def tables():
    """What a test registers is forgotten afterwards."""
    before = {word: dict(registry.kinds(word)) for word in registry._HOMES}
    yield
    for word, rows in before.items():
        registry.kinds(word).clear()
        registry.kinds(word).update(rows)


def test_every_kind_of_part_can_be_registered():
    words = {id(registry.kinds(word)) for word in registry._HOMES}
    assert {id(table) for table in TABLES.values()} <= words


@pytest.mark.parametrize(
    ("word", "name", "told"),
    [
        ("polcy", "mine", "unknown word 'polcy'. Did you mean 'policy'?"),
        ("policy", "Mine", "use lowercase letters"),
        ("policy", "my policy", "use lowercase letters"),
        ("policy", 3, "use lowercase letters"),
        ("policy", "greedy", "already exists, as everfed.scheduling.policies.Greedy"),
        ("model", "mine", "the model 'mine' has no build; everfed.learning.models.Model documents them"),
        ("metrics", "mine", "the metrics 'mine' cannot be called with (outputs, targets) alone"),
        ("method", "mine", "it must be a Method"),
    ],
)
def test_what_cannot_be_registered_is_refused(tables, word, name, told):
    @dataclass(frozen=True)
    class Mine(Greedy):
        pass

    with pytest.raises(ef.InputError) as error:
        ef.register(word, name)(Mine)
    assert told in str(error.value)


def test_options_must_be_fields_with_defaults(tables):
    class Hidden(Greedy):
        patience: int = 3

    class Needy(Greedy):
        def __init__(self, patience):
            pass

    @dataclass(frozen=True)
    class Empty(Greedy):
        patience: int = 3
        scaled: bool = False

    with pytest.raises(ef.InputError, match=r"has 'patience', which is not an option.*@dataclass\(frozen=True\)"):
        ef.register("policy", "hidden")(Hidden)
    with pytest.raises(ef.InputError, match=r"without arguments.*'patience'.*dataclass fields that have defaults"):
        ef.register("policy", "needy")(Needy)
    assert ef.register("policy", "empty")(Empty) is Empty
    assert ef.register("policy", "empty")(Empty) is Empty  # the very same once more
    assert config.from_dict({"policy": {"kind": "empty", "patience": 5}}).policy == Empty(patience=5)
    assert '"empty"' in json.dumps(schema())


def test_an_option_of_a_type_that_no_file_has_is_told(tables):
    @ef.register("split", "odd")
    @dataclass(frozen=True)
    class Odd:
        where: Path = Path()

        def assign(self, labels, clients, seed, fleet):
            return labels

    with pytest.raises(ef.InputError, match=r"split.where has the type .*Path"):
        config.from_dict({"split": {"kind": "odd", "where": "x"}})


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"plugins": "mylab"}, "must be a list of modules"),
        ({"plugins": [3]}, "must be a list of modules"),
        ({"plugins": ["my-lab.py"]}, "name of an importable module"),
        ({"plugins": [".relative"]}, "name of an importable module"),
        ({"plugins": ["no_such_lab"]}, "plugin 'no_such_lab' not found"),
        ({"plugins": ["json.no_such_part"]}, "no module 'json.no_such_part'"),
        ({"metrics": ["no-such"]}, "unknown metric 'no-such'"),
    ],
)
def test_plugins_that_cannot_be_are_refused(content, told):
    with pytest.raises(ef.InputError) as error:
        config.from_dict(content)
    assert told in str(error.value)


def test_a_plugin_that_fails_says_why(tmp_path):
    (tmp_path / "failing_lab.py").write_text("raise RuntimeError('no licence\\nand more')\n")
    (tmp_path / "needs_more.py").write_text("import not_there_at_all\n")
    (tmp_path / "taken_lab.py").write_text("import everfed as ef\n@ef.register('metrics', 'Bad')\ndef f(a, b): ...\n")
    with pytest.raises(ef.InputError, match=r"'failing_lab' cannot be imported: RuntimeError: no licence\.$"):
        plugins.load(["failing_lab"], [tmp_path])
    with pytest.raises(ef.InputError, match="ModuleNotFoundError: No module named 'not_there_at_all'"):
        plugins.load(["needs_more"], [tmp_path])
    with pytest.raises(ef.InputError, match="'taken_lab' cannot be imported: the metrics is named 'Bad'"):
        plugins.load(["taken_lab"], [tmp_path])
    assert str(tmp_path) not in sys.path


def test_only_the_plugins_of_its_parts_belong_to_an_experiment(tables, tmp_path):
    (tmp_path / "lazy_lab.py").write_text(
        "from dataclasses import dataclass\nimport everfed as ef\n"
        "@ef.register('policy', 'lazy')\n@dataclass(frozen=True)\nclass Lazy(ef.Greedy):\n    patience: int = 3\n"
    )
    plugins.load(["lazy_lab"], [tmp_path])
    lazy = config.from_dict({"policy": "lazy"})
    assert lazy.plugins == ("lazy_lab",)
    assert replace(lazy, policy=Greedy()).plugins == ()
    assert config.from_dict({"plugins": ["lazy_lab"]}) == Experiment()
    assert config.from_dict(config.parse(config.to_toml(lazy))) == lazy
    pickled = pickle.dumps(lazy)
    del sys.modules["lazy_lab"]
    again = pickle.loads(pickled)  # imports it again, from where it was
    assert again.policy.patience == 3
    assert "lazy_lab" in sys.modules


def test_metrics_of_ones_own_in_python():
    data = ef.load("digits").partition(clients=4, seed=0)
    fleet = ef.Fleet.from_cycles([1, 1, 2, 2])

    def mean_output(outputs, targets):
        return outputs.mean()

    settings = {"rounds": 4, "eval_every": 2, "device": "cpu", "check_trainer": False}
    history = ef.simulate("logistic", data, fleet, metrics=[mean_output], **settings)
    rounds, values = history.curve("mean_output")
    assert rounds == [2, 4]
    assert values[-1] == history.final.own["mean_output"] == history.final.value("mean_output")
    assert history.curve("loss")[1][-1] == history.final.loss
    with pytest.raises(ef.InputError, match=r"unknown metric 'mean_outputs'\. Did you mean 'mean_output'"):
        history.curve("mean_outputs")
    for wrong in ([mean_output, mean_output], [lambda outputs, targets: outputs]):
        with pytest.raises(ef.InputError, match=r"two metrics are called 'mean_output'|it must be a number"):
            ef.simulate("logistic", data, fleet, metrics=wrong, **settings)
