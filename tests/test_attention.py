"""Attention of many clients folded into one batch is every client's own: shapes, masks, and what they share."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.utils.checkpoint import checkpoint

import everfed as ef
from everfed.learning.attention import attention
from everfed.learning.dropout import counted_dropout

CLIENTS, BATCH, HEADS, LENGTH, SIZE = 3, 2, 4, 5, 8
MASKS = {
    4: [(LENGTH, LENGTH), (1, LENGTH, LENGTH), (BATCH, 1, LENGTH, LENGTH), (BATCH, HEADS, LENGTH, LENGTH),
        (1, 1, LENGTH, LENGTH), (1, HEADS, LENGTH, LENGTH)],
    3: [(LENGTH, LENGTH), (1, LENGTH, LENGTH), (BATCH, LENGTH, LENGTH)],
    2: [(LENGTH, LENGTH)],
}  # fmt: skip


def drawn(shape, dim):
    """Every client's own, with the clients in this dimension, or one for all."""
    found = torch.randn(*shape, dtype=torch.float64) if dim is None else torch.randn(CLIENTS, *shape).double()
    return found if dim is None else found.movedim(0, dim)


def one_by_one(tensors, dims, *rest):
    def mine(client):
        given = [t if t is None or dim is None else t.select(dim, client) for t, dim in zip(tensors, dims, strict=True)]
        return F.scaled_dot_product_attention(*given, 0.0, rest[0], scale=rest[1], enable_gqa=rest[2])

    return torch.stack([mine(client) for client in range(CLIENTS)])


def agree(tensors, dims, is_causal=False, scale=None, gqa=False):
    tensors = [t.detach().requires_grad_() if t is not None and t.is_floating_point() else t for t in tensors]
    fast = vmap(lambda *given: attention(*given, is_causal, scale, gqa), in_dims=dims)(*tensors)
    slow = one_by_one(tensors, dims, is_causal, scale, gqa)
    torch.testing.assert_close(fast, slow)
    weights, learned = torch.randn_like(slow), [t for t in tensors if t is not None and t.requires_grad]
    for one, other in zip(*(torch.autograd.grad((f * weights).sum(), learned) for f in (fast, slow)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(BATCH, HEADS, LENGTH, SIZE), (BATCH, LENGTH, SIZE), (LENGTH, SIZE)], ids=len)
@pytest.mark.parametrize("masked", ["no", "truth", "added"])
def test_clients_of_a_batch_do_not_mix(shape, masked):
    torch.manual_seed(0)
    for dims in itertools.product((0, None, 1), repeat=3):
        for mask_shape, mask_dim in itertools.product(MASKS[len(shape)], (None, 0, -1)):
            if dims == (None, None, None) and mask_dim is None:
                continue
            tensors = [drawn(shape, dim) for dim in dims]
            mask = drawn(mask_shape, mask_dim)
            if masked == "no":
                if any(dim is not None for dim in dims):
                    agree([*tensors, None], (*dims, None), is_causal=mask_dim is None, scale=0.3)
                break
            agree([*tensors, mask if masked == "added" else mask > -0.5], (*dims, mask_dim))


def test_keys_shared_by_heads_stay_shared():
    torch.manual_seed(0)
    tensors = [drawn((BATCH, heads, LENGTH, SIZE), 0) for heads in (HEADS, 2, 2)]
    agree([*tensors, None], (0, 0, 0, None), gqa=True)


def test_what_broadcasts_is_left_to_plain_products():
    """Through the mode that replaces torch's call: keys of one sample for a batch, with and without shared heads."""
    torch.manual_seed(0)
    for heads in (HEADS, 2):
        tensors = [drawn((size, h, LENGTH, SIZE), 0) for size, h in ((BATCH, HEADS), (1, heads), (1, heads))]

        def mine(*given, gqa=heads != HEADS):
            with counted_dropout(0, torch.zeros((), dtype=torch.int64), 0, under_vmap=True):
                return F.scaled_dot_product_attention(*given, enable_gqa=gqa)

        repeated = [t.repeat_interleave(HEADS // t.shape[2], dim=2) for t in tensors]
        expected = torch.stack([F.scaled_dot_product_attention(*(t[i] for t in repeated)) for i in range(CLIENTS)])
        torch.testing.assert_close(vmap(mine)(*tensors), expected)


class Looks(nn.Module):
    """Attention with a mask that is only named, maybe computed again in the backward pass."""

    def __init__(self, kind, sizes, rate=0.0, again=False):
        super().__init__()
        self.kind, self.sizes, self.rate, self.again = kind, sizes, rate, again
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        key = self.first(x)[:, None]

        def look(key):
            rate = self.rate if self.training else 0.0
            query = key[:, :, -self.sizes[0] :]
            return F.scaled_dot_product_attention(query, key, key, self.kind(*self.sizes), rate)

        found = checkpoint(look, key, use_reentrant=False) if self.again else look(key)
        return self.out(found[:, 0].mean(dim=1))


def trained(trainer, *options):
    torch.manual_seed(0)
    model, draw = Looks(*options), np.random.default_rng(0)
    pairs = [(draw.normal(size=(9, 5, 4)).astype(np.float32), draw.integers(0, 3, 9)) for _ in range(4)]
    history = ef.simulate(
        model, ef.from_arrays(pairs), ef.Fleet.from_cycles([1, 2, 3, 1]), rounds=3, local_steps=2, batch_size=4,
        client=ef.SGD(0.1), device="cpu", trainer=trainer, check_trainer=False,
    )  # fmt: skip
    return history.params


@pytest.mark.parametrize("rate", [0.0, 0.2])
@pytest.mark.parametrize(("kind", "sizes"), [(causal_upper_left, (5, 5)), (causal_lower_right, (3, 5))])
def test_masks_that_are_only_named(kind, sizes, rate):
    fast, slow = (trained(name, kind, sizes, rate) for name in ("batched", "one-by-one"))
    for name, value in slow.items():
        torch.testing.assert_close(fast[name], value, rtol=1e-4, atol=1e-5)


def test_attention_that_is_computed_again_is_refused_in_words():
    with pytest.raises(ef.InputError, match="cannot be batched over clients"):
        trained("batched", causal_upper_left, (5, 5), 0.0, True)


def test_outside_vmap_it_is_torchs():
    torch.manual_seed(0)
    given = [drawn((BATCH, HEADS, LENGTH, SIZE), None).requires_grad_() for _ in range(3)]
    mask = drawn((LENGTH, LENGTH), None).requires_grad_()
    fast = attention(*given, mask, False, None, False)
    slow = F.scaled_dot_product_attention(*given, mask)
    torch.testing.assert_close(fast, slow)
    for one, other in zip(*(torch.autograd.grad(f.square().sum(), [*given, mask]) for f in (fast, slow)), strict=True):
        torch.testing.assert_close(one, other)
