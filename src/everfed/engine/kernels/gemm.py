"""Triton kernels for convolutions and linear layers: one matrix product a client, clients side by side.

A convolution is the product of its input's patches with its weights, and the patches are read in
place (implicit GEMM): images lie channels last with a zero border, so a kernel row is one run of
memory and no bound needs checking. A linear layer is the same product on images of one pixel.

Weights are [kernel row, kernel column, input channel, output channel]; channels are padded so that
tiles divide them (see values.py). Sums are float32 whatever the operands are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from everfed.engine.kernels.index import pixel


@triton.jit(do_not_specialize=["relu", "pixels"])
def forward(
    x, weight, bias, y, x_client, w_client, y_client,
    pixels, K, N, x_first, x_image, y_first, y_image, relu,
    X_ROW: tl.constexpr, X_PIXEL: tl.constexpr, STRIDE: tl.constexpr, Y_ROW: tl.constexpr, Y_PIXEL: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr, GATHERED: tl.constexpr, LINEAR: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y = relu?(patches(x) @ weight + bias) for BP pixels and BN output channels of one client.

    RUN: elements of one kernel row (columns * channels), contiguous in x. GATHERED: K where
    tiles do not divide RUN (few input channels), so that every element's place is computed and the
    end masked; known to the compiler, since else the mask would make every load a narrow one.
    """
    tiles = N // BN
    p = (tl.program_id(0) // tiles) * BP + tl.arange(0, BP)
    n = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    c = tl.program_id(1).to(tl.int64)
    inside = p < pixels
    image, row, column = pixel(tl.where(inside, p, 0), HEIGHT, WIDTH)
    k = tl.arange(0, BK)
    x += c * x_client
    if LINEAR:
        x_at = x_first + image * x_image
        y_at = image * y_image
    else:
        x_at = x_first + image * x_image + row * (STRIDE * X_ROW) + column * (STRIDE * X_PIXEL)
        y_at = image * y_image + row * Y_ROW + column * Y_PIXEL
    wp = weight + c * w_client + n[None, :] + k[:, None] * N
    xp = x + x_at[:, None] + k[None, :]
    # Offsets are multiples of the tile, and written so that the compiler sees it: else loads would not be wide.
    # The pixels are the wide side of the tensor cores' tile, so the product is kept transposed.
    total = tl.zeros((BN, BP), dtype=tl.float32)
    for i in range(tl.cdiv(K, BK)):
        if GATHERED:
            kk = i * BK + k
            valid = kk < GATHERED
            offset = (kk // RUN) * X_ROW + kk % RUN
            xt = tl.load(x + (x_at[:, None] + offset[None, :]), mask=valid[None, :] & inside[:, None], other=0.0)
            wt = tl.load(wp + i * BK * N, mask=valid[:, None], other=0.0)
        else:
            if LINEAR:
                xt = tl.load(xp + i * BK)
            else:
                xt = tl.load(xp + (i // (RUN // BK)) * X_ROW + (i % (RUN // BK)) * BK)
            wt = tl.load(wp + i * BK * N)
        total = tl.dot(tl.trans(wt), tl.trans(xt), total, input_precision=PRECISION)
    result = tl.trans(total)
    if HAS_BIAS:
        result += tl.load(bias + c * w_client + n).to(tl.float32)[None, :]
    result = tl.where((relu == 0) | (result > 0) | (result != result), result, 0.0)
    out = y + c * y_client + (y_first + y_at)[:, None] + n[None, :]
    tl.store(out, result.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["relu", "windows"])
def forward_pooled(
    x, weight, bias, y, argmax, x_client, w_client, y_client, a_client,
    windows, N, x_first, x_image, y_first, y_image, relu,
    X_ROW: tl.constexpr, X_PIXEL: tl.constexpr, Y_ROW: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, K: tl.constexpr, RUN: tl.constexpr,
    MASKED: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A convolution of few inputs (K <= BK) and the max pool after it, without writing what lies between.

    Each pixel of a window is computed anew, more arithmetic than needed where windows overlap, but
    it is cheaper than the traffic of the full image. MASKED: a ReLU stands between the two. relu: one comes after.
    NaN cannot win a window; weights that are not finite are found where updates are summed.
    """
    tiles = N // BN
    p = (tl.program_id(0) // tiles) * BP + tl.arange(0, BP)
    n = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    c = tl.program_id(1).to(tl.int64)
    inside = p < windows
    image, i, j = pixel(tl.where(inside, p, 0), OUT_HEIGHT, OUT_WIDTH)
    k = tl.arange(0, BK)
    valid = k < K
    offset = (k // RUN) * X_ROW + k % RUN
    wt = tl.load(weight + c * w_client + k[:, None] * N + n[None, :], mask=valid[:, None], other=0.0)
    x += c * x_client  # one pointer and 32-bit offsets: a tile of pointers would fill the registers
    base = x_first + image * x_image
    best = tl.full((BP, BN), float("-inf"), dtype=tl.float32)
    winner = tl.full((BP, BN), SIZE * SIZE, dtype=tl.int32)
    for d in range(SIZE * SIZE):
        row = i * STRIDE - PADDING + d // SIZE
        column = j * STRIDE - PADDING + d % SIZE
        there = inside & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        at = base + row * X_ROW + column * X_PIXEL
        xt = tl.load(x + (at[:, None] + offset[None, :]), mask=there[:, None] & valid[None, :], other=0.0)
        value = tl.where(there[:, None], tl.dot(xt, wt, input_precision=PRECISION), float("-inf"))
        larger = value > best
        best = tl.where(larger, value, best)
        winner = tl.where(larger, d, winner)
    if HAS_BIAS:
        best += tl.load(bias + c * w_client + n).to(tl.float32)[None, :]
    if MASKED:
        winner = tl.where(best > 0, winner, SIZE * SIZE)
        best = tl.where((best > 0) | (best != best), best, 0.0)
    best = tl.where((relu == 0) | (best > 0) | (best != best), best, 0.0)
    out = y + c * y_client + (y_first + image * y_image + i * Y_ROW + j * N)[:, None] + n[None, :]
    tl.store(out, best.to(y.dtype.element_ty), mask=inside[:, None])
    tl.store(argmax + c * a_client + (p * N)[:, None] + n[None, :], winner.to(tl.uint8), mask=inside[:, None])


@triton.jit(do_not_specialize=["masked", "pixels"])
def input_gradient(
    g, weight, x, dx, g_client, w_client, x_client, dx_client,
    pixels, N, CHANNELS, g_first, g_image, x_first, x_image, dx_first, dx_image, masked,
    G_ROW: tl.constexpr, X_ROW: tl.constexpr, X_PIXEL: tl.constexpr, DX_ROW: tl.constexpr, DX_PIXEL: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr, RUN: tl.constexpr, DEPTH: tl.constexpr,
    LINEAR: tl.constexpr,
    PRECISION: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """dx = (flipped) correlation of g with the weights; zero where x, the output of a ReLU, is not positive.

    DEPTH: tiles of BK in the output channels.
    """
    tiles = CHANNELS // BN
    p = (tl.program_id(0) // tiles) * BP + tl.arange(0, BP)
    n = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)  # input channels
    c = tl.program_id(1).to(tl.int64)
    inside = p < pixels
    image, row, column = pixel(tl.where(inside, p, 0), HEIGHT, WIDTH)
    k = tl.arange(0, BK)
    if LINEAR:
        gp = g + c * g_client + (g_first + image * g_image)[:, None] + k[None, :]
        x_at = image * x_image
        dx_at = image * dx_image
    else:
        gp = g + c * g_client + (g_first + image * g_image + row * G_ROW + column * N)[:, None] + k[None, :]
        x_at = image * x_image + row * X_ROW + column * X_PIXEL
        dx_at = image * dx_image + row * DX_ROW + column * DX_PIXEL
    wp = weight + c * w_client + n[:, None] * N + k[None, :]
    total = tl.zeros((BN, BP), dtype=tl.float32)
    for i in range(TAPS * N // BK):
        if LINEAR:
            gt = tl.load(gp + i * BK)
            wt = tl.load(wp + i * BK)
        else:
            gt = tl.load(gp + (i // (RUN // BK)) * G_ROW + (i % (RUN // BK)) * BK)
            wt = tl.load(wp + (TAPS - 1 - i // DEPTH) * CHANNELS * N + (i % DEPTH) * BK)
        total = tl.dot(wt, tl.trans(gt), total, input_precision=PRECISION)
    result = tl.trans(total)
    alive = inside & (tl.full((BP,), 1, tl.int32) * masked > 0)
    value = tl.load(x + c * x_client + (x_first + x_at)[:, None] + n[None, :], mask=alive[:, None], other=1.0)
    result = tl.where(value > 0, result, 0.0)
    out = dx + c * dx_client + (dx_first + dx_at)[:, None] + n[None, :]
    tl.store(out, result.to(dx.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["iterations", "pixels"])
def weight_gradient(
    x, g, dw, x_client, g_client, dw_client, dw_split,
    pixels, K, N, x_first, x_image, g_first, g_image, iterations,
    X_ROW: tl.constexpr, X_PIXEL: tl.constexpr, STRIDE: tl.constexpr, G_ROW: tl.constexpr, G_PIXEL: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr, LINEAR: tl.constexpr,
    HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr, BP: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dw = patches(x)^T @ g over one split of the pixels; the splits are summed by the update.

    HAS_BIAS (linear layers only): the row after the weights gets the bias's gradient as well.
    """
    tiles = N // BN
    k = (tl.program_id(0) // tiles) * BK + tl.arange(0, BK)
    n = (tl.program_id(0) % tiles) * BN + tl.arange(0, BN)
    c = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    if LINEAR:
        offset = k
    else:
        # Rows beyond the kernel's last are computed and not stored; they must still be read from somewhere.
        offset = tl.minimum(k // RUN, ROWS - 1) * X_ROW + k % RUN
    xp = x + c * x_client + x_first
    gp = g + c * g_client + g_first
    total = tl.zeros((BN, BK), dtype=tl.float32)
    for i in range(iterations):
        p = (split * iterations + i) * BP + tl.arange(0, BP)
        inside = p < pixels
        image, row, column = pixel(tl.where(inside, p, 0), HEIGHT, WIDTH)
        if LINEAR:
            x_at = image * x_image
            g_at = image * g_image
        else:
            x_at = image * x_image + row * (STRIDE * X_ROW) + column * (STRIDE * X_PIXEL)
            g_at = image * g_image + row * G_ROW + column * G_PIXEL
        if LINEAR:
            xt = tl.load(xp + x_at[:, None] + offset[None, :], mask=(k < K)[None, :], other=0.0)
        else:
            xt = tl.load(xp + x_at[:, None] + offset[None, :])
        gt = tl.load(gp + g_at[:, None] + n[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(tl.trans(gt), xt, total, input_precision=PRECISION)
    out = dw + c * dw_client + split.to(tl.int64) * dw_split + k[:, None] * N + n[None, :]
    tl.store(out, tl.trans(total), mask=(k < K)[:, None])
    if HAS_BIAS:
        if tl.program_id(0) < tiles:
            ones = tl.zeros((BN,), dtype=tl.float32)
            for i in range(iterations):
                p = (split * iterations + i) * BP + tl.arange(0, BP)
                gt = tl.load(gp + (p * g_image)[:, None] + n[None, :], mask=(p < pixels)[:, None], other=0.0)
                ones += tl.sum(gt.to(tl.float32), axis=0)
            tl.store(dw + c * dw_client + split.to(tl.int64) * dw_split + K * N + n, ones)


@triton.jit(do_not_specialize=["iterations", "pixels"])
def bias_gradient(
    g, argmax, db, g_client, db_client, db_split, a_client, pixels, first, image_size, CHANNELS, iterations,
    ROW: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, POOLED: tl.constexpr, DEAD: tl.constexpr,
    BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Sums of g over the pixels of one split. POOLED: g is a max pool's, whose dead windows do not count."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    c = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    total = tl.zeros((BP, BN), dtype=tl.float32)
    for i in range(iterations):
        p = (split * iterations + i) * BP + tl.arange(0, BP)
        inside = (p < pixels)[:, None]
        image, row, column = pixel(p, HEIGHT, WIDTH)
        at = first + image * image_size + row * ROW + column * CHANNELS
        value = tl.load(g + c * g_client + at[:, None] + n[None, :], mask=inside, other=0.0).to(tl.float32)
        if POOLED:
            winner = tl.load(argmax + c * a_client + (p * CHANNELS)[:, None] + n[None, :], mask=inside, other=DEAD)
            value = tl.where(winner == DEAD, 0.0, value)
        total += value
    tl.store(db + c * db_client + split.to(tl.int64) * db_split + n, tl.sum(total, axis=0))
