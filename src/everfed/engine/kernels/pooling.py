"""Triton kernels for max and average pooling, channels last, all clients' images in one long row."""

from __future__ import annotations

import triton
import triton.language as tl

from everfed.engine.kernels.index import pixel


@triton.jit(do_not_specialize=["relu", "windows"])
def max_pool(
    x, y, argmax, windows, x_first, x_image, y_first, y_image, CHANNELS, relu,
    X_ROW: tl.constexpr, Y_ROW: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    PADDING: tl.constexpr, MASKED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The largest of each window and its place in it; SIZE * SIZE marks windows that pass no gradient.

    MASKED: x comes from a ReLU, so that a window without a positive value is dead.
    """
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = p < windows
    image, i, j = pixel(p, OUT_HEIGHT, OUT_WIDTH)
    image = image.to(tl.int64)
    xp = x + x_first + image * x_image
    best = tl.full((BP, BC), float("-inf"), dtype=tl.float32)
    winner = tl.full((BP, BC), SIZE * SIZE, dtype=tl.int32)
    for d in tl.static_range(SIZE * SIZE):
        row = i * STRIDE - PADDING + d // SIZE
        column = j * STRIDE - PADDING + d % SIZE
        there = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        at = xp + row * X_ROW + column * CHANNELS
        value = tl.load(at[:, None] + channel[None, :], mask=there[:, None], other=float("-inf")).to(tl.float32)
        larger = (value > best) | (value != value)
        best = tl.where(larger, value, best)
        winner = tl.where(larger, d, winner)
    if MASKED:
        winner = tl.where(best > 0, winner, SIZE * SIZE)
    best = tl.where((relu == 0) | (best > 0) | (best != best), best, 0.0)
    y_at = y + y_first + image * y_image + i * Y_ROW + j * CHANNELS
    tl.store(y_at[:, None] + channel[None, :], best.to(y.dtype.element_ty), mask=inside[:, None])
    a_at = argmax + p.to(tl.int64) * CHANNELS
    tl.store(a_at[:, None] + channel[None, :], winner.to(tl.uint8), mask=inside[:, None])


@triton.jit(do_not_specialize=["blocks"])
def max_pool_gradient(
    g, argmax, dx, blocks, g_first, g_image, dx_first, dx_image, CHANNELS,
    G_ROW: tl.constexpr, DX_ROW: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, REACH: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Each input pixel gathers from the windows it won: no atomics, so sums have one order.

    A row of the tile is a block of STRIDE * STRIDE input pixels, the first pixels of window (i, j);
    only this window and the REACH - 1 before it in each direction can have seen them.
    """
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = p < blocks
    image, i, j = pixel(p, BLOCK_ROWS, BLOCK_COLUMNS)
    image = image.to(tl.int64)
    gp = g + g_first + image * g_image
    ap = argmax + image * (OUT_HEIGHT * OUT_WIDTH) * CHANNELS
    dxp = dx + dx_first + image * dx_image
    for d in tl.static_range(STRIDE * STRIDE):
        total = tl.zeros((BP, BC), dtype=tl.float32)
        for back in tl.static_range(REACH * REACH):
            across = d // STRIDE + (back // REACH) * STRIDE  # the pixel's row in that window
            along = d % STRIDE + (back % REACH) * STRIDE
            if across < SIZE and along < SIZE:
                wi = i - back // REACH
                wj = j - back % REACH
                there = inside & (wi >= 0) & (wi < OUT_HEIGHT) & (wj >= 0) & (wj < OUT_WIDTH)
                a_at = ap + (wi * OUT_WIDTH + wj) * CHANNELS
                winner = tl.load(a_at[:, None] + channel[None, :], mask=there[:, None], other=SIZE * SIZE)
                g_at = gp + wi * G_ROW + wj * CHANNELS
                value = tl.load(g_at[:, None] + channel[None, :], mask=there[:, None], other=0.0)
                total += tl.where(winner == across * SIZE + along, value.to(tl.float32), 0.0)
        row = i * STRIDE - PADDING + d // STRIDE
        column = j * STRIDE - PADDING + d % STRIDE
        there = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        at = dxp + row * DX_ROW + column * CHANNELS
        tl.store(at[:, None] + channel[None, :], total.to(dx.dtype.element_ty), mask=there[:, None])


@triton.jit(do_not_specialize=["relu", "windows"])
def mean_pool(
    x, y, windows, x_first, x_image, y_first, y_image, CHANNELS, relu,
    X_ROW: tl.constexpr, Y_ROW: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The mean of each window; windows lie inside the image."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = p < windows
    image, i, j = pixel(p, OUT_HEIGHT, OUT_WIDTH)
    image = image.to(tl.int64)
    at = x + x_first + image * x_image + i * STRIDE * X_ROW + j * STRIDE * CHANNELS
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for d in tl.static_range(SIZE * SIZE):
        place = at + (d // SIZE) * X_ROW + (d % SIZE) * CHANNELS
        total += tl.load(place[:, None] + channel[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    mean = total / (SIZE * SIZE)
    mean = tl.where((relu == 0) | (mean > 0) | (mean != mean), mean, 0.0)
    out = y + y_first + image * y_image + i * Y_ROW + j * CHANNELS
    tl.store(out[:, None] + channel[None, :], mean.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["masked", "pixels"])
def mean_pool_gradient(
    g, x, dx, pixels, g_first, g_image, x_first, x_image, dx_first, dx_image, CHANNELS, masked,
    G_ROW: tl.constexpr, X_ROW: tl.constexpr, DX_ROW: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    REACH: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Each input pixel gathers its part of every window it lies in; zero where a ReLU before was."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = p < pixels
    image, row, column = pixel(p, HEIGHT, WIDTH)
    image = image.to(tl.int64)
    gp = g + g_first + image * g_image
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for back in tl.static_range(REACH * REACH):
        wi = row // STRIDE - back // REACH
        wj = column // STRIDE - back % REACH
        seen = (row - wi * STRIDE < SIZE) & (column - wj * STRIDE < SIZE)
        there = inside & seen & (wi >= 0) & (wi < OUT_HEIGHT) & (wj >= 0) & (wj < OUT_WIDTH)
        at = gp + wi * G_ROW + wj * CHANNELS
        total += tl.load(at[:, None] + channel[None, :], mask=there[:, None], other=0.0).to(tl.float32)
    total = total / (SIZE * SIZE)
    alive = inside & (tl.full((BP,), 1, tl.int32) * masked > 0)
    x_at = x + x_first + image * x_image + row * X_ROW + column * CHANNELS
    value = tl.load(x_at[:, None] + channel[None, :], mask=alive[:, None], other=1.0)
    total = tl.where(value > 0, total, 0.0)
    out = dx + dx_first + image * dx_image + row * DX_ROW + column * CHANNELS
    tl.store(out[:, None] + channel[None, :], total.to(dx.dtype.element_ty), mask=inside[:, None])
