"""Whatever is typed, written or passed: it works, or one sentence says what is wrong, soon and in little memory."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import warnings
from dataclasses import MISSING
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from hypothesis import HealthCheck, given, settings, strategies as st

import everfed as ef
from everfed import presets, registry
from everfed.cli import main
from everfed.cli.app import app
from everfed.energy.battery import Storage
from everfed.energy.physical import DeviceGroup
from everfed.run import config
from everfed.run.fleets import CycleFleet

LARGEST_SIZE = 1000  # of clients, rounds, models, ... in the pools
SECONDS = 10
MEMORY = 4 * 2**30

NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "0.5",
    "1e-320",
    "1e308",
    "nan",
    "inf",
    "-inf",
    "1_0",
    "0x10",
    "1e400",
    str(LARGEST_SIZE),
]
DIGITS = ["9" * 30, "9" * 5000, "-" + "9" * 30]
TEXTS = [
    "",
    " ",
    "\x1b[31mred",
    "\u202e",
    "a\nb",
    "\udcff",
    *["abc", "é", "'", '"', "[", "[1,2", "{}", "[]", "true", "--", "="],
]
LISTS = ["1,,2", ",", "1,2,3", "1,1", "0:0", "5:2", "1:", ":", "0:2", "-1,2", "nan,1", "a,b"]
SETTINGS = [
    "client.lr=",
    "=1",
    "client.lr=nan",
    "client=3",
    "client.kind=",
    "client.schedule.final=2",
    "client.lr=0.1,0.2",
    "policy=greedy",
    "x=1",
    "fleet.cycles=[]",
    "fleet.cycles=[1,[2]]",
    "fleet.arrivals=markov",
    "fleet.spell=1e6",
    "fleet.spell=2",
    "fleet.kind=devices",
    "fleet.groups=[]",
    "fleet.groups=[{count=0}]",
    "gradients=[3]",
    "gradients=['clip']",
    "rounds=3.0",
    "model={}",
    "data=synthetic",
    "data.side=2",
    "metrics=['x']",
    "plugins=['os','nowhere']",
    "methods.greedy.client.lr=-1",
    "seed=1",
    "server.limit=0",
    "server=truncated",
    "server_optimizer.lr=1e39",
    "split.alpha=1",
    "compression.bits=99",
    "validation=0.5",
    "tuned_on=[1]",
    "format=99",
]
SETTINGS += ["a" + ".a" * 500 + "=1", "client" + ".a" * 500 + "=1", "client.lr=0.1\nseed=3"]


class Slow(BaseException):
    """The watchdog's."""


