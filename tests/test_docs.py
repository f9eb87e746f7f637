"""The documentation: its code runs as printed, its links lead somewhere, and its tables are complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from code_blocks import DOCS, ROOT, TEXTS, blocks, commands, indented, pages, script
from everfed import METHODS, SERVER_RULES
from everfed.presets import texts as presets
from everfed.run import config
from test_architecture import HEIGHT

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
GALLERY = DOCS / "gallery.md"  # its blocks draw its pictures; the tests of experiments/gallery.py run them
BUILT_IN_METHODS, BUILT_IN_RULES = list(METHODS), list(SERVER_RULES)  # before other tests register kinds
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")
# Someone who follows these pages gets from nothing to a comparison of their own: one script, in this order.
JOURNEY = [
    *(f"start/{page}" for page in ("compare", "own")),
    *(f"howto/{page}" for page in ("model", "data", "energy", "policy", "resume", "sweep", "statistics", "figure")),
]
LONG = {"docs/extending.md", "docs/howto/sweep.md", "docs/howto/figure.md", "docs/start/compare.md"}  # over ten seconds


def relative(path):
    return path.relative_to(ROOT).as_posix()


def of(kind, *, run=True):
    found = [block for block in BLOCKS if block.kind == kind and (block.why_not is None) == run]
    return [block for block in found if block.page != GALLERY]


def each(found):
    """Blocks or pages as parameters; those that compute for long are marked."""
    name = {Path: relative}.get(type(found[0]), str) if found else str
    page = [relative(getattr(item, "page", item)) for item in found]
    marks = [[pytest.mark.long] if where in LONG else [] for where in page]
    return [pytest.param(item, id=name(item) if not isinstance(item, Path) else relative(item), marks=mark)
            for item, mark in zip(found, marks, strict=True)]  # fmt: skip


def run_python(text, folder, name="page"):
    # In a process of its own: the examples add rows to tables that other tests look at.
    file = folder / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, file], cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_block_says_what_it_is():
    known = {"python", "sh", "toml", "json", *TEXTS}
    assert not [str(block) for block in BLOCKS if block.kind not in known]
    assert not [f"{relative(page)}:{line}" for page in PAGES for line in indented(page)]


def test_what_is_not_run_says_why():
    assert all(len(block.why_not) > 8 for block in BLOCKS if block.why_not is not None)


ON_THE_WAY = [DOCS / f"{name}.md" for name in JOURNEY]
WITH_PYTHON = [page for page in PAGES if script(page).strip() and page not in [GALLERY, *ON_THE_WAY]]


@pytest.mark.parametrize("page", each(WITH_PYTHON))
def test_python_runs_from_top_to_bottom(page, tmp_path):
    run_python(script(page), tmp_path, page.stem)


def test_who_follows_start_and_how_do_i_gets_to_a_comparison_of_their_own(tmp_path):
    text = "".join(f"# {page}\n{script(DOCS / f'{page}.md')}" for page in JOURNEY)
    checks = """
import json
assert isinstance(resnet(), nn.Module) and any(isinstance(part, nn.GroupNorm) for part in resnet().modules())
assert data.name == "pictures" and data.sizes().tolist() == [24] * 8
assert {run.experiment.method for run in swept.runs} == {"algorithm1", "greedy", "in-pairs+sum"}
assert len(swept.runs) == 12 and all(run.state == "done" for run in swept.runs)
assert result.reference == "algorithm1" and len(result.differences) == 2
for difference in result.differences.values():
    low, high = difference["accuracy"]["ci95"]
    assert low <= difference["accuracy"]["mean"] <= high and 0 < difference["accuracy"]["p_holm"] <= 1
    assert difference["accuracy"]["pairs"] == 5
assert Path("figure.pdf").read_bytes().startswith(b"%PDF")
assert result.figure.exists() and result.report.exists()
print("arrived")
"""
    assert run_python(text + checks, tmp_path, "journey").endswith("arrived\n")


@pytest.mark.parametrize("block", each(of("sh")))
def test_commands_run(block, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lines = "set -e\n" + block.code
    done = subprocess.run(
        ["bash", "-c", lines],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout


@pytest.mark.parametrize("block", each([*of("sh"), *of("sh", run=False)]))
def test_commands_have_the_options_that_are_written(block):
    """Also of blocks that are not run: an option that was renamed is found here."""
    import typer.main

    from everfed.cli.app import app

    for line in commands(block.code):
        words = shlex.split(re.split(r"\s[|>]\s?", line)[0])
        if words[:1] != ["everfed"] or "..." in words:
            continue
        command, left = typer.main.get_command(app), words[1:]
        while getattr(command, "commands", None) and left and not left[0].startswith("-"):
            assert left[0] in command.commands, f"{line}: there is no command '{left[0]}'"
            command, left = command.commands[left[0]], left[1:]
        with command.make_context(
            "everfed", [word for word in left if word not in ("--help", "-h")], resilient_parsing=True
        ) as context:
            wrong = [word for word in context.args if word.startswith("-")]
        assert not wrong, f"{line}: there is no option {wrong[0]}"
        known = [option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]]
        for word in left:
            if re.match(r"--?[a-zA-Z]", word) and word.split("=")[0] not in ("--help", "-h", "--install-completion"):
                assert word.split("=")[0] in known, f"{line}: there is no option {word}"


@pytest.mark.parametrize("block", each(of("toml")))
def test_experiment_files_are_understood(block):
    assert config.from_dict(tomllib.loads(block.code))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_relative_links_and_images_exist(page):
    missing = [target for target in targets(page) if target and not (page.parent / target).exists()]
    assert not missing, f"{relative(page)} points to {', '.join(missing)}"


def targets(page):
    """Relative targets of the page's links and images, without their anchors."""
    text = re.sub(r"^\s*```.*?^\s*```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found = ["".join(match) for match in LINK.findall(text)]
    return [target.partition("#")[0] for target in found if not re.match(r"[a-z]+:", target)]


def test_links_of_both_kinds_are_found():
    assert {"docs/images/compare.png", "docs/results/digits.md", "LICENSE"} <= set(targets(ROOT / "README.md"))


def test_the_names_of_presets_on_the_pages_exist():
    lines = [line for block in BLOCKS if block.kind == "sh" for line in commands(block.code)]
    takes = r"everfed (?:run|compare|sweep|tune|audit|plan|presets show) ([a-z][\w-]*)(?=\s|$)"
    named = {word for line in lines for word in re.findall(takes, line)}
    assert named
    assert named <= set(presets())


def first_cells(page, heading):
    """The names in backticks in the first column of the first table below a heading."""
    rows = page.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0].split("\n|---")[1]
    cells = [line.split("|")[1] for line in rows.splitlines()[1:] if line.startswith("|")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_page_of_methods_lists_every_method_once():
    assert sorted(first_cells(DOCS / "methods.md", "Methods")) == sorted(BUILT_IN_METHODS)


def test_the_page_of_methods_lists_every_server_rule_once():
    assert sorted(first_cells(DOCS / "methods.md", "Server rules")) == sorted(BUILT_IN_RULES)


def test_the_page_of_the_house_lists_every_part_of_the_source_in_the_order_of_imports():
    listed = [name.rstrip("/") for name in first_cells(DOCS / "why" / "house.md", "Rooms")]
    source = ROOT / "src" / "everfed"
    there = {path.stem for path in source.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert sorted(listed) == sorted(name for name in there if not name.startswith("_"))
    assert listed == sorted(listed, key=lambda name: HEIGHT[name])
