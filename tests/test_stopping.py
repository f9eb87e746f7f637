"""Runs that are asked to stop, and processes that are lost: nothing hangs, nothing is left behind, no round is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

import everfed as ef
from everfed.cli.app import app
from everfed.store import find_runs, open_run
from everfed.store.checkpoint import checkpoints
from everfed.store.lock import is_running
from everfed.studies.processes import Crew

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")

RUNS = 4
SWEEP = [
    "compare", "digits-quick", "--clients", "8", "--device", "cpu", "--methods", "algorithm1,greedy", "--seeds", "2",
    "--jobs", "2", "--checkpoint-every", "0.2",
]  # fmt: skip
RUN = ["run", "digits-quick", "--rounds", "100000", "--clients", "8", "--device", "cpu", "--checkpoint-every", "0.2"]
PATIENCE_S = 90  # a round takes milliseconds; the machine may be busy
GENTLE = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def everfed(*arguments: str) -> subprocess.Popen:
    """The command in a session of its own, so that its process group can be signalled."""

    def heed() -> None:  # whatever this process ignores
        for number in GENTLE:
            signal.signal(number, signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, "-m", "everfed", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=heed,
    )  # fmt: skip


def in_one_process(*arguments: str) -> None:
    """The command in this one, which has everything imported."""
    done = CliRunner().invoke(app, [*arguments, "--jobs", "1", "-q"])
    assert done.exit_code == 0, done.output


def ended(process: subprocess.Popen, seconds: float = PATIENCE_S) -> str:
    """Its output, once it has ended; a process that hangs is an error."""
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        raise AssertionError(f"it hangs; so far it said:\n{out}") from None
    return out


def session(process: subprocess.Popen) -> list[psutil.Process]:
    """The live processes that were started with it, the process itself left out."""
    found = []
    for other in psutil.process_iter():
        try:
            with_it = other.pid != process.pid and os.getsid(other.pid) == process.pid
            if with_it and other.status() != psutil.STATUS_ZOMBIE:
                found.append(other)
        except (psutil.NoSuchProcess, ProcessLookupError):
            pass
    return found


def until(true, seconds: float = PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


def wait_for_python(process: subprocess.Popen) -> None:
    """Until the command's own code runs; before that, Python itself answers signals, with a traceback."""
    started = psutil.Process(process.pid)
    until(lambda: process.poll() is not None or started.cpu_times().user > 0.4)


def reached(folder: Path) -> dict[str, int]:
    """The round from which each run would go on."""
    out = {}
    for run in find_runs(folder):
        saved = [int(path.name.split("-")[1]) for path in checkpoints(run)]
        out[run.name] = 10**9 if (run / "result.json").exists() else max(saved, default=0)
    return out


def wait_for_rounds(process: subprocess.Popen, folder: Path) -> None:
    """Until a run is under way, or all is over."""

    def under_way() -> bool:
        return any(is_running(run) and checkpoints(run) for run in find_runs(folder))

    until(lambda: process.poll() is not None or under_way())


def assert_nothing_is_left(process: subprocess.Popen, out: str, folder: Path) -> None:
    assert "Traceback" not in out, out
    assert "Error" not in out, out
    until(lambda: not session(process), 20)
    assert not [run for run in find_runs(folder) if is_running(run)]


def assert_same_runs(a: Path, b: Path) -> None:
    names = [run.name for run in find_runs(a)]
    assert names == [run.name for run in find_runs(b)]
    assert len(names) == RUNS
    for name in names:
        one, other = open_run(a / "runs" / name), open_run(b / "runs" / name)
        assert one.state == other.state == "done"
        assert [record.to_dict() for record in one.rounds] == [record.to_dict() for record in other.rounds]
        model = "model.safetensors"
        assert (one.path / model).read_bytes() == (other.path / model).read_bytes()


# (moment, whom, signal): "start" is any moment after Python has started, "rounds" any after a run is under way.
FEW = [
    ("rounds", "child", signal.SIGKILL),
    ("rounds", "group", signal.SIGTERM),
    ("start", "twice", signal.SIGINT),
    ("rounds", "parent", signal.SIGKILL),
    ("rounds", "child", signal.SIGTERM),
    ("rounds", "parent", signal.SIGHUP),
]


def drawn(chance: random.Random, number: int) -> list[tuple[str, str, signal.Signals]]:
    return [
        (
            chance.choice(["start", "rounds", "rounds"]),
            chance.choice(["parent", "group", "child", "twice"]),
            chance.choice([*GENTLE, signal.SIGKILL]),
        )
        for _ in range(number)
    ]


