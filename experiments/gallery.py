"""The pictures of docs/gallery.md, made by the code blocks of that very page.

    python experiments/gallery.py            # writes docs/images/gallery/*.png

Blocks run in order, in one namespace and one folder. A picture below a block is the file of that name which the block
wrote, else Matplotlib's current figure. Every picture carries a mark of the code above it, so that a test sees when the
page was changed and a picture was not drawn again.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "gallery.md"
WIDEST, MOST_COLOURS = 960, 96  # pixels, and enough for lines and bands: small files
_PART = re.compile(r"^```(python|sh)\n(.*?)^```$|^!\[[^\]]*\]\(images/gallery/(\S+?)\)$", re.MULTILINE | re.DOTALL)
# What makes a quick try of a block: the same calls on small settings.
_SMALL = (
    (r"\brounds=\d+", "rounds=20"),
    (r"--rounds \d+", "--rounds 8"),
    (r"\bseeds=\d+", "seeds=2"),
    (r"--seeds \S+", "--seeds 2"),
    (r"\beval_every=\d+", "eval_every=5"),
    (r"(--grid [\w.]+=[^,\s]+),\S*,", r"\1,"),  # the first value and the last
)


@dataclass(frozen=True)
class Block:
    """One code block, and the picture below it, if there is one."""

    language: str
    code: str
    picture: str | None
    mark: str  # of all code of the page up to here


def blocks(page: str) -> list[Block]:
    out: list[Block] = []
    so_far = hashlib.sha256()
    for language, code, picture in _PART.findall(page):
        if picture:
            last = out.pop()
            if last.picture:
                raise ValueError(f"the block above {last.picture} has a second picture, {picture}.")
            out.append(Block(last.language, last.code, picture, last.mark))
        else:
            so_far.update(_unspaced(f"{language}\n{code}").encode())
            out.append(Block(language, code, None, so_far.hexdigest()[:16]))
    return out


def _unspaced(code: str) -> str:
    """Code without the spaces, line ends and last commas that a formatter may set otherwise."""
    return re.sub(r",(?=[)\]}])", "", re.sub(r"\s+", "", code))


def small(code: str) -> str:
    """The same code on settings that take seconds."""
    for pattern, instead in _SMALL:
        code = re.sub(pattern, instead, code)
    return code


def draw(found: list[Block], quick: bool = False) -> Iterator[tuple[Block, bytes]]:
    """Run the blocks in a folder of their own; yields the pictures as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names: dict[str, Any] = {"__name__": "gallery"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in found:
                plt.close("all")
                code = small(block.code) if quick else block.code
                if block.language == "python":
                    exec(compile(code, f"{PAGE.name}: {block.picture or 'set-up'}", "exec"), names)
                else:
                    _shell(code)
                if block.picture:
                    yield block, _picture(block, plt)
        finally:
            os.chdir(before)
            plt.close("all")


def _shell(code: str) -> None:
    for line in code.splitlines():
        name, *words = shlex.split(line)
        if name != "everfed":
            raise ValueError(f"only everfed's own commands are run; the page has '{line}'.")
        start = [sys.executable, "-m", "everfed"]
        done = subprocess.run([*start, *words], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"'{line}' failed:\n{done.stdout}{done.stderr}")


def _picture(block: Block, plt: Any) -> bytes:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    written = Path(str(block.picture))
    if not written.exists():
        if not plt.get_fignums():
            raise ValueError(f"the block above {block.picture} has drawn nothing.")
        plt.gcf().savefig(written, dpi=110)
    image = Image.open(written).convert("RGB")
    if image.width > WIDEST:
        image = image.resize((WIDEST, round(image.height * WIDEST / image.width)), Image.Resampling.LANCZOS)
    info, out = PngInfo(), io.BytesIO()
    info.add_text("code", block.mark)
    image.quantize(MOST_COLOURS, dither=Image.Dither.NONE).save(out, "PNG", optimize=True, pnginfo=info)
    return out.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PAGE.parent / "images" / "gallery", help="the folder to write to")
    where = parser.parse_args().out.resolve()
    where.mkdir(parents=True, exist_ok=True)
    for block, png in draw(blocks(PAGE.read_text(encoding="utf-8"))):
        (where / str(block.picture)).write_bytes(png)
        print(f"{block.picture} ({len(png) / 1000:.0f} kB)", flush=True)
