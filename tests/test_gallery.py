"""The gallery: its code runs, and every picture was drawn by the code that stands above it."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "experiments"))

import gallery  # noqa: E402

TEXT = gallery.PAGE.read_text(encoding="utf-8")
BLOCKS = gallery.blocks(TEXT)
PICTURES = gallery.PAGE.parent / "images" / "gallery"


def test_the_page_has_about_ten_pictures_each_below_a_block():
    named = re.findall(r"\(images/gallery/([^)]+)\)", TEXT)
    assert named == [block.picture for block in BLOCKS if block.picture]
    assert len(named) >= 10
    assert sorted(named) == sorted(path.name for path in PICTURES.iterdir())
    assert TEXT.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.picture], ids=lambda block: block.picture)
def test_a_picture_was_drawn_by_the_code_above_it_and_is_small(block):
    path = PICTURES / block.picture
    assert path.stat().st_size < 100_000
    with Image.open(path) as image:
        assert image.info["code"] == block.mark, "the page's code has changed: run python experiments/gallery.py"
        assert image.width <= gallery.WIDEST
        assert image.convert("RGB").getpixel((2, 2)) == (255, 255, 255)  # a ground of its own, on dark pages too


def drawn(found):
    return {block.picture: Image.open(io.BytesIO(png)) for block, png in gallery.draw(found, quick=True)}


@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
def test_the_blocks_of_python_draw_their_pictures_on_small_settings():
    found = [block for block in BLOCKS if block.language == "python"]
    pictures = drawn(found)
    assert list(pictures) == [block.picture for block in found if block.picture]
    assert all(min(image.size) > 200 and len(image.getcolors()) > 5 for image in pictures.values())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::everfed.errors.EverfedWarning")
def test_all_blocks_draw_their_pictures_on_small_settings():
    assert list(drawn(BLOCKS)) == [block.picture for block in BLOCKS if block.picture]


def test_code_that_draws_nothing_and_other_commands_are_refused():
    with pytest.raises(ValueError, match="has drawn nothing"):
        drawn([gallery.Block("python", "a = 1", "nothing.png", "")])
    with pytest.raises(ValueError, match="only everfed's own commands"):
        drawn([gallery.Block("sh", "rm -r everything", "nothing.png", "")])
