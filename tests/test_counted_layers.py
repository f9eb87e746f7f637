"""Recurrent layers, attention and random activations, whose random numbers are replaced: right as torch's own."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.func import functional_call, vmap
from torch.utils.checkpoint import checkpoint

import everfed as ef
from everfed.learning.dropout import backward, counted_dropout

CLIENTS = torch.arange(3)


def counted(client=0, seed=5, **settings):
    return counted_dropout(seed, torch.tensor(client), 11, **settings)


def tensors(found):
    """All tensors of nested results."""
    return [found] if isinstance(found, torch.Tensor) else [t for part in found for t in tensors(part)]


def close(one, other):
    for a, b in zip(tensors(one), tensors(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@st.composite
def recurrent_calls(draw):
    """(a layer, its arguments)."""
    kind = draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]))
    hidden, inputs = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    options = {
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
    }
    if kind is nn.RNN:
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    if kind is nn.LSTM and draw(st.booleans()):
        options["proj_size"] = draw(st.integers(1, hidden - 1))
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = kind(inputs, hidden, **options)
    batch = () if draw(st.booleans()) else (draw(st.integers(1, 3)),)
    length = (draw(st.integers(1, 4)),)
    x = torch.randn(*(batch + length if options["batch_first"] else length + batch), inputs)
    if not draw(st.booleans()):
        return layer, (x,)
    rows = options["num_layers"] * (1 + options["bidirectional"])
    start = torch.randn(rows, *batch, options.get("proj_size", hidden))
    return layer, (x, (start, torch.randn(rows, *batch, hidden)) if kind is nn.LSTM else start)


def gradients(found, layer):
    return torch.autograd.grad(sum((t * t).sum() for t in tensors(found)), list(layer.parameters()))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@given(recurrent_calls())
@settings(max_examples=60, deadline=None)
def test_unrolled_recurrent_layers_are_torchs(call):
    layer, arguments = call
    expected = layer(*arguments)
    with counted(under_vmap=True) as mode:
        found = layer(*arguments)
    assert mode.needed
    close(found, expected)
    close(gradients(found, layer), gradients(expected, layer))


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@given(recurrent_calls(), st.floats(0.1, 0.9))
@settings(max_examples=30, deadline=None)
def test_recurrent_layers_drop_the_same_unrolled_or_not(call, rate):
    layer, arguments = call
    layer.dropout = rate if layer.num_layers > 1 else 0.0
    with counted() as by_torch:
        expected = layer(*arguments)
    with counted(under_vmap=True) as mode:
        found = layer(*arguments)
    assert mode.calls == by_torch.calls == layer.num_layers - 1
    close(found, expected)
    close(gradients(found, layer), gradients(expected, layer))


def test_dropout_between_recurrent_layers_is_where_torch_has_it():
    """With ones for what a layer gives, the next one's input shows the mask."""
    layer = nn.RNN(1, 400, 2, nonlinearity="relu", dropout=0.25)
    with torch.no_grad():
        for name, value in layer.named_parameters():
            value.zero_()
            if name == "bias_ih_l0":
                value.fill_(1.0)
            if name == "weight_ih_l1":
                value.copy_(torch.eye(400))
    with counted():
        out, _ = layer(torch.zeros(5, 1, 1))
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert (out == 0).float().mean() == pytest.approx(0.25, abs=0.04)
    assert torch.equal(layer.eval()(torch.zeros(5, 1, 1))[0], torch.ones(5, 1, 400))


def test_packed_sequences_are_left_to_torch_unless_they_drop():
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 2, 3), [4, 2])
    layer = nn.LSTM(3, 2, 2)
    expected = layer(packed)[0].data
    with counted(under_vmap=True):
        assert torch.equal(layer(packed)[0].data, expected)
    layer.dropout = 0.5
    with counted(), pytest.raises(ef.InputError, match="padded sequences"):
        layer(packed)


def attention_arguments():
    torch.manual_seed(0)
    query = torch.randn(2, 4, 5, 8)
    key, value = torch.randn(2, 2, 2, 6, 8)
    blocked = torch.rand(5, 6) > 0.5
    blocked[2] = False  # a row that may look at nothing
    return {
        "plain": (query, query, query, {}),
        "causal": (query, query, query, {"is_causal": True, "scale": 0.7}),
        "grouped": (query, key, value, {"enable_gqa": True}),
        "masked": (query[:, :2], key, value, {"attn_mask": blocked}),
        "biased": (query[:, :2], key, value, {"attn_mask": torch.randn(5, 6)}),
    }


@pytest.mark.parametrize("name", attention_arguments())
def test_attention_with_dropout_is_torchs_but_for_the_mask(name, monkeypatch):
    query, key, value, options = attention_arguments()[name]
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    with counted() as mode:
        assert torch.equal(F.scaled_dot_product_attention(query, key, value, **options), expected)
        assert not mode.needed
        dropped = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5, **options)
        assert mode.calls == 1
    assert not torch.allclose(dropped, expected)
    # With a mask that keeps everything, twice as large: what is left is the arithmetic.
    monkeypatch.setattr(counted_dropout, "_uniform", lambda self, shape, device: torch.ones(tuple(shape)))
    with counted():
        kept = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5, **options)
    torch.testing.assert_close(kept, 2 * expected)


