"""Tests run side by side with others on small machines: one thread each is fastest, and repeatable."""

import os
import signal
import sys
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import pytest
import torch
from hypothesis import settings

# Drawn cases are the same every time, so that a change fails by its own fault; `make soak` draws new ones.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("quick", derandomize=True, max_examples=40)
settings.register_profile("soak")
settings.load_profile("repeatable")
torch.set_num_threads(1)

if not torch.cuda.is_available():
    # The GPU kernels are tested in Triton's interpreter. It must be asked for before anything imports Triton.
    os.environ["TRITON_INTERPRET"] = "1"

# A shell that starts the tests in the background has them ignore Ctrl-C, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A package that tests write into folders: to collect its doctests would be to import it, and to register its kinds.
collect_ignore = ["plugin_package.py"]


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


@pytest.fixture
def everfed(monkeypatch, capsys, tmp_path):
    """Runs the command in this process, in a folder of its own."""
    from everfed.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["everfed", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Said(code, *capsys.readouterr())

    return call