soak = pytest.mark.skipif("EVERFED_SOAK" not in os.environ, reason="takes a quarter of an hour: make soak")
MOMENTS = [
    pytest.param(FEW[1:2], 100, id="1", marks=pytest.mark.long),
    pytest.param(FEW, 150, id="6", marks=pytest.mark.long),
    pytest.param(drawn(random.Random(0), 50), 400, id="50", marks=[pytest.mark.long, soak]),
]


@pytest.mark.parametrize(("moments", "rounds"), MOMENTS)
def test_signalled_at_random_moments_a_sweep_loses_nothing_leaves_nothing_and_ends_the_same(tmp_path, moments, rounds):
    """Parent, workers, the whole group, once or twice, by every signal, while runs are still queued."""
    chance = random.Random(1)
    command = [*SWEEP, "--rounds", str(rounds)]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    in_one_process(*command, "--out", str(whole))
    process, before, sweeps = None, {}, 0
    for moment, whom, number in moments:
        if process is None:
            process = everfed(*command, "--out", str(cut))
        if moment == "start":
            wait_for_python(process)
            time.sleep(chance.uniform(0.0, 6.0))
        else:
            wait_for_rounds(process, cut)
            time.sleep(chance.uniform(0.0, 0.5))
        if whom == "child":
            for child in chance.sample(children := session(process), min(1, len(children))):
                child.send_signal(number)
            continue  # the sweep goes on without it
        for _ in range(2 if whom == "twice" else 1):
            if process.poll() is None:
                (os.kill if whom == "parent" else os.killpg)(process.pid, number)
            time.sleep(0.05)
        out = ended(process)
        # A second signal may meet the interpreter after its last word, and end it in the system's own way.
        codes = {-number} if number == signal.SIGKILL else {128 + number} | ({-number} if whom == "twice" else set())
        assert process.returncode in {*codes, 0, 1}, out
        if process.returncode == 128 + number:
            assert "esume with:\n  everfed compare digits-quick" in out
        if process.returncode == 1:
            assert "lost again" in out
        assert_nothing_is_left(process, out, cut)
        now = reached(cut)
        assert all(now[name] >= was for name, was in before.items()), "rounds were lost"
        if process.returncode == 0:  # it was over before the signal came: another one
            assert_same_runs(cut, whole)
            sweeps += 1
            cut, now = tmp_path / f"cut-{sweeps}", {}
        process, before = None, now
    if process:
        ended(process, 10 * PATIENCE_S)
    in_one_process(*command, "--out", str(cut))
    assert_same_runs(cut, whole)


# Other tests send one process the other two, but look at less of what it leaves.
@pytest.mark.parametrize("number", [signal.SIGHUP, *(pytest.param(n, marks=pytest.mark.long) for n in GENTLE[:2])])
def test_one_process_saves_its_round_and_says_how_it_ended(tmp_path, number):
    process = everfed(*RUN, "--out", str(tmp_path))
    wait_for_rounds(process, tmp_path)
    process.send_signal(number)
    out = ended(process)
    assert process.returncode == 128 + number
    assert "resume with:\n  everfed run digits-quick" in out
    (saved,) = reached(tmp_path).values()
    assert len(open_run(tmp_path).rounds) == saved > 0
    assert_nothing_is_left(process, out, tmp_path)


