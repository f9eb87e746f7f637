"""Models of text: tokens [batch, length] in, for each position the scores of the next token out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from everfed.checks import BelowOne, Checked, Count, CountOrZero
from everfed.data.targets import NEXT_TOKEN
from everfed.errors import InputError
from everfed.learning.models.adapters import add_lora, digest, load_pretrained
from everfed.learning.models.shapes import tokens


class _Lstm(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        # torch drops between layers alone, and warns of a dropout that one layer has no place for.
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.out = nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.lstm(self.embedding(x))[0])
        return scores


@dataclass(frozen=True)
class CharLstm(Checked):
    """The recurrent model of LEAF's Shakespeare (Caldas et al., 2018): an embedding of 8, two LSTM layers of 256.

    It gives the scores of the next token at every position. dropout: between the LSTM layers.

    embedding: numbers per token.
    hidden: units of a layer.
    layers: of LSTM cells.
    """

    tasks: ClassVar[tuple[str, ...]] = (NEXT_TOKEN,)
    embedding: Count = 8
    hidden: Count = 256
    layers: Count = 2
    dropout: BelowOne = 0.0

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        tokens(shape, "char-lstm")
        return _Lstm(outputs, self.embedding, self.hidden, self.layers, self.dropout)


class _Block(nn.Module):
    """Attention to earlier positions, then a hidden layer of four times the width; both pre-norm and residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.out(self._attend(self.norm(x))))
        further: Tensor = self.drop(self.down(F.gelu(self.up(self.mlp_norm(x)))))
        return x + further

    def _attend(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [3, batch, heads, length, -1]
        rate = self.rate if self.training else 0.0
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], dropout_p=rate, is_causal=True)
        return found.transpose(1, 2).flatten(2)


class _Gpt(nn.Module):
    def __init__(
        self, vocabulary: int, length: int, layers: int, width: int, heads: int, dropout: float, tied: bool
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for table in (self.tokens, self.positions, self.out):
            nn.init.normal_(table.weight, std=0.02)
        if tied:
            self.out.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.tokens(x) + self.positions.weight[: x.shape[1]])
        scores: Tensor = self.out(self.norm(self.blocks(x)))
        return scores


@dataclass(frozen=True)
class CharGpt(Checked):
    """A small decoder (as GPT-2): learned positions, `layers` of causal attention and GELU, normalised before each.

    length: the most tokens it can take; 0: as many as the samples have. tied: the output layer uses the embedding's
    weights. pretrained: a safetensors file of the same model's weights to begin with (`everfed export` writes it).
    lora: if not 0, only adapters of this rank of the attention's weights are trained (adapters.py), all else is frozen.

    layers: of attention.
    width: numbers per position.
    heads: of each attention.
    dropout: of attention and layers.
    """

    tasks: ClassVar[tuple[str, ...]] = (NEXT_TOKEN,)
    layers: Count = 4
    width: Count = 128
    heads: Count = 4
    dropout: BelowOne = 0.0
    tied: bool = True
    length: CountOrZero = 0
    pretrained: str = field(default="", metadata={"file": True})
    pretrained_sha256: str = ""  # of the file; a run folder holds it
    lora: CountOrZero = 0

    def pinned(self) -> CharGpt:
        """The same, tied to the content that the file of weights has now."""
        if not self.pretrained or self.pretrained_sha256:
            return self
        path = str(Path(self.pretrained).absolute())
        return replace(self, pretrained=path, pretrained_sha256=digest(path))

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        length = tokens(shape, "char-gpt")
        if self.width % self.heads:
            raise InputError(
                f"the model 'char-gpt' has width {self.width} and {self.heads} heads; "
                "the width must be a multiple of the heads."
            )
        if self.length and self.length < length:
            raise InputError(
                f"the model 'char-gpt' has length {self.length}, but the samples are {length} tokens long; "
                f"use length {length} or more, or 0 for theirs."
            )
        made: nn.Module = _Gpt(
            outputs, self.length or length, self.layers, self.width, self.heads, self.dropout, self.tied
        )
        if self.pretrained and not made.get_parameter("norm.weight").is_meta:  # built for its size alone
            load_pretrained(made, self.pretrained, self.pretrained_sha256)
        return add_lora(made, self.lora, "qkv") if self.lora else made