@contextlib.contextmanager
def watched():
    """Ends what takes too long, and refuses it what takes too much memory."""

    def bark(number, frame):
        raise Slow

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = {s: signal.signal(s, bark) for s in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of work: the machine may be busy
    signal.setitimer(signal.ITIMER_REAL, 6 * SECONDS)
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def everfed(arguments):
    """(exit code, standard error) of the command, run in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace") for _ in range(2))
    argv, shown = sys.argv, warnings.showwarning
    sys.argv, code = ["everfed", *arguments], 0
    try:
        with watched(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv, warnings.showwarning = argv, shown
    err.flush()
    return code, err.buffer.getvalue().decode(errors="replace")


def check_told(arguments):
    """Exit 0, or 2 with one sentence; 1 only where training diverged."""
    code, err = everfed(arguments)
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if line.startswith("everfed: ")]
    if code == 1:
        assert "diverge" in err or "finite" in err or "did not finish" in err, (arguments, err)
    elif code == 2:
        assert "Usage: " in err or len(said) == 1, (arguments, err)
    else:
        assert code == 0, (arguments, code, err)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Paths of every kind, in a folder that is the current one."""
    folder, before = tmp_path_factory.mktemp("fuzz"), Path.cwd()
    os.chdir(folder)
    os.mkfifo("fifo")
    os.mkfifo("fifo.toml")
    Path("file").write_text("not a folder")
    Path("zeros.toml").write_bytes(b"\0" * 100)
    Path("empty.toml").touch()
    Path("folder.toml").mkdir()
    Path("good.toml").write_text(presets.texts()["digits-quick"])
    yield folder
    os.chdir(before)


PATHS = [
    "fifo",
    "fifo.toml",
    "file",
    "file/x",
    "zeros.toml",
    "empty.toml",
    "folder.toml",
    "good.toml",
    "absent",
    ".",
    "/",
    "/dev/null",
    "out.pdf",
    "/proc/x",
    "x" * 300,
]
NAMES = [
    name
    for word in ("method", "policy", "fleet", "data", "model", "client", "server", "split", "arrivals")
    for name in registry.kinds(word)
    if name not in ("cifar10", "mnist", "fashion-mnist")
]
VALUES = st.sampled_from(NUMBERS + DIGITS + TEXTS + LISTS + SETTINGS + PATHS + NAMES)
TINY = ["--rounds", "2", "--clients", "4", "--cycles", "1,2"]
BOUND = ["--mu", "1", "--L", "4", "--G", "1", "--sigma", "1", "--heterogeneity", "1", "--initial-distance-sq", "1"]
COMMANDS = {
    "plan": ["digits-quick", *TINY],
    "audit": ["digits-quick", *TINY, "--seeds", "2"],
    "run": ["digits-quick", *TINY, "--local-steps", "1", "--explain"],
    "bound": ["digits-quick", *TINY, *BOUND],
    "report": [],
    "figure": [],
    "runs": [],
    "presets": ["show", "digits"],
    "data": ["get", "digits"],
}
TRAINING = {
    "run": ["digits-quick", *TINY, "--local-steps", "1", "--out", "run"],
    "sweep": ["digits-quick", *TINY, "--local-steps", "1", "--seeds", "1", "--jobs", "1", "--out", "sweep"],
    "compare": ["digits-quick", *TINY, "--seeds", "1", "--jobs", "1", "--methods", "greedy", "--out", "compare"],
}
# What leaves this process, or waits for it.
NOT_HERE = {"--engine", "--address", "--help", "-h", "--jobs", "--debug", "--track", "--install-completion"}


def options_of(command):
    """The names of a command's options, and of its flags."""
    found = typer.main.get_command(app).commands[command].params
    named = [o for o in found if o.opts[0].startswith("-") and not NOT_HERE & {*o.opts}]
    return [o.opts[0] for o in named if not o.is_flag], [o.opts[0] for o in named if o.is_flag]


@st.composite
def command_lines(draw, commands):
    command = draw(st.sampled_from(sorted(commands)))
    takes, flags = options_of(command)
    line = [command, *commands[command]]
    if not takes or draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(1, 2)) if not takes else 1
        line[at : at + 1] = [draw(VALUES)]
    for _ in range(draw(st.integers(1, 3)) if takes else 0):
        option = draw(st.sampled_from([*takes, *flags, *(["--set"] * 8 if "--set" in takes else [])]))
        line += [option] if option in flags else [option, draw(VALUES)]
    # Not the whole disk, which may hold any number of runs: a report of a thousand takes its time.
    return [
        "/etc" if word == "/" and command in ("report", "figure", "runs", "check", "export") else word for word in line
    ]


def many(cases):
    return settings(
        max_examples=cases, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )


def check_command_lines(cases, commands=COMMANDS):
    @many(cases)
    @given(command_lines(commands))
    def check(line):
        check_told(line)

    check()


LITERALS = """-1
0
1
3
0.5
nan
inf
1e308
true
""
"x"
"\\u0000"
[]
{}
[1]
[[1]]
["x"]
[{kind = "x"}]
{kind = 3}
{kind = "sgd"}
{kind = "live", name = "x", fingerprint = "y"}
2020-01-01
07:32:00
"iid"
"digits"
"greedy"
{kind = "devices"}
{kind = "markov"}
{kind = "devices", groups = [{count = 2, panel_wp = -1}]}""".splitlines()
LITERALS += ["9" * 30, "9" * 5000, "[" * 2000 + "]" * 2000, "{a = " * 50 + "1" + "}" * 50]
KEYS = [
    "x",
    "kind",
    "method",
    "methods",
    "tuned_on",
    "format",
    "loss",
    "plugins",
    '""',
    '"a.b"',
    "é",
    "fleet.x",
    "client.schedule",
    "client.lr",
    "policy",
    "server",
    "metrics",
    "data.side",
    "rounds",
    "seed",
    "init_seed",
    "a" + ".a" * 300,
]


@st.composite
def documents(draw):
    """A preset with a few lines changed, added, lost or cut off."""
    lines = draw(st.sampled_from(sorted(presets.texts().items())))[1].splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at, what = draw(st.integers(0, max(len(lines) - 1, 0))), draw(st.integers(0, 5))
        value = draw(st.sampled_from(LITERALS))
        if not lines:
            lines = [f"rounds = {value}"]
        elif what <= 1 and "=" in lines[at]:
            lines[at] = f"{lines[at].partition('=')[0]}= {value}"
        elif what == 2:
            lines.insert(at, f"{draw(st.sampled_from(KEYS))} = {value}")
        elif what == 3:
            del lines[at]
        elif what == 4:
            lines[at] = lines[at][: draw(st.integers(0, 20))]
        else:
            lines.insert(at, f"[{draw(st.sampled_from(KEYS))}]")
    return "\n".join(lines)


