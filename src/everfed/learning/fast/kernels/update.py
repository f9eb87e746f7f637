"""Triton kernels on parameters: the local optimiser's step, and the server's weighed sum."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["splits", "decay", "beta1", "beta2", "eps", "elements"])
def optimizer_step(
    source, rows, low, state1, state2, state_row, gradient, rates,
    source_client, size, g_client, g_split, splits, elements, decay, beta1, beta2, eps,
    KIND: tl.constexpr, FRESH: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One optimiser step of one layer's parameters: rows = source - step, and their copy in low precision.

    Pointers start at the layer. source: the parameters before the step, the server's for the first
    step of a round (source_client = 0), which spares writing a copy for every client. state_row:
    where each client's moments lie in the table of all clients. FRESH: the moments count as zero.
    KIND: 0 gradient descent, 1 with momentum, 2 Adam. rates: lr and bias corrections of each
    client, computed in double precision on the host.
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
    g += decay * w
    lr = tl.load(rates + c * 2)
    if KIND == 0:
        w -= lr * g
    else:
        at = tl.load(state_row + c).to(tl.int64) * size + i
        if FRESH:
            first = tl.zeros((BLOCK,), dtype=tl.float32)
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
            root = tl.load(rates + c * 2 + 1)  # 1 / sqrt(1 - beta2^t)
            w -= lr * first / (tl.sqrt(second) * root + eps)
            tl.store(state2 + at, second, mask=inside)
        tl.store(state1 + at, first, mask=inside)
    tl.store(rows + c * size + i, w, mask=inside)
    if LOW:
        tl.store(low + c * size + i, w.to(low.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["clients"])
def weighed_sum(rows, server, coefficients, out, bad, clients, size, BLOCK: tl.constexpr):
    """out = sum of coefficient * (row - server); bad[c] = 1 for rows that are not finite.

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
        tl.store(bad + c, 1, mask=broken > 0)
        weight = tl.load(coefficients + c)
        total += tl.where(weight != 0.0, weight * delta, 0.0)
    tl.store(out + i, total, mask=inside)
