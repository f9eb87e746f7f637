"""Triton kernels for depthwise convolutions: each channel has a small filter of its own, so nothing is a product.

Weights are [kernel row, kernel column, channel].
"""

from __future__ import annotations

import triton
import triton.language as tl

from everfed.engine.kernels.index import pixel


@triton.jit(do_not_specialize=["relu", "pixels"])
def depthwise(
    x, weight, bias, gate, y, x_client, w_client, gate_client, y_client, pixels, CHANNELS, x_first, x_image,
    gate_first, gate_image, y_first, y_image, relu,
    X_ROW: tl.constexpr, GATE_ROW: tl.constexpr, Y_ROW: tl.constexpr, STRIDE: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FLIPPED: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y = relu?(filter(x) + bias), HEIGHT and WIDTH of y.

    FLIPPED: the filter is turned round, for the gradient of the input. GATED: y is the gradient of a ReLU's output,
    which is `gate`.
    """
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    c = tl.program_id(2).to(tl.int64)
    inside = (p < pixels)[:, None]
    image, row, column = pixel(p, HEIGHT, WIDTH)
    xp = x + c * x_client + x_first + image * x_image + row * (STRIDE * X_ROW) + column * STRIDE * CHANNELS
    wp = weight + c * w_client + channel
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for tap in tl.static_range(ROWS * COLUMNS):
        at = xp + (tap // COLUMNS) * X_ROW + (tap % COLUMNS) * CHANNELS
        value = tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        if FLIPPED:
            w = tl.load(wp + (ROWS * COLUMNS - 1 - tap) * CHANNELS)
        else:
            w = tl.load(wp + tap * CHANNELS)
        total += value * w.to(tl.float32)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + c * w_client + channel).to(tl.float32)[None, :]
    if GATED:
        at = gate + c * gate_client + gate_first + image * gate_image + row * GATE_ROW + column * CHANNELS
        total = tl.where(tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0) > 0, total, 0.0)
    total = tl.where((relu == 0) | (total > 0) | (total != total), total, 0.0)
    at = y + c * y_client + y_first + image * y_image + row * Y_ROW + column * CHANNELS
    tl.store(at[:, None] + channel[None, :], total.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["iterations", "pixels", "dw_split"])
def depthwise_weights(
    x, g, dw, x_client, g_client, dw_client, dw_split, pixels, CHANNELS, x_first, x_image, g_first, g_image, iterations,
    X_ROW: tl.constexpr, G_ROW: tl.constexpr, STRIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, BT: tl.constexpr, BP: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """The filters' gradient over one split of the pixels; the row after them gets the bias's. BT: taps and one more."""
    channel = tl.program_id(0) * BC + tl.arange(0, BC)
    c = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    t = tl.arange(0, BT)
    total = tl.zeros((BT, BC), dtype=tl.float32)
    for i in range(iterations):
        p = (split * iterations + i) * BP + tl.arange(0, BP)
        inside = (p < pixels)[:, None]
        image, row, column = pixel(tl.where(p < pixels, p, 0), HEIGHT, WIDTH)
        at = g + c * g_client + g_first + image * g_image + row * G_ROW + column * CHANNELS
        above = tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        xp = x + c * x_client + x_first + image * x_image + row * (STRIDE * X_ROW) + column * STRIDE * CHANNELS
        for tap in tl.static_range(ROWS * COLUMNS):
            at = xp + (tap // COLUMNS) * X_ROW + (tap % COLUMNS) * CHANNELS
            value = tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
            total += tl.where((t == tap)[:, None], tl.sum(value * above, axis=0)[None, :], 0.0)
        if HAS_BIAS:
            total += tl.where((t == ROWS * COLUMNS)[:, None], tl.sum(above, axis=0)[None, :], 0.0)
    out = dw + c * dw_client + split.to(tl.int64) * dw_split + t[:, None] * CHANNELS + channel[None, :]
    tl.store(out, total, mask=(t < ROWS * COLUMNS + HAS_BIAS)[:, None])
