"""Attention of many clients folded into one batch is every client's own: shapes, masks, and what they share."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

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


def test_outside_vmap_it_is_torchs():
    torch.manual_seed(0)
    given = [drawn((BATCH, HEADS, LENGTH, SIZE), None).requires_grad_() for _ in range(3)]
    mask = drawn((LENGTH, LENGTH), None).requires_grad_()
    fast = attention(*given, mask, False, None, False)
    slow = F.scaled_dot_product_attention(*given, mask)
    torch.testing.assert_close(fast, slow)
    for one, other in zip(*(torch.autograd.grad(f.square().sum(), [*given, mask]) for f in (fast, slow)), strict=True):
        torch.testing.assert_close(one, other)
