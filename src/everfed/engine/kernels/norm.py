"""Triton kernels for group normalisation: one program per sample and group, which reads its pixels again and again.

Groups are small enough to stay in the cache between the passes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everfed.engine.kernels.index import pixel


@triton.jit
def _inside(start, k, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr, BP: tl.constexpr):
    """Which of BP pixels and of a tile's channels there are."""
    return (start + tl.arange(0, BP) < HEIGHT * WIDTH)[:, None] & (k < WIDE)[None, :]


@triton.jit
def _place(
    start, channel, ROW: tl.constexpr, STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    BP: tl.constexpr,
):  # fmt: skip
    """Where BP pixels and these channels lie in an image."""
    _, row, column = pixel(start + tl.arange(0, BP), HEIGHT, WIDTH)
    return (row * ROW + column * STRIDE)[:, None] + channel[None, :]


@triton.jit(do_not_specialize=["relu"])
def group_norm(
    x, weight, y, kept, x_client, w_client, y_client, kept_client, x_first, x_image, y_first, y_image, eps, relu,
    X_ROW: tl.constexpr, Y_ROW: tl.constexpr, STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    GROUPS: tl.constexpr, WIDE: tl.constexpr, AFFINE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y = relu?((x - mean) / sqrt(variance + eps) * weight + bias); kept: mean and 1 / sqrt(...) for the gradient.

    WIDE: channels of a group. The biases lie STRIDE after the weights.
    """
    image = tl.program_id(0) // GROUPS
    group = tl.program_id(0) % GROUPS
    c = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BC)
    channel = group * WIDE + k
    xp = x + c * x_client + x_first + image * x_image
    count = HEIGHT * WIDTH * WIDE
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for start in range(0, HEIGHT * WIDTH, BP):
        there = _inside(start, k, HEIGHT, WIDTH, WIDE, BP)
        at = _place(start, channel, X_ROW, STRIDE, HEIGHT, WIDTH, BP)
        total += tl.load(xp + at, mask=there, other=0.0).to(tl.float32)
    mean = tl.sum(tl.sum(total, axis=1), axis=0) / count
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for start in range(0, HEIGHT * WIDTH, BP):
        there = _inside(start, k, HEIGHT, WIDTH, WIDE, BP)
        at = _place(start, channel, X_ROW, STRIDE, HEIGHT, WIDTH, BP)
        apart = tl.where(there, tl.load(xp + at, mask=there, other=0.0).to(tl.float32) - mean, 0.0)
        total += apart * apart
    inverse = 1.0 / tl.sqrt(tl.sum(tl.sum(total, axis=1), axis=0) / count + eps)
    place = kept + c * kept_client + tl.program_id(0) * 2
    tl.store(place, mean)
    tl.store(place + 1, inverse)
    if AFFINE:
        w = tl.load(weight + c * w_client + channel, mask=k < WIDE, other=0.0)[None, :]
        b = tl.load(weight + c * w_client + STRIDE + channel, mask=k < WIDE, other=0.0)[None, :]
    yp = y + c * y_client + y_first + image * y_image
    for start in range(0, HEIGHT * WIDTH, BP):
        there = _inside(start, k, HEIGHT, WIDTH, WIDE, BP)
        at = _place(start, channel, X_ROW, STRIDE, HEIGHT, WIDTH, BP)
        value = (tl.load(xp + at, mask=there, other=0.0).to(tl.float32) - mean) * inverse
        if AFFINE:
            value = value * w + b
        value = tl.where((relu == 0) | (value > 0) | (value != value), value, 0.0)
        at = _place(start, channel, Y_ROW, STRIDE, HEIGHT, WIDTH, BP)
        tl.store(yp + at, value.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["masked", "dw_split"])
def group_norm_gradient(
    x, g, weight, kept, dx, dw, x_client, g_client, w_client, kept_client, dx_client, dw_client, dw_split,
    x_first, x_image, g_first, g_image, dx_first, dx_image, masked,
    X_ROW: tl.constexpr, G_ROW: tl.constexpr, DX_ROW: tl.constexpr, STRIDE: tl.constexpr, CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, WIDE: tl.constexpr, AFFINE: tl.constexpr,
    WANTED: tl.constexpr, PADDED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx, zero where x is a ReLU's output and not positive, and this sample's part of the parameters' gradients.

    dw: one split per sample, which the optimiser's step adds up. PADDED: a power of two not below the channels that
    pad the last, whose gradients are written as zeros.
    """
    image = tl.program_id(0) // GROUPS
    group = tl.program_id(0) % GROUPS
    c = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BC)
    channel = group * WIDE + k
    place = kept + c * kept_client + tl.program_id(0) * 2
    mean = tl.load(place)
    inverse = tl.load(place + 1)
    xp = x + c * x_client + x_first + image * x_image
    gp = g + c * g_client + g_first + image * g_image
    along = tl.zeros((BP, BC), dtype=tl.float32)
    plain = tl.zeros((BP, BC), dtype=tl.float32)
    for start in range(0, HEIGHT * WIDTH, BP):
        there = _inside(start, k, HEIGHT, WIDTH, WIDE, BP)
        at = _place(start, channel, X_ROW, STRIDE, HEIGHT, WIDTH, BP)
        value = (tl.load(xp + at, mask=there, other=0.0).to(tl.float32) - mean) * inverse
        at = _place(start, channel, G_ROW, STRIDE, HEIGHT, WIDTH, BP)
        above = tl.load(gp + at, mask=there, other=0.0).to(tl.float32)
        along += above * value
        plain += above
    by_weight = tl.sum(along, axis=0)
    by_bias = tl.sum(plain, axis=0)
    if AFFINE:
        out = dw + c * dw_client + image.to(tl.int64) * dw_split
        tl.store(out + channel, by_weight, mask=k < WIDE)
        tl.store(out + STRIDE + channel, by_bias, mask=k < WIDE)
        if PADDED > 0:
            if group == 0:
                rest = CHANNELS + tl.arange(0, PADDED)
                tl.store(out + rest, tl.zeros((PADDED,), tl.float32), mask=rest < STRIDE)
                tl.store(out + STRIDE + rest, tl.zeros((PADDED,), tl.float32), mask=rest < STRIDE)
        w = tl.load(weight + c * w_client + channel, mask=k < WIDE, other=0.0)
        by_weight *= w
        by_bias *= w
    if WANTED:
        count = HEIGHT * WIDTH * WIDE
        slope = tl.sum(by_weight, axis=0) / count
        level = tl.sum(by_bias, axis=0) / count
        dxp = dx + c * dx_client + dx_first + image * dx_image
        for start in range(0, HEIGHT * WIDTH, BP):
            there = _inside(start, k, HEIGHT, WIDTH, WIDE, BP)
            at = _place(start, channel, X_ROW, STRIDE, HEIGHT, WIDTH, BP)
            raw = tl.load(xp + at, mask=there, other=0.0).to(tl.float32)
            value = (raw - mean) * inverse
            at = _place(start, channel, G_ROW, STRIDE, HEIGHT, WIDTH, BP)
            above = tl.load(gp + at, mask=there, other=0.0).to(tl.float32)
            if AFFINE:
                above *= w[None, :]
            found = (above - level - value * slope) * inverse
            found = tl.where((masked == 0) | (raw > 0), found, 0.0)
            at = _place(start, channel, DX_ROW, STRIDE, HEIGHT, WIDTH, BP)
            tl.store(dxp + at, found.to(dx.dtype.element_ty), mask=there)
