"""Modules of every kind that users bring: (factory, which trainer `auto` must find for it on a CPU)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

import everfed as ef

LENGTH, CLASSES = 6, 5  # samples are 6 whole numbers below 5 as floats: tokens, steps of a sequence, or features


class Tokens(nn.Module):
    """A model of tokens as a classifier: whole numbers in, the scores at the last position out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.long())[:, -1]


class Own(nn.Module):
    """Some layers by name and a forward of its own."""

    def __init__(self, forward, **layers) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.own = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, x)


class Branch(nn.Module):
    """One of two layers, as the samples have it: it cannot be batched, nor traced, and leaves parameters unused."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) if x.sum() > 0 else self.down(x)


def linear(inputs: int = LENGTH, outputs: int = CLASSES) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


class Squared(torch.autograd.Function):
    """The old style, with which vmap can do nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class SquaredForVmap(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def recurrent(layer: nn.Module) -> nn.Module:
    size = layer.hidden_size * (2 if layer.bidirectional else 1)
    return Own(lambda self, x: self.out(self.layer(x[..., None])[0].mean(1)), layer=layer, out=linear(size))


def of_cell(cell: nn.Module) -> nn.Module:
    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step[:, None], state)
        return self.out(state[0] if isinstance(state, tuple) else state)

    return Own(forward, cell=cell, out=linear(4))


def branching(self, x):
    return self.a(x) if x.sum() > 60 else self.b(x)


def added_in_place(self, x):
    x += 1
    return self.a(x)


def put_in_place(self, x):
    found = torch.zeros(len(x), CLASSES)
    found[:, torch.arange(CLASSES)] = self.a(x)
    return found


def tied(width: int = 4) -> nn.Module:
    out = nn.Linear(width, CLASSES, bias=False)
    table = nn.Embedding(CLASSES, width)
    out.weight = table.weight
    return Own(lambda self, x: self.out(self.table(x.long()).mean(1)), table=table, out=out)


def with_buffers() -> nn.Module:
    model = Own(lambda self, x: self.a(x * self.scale + self.shift), a=linear())
    model.register_buffer("scale", torch.linspace(0.5, 1.0, LENGTH))
    model.register_buffer("shift", torch.linspace(-1.0, 0.0, LENGTH), persistent=False)
    return model


def scanned(self, x):
    total = x.new_zeros(len(x), 4)
    for i in range(x.shape[1]):
        total = torch.tanh(self.a(x[:, i : i + 1]) + 0.5 * total)
    return self.out(total)


def packed(self, x):
    lengths = torch.full((len(x),), x.shape[1] - 1)
    sequences = rnn.pack_padded_sequence(x[..., None], lengths, batch_first=True)
    return self.out(self.layer(sequences)[1][0][-1])


def checkpointed(reentrant: bool):
    def forward(self, x):
        return self.out(checkpoint(lambda h: torch.tanh(self.b(h)), self.a(x), use_reentrant=reentrant))

    return lambda: Own(forward, a=linear(LENGTH, 8), b=linear(8, 8), out=linear(8))


