"""In which numbers the forward and backward pass compute. Parameters, optimiser state and sums stay float32."""

from __future__ import annotations

import torch

from everfed.errors import InputError, unknown

PRECISIONS = {
    "float32": "full single precision, equal to the CPU's to rounding",
    "tf32": "matrix products with 10-bit mantissas (NVIDIA Ampere and newer)",
    "bf16": "forward and backward pass in bfloat16 by autocast",
}


def set_precision(precision: str, device: torch.device) -> None:
    """Check the choice, and switch torch's matrix products to it."""
    if precision not in PRECISIONS:
        raise InputError(unknown("precision", precision, PRECISIONS))
    if precision != "float32" and device.type != "cuda":
        raise InputError(f"the precision '{precision}' is for GPUs; on the CPU use 'float32'.")
    if device.type == "cuda":
        # torch lets convolutions use TF32 unless told otherwise, so float32 must be asked for.
        fast = precision != "float32"
        torch.backends.cuda.matmul.allow_tf32 = fast
        torch.backends.cudnn.allow_tf32 = fast


def autocast(precision: str) -> torch.autocast:
    """The context in which a model's forward pass runs."""
    return torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16")
