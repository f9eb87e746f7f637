"""Single operations that models are made of: `auto` must train each of them as one client at a time is trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo import CLASSES, Own, linear


def row(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def shaped(*shape: int) -> nn.Module:
    return nn.Unflatten(1, shape)


def between(forward, inner: int, outer: int) -> nn.Module:
    """An operation on what a linear layer gives, and a linear layer behind it."""
    return Own(lambda self, x: self.out(forward(self.a(x))), a=linear(6, inner), out=linear(outer))


def embedded(forward, layer: nn.Module, outer: int = 8) -> nn.Module:
    """A layer over embedded tokens."""
    return Own(lambda self, x: self.out(forward(self.layer, self.table(x.long()))),
               table=nn.Embedding(CLASSES, 8), layer=layer, out=linear(outer))  # fmt: skip


def in_place(values: Tensor) -> Tensor:
    values = values.clone()
    values[:, :3] = values[:, 3:6] * 2
    return values


def slope(self, x: Tensor) -> Tensor:
    """A gradient inside of the forward pass, as of an energy."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(torch.tanh(self.a(x)).sum(), x, create_graph=True)
    return self.out(found)


def symmetric(values: Tensor) -> Tensor:
    matrix = values.view(-1, 3, 3)
    return matrix @ matrix.mT + torch.eye(3)


def by_experts(self, x: Tensor) -> Tensor:
    which = (x.sum(1) > 14).long()[:, None, None].expand(-1, 1, CLASSES)
    return torch.stack([self.a(x), self.b(x)], 1).gather(1, which)[:, 0]


CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)

