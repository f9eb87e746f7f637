"""The command as a user meets it: results on standard output, everything else on standard error."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import everfed as ef
from everfed import presets
from everfed.run import config

PLAN = ["--clients", "8", "--cycles", "1,5,10,20"]
SMALL = ["--rounds", "20", "--clients", "8", "--device", "cpu"]


def test_compare_prints_the_promised_json_and_nothing_else_on_standard_output(everfed):
    result = everfed("compare", *SMALL, "--seeds", "2", "--jobs", "1", "--json")
    document = json.loads(result.out)
    assert result.code == 0
    assert list(document["methods"]) == ["algorithm1", "greedy", "wait-for-all", "fedavg"]
    for row in document["methods"].values():
        assert 0 <= row["accuracy"]["mean"] <= 1
        assert row["accuracy"]["sd"] >= 0
        assert 0 <= row["worst_group_accuracy"]["mean"] <= row["accuracy"]["mean"] + 1e-9
        energy = row["energy"]
        balance = energy["harvested"] + energy["shortfall"] - energy["spent"] - energy["wasted"] - energy["stored"]
        assert abs(balance) < 1e-6
    assert document["methods"]["fedavg"]["participations"] == 20 * 8
    assert document["methods"]["algorithm1"]["participations"] == 2 * (20 + 4 + 2 + 1)
    assert document["seconds"] > 0
    assert Path(document["report"]).exists()
    assert "seed 1" in result.err


def test_compare_ends_with_a_table_and_a_picture(everfed, tmp_path):
    result = everfed(
        "compare", *SMALL, "--seeds", "1", "--jobs", "1", "--methods", "algorithm1,greedy", "--out", "pictures"
    )
    assert "Algorithm 1" in result.out
    assert "Benchmark 1 (greedy)" in result.out
    assert (tmp_path / "pictures" / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert "<html" in (tmp_path / "pictures" / "report.html").read_text()
    assert json.loads((tmp_path / "pictures" / "summary.json").read_text())["methods"]["greedy"]["seeds"] == [0]


def test_workers_do_not_change_the_result(everfed):
    one, two = (
        json.loads(
            everfed("compare", *SMALL, "--seeds", "1", "--methods", "greedy,algorithm1", "--jobs", n, "--json").out
        )
        for n in ("1", "2")
    )
    for method in ("greedy", "algorithm1"):
        assert one["methods"][method]["accuracy"] == two["methods"][method]["accuracy"]


def test_run_reports_every_round_as_json(everfed):
    document = json.loads(everfed("run", *SMALL, "--method", "greedy", "--json").out)
    assert len(document["rounds"]) == 20
    assert document["rounds"][5]["participants"] == [0, 1, 4, 5]
    assert document["participations"] == sum(len(r["participants"]) for r in document["rounds"])
    assert document["final"]["accuracy"] == document["rounds"][-1]["metrics"]["accuracy"]


def test_run_explains_how_it_would_train_and_does_not(everfed, tmp_path):
    for arguments in ([], ["--trainer", "one-by-one"]):
        document = json.loads(everfed("run", *SMALL, *arguments, "--explain", "--json").out)
        said = everfed("run", *SMALL, *arguments, "--explain").out
        keys = ["device", "precision", "trainer", "at_once", "parts", "check", "server_keeps", "times"]
        assert list(document) == keys
        assert document["server_keeps"] == []
        assert (document["device"], document["precision"]) == ("cpu", "float32")
        assert (document["trainer"], document["at_once"]) == (("OneByOne", 1) if arguments else ("Batched", 8))
        assert document["trainer"] in said
        assert f"up to {document['at_once']}" in said
        (part,) = document["parts"]
        assert f"\n  {part}\na local step " in said
        names = [timed["name"] for timed in document["times"]["parts"]]
        assert names == ["0 Flatten", "1 Linear", "2 ReLU", "3 Linear"]
        assert all(f"\n  {name}: " in said for name in names)
    assert list(tmp_path.iterdir()) == []


def test_run_explains_what_the_server_would_keep(everfed):
    arguments = ("run", *SMALL, "--method", "last-updates", "--explain")
    (kept,) = json.loads(everfed(*arguments, "--json").out)["server_keeps"]
    assert kept.startswith("the last update of every client that has taken part: up to ")
    assert "the server keeps" in everfed(*arguments).out


def test_kernels_are_explained_part_by_part(everfed):
    pytest.importorskip("triton", reason="Triton is not installed here")
    device = "cuda" if torch.cuda.is_available() else "cpu"  # on a CPU in Triton's interpreter
    result = everfed("run", *SMALL, "--device", device, "--trainer", "kernels", "--explain", "--json")
    document = json.loads(result.out)
    assert (document["trainer"], document["at_once"]) == ("Kernels", 8)
    assert document["parts"] == ["0 Flatten: kernel", "1 Linear: kernel", "2 ReLU: kernel", "3 Linear: kernel"]


def test_run_keeps_the_model_in_its_folder(everfed, tmp_path):
    from safetensors.torch import load_file

    everfed("run", *SMALL, "--out", "kept", "-q")
    assert load_file(tmp_path / "kept" / "model.safetensors")["1.weight"].shape == (64, 64)


def test_run_takes_a_file_and_changes_to_it(everfed, tmp_path):
    (tmp_path / "mine.toml").write_text(everfed("presets", "show", "digits-quick").out)
    result = everfed("run", "mine.toml", "--set", "client.lr=0.01", "--rounds", "10", "--seed", "4", "--json", "-q")
    experiment = json.loads(result.out)["experiment"]
    assert experiment["client"]["lr"] == 0.01
    assert (experiment["rounds"], experiment["seed"]) == (10, 4)
    assert experiment["fleet"]["cycles"] == [1, 2, 5, 10]


def test_a_run_that_is_done_is_shown_again_and_not_run_again(everfed):
    first = json.loads(everfed("run", *SMALL, "--json").out)
    again = everfed("run", *SMALL, "--json")
    assert "already done" in again.err
    assert json.loads(again.out)["rounds"] == [{**r, "seconds": 0.0} for r in first["rounds"]]


def test_one_seed_has_no_spread_anywhere(everfed, tmp_path):
    base = ["compare", *SMALL, "--methods", "algorithm1,greedy", "--seeds", "1", "--jobs", "1"]
    shown = everfed(*base).out
    assert "1 seed" in shown
    assert "±" not in shown
    row = json.loads(everfed(*base, "--json").out)["methods"]["greedy"]
    for name in ("accuracy", "worst_group_accuracy", "loss", "fairness"):
        assert (row[name]["sd"], row[name]["ci95"], row[name]["runs"]) == (None, None, 1)


def test_compare_tells_paired_differences_with_tests(everfed):
    base = ["compare", *SMALL, "--methods", "algorithm1,greedy,fedavg", "--seeds", "3", "--jobs", "1"]
    document = json.loads(everfed(*base, "--json").out)
    assert document["differences"]["reference"] == "algorithm1"
    runs = {run["run"]: run for run in json.loads(everfed("runs", "everfed-out/compare", "--json").out)}
    by = {(run["method"], run["seed"]): run["accuracy"] for run in runs.values()}
    for method, row in document["differences"]["methods"].items():
        differences = [by[method, seed] - by["algorithm1", seed] for seed in range(3)]
        assert row["accuracy"]["mean"] == pytest.approx(sum(differences) / 3)
        assert row["accuracy"]["pairs"] == 3
        assert row["accuracy"]["p_holm"] >= row["accuracy"]["p"]
    shown = everfed(*base).out
    assert "difference from Algorithm 1" in shown
    assert "Holm-corrected for 2 comparisons" in shown
    assert "95 % interval of the mean" in shown


@pytest.mark.long
def test_tune_chooses_for_each_method_and_compare_takes_it(everfed, tmp_path):
    base = ["digits-quick", "--rounds", "6", "--clients", "4", "--methods", "algorithm1,greedy", "--jobs", "1"]
    tune = ["tune", *base, "--grid", "client.lr=0.1,0.2", "--seeds", "7,8", "--extend", "1"]
    result = everfed(*tune, "--json")
    document = json.loads(result.out)
    assert document["validation"] == 0.1
    assert "the grid is extended" in result.err
    again = everfed(*tune)
    assert "done, accuracy" not in again.err  # nothing is run a second time
    assert "*: chosen" in again.out
    compared = everfed("compare", document["file"], *base[5:], "--seeds", "1")
    assert compared.code == 0
    finals = [ef.open_run(path).experiment for path in (tmp_path / "everfed-out/compare/runs").iterdir()]
    assert {one.method: one.client.lr for one in finals} == {
        method: row["settings"]["client.lr"] for method, row in document["best"].items()
    }
    assert {one.validation for one in finals} == {0.0}
    assert "tuned on seed" not in compared.err
    on_the_same = everfed("compare", document["file"], *base[5:], "--seeds", "6:9", "--out", "same")
    assert "settings were also tuned on seed 7, 8; report on other seeds" in on_the_same.err


def test_compare_tunes_first_if_asked(everfed, tmp_path):
    base = ["digits-quick", "--rounds", "6", "--clients", "4", "--methods", "algorithm1,greedy", "--jobs", "1"]
    grid = ["--grid", "client.lr=1e-9,0.2,1e30"]  # the outer ones learn nothing, or diverge
    both = everfed("compare", *base, *grid, "--tune", "--tune-seeds", "7,8", "--seeds", "1", "--out", "both")
    assert both.code == 0
    assert "validation accuracy" in both.out
    assert "diverged" in both.out
    assert "client.lr" in (tmp_path / "both-tune/tuned.toml").read_text()
    assert {ef.open_run(path).experiment.client.lr for path in (tmp_path / "both/runs").iterdir()} == {0.2}


def test_a_method_without_settings_of_its_own_beside_one_with_them_is_said(everfed, tmp_path):
    (tmp_path / "own.toml").write_text("rounds = 4\n[methods.greedy]\nclient.lr = 0.4\n")
    said = everfed("compare", "own.toml", *SMALL, "--methods", "algorithm1,greedy", "--seeds", "1", "--jobs", "1")
    assert "algorithm1 has no settings of its own" in said.err
    assert "client.lr: 0.2 algorithm1, 0.4 greedy" in said.out


@pytest.mark.parametrize(
    ("axis", "others", "said"),
    [
        ("policy.scaled=true,false", [], "algorithm1-unscaled"),
        ("server=sum,normalized", [], "algorithm1+normalized"),
        ("policy=algorithm1,greedy", [], "greedy"),
        ("method=algorithm1,greedy", [], "greedy"),
        ("policy.scaled=true,false", ["--grid", "client.lr=0.1"], None),  # the grid's rate holds for both
        ("client.lr=0.1,0.2", [], None),
        ("batch_size=2,4", [], None),
    ],
)
def test_a_grid_that_makes_other_methods_says_which_have_no_table(axis, others, said, everfed, tmp_path):
    (tmp_path / "own.toml").write_text("client.lr = 0.2\nclient.kind = 'sgd'\n[methods.algorithm1]\nclient.lr = 0.3\n")
    base = ["--seeds", "1", "--rounds", "2", "--clients", "4", "--cycles", "1,2", "--jobs", "1", "--json"]
    result = everfed("sweep", "own.toml", *base, "--grid", axis, *others)
    assert result.code == 0
    own = json.loads(result.out)["own_settings"]
    if said is None:
        assert "no settings of its own" not in result.err
        assert "client.lr" not in own
        return
    assert f"{said} has no settings of its own in this experiment, but algorithm1 has" in result.err
    assert list(own["client.lr"].values()) == [0.3, 0.2]
    assert json.loads((tmp_path / "everfed-out/sweep/summary.json").read_text())["own_settings"] == own


def test_a_run_on_held_out_samples_says_so(everfed):
    assert "validation accuracy" in everfed("run", *SMALL, "--set", "validation=0.2").out
    assert "test accuracy" in everfed("run", *SMALL).out


def test_a_preset_written_out_in_full_is_the_same_experiment_for_every_method(everfed, tmp_path):
    for name in ("digits", "solar-fleet"):
        (tmp_path / "full.toml").write_text(everfed("presets", "show", name, "--full").out)
        for method in ("algorithm1", "greedy", "wait-for-all", "lattice"):
            both = [presets.content(name), config.read(tmp_path / "full.toml")]
            for raw in both:
                config.change(raw, "method", method)
            assert config.from_dict(both[0]) == config.from_dict(both[1])


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
def test_a_sweep_that_is_killed_takes_its_workers_with_it(tmp_path):
    command = ["sweep", "digits", "--rounds", "100000", "--seeds", "2", "--jobs", "2", "-q"]
    sweep = subprocess.Popen([sys.executable, "-m", "everfed", *command], cwd=tmp_path)
    try:
        wait_until(lambda: len(list(tmp_path.rglob("records.arrow"))) == 2)
        listed = Path(f"/proc/{sweep.pid}/task/{sweep.pid}/children").read_text().split()
        assert len(listed) >= 2
    finally:
        sweep.kill()
        sweep.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in listed))


def wait_until(done, seconds=120):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_plan_follows_the_seeds_of_its_file(everfed, tmp_path):
    (tmp_path / "mine.toml").write_text("rounds = 20\nseed = 4\nschedule_seed = 9\n")
    document = everfed("plan", "mine.toml", "--csv").out
    assert document == everfed("plan", "mine.toml", "--csv", "--seed", "9").out
    assert document != everfed("plan", "mine.toml", "--csv", "--seed", "4").out


def test_sweep_runs_the_grid_and_a_larger_grid_adds_to_it(everfed):
    base = ["sweep", "digits-quick", "--rounds", "10", "--seeds", "0:2", "--grid", "policy=algorithm1,greedy", "--json"]
    base += ["--jobs", "1"]
    small = everfed(*base, "--grid", "client.lr=0.1")
    assert list(json.loads(small.out)["methods"]) == ["algorithm1, client.lr=0.1", "greedy, client.lr=0.1"]
    large = everfed(*base, "--grid", "client.lr=0.1,0.01")
    assert "4 of 8 runs" in large.err
    methods = json.loads(large.out)["methods"]
    assert methods["greedy, client.lr=0.1"] == json.loads(small.out)["methods"]["greedy, client.lr=0.1"]
    assert methods["algorithm1, client.lr=0.01"]["seeds"] == [0, 1]


@pytest.mark.long  # the next one does it in one process
def test_a_run_that_diverges_does_not_end_the_sweep(everfed):
    result = everfed("sweep", "digits-quick", "--rounds", "5", "--seeds", "1", "--grid", "client.lr=0.1,1e30", "--json")
    assert result.code == 1
    assert "diverged in round" in result.err
    assert list(json.loads(result.out)["methods"]) == ["client.lr=0.1"]


@pytest.mark.parametrize("rates", ["0.1,1e30", "1e30", "1e30,1e31"])
def test_runs_that_diverged_are_named_in_the_summary_and_on_the_page(rates, everfed, tmp_path):
    base = ["sweep", "digits-quick", "--rounds", "4", "--seeds", "2", "--cycles", "1,2", "--jobs", "1", "--json"]
    result = everfed(*base, "--set", "eval_every=1", "--grid", f"client.lr={rates}", "--out", "out")
    assert result.code == 1
    assert "never train" not in result.err
    assert "nobody trains" not in result.err
    labels = [f"client.lr={float(rate)}" for rate in rates.split(",") if float(rate) > 1]
    document = json.loads((tmp_path / "out/summary.json").read_text())
    assert document["unfinished"] == json.loads(result.out)["unfinished"] == {
        label: {"diverged": [0, 1]} for label in labels
    }  # fmt: skip
    if document["report"]:
        page = (tmp_path / "out/report.html").read_text()
        assert f"{2 * len(labels)} diverged" in page
        assert "all done" not in page
        assert "2 of 2 seeds diverged in the first round" in page
    else:
        assert "0.1" not in rates  # no run has finished a round, so there is nothing to show


def test_runs_lists_state_and_headline(everfed):
    run = json.loads(everfed("run", *SMALL, "--json").out)
    (line,) = json.loads(everfed("runs", "--json").out)
    assert line["state"] == "done"
    assert line["accuracy"] == run["final"]["accuracy"]
    assert "done" in everfed("runs").out


def test_report_and_figure_are_made_from_folders(everfed, tmp_path):
    everfed("run", *SMALL)
    assert everfed("report", "everfed-out", "-o", "page.html").code == 0
    assert everfed("figure", "-o", "figure.pdf").code == 0
    assert (tmp_path / "figure.pdf").read_bytes()[:4] == b"%PDF"
    assert "<html" in (tmp_path / "page.html").read_text()


def test_presets_are_listed_shown_and_described_by_a_schema(everfed):
    assert "digits-quick" in everfed("presets").out
    assert 'kind = "by-energy"' in everfed("presets", "show", "digits").out
    assert "momentum = 0.0" in everfed("presets", "show", "digits", "--full").out
    assert json.loads(everfed("presets", "schema").out)["title"] == "everfed experiment"


def test_the_live_view_shows_progress_in_a_terminal(tmp_path):
    """Under a real pseudo-terminal: the bar, the sparkline and the energy."""
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        os.execv(sys.executable, [sys.executable, "-m", "everfed", "run", "digits-quick", "--device", "cpu"])
    seen = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.waitpid(pid, 0)
    os.close(terminal)
    text = seen.decode(errors="replace")
    assert "60/60" in text
    assert "spent, " in text
    assert "█" in text


def test_quiet_says_nothing_but_the_result(everfed):
    result = everfed("run", *SMALL, "--rounds", "7", "--quiet")
    assert result.err == ""
    assert "test accuracy" in result.out


def test_no_color_leaves_no_escape_codes():
    arguments = [sys.executable, "-m", "everfed", "plan", "--rounds", "20", "--no-color"]
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    out = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment).stdout
    assert "\x1b" not in out


def test_plan_as_csv_is_the_plan_of_the_library(everfed):
    import everfed as ef

    rows = list(csv.DictReader(io.StringIO(everfed("plan", *PLAN, "--rounds", "40", "--csv", "--seed", "3").out)))
    fleet = ef.Fleet.from_cycles([1, 5, 10, 20] * 2)
    steps = ef.plan(fleet, ef.UniformWindow(), rounds=40, seed=3)
    expected = [(s.round, c, e) for s in steps for c, e in zip(s.clients, s.scales, strict=True)]
    assert [(int(r["round"]), int(r["client"]), float(r["scale"])) for r in rows] == expected


def test_plan_as_json_and_as_a_table(everfed):
    assert len(json.loads(everfed("plan", "--rounds", "20", "--json").out)) == 20
    assert "round weight" in everfed("plan", "--rounds", "20").out


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m everfed plan --rounds 2000 --csv | head -n 2"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "round,client,scale"
    assert "Traceback" not in done.stderr


def test_audit_prints_verdict_and_json(everfed):
    assert "unbiased" in everfed("audit", "--seeds", "5", "--rounds", "100").out
    document = json.loads(everfed("audit", "--method", "greedy", "--seeds", "3,9", "--rounds", "100", "--json").out)
    assert document["round_weight_mean"] == pytest.approx(0.3375)
    assert document["exact"]["round_weight_mean"] == pytest.approx(0.3375)
    assert document["seeds"] == 2
    assert "74/15/7/4 %" in document["verdict"]


def test_audit_takes_equal_shares_or_the_experiments_own_and_says_which(everfed):
    short = ("audit", "digits-dirichlet", "--seeds", "2", "--rounds", "20")
    assert "equal shares of the data" in everfed(*short).out
    equal, own = (json.loads(everfed(*short, "--shares", how, "--json").out) for how in ("equal", "data"))
    assert equal["exact"]["round_weight_variance"] == pytest.approx(0.2)
    assert own["exact"]["round_weight_variance"] > 0.21  # unequal shares vary more
    assert "must be 'equal' or 'data'" in everfed(*short, "--shares", "half").err


COMMANDS = ["compare", "run", "sweep", "runs", "report", "figure", "plan", "audit", "advise", "bound"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_an_example(everfed, command):
    result = everfed(command, "--help")
    assert result.code == 0
    assert f"everfed {command}" in result.out


def test_version_is_printed(everfed):
    from everfed import __version__

    assert everfed("--version").out.strip() == f"everfed {__version__}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--cycles", "0,5"], "cycles[0] is 0; it must be a whole number of at least 1"),
        (["run", "--cycles", "-3"], "cycles[0] is -3; it must be a whole number of at least 1"),
        (["run", "--cycles", "2.5"], "whole number"),
        (["run", "--cycles", "nan"], "whole number"),
        (["run", "--cycles", "inf"], "whole number"),
        (["run", "--cycles", "often"], "such as 1,5,10,20"),
        (["run", "--cycles", ""], "give whole numbers"),
        (["plan", "--clients", "3"], "4 cycles were given for 3 clients"),
        (["plan", "--offsets", "1,2,3"], "3 offsets were given"),
        (["audit", "--clients", "0"], "at least 1"),
        (["audit", "--capacity", "0.5"], "capacity >= 1"),
        (["audit", "--arrivals", "trikle"], "Did you mean 'trickle'?"),
        (["audit", "--seeds", "0"], "give at least one seed"),
        (["run", "--method", "algorithm2"], "Did you mean 'algorithm1'?"),
        (["compare", "--methods", "algorithm1,gredy"], "Did you mean 'greedy'?"),
        (["run", "--model", "small-cn"], "Did you mean 'small-cnn'?"),
        (["run", "--model", "mcmahan"], "Did you mean 'mcmahan-cnn'?"),
        (["run", "--split", "by-enery"], "Did you mean 'by-energy'?"),
        (["run", "--data", "digit"], "Did you mean 'digits'?"),
        (["run", "--optimizer", "adm"], "Did you mean 'adam'?"),
        (["run", "--schedule", "cosin"], "Did you mean 'cosine'?"),
        (["run", "--trainer", "batch"], "Did you mean 'batched'?"),
        (["run", "--lr", "0"], "must be a positive number"),
        (["run", "--set", "client.lrr=1"], "Did you mean 'client.lr'?"),
        (["run", "digit"], "unknown preset 'digit'. Did you mean 'digits'?"),
        (["run", "absent.toml"], "no experiment file"),
        (["sweep", "--grid", "client.lr"], "write key=value,value"),
        (["sweep", "--grid", "client.lr=0.1,0.1"], "twice"),
        (["sweep", "--grid", "client.lr=0.1,1e-1"], "twice"),
        (["sweep", "--grid", "client.lr=0.1", "--grid", "client.lr=0.2"], "has 'client.lr' twice"),
        (["sweep", "--grid", "seed=1,2"], "write --seeds 1,2 instead of --grid seed=1,2"),
        (["sweep", "--set", "seed=3"], "the runs use --seeds"),
        (["sweep", "--set", "client.lr=0.3", "--grid", "client.lr=0.1,0.2"], "'client.lr' is set for all runs"),
        (["sweep", "--lr", "0.3", "--grid", "client.lr=0.1,0.2"], "'client.lr' is set for all runs"),
        (["sweep", "--lr", "0.3", "--grid", "client=adam,sgd"], "also by 'client' in the grid"),
        (["sweep", "--grid", "policy=greedy", "--grid", "method=fedavg"], "'method' overrides its 'policy'"),
        (["compare", "--set", "method=greedy"], "'method' is set for all runs and also by --methods"),
        (["compare", "--set", "policy.cutoff=0"], "'policy.cutoff' is set for all runs and also by --methods"),
        (["compare", "--seeds", "1,1"], "seed 1 is given 2 times"),
        (["compare", "--methods", ","], "--methods is ','; give names"),
        (["compare", "--grid", "client.lr=0.1"], "add --tune"),
        (["compare", "--tune", "--seeds", "0:3", "--tune-seeds", "2:4"], "seed 2 is in both --tune-seeds and --seeds"),
        (["tune", "--grid", "seed=1,2"], "'seed' cannot be tuned"),
        (["tune", "--validation", "1.5"], "validation is 1.5"),
        (["tune", "--budget", "3"], "more than the budget of 3"),
        (["tune", "--methods", "gready"], "Did you mean 'greedy'"),
        (["run", "--on-divergence", "ignore"], "'stop' or 'skip'"),
        (["run", "--explain", "--on-divergence", "ignore"], "'stop' or 'skip'"),
        (["run", "--track", "tensorbord"], "Did you mean 'tensorboard'?"),
        (["report", "nowhere"], "no folder 'nowhere'"),
        (["figure", "."], "no runs in"),
        (["presets", "show", "digt"], "Did you mean 'digits'?"),
        (["run", "--lr", "nan"], "must be a positive number"),
        (["run", "--strength", "1.5"], "strength is 1.5; it must be from 0 to 1"),
        (["run", "--split", "dirichlet", "--alpha", "0"], "alpha is 0.0; it must be above 0"),
        (["run", "--rounds", "0"], "at least 1"),
        (["run", "--local-steps", "0"], "at least 1"),
        (["run", "--batch-size", "0"], "at least 1"),
        (["run", "--seed", "-1"], "from 0 to 2**64 - 1"),
        (["run", "--device", "tpu"], "it must be 'auto', 'cpu' or 'cuda'"),
        (["run", "--clients", "5000"], "cannot be split over 5000 clients"),
        (["plan", "--rounds", "7", "--strict-horizon"], "whole number of windows"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(everfed, arguments, told):
    result = everfed(*arguments)
    assert result.code == 2
    assert told in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_cuda_asked_for_and_absent(everfed):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for command in ("run", "compare", "sweep", "plan", "audit"):
        result = everfed(command, "--device", "cuda")
        assert result.code == 2
        assert "finds no GPU" in result.err


def test_debug_shows_the_traceback():
    arguments = [sys.executable, "-m", "everfed", "run", "--lr", "0", "--debug"]
    assert "Traceback" in subprocess.run(arguments, capture_output=True, text=True).stderr


def test_a_large_batch_is_noted_and_works(everfed):
    result = everfed("run", *SMALL, "--batch-size", "500")
    assert result.code == 0
    assert "with replacement" in " ".join(result.err.split())


def test_set_changes_the_policy_of_the_method_that_was_named(everfed):
    """--method first, whatever the order on the command line: else --set would be lost without a word."""
    named = ["audit", "digits-quick", "--rounds", "20", "--seeds", "2", "--set", "policy.cutoff=0"]
    told = everfed(*named, "--method", "self-weighted")
    assert told.code == 2
    assert "cutoff is 0" in told.err
