"""The Triton kernel that adds images: residual connections forward, and their gradients backward."""

from __future__ import annotations

import triton
import triton.language as tl

from everfed.engine.kernels.index import pixel


@triton.jit(do_not_specialize=["relu", "pixels"])
def add(
    x, other, gate, y, pixels, x_first, x_image, other_first, other_image, gate_first, gate_image, y_first, y_image,
    CHANNELS, relu,
    X_ROW: tl.constexpr, OTHER_ROW: tl.constexpr, GATE_ROW: tl.constexpr, Y_ROW: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TWO: tl.constexpr, GATED: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y = relu?(x + other), all clients' images in one long row.

    TWO: false if there is nothing to add. GATED: y is the gradient of a ReLU's output, which is `gate`, and is zero
    where that is not positive.
    """
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (p < pixels)[:, None]
    image, row, column = pixel(p, HEIGHT, WIDTH)
    image = image.to(tl.int64)
    at = x + x_first + image * x_image + row * X_ROW + column * CHANNELS
    value = tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    if TWO:
        at = other + other_first + image * other_image + row * OTHER_ROW + column * CHANNELS
        value += tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    if GATED:
        at = gate + gate_first + image * gate_image + row * GATE_ROW + column * CHANNELS
        value = tl.where(tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0) > 0, value, 0.0)
    value = tl.where((relu == 0) | (value > 0) | (value != value), value, 0.0)
    at = y + y_first + image * y_image + row * Y_ROW + column * CHANNELS
    tl.store(at[:, None] + channel[None, :], value.to(y.dtype.element_ty), mask=inside)