def check_documents(cases):
    @many(cases)
    @given(documents())
    def check(text):
        Path("mutated.toml").write_text(text, encoding="utf-8")
        check_told(["plan", "mutated.toml", "--set", "rounds=2", "--quiet"])

    check()


TEXT_OBJECTS = ["", "0.1", "cosine", "x", "a\0b", "\udcff", "greedy", "digits", b"x", Path("x")]
NUMBER_OBJECTS = [True, -1, 0, 1, 3, LARGEST_SIZE, 10**30, -(10**30), 0.5, 1e308, float("nan"), float("inf")]
NUMBER_OBJECTS += [float("-inf"), 1j, Decimal("0.5"), np.float32(0.5), np.int64(3), np.bool_(True), np.nan]
ARRAYS = [[], [1], [[1]], (), {}, {"kind": "x"}, {1}, range(3), np.array([1, 2]), np.array(1.0), torch.tensor(1.0)]
OBJECTS = [None, object, object(), int, len, ef.SGD, ef.SGD(0.1), ef.Greedy(), ["clip"], [ef.SGD(0.1)], slice(3), ...]
OBJECTS += TEXT_OBJECTS + NUMBER_OBJECTS + ARRAYS
WORDS = [
    "client",
    "schedule",
    "compression",
    "gradients",
    "server",
    "server_optimizer",
    "policy",
    "model",
    "split",
    "fleet",
    "augment",
    "data",
]
KINDS = [kind for word in WORDS for kind in registry.kinds(word).values() if registry.options(kind)]
KINDS += [ef.Experiment, DeviceGroup, Storage, ef.Method]
FLEET = ef.Fleet.from_cycles([1, 2])
TINY_RUN = ef.Experiment(fleet=CycleFleet(clients=4), rounds=2, local_steps=1)
DATA = [(np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]))] * 2
CALLS = {
    ef.plan: {"fleet": FLEET, "method": "greedy", "rounds": 2, "seed": 0, "strict_horizon": False},
    ef.audit: {
        "fleet": FLEET, "method": "greedy", "rounds": 2, "seeds": 2, "shares": None, "server": None, "deltas": None,
    },
    ef.simulate: {
        "model": "logistic", "data": DATA, "fleet": FLEET, "method": "greedy", "rounds": 2, "local_steps": 1,
        "batch_size": 2, "out": None, "on_divergence": "stop", "memory_budget": None, "strict_horizon": False,
        "loss": None, "metrics": (), "gradients": (), "client": ef.SGD(0.1), "split": None, "seed": 0,
    },
    ef.sweep: {
        "experiment": TINY_RUN, "grid": {}, "seeds": 1, "out": "swept", "jobs": 1, "on_divergence": "stop",
    },
    ef.Fleet.from_cycles: {
        "cycles": [1, 2], "offsets": None, "arrivals": "lump", "capacity": None, "storage": Storage(),
    },
}  # fmt: skip


@st.composite
def python_calls(draw):
    if draw(st.integers(0, 2)):
        kind = draw(st.sampled_from(KINDS))
        names = [f.name for f in registry.options(kind)]
        needed = [f.name for f in registry.options(kind) if f.default is MISSING and f.default_factory is MISSING]
        chosen = {*needed, *draw(st.lists(st.sampled_from(names), min_size=1, max_size=3))}
        return kind, {name: draw(st.sampled_from(OBJECTS)) for name in sorted(chosen)}
    function = draw(st.sampled_from(list(CALLS)))
    arguments = {name: value for name, value in CALLS[function].items() if name != "split"}
    for name in draw(st.lists(st.sampled_from(list(CALLS[function])), min_size=1, max_size=2)):
        arguments[name] = draw(st.sampled_from(OBJECTS))
    return function, arguments


def check_python(cases):
    @many(cases)
    @given(python_calls())
    def check(call):
        function, arguments = call
        try:
            with watched(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = function(**arguments)
                if isinstance(made, ef.Experiment):
                    config.to_toml(made)
        except (ef.InputError, ef.DivergenceError) as refusal:
            said = str(refusal)
        else:
            said = ""
        assert "\n" not in said.strip()
        assert len(said) < 2000

    check()


CHECKS = [
    pytest.param(check_command_lines, 700, id="command lines"),
    pytest.param(check_documents, 500, id="files"),
    pytest.param(check_python, 700, id="Python"),
    pytest.param(lambda cases: check_command_lines(cases, TRAINING), 100, id="training"),
]


@pytest.mark.parametrize(("check", "cases"), CHECKS)
def test_bad_input_is_told(check, cases, places):
    check(cases // 7)


@pytest.mark.long
@pytest.mark.parametrize(("check", "cases"), CHECKS)
def test_bad_input_of_all_kinds_is_told(check, cases, places):
    check(cases)
