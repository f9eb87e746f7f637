"""Pages as GitHub reads them, made ready for MyST: links out of the site, and lines that begin with a per cent sign."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

REPOSITORY = "https://github.com/everfed/everfed/blob/main/"
# "90\n% of" is text that was wrapped; MyST would take the line for a comment.
_NOT_A_COMMENT = re.compile(r"(?<=[\w\])])(\*{0,2})\n *%(?=[\s,.;:)])")
_OUT = re.compile(r"(\]\()((?:\.\./)+[^)\s]*)(\))")


def lead_out(app: Sphinx, page: str, source: list[str]) -> None:
    folder = (Path(app.srcdir) / page).parent
    root = Path(app.srcdir).resolve()

    def replaced(link: re.Match[str]) -> str:
        path, _, anchor = link[2].partition("#")
        target = (folder / path).resolve()
        if target.is_relative_to(root):
            return link[0]
        where = target.relative_to(root.parent).as_posix()
        return f"{link[1]}{REPOSITORY}{where}{'#' + anchor if anchor else ''}{link[3]}"

    source[0] = _NOT_A_COMMENT.sub(r"\1 %", _OUT.sub(replaced, source[0]))


def setup(app: Sphinx) -> None:
    app.connect("source-read", lead_out)
