"""The Triton kernel for dropout."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["elements", "seed", "step", "call"])
def dropout(
    x, y, gate, clients, first, seed, step, call, elements, rate, x_client, y_client, gate_client,
    x_first, x_image, y_first, y_image, gate_first, gate_image,
    X_ROW: tl.constexpr, Y_ROW: tl.constexpr, GATE_ROW: tl.constexpr, STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, GATED: tl.constexpr,
    PURPOSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = x / (1 - rate), or 0 where the mask says so; forward and backward alike.

    The mask of an element is a function of seed, client, iteration, layer and the element's number
    in torch's order (channels first), as in `counted_dropout`. GATED: y is the gradient of a ReLU's
    output, which is `gate`, and is zero where that is.
    """
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1).to(tl.int64)
    inside = e < elements
    column = e % WIDTH
    row = (e // WIDTH) % HEIGHT
    channel = (e // (WIDTH * HEIGHT)) % CHANNELS
    image = e // (WIDTH * HEIGHT * CHANNELS)
    block = (e // 4).to(tl.uint32) + call.to(tl.uint32) * 67108864  # 2**26 blocks a layer
    zero = block * 0
    iteration = (tl.load(first + c) + step).to(tl.uint32)
    client = tl.load(clients + c).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, zero + iteration, block, zero + client, zero + PURPOSE)
    lane = e % 4
    word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
    keep = word.to(tl.float32) * 2.3283064365386963e-10 >= rate  # 2**-32
    at = x_first + image * x_image + row * X_ROW + column * STRIDE + channel
    value = tl.load(x + c * x_client + at, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        at = gate_first + image * gate_image + row * GATE_ROW + column * STRIDE + channel
        value = tl.where(tl.load(gate + c * gate_client + at, mask=inside, other=0.0) > 0, value, 0.0)
    at = y_first + image * y_image + row * Y_ROW + column * STRIDE + channel
    value = tl.where(keep, value / (1.0 - rate), 0.0)
    tl.store(y + c * y_client + at, value.to(y.dtype.element_ty), mask=inside)
