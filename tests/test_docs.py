"""The documentation: its code runs as printed, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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
    "page", [ROOT / "README.md", ROOT / "docs" / "extending.md", ROOT / "docs" / "runs.md"], ids=relative
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
