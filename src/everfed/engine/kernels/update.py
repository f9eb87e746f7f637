"""Triton kernels on parameters: the local optimiser's step, and the server's weighed sum."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _move(w, g, state1, state2, at, rates, inside, decay, beta1, beta2, eps, KIND: tl.constexpr, FRESH: tl.constexpr):
    """Parameters after one optimiser step; the moments are read and written in place.

    KIND: 0 gradient descent, 1 with momentum, 2 Adam. FRESH: the moments count as zero. rates: lr
    and bias corrections of the client, computed in double precision on the host.
    """
    g += decay * w
    lr = tl.load(rates)
    if KIND == 0:
        w -= lr * g
    else:
        if FRESH:
            first = g * 0.0
        else:
            first = tl.load(state1 + at, mask=inside, other=0.0)
        if KIND == 1:
            first = beta1 * first + g
            w -= lr * first
        else:
            first += (1.0 - beta1) * (g - first)
            if FRESH:
                second = (1.0 - beta2) * g * g
            else:
                second = beta2 * tl.load(state2 + at, mask=inside, other=0.0) + (1.0 - beta2) * g * g
            root = tl.load(rates + 1)  # 1 / sqrt(1 - beta2^t)
            w -= lr * first / (tl.sqrt(second) * root + eps)
            tl.store(state2 + at, second, mask=inside)
        tl.store(state1 + at, first, mask=inside)
    return w


@triton.jit(
    do_not_specialize=["splits", "decay", "beta1", "beta2", "eps"],
    do_not_specialize_on_alignment=["rates", "state_row"],
)
def optimizer_step(
    source, rows, low, state1, state2, state_row, rates, source_client, size, decay, beta1, beta2, eps,
    gradient, g_client, g_split, splits, elements,
    KIND: tl.constexpr, FRESH: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One optimiser step of one layer's parameters: rows = source - step, and their copy in low precision.

    Pointers start at the layer. source: the parameters before the step, the server's for the first
    step of a round (source_client = 0), which spares writing a copy for every client. state_row:
    where each client's moments lie in the table of all clients.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1).to(tl.int64)
    inside = i < elements
    g = tl.zeros((BLOCK,), dtype=tl.float32)
    part = gradient + c * g_client + i
    for _ in range(splits):
        g += tl.load(part, mask=inside, other=0.0)
        part += g_split
    w = tl.load(source + c * source_client + i, mask=inside, other=0.0)
    at = tl.load(state_row + c).to(tl.int64) * size + i
    w = _move(w, g, state1, state2, at, rates + c * 2, inside, decay, beta1, beta2, eps, KIND, FRESH)
    tl.store(rows + c * size + i, w, mask=inside)
    if LOW:
        tl.store(low + c * size + i, w.to(low.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=["samples", "decay", "beta1", "beta2", "eps"],
    do_not_specialize_on_alignment=["rates", "state_row"],
)
def linear_step(
    source, rows, low, state1, state2, state_row, rates, source_client, size, decay, beta1, beta2, eps,
    x, g, x_client, g_client, samples, K, N,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, KIND: tl.constexpr, FRESH: tl.constexpr, LOW: tl.constexpr,
    BB: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A linear layer's weight gradient and its optimiser step at once: the gradient never leaves the chip.

    As `optimizer_step`, for batches that fit one tile; the gradient is x^T g over the samples.
    """
    tiles = N // BN
    k = (tl.program_id(0) // tiles) * BK + tl.arange(0, BK)
    n = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    c = tl.program_id(1).to(tl.int64)
    b = tl.arange(0, BB)
    there = (b < samples)[:, None]
    inside = (k < K)[:, None]
    xt = tl.load(x + c * x_client + b[:, None] * K + k[None, :], mask=there & (k < K)[None, :], other=0.0)
    gt = tl.load(g + c * g_client + b[:, None] * N + n[None, :], mask=there, other=0.0)
    gradient = tl.dot(tl.trans(xt), gt, input_precision=PRECISION)
    place = k[:, None] * N + n[None, :]
    w = tl.load(source + c * source_client + place, mask=inside, other=0.0)
    row = tl.load(state_row + c).to(tl.int64) * size
    w = _move(w, gradient, state1, state2, row + place, rates + c * 2, inside, decay, beta1, beta2, eps, KIND, FRESH)
    tl.store(rows + c * size + place, w, mask=inside)
    if LOW:
        tl.store(low + c * size + place, w.to(low.dtype.element_ty), mask=inside)
    if HAS_BIAS:
        if tl.program_id(0) < tiles:
            at = K * N + n
            every = n >= 0
            v = tl.load(source + c * source_client + at)
            total = tl.sum(gt.to(tl.float32), axis=0)
            v = _move(v, total, state1, state2, row + at, rates + c * 2, every, decay, beta1, beta2, eps, KIND, FRESH)
            tl.store(rows + c * size + at, v)
            if LOW:
                tl.store(low + c * size + at, v.to(low.dtype.element_ty))


@triton.jit(do_not_specialize=["clients"])
def weighed_sum(rows, server, coefficients, losses, out, bad, clients, size, BLOCK: tl.constexpr):
    """out = sum of coefficient * (row - server); bad[c] = 1 for rows, or losses, that are not finite.

    A row whose coefficient is zero adds nothing, even if it is not finite.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    base = tl.load(server + i, mask=inside, other=0.0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    row = rows + i
    for c in range(clients):
        delta = tl.load(row, mask=inside, other=0.0) - base
        row += size
        broken = tl.max(tl.where(tl.abs(delta) < float("inf"), 0, 1), axis=0)
        broken = tl.where(tl.abs(tl.load(losses + c)) < float("inf"), broken, 1)
        tl.store(bad + c, 1, mask=broken > 0)
        weight = tl.load(coefficients + c)
        total += tl.where(weight != 0.0, weight * delta, 0.0)
    tl.store(out + i, total, mask=inside)
