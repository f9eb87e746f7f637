"""Dropout whose masks are a pure function of (seed, client, step, layer, element).

torch's own dropout draws from a global generator, so its masks would depend on how clients are
grouped, and a resumed run would differ. Inside `counted_dropout`, every function of torch that drops
or draws in training takes its random numbers from the counter-based generator instead, under vmap too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import TorchFunctionMode

from everfed.errors import InputError
from everfed.learning import recurrent, vmapped
from everfed.learning.attention import attention
from everfed.random import Purpose, philox

# How many of the last dimensions one mask value covers: dropout drops elements, dropoutNd whole channels.
_SPATIAL = {F.dropout: 0, torch.dropout: 0, torch.dropout_: 0, F.dropout1d: 1, F.dropout2d: 2, F.dropout3d: 3}
# These take the first two dimensions as samples and channels, whatever follows.
_BY_CHANNEL_ALPHA = {F.feature_alpha_dropout, torch.feature_alpha_dropout, torch.feature_alpha_dropout_}
_BY_CHANNEL = {torch.feature_dropout, torch.feature_dropout_, *_BY_CHANNEL_ALPHA}
_ALPHA = {F.alpha_dropout, torch.alpha_dropout, torch.alpha_dropout_, *_BY_CHANNEL_ALPHA}
_DROPS = {*_SPATIAL, *_BY_CHANNEL, *_ALPHA}
_IN_PLACE = {torch.dropout_, torch.feature_dropout_, torch.alpha_dropout_, torch.feature_alpha_dropout_, torch.rrelu_}
_RANDOM_RELUS = {F.rrelu, torch.rrelu, torch.rrelu_}

# What SELU maps very negative numbers to, with the opposite sign: alpha dropout puts its negative in for what it drops.
_SELU_FLOOR = 1.7580993408473766


def _entered(func: Any) -> Callable[..., Any]:
    """The same function, which does not hand itself over to a mode as a whole: the mode sees what it calls instead."""
    code = FunctionType(func.__code__, {**func.__globals__, "has_torch_function": lambda tensors: False})
    code.__defaults__, code.__kwdefaults__ = func.__defaults__, func.__kwdefaults__
    return code


_multi_head_attention = _entered(F.multi_head_attention_forward)  # of nn.MultiheadAttention, with dropout inside
_backward = _entered(torch.autograd.backward)


class counted_dropout(TorchFunctionMode):
    """Replace torch's dropout for one forward pass of one client (a scalar tensor, maybe vmapped).

    seed: also as two words in tensors. under_vmap: recurrent layers, attention and a few more become plain products,
    since vmap has no rules for them. replaced: more functions of torch, and what stands in for them.
    """

    def __init__(
        self,
        seed: int | tuple[Tensor, Tensor],
        client: Tensor,
        step: int | Tensor,
        calls: int = 0,
        *,
        under_vmap: bool = False,
        replaced: Mapping[Any, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.key: tuple[Any, Any] = (seed & 0xFFFFFFFF, seed >> 32) if isinstance(seed, int) else seed
        self.replaced = {**vmapped.FUNCTIONS, **replaced} if under_vmap else replaced
        self.client, self.step, self.under_vmap = client, step, under_vmap
        self.calls = calls  # masks drawn so far in this pass; not 0 for the later part of a model
        self.needed = False  # whether anything was replaced

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPS:
            return self._drop(func, *args, **kwargs)
        if func in _RANDOM_RELUS:
            return self._random_relu(func, *args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return _multi_head_attention(*args, **kwargs)
        if recurrent.applies(func, args):
            self.needed |= self.under_vmap
            return recurrent.stacked(func, self._dropped, self.under_vmap, *args)
        if func is F.linear and self.under_vmap and (args[0] if args else kwargs["input"]).ndim > 2:
            self.needed = True
            return vmapped.linear(*args, **kwargs)
        if func in self.replaced:
            self.needed = True
            return self.replaced[func](*args, **kwargs)
        return func(*args, **kwargs)

    def _drop(
        self,
        func: Callable[..., Any],
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        train: bool = True,  # torch.dropout's name for `training`
    ) -> Tensor:
        if not (training and train) or p == 0.0:
            return input
        shape = list(input.shape)
        if func in _BY_CHANNEL:
            shape[2:] = [1] * len(shape[2:])
        elif spatial := _SPATIAL.get(func, 0):
            shape[len(shape) - spatial :] = [1] * spatial
        found = self._dropped(input, p, shape, alpha=func in _ALPHA)
        return input.copy_(found) if inplace or func in _IN_PLACE else found

    def _dropped(self, input: Tensor, p: float, shape: Sequence[int] | None = None, alpha: bool = False) -> Tensor:
        """shape: of the mask, if not the input's."""
        if p >= 1.0:
            return input * 0.0
        keep = self._uniform(input.shape if shape is None else shape, input.device) >= p
        if not alpha:
            return input * keep / (1.0 - p)
        scale = 1.0 / math.sqrt((_SELU_FLOOR**2 * p + 1.0) * (1.0 - p))
        return torch.where(keep, input, -_SELU_FLOOR) * scale + _SELU_FLOOR * scale * p

    def _random_relu(
        self,
        func: Callable[..., Any],
        input: Tensor,
        lower: float = 1.0 / 8,
        upper: float = 1.0 / 3,
        training: bool = False,
        inplace: bool = False,
        generator: None = None,
    ) -> Tensor:
        if training:
            slope = lower + (upper - lower) * self._uniform(input.shape, input.device)
            found = torch.where(input >= 0, input, input * slope)
        else:
            found = F.leaky_relu(input, (lower + upper) / 2)
        return input.copy_(found) if inplace or func in _IN_PLACE else found

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if isinstance(attn_mask, CausalBias):  # a name for a mask, which holds none
            past = attn_mask.seq_len_kv - attn_mask.seq_len_q if attn_mask.variant == CausalVariant.LOWER_RIGHT else 0
            shape = (attn_mask.seq_len_q, attn_mask.seq_len_kv)
            attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril(past)
        if dropout_p == 0.0 and not self.under_vmap:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        self.needed = True
        last = -3 if enable_gqa else -2  # before them, what may broadcast is left to the products below
        if dropout_p == 0.0 and query.shape[:last] == key.shape[:last] == value.shape[:last]:
            return attention(query, key, value, attn_mask, is_causal, scale, enable_gqa)
        if enable_gqa:
            key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], dim=-3) for t in (key, value))
        scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            allowed = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if allowed else scores + attn_mask
        # Where nothing may be looked at, the result is 0 as in torch, not 0 / 0. In bfloat16 its gradient would fail.
        weights = torch._safe_softmax(scores.to(torch.promote_types(scores.dtype, torch.float32)), -1)
        return (self._dropped(weights, dropout_p) if dropout_p else weights) @ value

    def _uniform(self, shape: Sequence[int], device: torch.device) -> Tensor:
        count = math.prod(shape)
        # Each layer's call takes a block range of its own: the layer number fills the upper bits.
        block = torch.arange((count + 3) // 4, device=device) + (self.calls << 26)
        self.calls += 1
        self.needed = True
        counter = (torch.zeros_like(block) + self.step, block, self.client.expand(block.shape), int(Purpose.DROPOUT))
        compiled = isinstance(self.key[0], Tensor)
        words = torch.stack(philox(counter, self.key, wraps=not compiled), dim=-1).reshape(-1)[:count]
        return (words.to(torch.float32) * 2.0**-32).reshape(tuple(shape))


def backward(loss: Tensor) -> None:
    """torch's backward pass, without dropout in it."""
    with _refused_dropout():
        _backward(loss)


class _refused_dropout(counted_dropout):
    """A checkpointed part is computed again in the backward pass, and would draw other masks than it did."""

    def __init__(self) -> None:
        super().__init__(0, torch.zeros((), dtype=torch.int64), 0)

    def _uniform(self, shape: Sequence[int], device: torch.device) -> Tensor:
        raise InputError(
            "the model has dropout inside torch.utils.checkpoint, which would draw other masks in the backward pass; "
            "set that dropout to 0, or compute the part without checkpoint."
        )