# ruff: noqa: E501 - one operation a line, however long
# fmt: off
OPERATIONS = {
    "transposed convolution": lambda: row(shaped(1, 2, 3), nn.ConvTranspose2d(1, 3, 2, stride=2), nn.Flatten(), linear(72)),
    "grouped convolution": lambda: row(shaped(2, 1, 3), nn.Conv2d(2, 4, (1, 2), groups=2, bias=False), nn.Flatten(), linear(8)),
    "circular padding": lambda: row(shaped(1, 6), nn.Conv1d(1, 3, 3, padding=2, dilation=2, padding_mode="circular"), nn.Flatten(), linear(18)),
    "reflected padding": lambda: row(shaped(1, 6), nn.Conv1d(1, 3, 3, padding="same", padding_mode="reflect"), nn.Flatten(), linear(18)),
    "three dimensions": lambda: row(shaped(1, 1, 2, 3), nn.Conv3d(1, 2, (1, 2, 2)), nn.Flatten(), linear(4)),
    "channels last": lambda: Own(lambda self, x: self.out(self.a(x.view(-1, 1, 2, 3).to(memory_format=torch.channels_last)).flatten(1)), a=nn.Conv2d(1, 4, 2), out=linear(8)),
    "instance norm": lambda: row(shaped(2, 3), nn.InstanceNorm1d(2, affine=True), nn.Flatten(), linear()),
    "rms norm": lambda: row(linear(6, 8), nn.RMSNorm(8), linear(8)),
    "response norm": lambda: row(shaped(3, 2), nn.LocalResponseNorm(2), nn.Flatten(), linear()),
    "prelu": lambda: row(linear(6, 8), nn.PReLU(8), linear(8), nn.PReLU()),
    "glu": lambda: row(linear(6, 16), nn.GLU(), linear(8)),
    "pool and its inverse": lambda: between(lambda h: F.max_unpool1d(*F.max_pool1d(h[:, None], 2, return_indices=True), 2).flatten(1), 8, 8),
    "adaptive pools": lambda: row(linear(6, 12), shaped(1, 3, 4), nn.AdaptiveMaxPool2d((2, 3)), nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), linear(2)),
    "root mean pool": lambda: row(linear(6, 12), shaped(1, 12), nn.LPPool1d(2, 3), nn.Flatten(), linear(4)),
    "random pool": lambda: row(linear(6, 16), shaped(1, 4, 4), nn.FractionalMaxPool2d(2, output_size=2), nn.Flatten(), linear(4)),
    "upsampling": lambda: row(linear(6, 6), shaped(1, 2, 3), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Flatten(), linear(24)),
    "pixel shuffle": lambda: row(linear(6, 16), shaped(4, 2, 2), nn.PixelShuffle(2), nn.Flatten(), linear(16)),
    "unfold and fold": lambda: between(lambda h: F.fold(F.unfold(h.view(-1, 1, 3, 4), 2), (3, 4), 2).flatten(1), 12, 12),
    "spatial transformer": lambda: between(lambda h: F.grid_sample(h[:, :6].view(-1, 1, 2, 3), torch.tanh(h[:, 6:]).view(-1, 2, 2, 2), align_corners=False).flatten(1), 14, 4),
    "outer product": lambda: between(lambda h: torch.einsum("bi,bj->bij", h, h).flatten(1), 4, 16),
    "spectrum": lambda: between(lambda h: torch.fft.rfft(h).abs(), 8, 5),
    "complex numbers": lambda: between(lambda h: torch.view_as_real(torch.complex(h, -h) ** 2).flatten(1), 4, 8),
    "spectrogram": lambda: between(lambda h: torch.stft(h, 8, 4, window=torch.hann_window(8), return_complex=True).abs().mean(-1), 16, 5),
    "distances": lambda: Own(lambda self, x: -torch.cdist(self.a(x), self.out.weight), a=linear(6, 4), out=linear(4)),
    "cosines": lambda: Own(lambda self, x: F.cosine_similarity(self.a(x)[:, None], self.out.weight[None], dim=-1), a=linear(6, 4), out=linear(4)),
    "sorting": lambda: between(lambda h: h.sort(1).values + h.topk(8, 1).values, 8, 8),
    "ranks": lambda: between(lambda h: h * h.kthvalue(2, 1, keepdim=True).values + h.median(1, keepdim=True).values, 8, 8),
    "running sums": lambda: between(lambda h: h.cumsum(1) + torch.sigmoid(h).cumprod(1) + h.logcumsumexp(1), 8, 8),
    "scattering": lambda: Own(lambda self, x: torch.zeros(len(x), 5).scatter_add(1, x.long(), self.a(x)), a=linear(6, 6)),
    "scattering in place": lambda: Own(lambda self, x: torch.zeros(len(x), 5).scatter_add_(1, x.long(), self.a(x)), a=linear(6, 6)),
    "writing into a slice": lambda: between(in_place, 8, 8),
    "choosing rows": lambda: Own(lambda self, x: torch.where(x.sum(1, keepdim=True) > 14, self.a(x), self.b(x)), a=linear(), b=linear()),
    "experts": lambda: Own(by_experts, a=linear(), b=linear()),
    "a mask of each sample": lambda: between(lambda h: torch.stack([r[r > r.min()].mean() for r in h])[:, None], 8, 1),
    "solving": lambda: between(lambda h: torch.linalg.solve(symmetric(h), h[:, :3, None])[..., 0], 9, 3),
    "cholesky": lambda: between(lambda h: torch.linalg.cholesky(symmetric(h)).flatten(1), 9, 9),
    "singular values": lambda: between(lambda h: torch.linalg.svdvals(h.view(-1, 3, 4)), 12, 3),
    "determinants": lambda: between(lambda h: torch.tanh(h) * torch.linalg.det(symmetric(torch.tanh(h)))[:, None], 9, 9),
    "decoder": lambda: embedded(lambda layer, h: layer(h, h).mean(1), nn.TransformerDecoderLayer(8, 2, 16, dropout=0.1, batch_first=True)),
    "causal encoder": lambda: embedded(lambda layer, h: layer(h, src_mask=CAUSAL, is_causal=True).mean(1), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)),
    "encoder and decoder": lambda: embedded(lambda layer, h: layer(h, h).mean(1), nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)),
    "attention's weights": lambda: embedded(lambda layer, h: layer(h, h, h)[1].flatten(1), nn.MultiheadAttention(8, 2, batch_first=True), 36),
    "grouped queries": lambda: between(lambda h: F.scaled_dot_product_attention(h[:, :32].view(-1, 4, 2, 4), *(h[:, 32:].view(-1, 2, 2, 4),) * 2, enable_gqa=True).flatten(1), 48, 32),
    "weighted bags": lambda: Own(lambda self, x: self.out(self.table(x.long(), per_sample_weights=self.a(x))), table=nn.EmbeddingBag(CLASSES, 4, mode="sum"), a=linear(6, 6), out=linear(4)),
    "dropout of channels": lambda: row(linear(6, 12), shaped(3, 2, 2), nn.Dropout2d(0.4), nn.Flatten(2), nn.Dropout1d(0.3), nn.Flatten(), linear(12)),
    "sequences first": lambda: Own(lambda self, x: self.out(self.layer(x.T[..., None])[0][-1]), layer=nn.GRU(1, 4), out=linear(4)),
    "one sequence at a time": lambda: Own(lambda self, x: self.out(torch.stack([self.layer(r[:, None])[1][0] for r in x])), layer=nn.GRU(1, 4), out=linear(4)),
    "double precision inside": lambda: between(lambda h: h.double().cumsum(1).float(), 8, 8),
    "a stopped gradient": lambda: between(lambda h: h.detach() + 0.5 * h, 8, 8),
    "a gradient inside": lambda: Own(slope, a=linear(6, 8), out=linear()),
    "vmap inside": lambda: between(torch.func.vmap(lambda r: torch.outer(r, r).flatten()), 3, 9),
    "a number from weights": lambda: Own(lambda self, x: self.a(x) * float(self.a.weight.norm()), a=linear()),
    "numpy inside": lambda: Own(lambda self, x: self.a(torch.from_numpy(x.numpy()) + 1), a=linear()),
}
# fmt: on
