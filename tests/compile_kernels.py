"""Compiles the kernels of a few models for a GPU that is not there, and says how it went: see test_kernels.py.

A driver that only names the GPU is enough for Triton's compiler, so a machine without one still finds
kernels that do not compile, or that need more shared memory than the GPU has.
"""

from __future__ import annotations

import sys
import warnings

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

import everfed as ef
import kernel_models
from everfed.engine import trainer


class NamedOnly:
    """What Triton asks a driver for before it launches anything."""

    def __init__(self, capability: int, shared_memory: int) -> None:
        self.capability, self.shared_memory = capability, shared_memory
        self.utils = self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared_memory}

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


def main() -> None:
    capability, shared_memory, precision = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")  # of Triton, about its own defaults
    driver.set_active(NamedOnly(capability, shared_memory))
    trainer._check = lambda task: None  # it would miss the GPU
    kernel_models.set_precision = lambda precision, device: None
    only = sys.argv[4:]
    for name in only or ("cnn", "means and dropout", "norms", "strides", "resnet", "mobile", "activations"):
        build, shape, options = kernel_models.MODELS[name]
        task = kernel_models.task(build(), kernel_models.images(shape, **options), ef.Adam(), precision=precision)
        trainer.Kernels(task)
    if not only:
        network = ef.build("mcmahan-cnn", (3, 24, 24), 10)
        data = kernel_models.images((3, 32, 32), as_bytes=True, augment=ef.AUGMENTS["crop-flip"](24))
        momentum = ef.SGD(0.1, momentum=0.9)
        trainer.Kernels(kernel_models.task(network, data, momentum, precision=precision, batch_size=50))
    print("compiled", torch.__version__)


if __name__ == "__main__":
    main()
