"""CUDA graphs: recorded one at a time, on the device whose memory they use, and on a stream of their own.

torch has one stream for recordings in a process, on whichever GPU was current when the first began. Threads that train
on several GPUs would record on that one, and into each other's graphs.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

Record = Callable[[Callable[[], None]], Callable[[], None]]  # of a function without arguments, one that repeats it

_ONE_AT_A_TIME = threading.Lock()  # to begin a recording frees memory, which no other recording may meet


def current(device: torch.device) -> AbstractContextManager[object]:
    """Makes it the one that CUDA graphs and kernels of this thread go to; afterwards the old one is again."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return nullcontext()
    return torch.cuda.device(device)


class Graphs:
    """Records CUDA graphs of one device; they run one after the other and share their memory.

    When all graphs have been given up, so must this: their memory is gone.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = None  # made with the first recording
        self.pool: Any = None

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        with _ONE_AT_A_TIME, current(self.device), _nothing_ends():
            if self.stream is None:
                self.stream, self.pool = torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()
            graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
            try:
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                    run()
            finally:
                torch.cuda.set_stream(before)  # a recording that fails leaves its own as the current one
        return graph.replay  # on its device, whichever is current


@contextmanager
def _nothing_ends() -> Iterator[None]:
    """Graphs of earlier runs end now, and nothing does in this block: to free a graph spoils a recording."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
