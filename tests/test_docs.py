"""The documentation: its code runs as printed, its links lead somewhere, and its tables are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from everfed import METHODS, SERVER_RULES
from test_architecture import HEIGHT

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BUILT_IN_METHODS, BUILT_IN_RULES = list(METHODS), list(SERVER_RULES)  # before other tests register kinds
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")


def relative(path):
    return path.relative_to(ROOT).as_posix()


def split(page):
    """(the page's Python with its line numbers kept, its text without any code block)."""
    code, text, fence = [], [], None
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fence = line if fence is None else None
        code.append(line if fence == "```python" and line != fence else "")
        text.append(line if fence is None else "")
    return "\n".join(code) + "\n", "\n".join(text)


def targets(page):
    """Relative targets of the page's links and images, without their anchors."""
    found = ["".join(match) for match in LINK.findall(split(page)[1])]
    return [target.partition("#")[0] for target in found if not re.match(r"[a-z]+:", target)]


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("asynchronous", "extending", "runs"))],
    ids=relative,
)
def test_code_runs_from_top_to_bottom(page, tmp_path):
    # In a process of its own: the examples add rows to tables that other tests look at.
    script = tmp_path / f"{page.stem}.py"
    script.write_text(split(page)[0], encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_relative_links_and_images_exist(page):
    missing = [target for target in targets(page) if target and not (page.parent / target).exists()]
    assert not missing, f"{relative(page)} points to {', '.join(missing)}"


def test_links_of_both_kinds_are_found():
    assert {"docs/images/compare.png", "docs/maths.md", "LICENSE"} <= set(targets(ROOT / "README.md"))


def first_cells(page, heading):
    """The names in backticks in the first column of the first table below a heading."""
    rows = page.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0].split("\n|---")[1]
    cells = [line.split("|")[1] for line in rows.splitlines()[1:] if line.startswith("|")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_readme_lists_every_method_once():
    assert sorted(first_cells(ROOT / "README.md", "Methods")) == sorted(BUILT_IN_METHODS)


def test_the_page_of_methods_lists_every_server_rule_once():
    assert sorted(first_cells(ROOT / "docs" / "methods.md", "Server rules")) == sorted(BUILT_IN_RULES)


def test_the_readme_lists_every_part_of_the_source_in_the_order_of_imports():
    listed = [name.rstrip("/") for name in first_cells(ROOT / "README.md", "Source")]
    source = ROOT / "src" / "everfed"
    there = {path.stem for path in source.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert sorted(listed) == sorted(name for name in there if not name.startswith("_"))
    assert listed == sorted(listed, key=lambda name: HEIGHT[name])
