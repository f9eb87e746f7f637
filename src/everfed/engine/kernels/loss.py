"""The Triton kernel for cross-entropy and its gradient."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["batch", "steps"])
def cross_entropy(
    logits, labels, gradient, losses, l_client, g_client, batch, STRIDE, steps,
    CLASSES: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Adds one client's mean loss / steps to `losses`, and writes the gradient of the mean."""
    c = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BN)
    known = n < CLASSES
    total = tl.zeros((BR,), dtype=tl.float32)
    for start in range(0, batch, BR):
        r = start + tl.arange(0, BR)
        inside = r < batch
        both = inside[:, None] & known[None, :]
        at = r[:, None] * STRIDE + n[None, :]
        z = tl.load(logits + c * l_client + at, mask=both, other=float("-inf")).to(tl.float32)
        z = tl.where(inside[:, None], z, 0.0)
        top = tl.max(z, axis=1)
        e = tl.exp(z - top[:, None])
        norm = tl.sum(e, axis=1)
        label = tl.load(labels + c * batch + r, mask=inside, other=0)
        hit = n[None, :] == label[:, None]
        chosen = tl.sum(tl.where(hit, z, 0.0), axis=1)
        total += tl.where(inside, top + tl.log(norm) - chosen, 0.0)
        d = (e / norm[:, None] - tl.where(hit, 1.0, 0.0)) / batch
        tl.store(gradient + c * g_client + at, d.to(gradient.dtype.element_ty), mask=both)
    old = tl.load(losses + c)
    tl.store(losses + c, old + tl.sum(total, axis=0) / batch / steps)
