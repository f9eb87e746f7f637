"""The Triton kernel that makes minibatches: draw, crop, mirror, standardise, from bytes on the device."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _words(seed, iteration, block, client, PURPOSE: tl.constexpr):
    zero = iteration * 0
    return tl.philox(seed, iteration, zero + block.to(tl.uint32), zero + client.to(tl.uint32), zero + PURPOSE)


@triton.jit(do_not_specialize=["seed", "step", "batch"])
def minibatch(
    images, labels, order, starts, sizes, clients, first, x, y, seed, step, batch, x_image, image_size,
    STORED_HEIGHT: tl.constexpr, STORED_WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, STRIDE: tl.constexpr, BORDER: tl.constexpr, RANDOM: tl.constexpr,
    STANDARDIZE: tl.constexpr, SCALE: tl.constexpr, BATCH_PURPOSE: tl.constexpr, AUGMENT_PURPOSE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One sample of one client, by the same draws as `DeviceData`, written with its zero border."""
    c = tl.program_id(1)
    place = tl.program_id(0)
    client = tl.load(clients + c)
    iteration = (tl.load(first + c) + step).to(tl.uint32)
    w0, w1, w2, w3 = _words(seed, iteration, place // 4, client, BATCH_PURPOSE)
    lane = place % 4
    word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3))).to(tl.int64) & 0xFFFFFFFF
    within = (word * tl.load(sizes + client)) >> 32
    sample = tl.load(order + tl.load(starts + client) + within)
    top = (STORED_HEIGHT - HEIGHT) // 2
    left = (STORED_WIDTH - WIDTH) // 2
    mirrored = 0
    if RANDOM:
        a0, a1, a2, _ = _words(seed, iteration, place, client, AUGMENT_PURPOSE)
        top = (((a0.to(tl.int64) & 0xFFFFFFFF) * (STORED_HEIGHT - HEIGHT + 1)) >> 32).to(tl.int32)
        left = (((a1.to(tl.int64) & 0xFFFFFFFF) * (STORED_WIDTH - WIDTH + 1)) >> 32).to(tl.int32)
        mirrored = (a2 & 1).to(tl.int32)
    e = tl.arange(0, BLOCK)
    channel = e % STRIDE
    column = (e // STRIDE) % (WIDTH + 2 * BORDER) - BORDER
    row = e // (STRIDE * (WIDTH + 2 * BORDER)) - BORDER
    there = (channel < CHANNELS) & (column >= 0) & (column < WIDTH) & (row >= 0) & (row < HEIGHT)
    source = left + tl.where(mirrored != 0, WIDTH - 1 - column, column)
    at = sample * image_size + channel * (STORED_HEIGHT * STORED_WIDTH) + (top + row) * STORED_WIDTH + source
    value = tl.load(images + at, mask=there, other=0).to(tl.float32)
    if STANDARDIZE:
        count: tl.constexpr = CHANNELS * HEIGHT * WIDTH
        value = tl.where(there, value - tl.sum(value, axis=0) / count, 0.0)
        deviation = tl.sqrt(tl.sum(value * value, axis=0) / count)
        value = value / tl.maximum(deviation, 1.0 / tl.sqrt(count * 1.0))
    else:
        value = value / SCALE
    n = c.to(tl.int64) * batch + place
    tl.store(x + n * x_image + e, value.to(x.dtype.element_ty), mask=e < x_image)
    tl.store(y + n, tl.load(labels + sample))