def test_attention_drops_weights_by_the_given_part():
    ones = torch.ones(1, 1, 100, 100)
    with counted():
        found = F.scaled_dot_product_attention(
            torch.zeros(1, 1, 100, 4), torch.zeros(1, 1, 100, 4), ones, dropout_p=0.3
        )
    assert float(found.mean()) == pytest.approx(1.0, abs=0.03)
    assert float(found[0, 0, :, 0].std()) == pytest.approx(math.sqrt(0.3 / 0.7 / 100), rel=0.2)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_draws_from_the_counter(need_weights):
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.5), torch.randn(5, 2, 8)
    state = torch.get_rng_state()

    def run(client):
        with counted(client) as mode:
            found = layer(x, x, x, need_weights=need_weights)[0]
        assert mode.calls == 1
        return found

    assert torch.equal(run(1), run(1))
    assert not torch.allclose(run(1), run(2))
    assert torch.equal(torch.get_rng_state(), state)
    layer.dropout = 0.0
    with counted():
        torch.testing.assert_close(layer(x, x, x)[0], layer.eval()(x, x, x)[0])


RANDOM_LAYERS = {
    "alpha dropout": lambda: nn.AlphaDropout(0.3),
    "feature alpha dropout": lambda: nn.FeatureAlphaDropout(0.3),
    "random relu": lambda: nn.RReLU(0.1, 0.9),
    "random relu in place": lambda: nn.Sequential(nn.Identity(), nn.RReLU(0.1, 0.9, inplace=True)),
    "dropout in place": lambda: nn.Dropout(0.4, inplace=True),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True),
    "lstm": lambda: Only(nn.LSTM(8, 6, 3, dropout=0.5, bidirectional=True)),
    "gru": lambda: Only(nn.GRU(8, 6, 2, dropout=0.5)),
}


class Only(nn.Module):
    """The outputs of a recurrent layer, without its states."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("name", RANDOM_LAYERS)
def test_random_layers_are_the_same_under_vmap_as_one_by_one(name):
    torch.manual_seed(0)
    layer = RANDOM_LAYERS[name]().train()
    x = torch.randn(3, 4, 5, 8)
    weights = {n: p.detach() + 0.1 * torch.randn(3, *p.shape) for n, p in layer.named_parameters()}
    state = torch.get_rng_state()

    def run(client, weights, x, vmapped):
        with counted_dropout(5, client, 11, under_vmap=vmapped):
            return functional_call(layer, weights, (x,))

    together = vmap(run, in_dims=(0, 0, 0, None))(CLIENTS, weights, x.clone(), True)
    alone = [run(c, {n: w[c] for n, w in weights.items()}, x[c].clone(), False) for c in CLIENTS]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[0], together[1])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["alpha dropout", "feature alpha dropout"])
def test_alpha_dropout_keeps_mean_and_variance_as_torchs_does(name):
    torch.manual_seed(0)
    x = torch.randn(200, 500, 2)
    with counted():
        found = RANDOM_LAYERS[name]()(x)
    expected = RANDOM_LAYERS[name]()(x)
    assert float(found.mean()) == pytest.approx(0.0, abs=0.03)
    assert float(found.var()) == pytest.approx(1.0, abs=0.03)
    kept = (found - expected).abs() < 1e-6  # kept by both, or dropped by both
    assert float(kept.float().mean()) == pytest.approx(0.3**2 + 0.7**2, abs=0.02)


def test_random_relu_has_slopes_of_the_whole_range():
    x = -torch.ones(10_000)
    with counted():
        slopes = -F.rrelu(x, 0.1, 0.9, training=True)
        assert torch.equal(F.rrelu(x, 0.1, 0.9), F.leaky_relu(x, 0.5))
    assert slopes.min() >= 0.1
    assert slopes.max() <= 0.9
    assert float(slopes.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(slopes.std()) == pytest.approx(0.8 / math.sqrt(12), abs=0.02)


@pytest.mark.parametrize("drop", [torch.dropout_, torch.feature_dropout_, torch.alpha_dropout_])
def test_functions_that_work_in_place_do(drop):
    x = torch.ones(20, 30)
    with counted():
        assert drop(x, 0.5, True) is x
    assert len(x.unique()) == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_dropout_in_a_checkpointed_part_is_refused_in_words(reentrant):
    x = torch.randn(4, requires_grad=True)

    def part(x):
        return F.dropout(x, 0.5).sin()

    with counted():
        y = checkpoint(part, x, use_reentrant=reentrant)
    with pytest.raises(ef.InputError, match=r"inside torch.utils.checkpoint"):
        backward(y.sum())
