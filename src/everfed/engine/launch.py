"""How kernels are started: at once, or first listed, so that all can be compiled at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver
from triton.runtime._async_compile import AsyncCompileMode, FutureKernel

from everfed.learning.graphs import current
from everfed.machine import cores

_CPU = torch.device("cpu")

Call = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]


class _Here(threading.local):
    """Calls that are listed instead of run, in this thread: others may train meanwhile."""

    listed: list[Call] | None = None


_here = _Here()


# Whether kernels run in Triton's interpreter, on the CPU: slow, for tests. Triton asks for the
# variable TRITON_INTERPRET once, when kernels are imported, and so must we.
INTERPRETED = bool(knobs.runtime.interpret)


class MisreadError(RuntimeError):
    """A kernel would take a tensor for another one."""


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **meta: Any) -> None:
    """Start a kernel over a grid of programs, on the GPU whose memory it uses.

    Kernels get a tensor's first address and count from there, so one in another layout would be misread
    silently, so all are rejected here. Triton starts kernels on the current GPU, which may be another one.
    """
    device = _CPU
    for number, value in enumerate(args):
        if not isinstance(value, Tensor):
            continue
        device = value.device
        if not value.is_contiguous():
            raise MisreadError(
                f"argument {number} of the kernel {kernel.fn.__name__} has shape {tuple(value.shape)} and strides "
                f"{value.stride()}; kernels only support contiguous tensors."
            )
    if _here.listed is not None:
        _here.listed.append((kernel, grid, args, meta))
        return
    with current(device):
        kernel[grid](*args, **meta)


@contextmanager
def compiled_together(device: torch.device) -> Iterator[None]:
    """Kernels started in this block are not run but compiled, all at once, into Triton's cache.

    One after another, compiling a model's kernels would take most of a short run. Raises for a
    kernel that needs more shared memory than the device has.
    """
    calls: list[Call] = []
    _here.listed = calls
    try:
        yield
    finally:
        _here.listed = None
    if INTERPRETED:  # nothing to compile
        return
    with current(device):  # GPUs of one machine may differ
        there = driver.active.utils.get_device_properties(driver.active.get_current_device())["max_shared_mem"]
        made = compiled_kernels(calls)
    for (kernel, *_), compiled in zip(calls, made, strict=True):
        needed = compiled.metadata.shared
        if needed > there:
            raise RuntimeError(f"{kernel.fn.__name__} needs {needed} bytes of shared memory, but there are {there}")


def compiled_kernels(calls: list[Call]) -> list[Any]:
    """The compiled kernels of these calls, many at a time.

    Python 3.11 cannot parse in several threads at once: now and then that is a SystemError, which has nothing to do
    with the kernels. They are then compiled one after another; what is in Triton's cache already costs nothing.
    """
    try:
        with ThreadPoolExecutor(min(16, cores())) as pool, AsyncCompileMode(pool):
            made = [kernel.warmup(*args, grid=grid, **meta) for kernel, grid, args, meta in calls]
        return [kernel.result() if isinstance(kernel, FutureKernel) else kernel for kernel in made]
    except SystemError:
        return [kernel.warmup(*args, grid=grid, **meta) for kernel, grid, args, meta in calls]
