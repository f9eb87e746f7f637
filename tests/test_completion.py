"""Shells complete presets, methods, keys and names, quickly and as the commands know them."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import textwrap

import click
import pytest
import typer.main

from everfed import presets
from everfed.cli import completion, names
from everfed.cli.app import app
from everfed.cli.completion import _command, _for_bash
from everfed.learning.models import MODELS
from everfed.methods import METHODS
from everfed.run import config
from everfed.run.experiment import Experiment

ROOT = typer.main.get_command(app)


@pytest.fixture(scope="module")
def described():
    return names.described()


@pytest.fixture
def complete(described, monkeypatch):
    def asked(line):
        """What bash is told at the end of a line; it takes = for a word of its own."""
        words = re.sub("=", " = ", line).split(" ")
        words = [word for i, word in enumerate(words) if word or i == len(words) - 1]
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return list(_for_bash(_command("everfed", described)))

    return asked


def test_commands_options_and_names_are_completed(complete):
    assert complete("everfed comp") == ["compare"]
    assert set(complete("everfed ")) == set(ROOT.commands)
    assert complete("everfed run --meth") == ["--method"]
    assert complete("everfed run --method gre") == [name for name in METHODS if name.startswith("gre")]
    assert set(complete("everfed run ")) == set(presets.texts())
    assert set(complete("everfed presets show ")) == set(presets.texts())
    assert set(complete("everfed sweep --model ")) == set(MODELS)
    assert complete("everfed runs --state div") == ["diverged"]


def test_lists_are_completed_at_their_end_without_what_is_taken(complete):
    assert complete("everfed compare --methods algorithm1,fedav") == ["algorithm1,fedavg"]
    assert complete("everfed compare --methods fedavg,fedav") == []
    assert complete("everfed runs --method greedy,lat") == ["greedy,lattice"]


def test_settings_are_completed_by_key_and_value(complete):
    assert "client.lr=" in complete("everfed run --set cl")
    assert complete("everfed run --set client.schedule.fi") == ["client.schedule.final="]
    assert complete("everfed run --set client=a") == ["adam"]  # bash replaces what is behind the =
    assert complete("everfed run --set keep_state=") == ["true", "false"]
    assert complete("everfed sweep --grid policy=greedy,la") == ["greedy,lattice"]
    assert complete("everfed run --set rounds=3 --model ml") == ["mlp"]


def test_every_completed_key_is_a_key_of_experiments():
    raw = config.to_dict(Experiment())
    known = names.settings()
    assert {name for name in raw if name not in ("policy", "server")} <= set(known)
    assert len(known) > 80
    for key, values in known.items():
        for value in values[:2]:
            if key.count(".") == 0 and key not in (
                "gradients",
                "metrics",
                "data",
                "model",
                "task",
                "mode",
                "precision",
            ):
                changed = {**raw} if key != "method" else {}
                config.change(changed, key, config.parse_value(value))
                config.from_dict(changed)  # takes it


def test_every_option_that_lists_names_completes_them(described):
    """The help of an option that takes names says 'one of' or lists them."""
    run = {param["name"]: param for param in described["commands"]["run"]["params"]}
    for name in (
        "method",
        "data",
        "split",
        "model",
        "optimizer",
        "schedule",
        "trainer",
        "device",
        "precision",
        "arrivals",
    ):
        assert run[name]["values"], name
    assert run["lr"]["values"] == {}


def test_a_shell_is_answered_without_pytorch_once_the_names_are_kept(tmp_path):
    place = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    asked = {"_EVERFED_COMPLETE": "complete_bash", "COMP_WORDS": "everfed run --method gree", "COMP_CWORD": "3"}
    code = (
        "import sys\nfrom everfed.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )

    def answer():
        made = subprocess.run(
            [sys.executable, "-c", code], env=place | asked, capture_output=True, text=True, check=True
        )
        return made.stdout.splitlines()

    first, again = answer(), answer()
    assert first[:-1] == again[:-1] == [name for name in METHODS if name.startswith("gree")]
    assert "torch" in first[-1]
    assert again[-1] == "[]"


def test_names_are_looked_up_anew_when_the_code_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path)
    monkeypatch.setattr(names, "described", lambda: {"help": "new", "params": []})
    monkeypatch.setattr(completion, "_mark", lambda: ["one"])
    assert completion.known()["help"] == "new"
    monkeypatch.setattr(names, "described", lambda: {"help": "newer", "params": []})
    assert completion.known()["help"] == "new"
    monkeypatch.setattr(completion, "_mark", lambda: ["two"])
    assert completion.known()["help"] == "newer"
    (tmp_path / "completion.json").write_text("{")
    assert completion.known()["help"] == "newer"


def commands(group=ROOT, path=""):
    for name, command in group.commands.items():
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_help_is_wrapped_by_the_terminal_alone(path, command):
    assert command.help, path
    for paragraph in command.help.split("\n\n"):
        assert "\n" not in paragraph
    for param in command.params:
        assert "\n" not in (getattr(param, "help", None) or "")


@pytest.mark.parametrize("width", [80, 120])
def test_help_fills_its_lines(width, monkeypatch):
    from typer.testing import CliRunner

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
    text = CliRunner().invoke(app, ["run", "--help"]).stdout
    described = inspect.cleandoc(ROOT.commands["run"].help).split("\n\n")[1]
    plain = described.replace("[bold]", "").replace("[/bold]", "")
    shown = [line.strip() for line in text.splitlines()]
    start = next(i for i, line in enumerate(shown) if line.startswith(plain[:30]))
    wrapped = textwrap.wrap(plain, width - 2)
    assert shown[start : start + len(wrapped)] == wrapped
