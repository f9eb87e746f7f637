"""The code blocks of the documentation: what kind each is, and whether it says why it is not run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TEXTS = ("text", "diff")  # shown, not run: outputs, files of other programs
DIRECTIVES = re.compile(r"\{[\w-]+\}")
_MARK = re.compile(r"<!-- not run: (.+?) -->")


class Block(NamedTuple):
    page: Path
    line: int  # of its first line of code, from 1
    kind: str  # python, sh, toml, ...; empty if it does not say
    code: str
    why_not: str | None  # the reason why it is not run

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def pages() -> list[Path]:
    """Every page of the site, and README."""
    made = DOCS / "reference" / "generated"
    return [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if made not in page.parents)]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page of Markdown, in their order; directives of Sphinx are none."""
    found, before, lines = [], "", page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = re.match(r"(\s*)(`{3,})(.*)", lines[at])
        if not fence:
            before = lines[at] if lines[at].strip() else before
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == fence[2])
        mark = _MARK.search(before)
        if not DIRECTIVES.match(fence[3]):
            code = "\n".join(line.removeprefix(fence[1]) for line in lines[at + 1 : end]) + "\n"
            found.append(Block(page, at + 2, fence[3].strip(), code, mark[1] if mark else None))
        before, at = "", end + 1
    return found


def indented(page: Path) -> list[int]:
    """Lines at which code begins that is only indented, so that it does not say what it is."""
    lines, fence, found, before = page.read_text(encoding="utf-8").splitlines(), False, [], ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fence = not fence
        elif not fence and line.startswith("    ") and line.strip() and not lines[number - 2].strip():
            listed = re.match(r"\s*([-*+]|\d+\.) ", before) or before.startswith("  ")
            found += [] if listed else [number]
        before = line if line.strip() else before
    return found


def script(page: Path) -> str:
    """The page's Python that is run, every line at its place, so that errors name the page's lines."""
    lines = [""] * len(page.read_text(encoding="utf-8").splitlines())
    for block in blocks(page):
        if block.kind == "python" and block.why_not is None:
            code = block.code.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
    return "\n".join(lines) + "\n"


def cells(notebook: Path) -> list[str]:
    """The code of a notebook's cells."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def commands(code: str) -> list[str]:
    """The commands of a block for the shell, continued lines joined, without comments and prompts."""
    joined = re.sub(r"\\\n\s*", "", code)
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip().removeprefix("$ ") for line in joined.splitlines())
    return [line for line in lines if line]