class LoRA(nn.Module):
    """A frozen linear layer with a trained one of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = frozen(base)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.t() @ self.b.t()


def with_lora(module: nn.Module, rank: int, only: tuple[str, ...] = ()) -> nn.Module:
    """The module, frozen, with its linear layers adapted: all of them, or those of these names."""
    frozen(module)
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear) and (name in only or not only):
                setattr(parent, name, LoRA(layer, rank))
    return module


def gpt(**options) -> nn.Module:
    return ef.build("char-gpt", (LENGTH,), CLASSES, **{"layers": 2, "width": 8, "heads": 2, **options})


def attended(**options):
    def forward(self, x):
        h = self.table(x.long())
        return self.out(self.attention(h, h, h, need_weights=False)[0].mean(1))

    attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    return Own(forward, table=nn.Embedding(CLASSES, 8), attention=attention, out=linear(8))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    return Own(lambda self, x: self.out(self.layer(self.table(x.long())).mean(1)),
               table=nn.Embedding(CLASSES, 8), layer=layer, out=linear(8))  # fmt: skip


def in_a_list() -> nn.Module:
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

    return Own(forward, layers=nn.ModuleList([linear(6, 6), linear(6, 6), linear(6, 5)]))


def every_other() -> nn.Module:
    return nn.Sequential(linear(6, 8), nn.Tanh(), frozen(linear(8, 8)), nn.Tanh(), linear(8, 8), frozen(linear(8, 5)))


ZOO = {
    "a branch on values": (lambda: Own(branching, a=linear(), b=linear()), "one-by-one"),
    "addition in place": (lambda: Own(added_in_place, a=linear()), "batched"),
    "assignment in place": (lambda: Own(put_in_place, a=linear()), "one-by-one"),
    "lstm": (lambda: recurrent(nn.LSTM(1, 4, 2, batch_first=True, dropout=0.3)), "batched"),
    "lstm with projection": (lambda: Own(lambda self, x: self.layer(x[..., None])[0][:, -1],
                             layer=nn.LSTM(1, 7, proj_size=5, batch_first=True)), "batched"),
    "gru": (lambda: recurrent(nn.GRU(1, 4, batch_first=True)), "batched"),
    "rnn": (lambda: recurrent(nn.RNN(1, 4, batch_first=True)), "batched"),
    "rnn of relu": (lambda: recurrent(nn.RNN(1, 4, 2, nonlinearity="relu", batch_first=True)), "batched"),
    "both directions": (lambda: recurrent(nn.LSTM(1, 4, 2, batch_first=True, bidirectional=True)), "batched"),
    "frozen lstm": (lambda: recurrent(frozen(nn.LSTM(1, 4, batch_first=True))), "batched"),
    "packed sequences": (lambda: Own(packed, layer=nn.LSTM(1, 4, batch_first=True), out=linear(4)), "one-by-one"),
    "lstm cell": (lambda: of_cell(nn.LSTMCell(1, 4)), "batched"),
    "gru cell": (lambda: of_cell(nn.GRUCell(1, 4, bias=False)), "batched"),
    "rnn cell": (lambda: of_cell(nn.RNNCell(1, 4)), "batched"),
    "tied weights": (tied, "batched"),
    "frozen first": (lambda: nn.Sequential(frozen(linear(6, 8)), nn.Tanh(), linear(8)), "batched"),
    "frozen last": (lambda: nn.Sequential(linear(6, 8), nn.Tanh(), frozen(linear(8))), "batched"),
    "frozen every other": (every_other, "batched"),
    "buffers": (with_buffers, "batched"),
    "weight norm": (lambda: nn.Sequential(parametrizations.weight_norm(linear(6, 8)), nn.Tanh(), linear(8)), "batched"),
    "weight norm of a convolution": (lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(2),
                                     parametrizations.weight_norm(nn.Conv1d(2, 4, 2), dim=1), nn.Flatten(), linear(8)),
                                     "batched"),
    "orthogonal weights": (lambda: nn.Sequential(parametrizations.orthogonal(linear(6, 6)), linear()), "batched"),
    "attention": (lambda: attended(dropout=0.3), "batched"),
    "attention with a bias": (lambda: attended(add_bias_kv=True), "batched"),
    "transformer layer": (encoder, "batched"),
    "padded embedding": (lambda: Own(lambda self, x: self.out(self.table(x.long()).mean(1)),
                         table=nn.Embedding(CLASSES, 4, padding_idx=1), out=linear(4)), "batched"),
    "bags": (lambda: Own(lambda self, x: self.out(self.table(x.long())),
             table=nn.EmbeddingBag(CLASSES, 4), out=linear(4)), "batched"),
    "bags with padding": (lambda: Own(lambda self, x: self.out(self.table(x.long())),
                          table=nn.EmbeddingBag(CLASSES, 4, padding_idx=1), out=linear(4)), "batched"),
    "bags of maxima": (lambda: Own(lambda self, x: self.out(self.table(x.long())),
                       table=nn.EmbeddingBag(CLASSES, 4, mode="max"), out=linear(4)), "batched"),
    "gradients scaled by frequency": (lambda: Own(lambda self, x: self.out(self.table(x.long()).mean(1)),
                                      table=nn.Embedding(CLASSES, 4, scale_grad_by_freq=True), out=linear(4)),
                                      "one-by-one"),
    "bilinear": (lambda: Own(lambda self, x: self.a(x, x), a=nn.Bilinear(LENGTH, LENGTH, CLASSES)), "batched"),
    "a list": (in_a_list, "batched"),
    "checkpoint": (checkpointed(False), "one-by-one"),
    "reentrant checkpoint": (checkpointed(True), "one-by-one"),
    "a scan": (lambda: Own(scanned, a=linear(1, 4), out=linear(4)), "batched"),
    "an old function": (lambda: Own(lambda self, x: Squared.apply(self.a(x)), a=linear()), "one-by-one"),
    "a function for vmap": (lambda: Own(lambda self, x: SquaredForVmap.apply(self.a(x)), a=linear()), "batched"),
    "alpha dropout": (lambda: nn.Sequential(linear(6, 8), nn.SELU(), nn.AlphaDropout(0.3), linear(8)), "batched"),
    "random relu": (lambda: nn.Sequential(linear(6, 8), nn.RReLU(), linear(8)), "batched"),
    "normed groups": (lambda: nn.Sequential(linear(6, 8), nn.GroupNorm(2, 8), nn.LayerNorm(8), linear(8)), "batched"),
    "low rank": (lambda: nn.Sequential(LoRA(linear(6, 8), 2), nn.Tanh(), linear(8)), "batched"),
    "low rank everywhere": (lambda: Tokens(with_lora(gpt(), 2)), "batched"),
    "char-gpt": (lambda: Tokens(gpt(dropout=0.2)), "batched"),
    "char-gpt, untied": (lambda: Tokens(gpt(tied=False)), "batched"),
    "char-lstm": (lambda: Tokens(ef.build("char-lstm", (LENGTH,), CLASSES, hidden=6, dropout=0.3)), "batched"),
}  # fmt: skip