def test_ignored_signals_stay_ignored(tmp_path):
    """As below nohup."""
    code = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from everfed.cli import main; main()"
    command = [sys.executable, "-c", code, *RUN, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for_rounds(process, tmp_path)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.terminate()
    assert "resume with" in process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.long  # what it does with lost processes is the crew's doing, below
def test_a_run_whose_process_is_lost_twice_is_named_and_the_others_go_on(tmp_path):
    process = everfed(*SWEEP, "--rounds", "150", "--out", str(tmp_path))
    killed: list[int] = []

    def twice() -> bool:
        for run in (tmp_path / "runs").glob("greedy-seed=1-*"):
            owner = (run / "lock").read_text().split()
            if is_running(run) and len(owner) > 1 and int(owner[1]) not in killed:
                killed.append(int(owner[1]))
                os.kill(killed[-1], signal.SIGKILL)
        return len(killed) == 2 or process.poll() is not None

    until(twice)
    out = ended(process, 10 * PATIENCE_S)
    assert "greedy, seed 1: its process was lost (SIGKILL, perhaps for want of memory); resuming it" in out
    assert "greedy, seed 1: its process was lost again (SIGKILL" in out
    assert "1 of 4 runs did not finish" in out
    assert process.returncode == 1
    assert sum(open_run(run).state == "done" for run in find_runs(tmp_path)) == RUNS - 1
    assert_nothing_is_left(process, out, tmp_path)


# -- the crew of processes itself --------------------------------------------------------------------------------


def mark_and(place: Path, what: str, tell, stop, under_way) -> None:
    """A task that leaves a mark each time it is begun."""
    tries = len(list(place.glob(f"{what}-*")))
    (place / f"{what}-{tries}").touch()
    if what == "lost always" or (what == "lost once" and not tries):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "bad":
        raise ef.InputError("a bad task.")
    under_way(True)
    while what == "long" and not stop():
        tell("round")
        time.sleep(0.01)
    tell(f"{what} saved")


def crew(place: Path, *tasks: str, stop=lambda: False) -> tuple[Crew, list]:
    heard: list = []
    return Crew(
        mark_and, [(place, task) for task in tasks], range(len(tasks)), 2, 1, heard.append,
        lambda task, how, again: heard.append((tasks[task], how, again)), stop,
    ), heard  # fmt: skip


def test_a_lost_task_is_done_again_once_and_others_go_on(tmp_path):
    doing, heard = crew(tmp_path, "lost always", "plain", "lost once", "another")
    doing.run()
    how = "SIGKILL, perhaps for want of memory"
    assert [said for said in heard if said[0] == "lost always"] == [("lost always", how, x) for x in (True, False)]
    assert ("lost once", how, True) in heard
    assert {said for said in heard if isinstance(said, str)} == {"plain saved", "lost once saved", "another saved"}
    assert len(list(tmp_path.glob("lost always-*"))) == 2


def test_an_error_of_one_task_is_raised_after_the_others_have_saved(tmp_path):
    doing, heard = crew(tmp_path, "long", "bad", "never begun")
    with pytest.raises(ef.InputError, match="a bad task"):
        doing.run()
    if "round" in heard:  # else it was still being set up
        assert heard[-1] == "long saved"
    assert not list(tmp_path.glob("never begun*"))


def test_ctrl_c_in_python_saves_what_is_under_way(tmp_path):
    doing, heard = crew(tmp_path, "long", "long", "never begun")

    def interrupt(said) -> None:
        heard.append(said)
        if heard.count("round") == 3:
            raise KeyboardInterrupt

    doing.tell = interrupt
    with pytest.raises(KeyboardInterrupt):
        doing.run()
    assert "long saved" in heard
    assert not list(tmp_path.glob("never begun*"))


SCRIPT = """
import sys
import everfed as ef
from everfed.run.experiment import Experiment
from everfed.run.fleets import CycleFleet

class Own(ef.Greedy):
    pass

def sweep(policy=None):
    base = Experiment(fleet=CycleFleet(4, (1, 2)), rounds=2, batch_size=4, device="cpu")
    base = base.with_method("greedy")
    try:
        found = ef.sweep(base, {"policy": [policy]} if policy else {"rounds": [2, 3]}, seeds=2, jobs=2, out=sys.argv[1])
    except ef.InputError as error:
        sys.exit(f"refused: {error}")
    print("did", len(found.runs))
"""


@pytest.mark.parametrize(
    ("call", "by", "said"),
    [
        ("sweep()", "file", 'must stand below `if __name__ == "__main__":`'),
        ('if __name__ == "__main__": sweep(Own())', "file", "did 2"),
        pytest.param("sweep()", "stdin", "did 4", marks=pytest.mark.long),
        pytest.param(
            "sweep(Own())", "stdin", "a worker process cannot load an object of the experiment", marks=pytest.mark.long
        ),
    ],
    ids=["unguarded", "guarded", "stdin", "stdin with an object of its own"],
)
def test_a_script_works_or_says_what_it_lacks(tmp_path, call, by, said):
    script = f"{SCRIPT}\n{call}\n"
    (tmp_path / "script.py").write_text(script)
    place = "-" if by == "stdin" else str(tmp_path / "script.py")
    done = subprocess.run(
        [sys.executable, place, str(tmp_path / "out")], input=script if by == "stdin" else None, text=True,
        capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert (done.returncode == 0) == said.startswith("did")
