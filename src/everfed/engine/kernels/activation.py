"""The Triton kernel for functions of single elements."""

from __future__ import annotations

import triton
import triton.language as tl

from everfed.engine.kernels.index import pixel


@triton.jit
def _tanh(x):
    """Through exp(-2|x|), which cannot overflow."""
    e = tl.exp(-2.0 * tl.abs(x))
    bent = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0, -bent, bent)


@triton.jit
def _sigmoid(x):
    e = tl.exp(-tl.abs(x))
    high = 1.0 / (1.0 + e)
    return tl.where(x < 0, 1.0 - high, high)


@triton.jit(do_not_specialize=["pixels", "slope"])
def activate(
    x, g, y, pixels, slope, x_first, x_image, g_first, g_image, y_first, y_image, CHANNELS, USED,
    X_ROW: tl.constexpr, G_ROW: tl.constexpr, Y_ROW: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, BACKWARD: tl.constexpr, GATED: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y = f(x), or backward y = g * f'(x), for the first USED channels; all clients' images in one long row.

    GATED: x is a ReLU's output, so the gradient is zero where it is not positive.
    """
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (p < pixels)[:, None] & (channel < USED)[None, :]
    image, row, column = pixel(p, HEIGHT, WIDTH)
    image = image.to(tl.int64)
    at = x + x_first + image * x_image + row * X_ROW + column * CHANNELS
    v = tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    if KIND == "relu":
        f = tl.where((v > 0) | (v != v), v, 0.0)
        d = tl.where(v > 0, 1.0, 0.0)
    elif KIND == "relu6":
        f = tl.where(v != v, v, tl.minimum(tl.maximum(v, 0.0), 6.0))
        d = tl.where((v > 0) & (v < 6), 1.0, 0.0)
    elif KIND == "leaky":
        f = tl.where(v > 0, v, v * slope)
        d = tl.where(v > 0, 1.0, slope)
    elif KIND == "tanh":
        f = _tanh(v)
        d = 1.0 - f * f
    elif KIND == "sigmoid":
        f = _sigmoid(v)
        d = f * (1.0 - f)
    elif KIND == "silu":
        s = _sigmoid(v)
        f = v * s
        d = s * (1.0 + v * (1.0 - s))
    elif KIND == "gelu":
        s = 0.5 * (1.0 + tl.erf(v * 0.7071067811865476))
        f = v * s
        d = s + v * 0.3989422804014327 * tl.exp(-0.5 * v * v)
    else:  # gelu by tanh
        t = _tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))
        f = 0.5 * v * (1.0 + t)
        d = 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 0.134145 * v * v)
    if BACKWARD:
        at = g + g_first + image * g_image + row * G_ROW + column * CHANNELS
        f = d * tl.load(at[:, None] + channel[None, :], mask=inside, other=0.0).to(tl.float32)
        if GATED:
            f = tl.where(v > 0, f, 0.0)
    at = y + y_first + image * y_image + row * Y_ROW + column * CHANNELS
    tl.store(at[:, None] + channel[None, :], f.to(y.dtype.element_ty), mask=inside)
