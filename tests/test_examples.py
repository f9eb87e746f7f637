"""Every example runs as a user would run it, and ends where its text says."""

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLES = {path.stem: path for path in sorted((Path(__file__).parent.parent / "examples").glob("*.py"))}
LEAST_FINAL_ACCURACY = {"plain_loop": 0.85, "quickstart": 0.85}


@functools.cache
def printed(example):
    """What the example prints, run from an empty folder; warnings of any kind fail it."""
    command = [sys.executable, "-W", "error", str(EXAMPLES[example])]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_ends_with_a_plausible_accuracy(example):
    accuracies = [float(number) for number in re.findall(r"accuracy:? (\d\.\d+)", printed(example))]
    assert accuracies, printed(example)
    assert LEAST_FINAL_ACCURACY.get(example, 0.5) < accuracies[-1] <= 1.0


def test_the_quickstart_prints_every_fifty_rounds_and_the_audits_verdict():
    text = printed("quickstart")
    assert re.findall(r"round (\d+):", text) == ["50", "100", "150", "200"] * 2
    assert "unbiased over the run: every client counts by its data, and in every round" in text
    assert "biased over the run: E=1 clients count 1.00 times" in text


def test_the_plain_loop_is_short_and_needs_no_everfed():
    source = EXAMPLES["plain_loop"].read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 60
    assert not re.search(r"^\s*(import|from) everfed", source, re.MULTILINE)
