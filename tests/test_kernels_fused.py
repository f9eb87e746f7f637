"""A ReLU that is fused with the layer before it: after every kind of layer that can take one, before every kind that
must stop its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import everfed as ef

pytest.importorskip("triton", reason="Triton is not installed here")
from everfed.engine import making
from kernel_models import CLASSES, Added, chain, images, task

SIDE = 6


class Twice(nn.Module):
    """Reads its input twice, and gives both together."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(5, 5, 1), nn.Conv2d(5, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


# What makes values, and the layer that a ReLU after it is fused with. All keep images of 5 channels.
MAKERS = {
    "convolution": (lambda: [nn.Conv2d(5, 5, 3, padding=1)], "Product"),
    "strided convolution": (lambda: [nn.Conv2d(5, 5, 3, 1, 1), nn.Tanh(), nn.Conv2d(5, 5, 3, 2, 1)], "Product"),
    "depthwise": (lambda: [nn.Conv2d(5, 5, 1), nn.Tanh(), nn.Conv2d(5, 5, 3, 1, 1, groups=5)], "Depthwise"),
    "norm": (lambda: [nn.Conv2d(5, 5, 1), nn.GroupNorm(1, 5)], "GroupNorm"),
    "sum": (lambda: [nn.Conv2d(5, 5, 1), Added(5)], "Sum"),
    "max pool": (lambda: [nn.Conv2d(5, 5, 1), nn.MaxPool2d(2, 1)], "MaxPool"),
    "max pool after a ReLU": (lambda: [nn.Conv2d(5, 5, 1), nn.ReLU(), nn.MaxPool2d(2, 1)], "MaxPool"),
    "mean pool": (lambda: [nn.Conv2d(5, 5, 1), nn.AvgPool2d(2, 1)], "MeanPool"),
}
# The same with an input image of three channels, whose convolution and max pool are one kernel.
FROM_IMAGES = {
    "convolution of the image": lambda: [nn.Conv2d(3, 5, 3, padding=1)],
    "fused with its pool": lambda: [nn.Conv2d(3, 5, 3, padding=1), nn.MaxPool2d(2)],
    "fused with its pool, and a ReLU between": lambda: [nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2)],
    "fused with its pool without a bias": lambda: [nn.Conv2d(3, 5, 3, bias=False), nn.MaxPool2d(3, 2, 1)],
    "a pool, flattened": lambda: [
        nn.Conv2d(3, 5, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(2),
        nn.Unflatten(2, (3, 3)),
    ],
}


def end():
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, CLASSES)


READERS = {
    "convolution": lambda: [nn.Conv2d(5, 5, 3, padding=1), *end()],
    "strided convolution": lambda: [nn.Conv2d(5, 5, 3, 2, 1), *end()],
    "depthwise": lambda: [nn.Conv2d(5, 5, 3, 1, 1, groups=5), *end()],
    "norm": lambda: [nn.GroupNorm(1, 5), *end()],
    "sum": lambda: [Added(5), *end()],
    "fork": lambda: [Twice(), *end()],
    "max pool": lambda: [nn.MaxPool2d(2), *end()],
    "mean pool": lambda: [nn.AvgPool2d(2), *end()],
    "global mean": lambda: [*end()],
    "dropout": lambda: [nn.Dropout(0.3), *end()],
    "activation": lambda: [nn.SiLU(), *end()],
    "another ReLU": lambda: [nn.ReLU(), *end()],
    "torch": lambda: [nn.Softplus(), *end()],
    "linear": lambda: [nn.Flatten(), nn.LazyLinear(CLASSES)],
    "nothing that counts, and then the loss": lambda: [nn.AdaptiveAvgPool2d(1), nn.ReLU(), nn.Flatten(), nn.Identity()],
}


def assert_gradients_agree(model, shape):
    """Of every parameter: a step of rate 1 is the gradient."""
    data = images(shape)
    once = {"batch_size": 3, "local_steps": 1}
    fast, slow = (ef.TRAINERS[t](task(model, data, ef.SGD(1.0), **once)) for t in ("kernels", "one-by-one"))
    params = fast.task.layout.flatten(model)
    got, expected = (torch.cat([p.deltas for p in t.train(params, np.array([0, 2]), 0)]) for t in (fast, slow))
    sizes = fast.task.layout.sizes
    for a, b, name in zip(got.split(sizes, 1), expected.split(sizes, 1), fast.task.layout.names, strict=True):
        assert (a - b).norm() <= 1e-4 * expected.norm(), name


def built(layers, shape):
    torch.manual_seed(1)
    model = chain(*layers())
    model(torch.zeros(2, *shape))  # lazy layers
    for p in model.parameters():
        with torch.no_grad():
            p.mul_(1.5) if p.ndim > 1 else p.normal_(0.0, 0.3)  # about half of the units are dead
    return model


def test_the_table_names_all_layers_that_take_a_relu():
    assert {kind for _, kind in MAKERS.values()} == {kind.__name__ for kind in making._FUSE_RELU}


# The others take too long in Triton's interpreter.
SHORT = ("max pool", "linear", "nothing that counts, and then the loss")


def most_long(names):
    return [pytest.param(name, marks=[pytest.mark.long] * (name not in SHORT)) for name in names]


@pytest.mark.parametrize("maker", most_long(MAKERS))
def test_every_reader_stops_the_gradient_of_a_fused_relu(maker):
    for reader in READERS.values():
        shape = (5, SIDE, SIDE)
        assert_gradients_agree(built(lambda r=reader: [*MAKERS[maker][0](), nn.ReLU(), *r()], shape), shape)


@pytest.mark.parametrize("reader", most_long(READERS))
def test_a_relu_after_the_kernel_of_a_convolution_and_its_pool(reader):
    shape = (3, SIDE, SIDE)
    for maker in FROM_IMAGES.values():
        assert_gradients_agree(built(lambda m=maker: [*m(), nn.ReLU(), *READERS[reader]()], shape), shape)


@pytest.mark.parametrize("last", [nn.Identity, nn.Flatten, lambda: nn.Dropout(0.0)], ids=["id", "flatten", "dropout"])
@pytest.mark.parametrize(
    "layers",
    [
        [nn.Linear(8, CLASSES), nn.ReLU()],
        [nn.Linear(8, CLASSES), nn.LayerNorm(CLASSES), nn.ReLU()],
        [nn.Linear(8, CLASSES), nn.ReLU(), nn.ReLU()],
    ],
)
def test_a_relu_whose_output_is_the_logits(layers, last):
    """The loss's kernel does not ask whether a ReLU was before it, whatever costs nothing comes in between."""
    assert_gradients_agree(chain(*layers, last()), (8,))
