"""The short version of experiments/flower_attacks.py: real processes over TLS, two liars and strangers at the door."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; install it with: pip install 'everfed[flower]'")

SCRIPT = Path(__file__).parents[1] / "experiments" / "flower_attacks.py"

pytestmark = pytest.mark.long


def test_liars_are_named_strangers_stay_outside_and_the_model_is_the_honest_clients(tmp_path):
    out = tmp_path / "attacks.json"
    command = [sys.executable, str(SCRIPT), "--short", "--patience", "4", "--out", str(out)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made = json.loads(out.read_text())
    assert len(made["strangers"]) == 6
    (run,) = made["runs"]
    assert run["ended"]
    assert run["largest_difference_from_the_honest"] == 0.0
    assert {name: lie["times"] > 0 for name, lie in run["lies"].items()} == {
        "parameters of 1e30": True, "harvested is not a number": True,
    }  # fmt: skip
