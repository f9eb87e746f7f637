"""What models ask of the shape of a sample; each refusal is one sentence."""

from __future__ import annotations

from everfed.errors import InputError


def image(shape: tuple[int, ...], model: str, least: int) -> tuple[int, int, int]:
    """(channels, height, width)."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InputError(
            f"the model '{model}' needs images (channels, height, width) of at least {least}x{least}; "
            f"the samples have shape {tuple(shape)}. Try 'mlp'."
        )
    return shape[0], shape[1], shape[2]


def signal(shape: tuple[int, ...], model: str, least: int) -> tuple[int, int]:
    """(channels, length)."""
    if len(shape) != 2 or shape[1] < least:
        raise InputError(
            f"the model '{model}' needs signals (channels, length) of length {least} or more; "
            f"the samples have shape {tuple(shape)}. Try 'mlp'."
        )
    return shape[0], shape[1]


def tokens(shape: tuple[int, ...], model: str) -> int:
    """The number of tokens in a sample."""
    if len(shape) != 1 or shape[0] < 1:
        raise InputError(
            f"the model '{model}' needs sequences of tokens (length,); the samples have shape {tuple(shape)}."
        )
    return shape[0]
