"""The notebooks: they run on small settings, and are stored without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from code_blocks import DOCS, cells

FOLDER = DOCS / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICK = {"deployment", "own"}  # the others are long


def test_there_are_five():
    assert [notebook.stem for notebook in NOTEBOOKS] == ["deployment", "own", "paper", "solar", "statistics"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_opens_in_colab(notebook):
    content = json.loads(notebook.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    assert f"everfed/blob/main/docs/notebooks/{notebook.name}" in "".join(content["cells"][0]["source"])


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.long]) for path in NOTEBOOKS],
)
def test_a_notebook_runs_on_small_settings(notebook, tmp_path):
    if notebook.stem == "solar":
        pytest.importorskip("pvlib")
    (tmp_path / "deployment").symlink_to(FOLDER / "deployment")
    script = tmp_path / "cells.py"
    script.write_text("\n".join(cells(notebook)) + "\n", encoding="utf-8")
    small = {**os.environ, "EVERFED_SMALL": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=small, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_stored_deployment_is_one_that_the_code_reads(recwarn):
    import everfed as ef
    from everfed.flower.ledger import Ledger, read

    folder = FOLDER / "deployment"
    run, rounds = ef.open_run(folder), read(folder)
    totals = json.loads((folder / "deployment.json").read_text(encoding="utf-8"))
    assert (run.state, len(run.rounds), len(rounds)) == ("done", 20, 20)
    ledger = Ledger(run.experiment.make_data(run.experiment.make_fleet()).shares(), folder)
    for name in ("planned", "done", "lost", "refused"):
        assert ledger.summary()[name] == totals[name]
    assert [sorted(record.participants.tolist()) for record in run.rounds] == [sorted(entry.done) for entry in rounds]
    assert not recwarn.list
