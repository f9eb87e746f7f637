"""Which GPU kernels and recordings go to. No GPU is needed: a stand-in for torch.cuda says which one is current."""

from __future__ import annotations

import gc
import re
import threading
import time
from pathlib import Path

import pytest
import torch

import everfed
from everfed.learning.graphs import Graphs, current

ZERO, ONE, TWO = (torch.device("cuda", index) for index in range(3))


class Cuda:
    """As much of torch.cuda as recordings use, for three GPUs: each thread has a current one, and a stream on each."""

    class CUDAGraph:
        def replay(self):
            pass

    class Stream:
        def __init__(self, device):
            self.device = device

    def __init__(self) -> None:
        self.here = threading.local()
        self.recording = 0
        self.seen = []  # (current device, its stream, the recording's pool) in each recording
        self.fails_at_the_end = False
        self.graph, self.device = lambda *a, **k: _Recording(self, *a, **k), lambda device: _Device(self, device)

    def current_device(self):
        return getattr(self.here, "device", 0)

    def current_stream(self, device):
        return self.streams().setdefault(device.index, Cuda.Stream(device))

    def streams(self):
        self.here.streams = getattr(self.here, "streams", {})
        return self.here.streams

    def set_stream(self, stream):
        self.here.device = stream.device.index
        self.streams()[stream.device.index] = stream

    def graph_pool_handle(self):
        return object()


class _Device:
    def __init__(self, cuda, device) -> None:
        self.cuda, self.device = cuda, device

    def __enter__(self):
        self.before = self.cuda.current_device()
        self.cuda.here.device = self.device.index

    def __exit__(self, *error):
        self.cuda.here.device = self.before


class _Recording:
    """As torch's, which leaves its stream current if the end of a recording fails."""

    def __init__(self, cuda, graph, pool, stream, capture_error_mode) -> None:
        self.cuda, self.pool, self.stream = cuda, pool, stream

    def __enter__(self):
        self.cuda.recording += 1
        assert self.cuda.recording == 1, "two recordings at once"
        assert not gc.isenabled()
        self.before = self.cuda.current_stream(self.stream.device)
        self.cuda.set_stream(self.stream)
        self.cuda.seen.append((self.cuda.current_device(), self.stream, self.pool))

    def __exit__(self, *error):
        self.cuda.recording -= 1
        if self.cuda.fails_at_the_end:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.cuda.set_stream(self.before)


@pytest.fixture
def cuda(monkeypatch):
    cuda = Cuda()
    names = ("CUDAGraph", "Stream", "current_device", "current_stream", "set_stream", "graph_pool_handle", "graph")
    for name in (*names, "device"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    return cuda


def test_a_recording_is_made_on_its_own_device_with_a_stream_and_memory_of_its_own(cuda):
    one, two = Graphs(ONE), Graphs(TWO)
    for record in (one, two, one, Graphs(ONE)):
        record(lambda: None)
    devices, streams, pools = zip(*cuda.seen, strict=True)
    assert devices == (1, 2, 1, 1)
    for made in (streams, pools):  # of one recorder always the same, of two never
        assert made[0] is made[2]
        assert len({id(thing) for thing in made}) == 3
    assert [stream.device for stream in streams] == [ONE, TWO, ONE, ONE]
    assert cuda.current_device() == 0


@pytest.mark.parametrize("at_the_end", [False, True])
def test_after_a_recording_that_fails_all_is_as_before(at_the_end, cuda):
    before = {device: cuda.current_stream(device) for device in (ZERO, ONE)}
    cuda.fails_at_the_end = at_the_end

    def waits():
        raise RuntimeError("operation not permitted when stream is capturing")

    record = Graphs(ONE)
    with pytest.raises(RuntimeError, match=r"capture|capturing"):
        record((lambda: None) if at_the_end else waits)
    assert cuda.current_device() == 0
    assert {device: cuda.current_stream(device) for device in (ZERO, ONE)} == before
    assert gc.isenabled()
    cuda.fails_at_the_end = False
    record(lambda: None)  # and the next one may begin


def test_threads_record_one_after_the_other_each_on_its_own_device(cuda):
    def work(device, record):
        with current(device):
            for _ in range(5):
                record(lambda: time.sleep(0.001))
            assert cuda.current_device() == device.index

    threads = [threading.Thread(target=work, args=(device, Graphs(device))) for device in (ZERO, ONE, TWO)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cuda.seen) == 15
    assert all(device == stream.device.index for device, stream, _ in cuda.seen)


class There(torch.Tensor):
    """A tensor that says it is on the second GPU."""

    device = ONE


class Kernel:
    def __init__(self, cuda) -> None:
        self.cuda, self.started = cuda, []

    def __getitem__(self, grid):
        return lambda *args, **meta: self.started.append(self.cuda.current_device())

    def warmup(self, *args, grid, **meta):
        raise AssertionError("this is the interpreter")


def test_kernels_are_started_on_the_device_of_their_tensors_whichever_is_current(cuda):
    pytest.importorskip("triton", reason="Triton is not installed here")
    from everfed.engine.launch import launch

    kernel, there = Kernel(cuda), torch.zeros(3).as_subclass(There)
    launch(kernel, (1,), 7, there, 0.5, BLOCK=16)
    with current(TWO):
        launch(kernel, (1,), there)
        assert cuda.current_device() == 2
    launch(kernel, (1,), torch.zeros(3))
    assert kernel.started == [1, 1, 0]


def test_what_one_thread_compiles_another_still_runs(cuda):
    """Two runs in one process: the kernels of one are listed for the compiler while the other trains."""
    pytest.importorskip("triton", reason="Triton is not installed here")
    from everfed.engine.launch import INTERPRETED, compiled_together, launch

    if not INTERPRETED:
        pytest.skip("the stand-in cannot be compiled")
    kernel = Kernel(cuda)
    with compiled_together(torch.device("cpu")):
        launch(kernel, (1,), torch.zeros(3))
        other = threading.Thread(target=launch, args=(kernel, (1,), torch.zeros(3)))
        other.start()
        other.join()
    assert kernel.started == [0]


def test_kernels_are_started_in_one_place_and_recorded_in_one():
    found = {"launch": [], "record": []}
    for path in Path(everfed.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        started = re.search(r"\[grid\]\(|\b(gemm|pooling|norm|updates|loss|inputs)\.[a-z_]+\[", text)
        found["launch"] += [path.name] * bool(started and path.parent.name == "engine")
        found["record"] += [path.name] * ("torch.cuda.graph(" in text)
    assert found == {"launch": ["launch.py"], "record": ["graphs.py"]}
