"""The file that `everfed new` writes runs as it is, and has every key with its default and meaning."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from typer.testing import CliRunner

from everfed.cli.app import app
from everfed.cli.new import starting_file
from everfed.errors import InputError
from everfed.run import config
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet
from everfed.run.meanings import meanings

_NOT_IN_FILES = {"policy", "server", "plugins", "loss"}


def call(*words):
    return CliRunner().invoke(app, list(words))


def test_the_file_is_the_default_experiment_and_runs(tmp_path):
    path = tmp_path / "mine.toml"
    said = call("new", str(path))
    assert said.exit_code == 0
    assert f"everfed run {path}" in said.stdout.replace("\n", "")
    assert config.from_dict(config.read(path)) == Experiment()
    done = call("run", str(path), "--rounds", "2", "--out", str(tmp_path / "run"), "--quiet")
    assert done.exit_code == 0, done.output


def test_a_name_with_spaces_is_quoted_where_it_is_to_be_copied(tmp_path):
    path = tmp_path / "my own.toml"
    said = call("new", str(path)).stdout.replace("\n", "")
    assert f"everfed run '{path}'" in said
    assert "everfed run 'my own.toml'" in " ".join(path.read_text().split()).replace("# ", "")


def test_every_key_is_in_it_with_a_meaning_above():
    lines = starting_file().splitlines()
    for field in fields(Experiment):
        if field.name in _NOT_IN_FILES:
            continue
        (at,) = [i for i, line in enumerate(lines) if re.match(rf"#?(\[{field.name}\]|{field.name} = )", line)
                 and not (i and lines[i].startswith("#local_steps"))]  # fmt: skip
        assert lines[at - 1].startswith("# "), field.name
    for option in fields(CycleFleet):
        assert any(line.startswith(f"{option.name} = ") for line in lines)


def test_what_is_commented_out_has_its_default_too(tmp_path):
    path = tmp_path / "all.toml"
    path.write_text(re.sub(r"^#(?=[a-z\[])", "", starting_file(), flags=re.MULTILINE))
    whole = config.from_dict(config.read(path))
    default = Experiment()
    assert whole.work.duration == 1.0  # which is what none means
    assert replace(whole, work=default.work).same_run() == default.same_run()


def test_lines_stay_within_a_hundred_letters():
    assert max(map(len, starting_file().splitlines())) <= 100


def test_an_existing_file_is_kept(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("rounds = 3\n")
    with pytest.raises(InputError, match="exists; choose another name"):
        raise call("new", str(path)).exception
    assert path.read_text() == "rounds = 3\n"
    assert call("new", str(path), "--force").exit_code == 0
    with pytest.raises(InputError, match=r"ends in \.toml"):
        raise call("new", str(tmp_path / "mine.json")).exception


def test_meanings_come_from_comments_and_docstrings():
    assert meanings(Experiment)["eval_every"] == "rounds between evaluations; 0: twenty times in the run"
    assert meanings(Experiment)["attack"].startswith("Clients that send something else")  # the lines above
    from everfed.energy.work import Work

    assert meanings(Work)["spread"].startswith("relative standard deviation")
