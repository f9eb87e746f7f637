"""The layers of a model while they are made: one rule for each operation that kernels exist for."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from everfed.engine.activations import Activation
from everfed.engine.depthwise import Depthwise
from everfed.engine.joins import Fork, Sum
from everfed.engine.layers import Layer
from everfed.engine.norms import GroupNorm
from everfed.engine.pointwise import Dropout, Rebox
from everfed.engine.pools import GlobalMean, MaxPool, MeanPool
from everfed.engine.product import Product
from everfed.engine.values import Value

Snapshot = tuple[list[Layer], Value, int, list[tuple[Any, dict[str, Any]]]]

_FUSE_RELU = (Product, Depthwise, GroupNorm, Sum, MaxPool, MeanPool)


class Making:
    """The layers so far, and the value where they end. A rule adds layers, or returns the reason why it cannot."""

    def __init__(self, value: Value, names: dict[int, str], dot: str, fused: bool) -> None:
        """names: of the trainable parameters, by their identity."""
        self.value, self.names, self.dot, self.fused = value, names, dot, fused
        self.input = value
        self.layers: list[Layer] = []
        self.calls = 0  # dropout layers so far

    def snapshot(self) -> Snapshot:
        """What `restore` needs to undo rules, which also change layers and values that were there before."""
        values = [self.input, *(v for layer in self.layers for v in layer.results)]
        kept = [(thing, dict(vars(thing))) for thing in (*values, *self.layers)]
        return list(self.layers), self.value, self.calls, kept

    def restore(self, before: Snapshot) -> None:
        self.layers, self.value, self.calls, kept = before
        for thing, state in kept:
            thing.__dict__.clear()
            thing.__dict__.update(state)

    def add(self, layer: Layer) -> None:
        self.layers.append(layer)
        self.value = layer.result

    def name(self, title: str) -> None:
        """Name the layers that were added last; one that a ReLU is fused with keeps its own name."""
        for layer in self.layers:
            layer.title = layer.title or title

    def shared(self, readers: int) -> list[Value]:
        """The value for so many readers, one each."""
        if readers <= 1:
            return [self.value]
        fork = Fork(self.value, readers)
        self.layers.append(fork)
        return list(fork.results)

    def rebox(self) -> None:
        v = self.value
        self.add(Rebox(v, Value(v.channels, v.height, v.width, flat=True, wanted=v.wanted, stride=v.stride)))

    def add_conv2d(self, node: fx.Node, module: nn.Conv2d) -> str | None:
        kernel = (module.kernel_size[0], module.kernel_size[1])
        padding = module.padding
        if padding == "same" and kernel[0] % 2 and kernel[1] % 2:
            padding = (kernel[0] // 2, kernel[1] // 2)
        elif padding == "valid":
            padding = (0, 0)
        if isinstance(padding, str):
            return "an even kernel with padding 'same'"
        depthwise = module.groups == module.in_channels == module.out_channels > 1
        for wrong, why in (
            (module.stride[0] != module.stride[1], "its strides differ"),
            (module.dilation != (1, 1), "it is dilated"),
            (module.groups != 1 and not depthwise, "it has groups"),
            (module.padding_mode != "zeros", "it does not pad with zeros"),
            (padding[0] >= kernel[0] or padding[1] >= kernel[1], "its padding is as wide as its kernel"),
            (not self._trainable(module), "its parameters are frozen or shared"),
            (self.value.flat, "its input is flat"),
            (depthwise and self.value.stride % 16 > 0, "its input is not a layer's result"),
        ):
            if wrong:
                return why
        result = value_of(shape_of(node) or ())
        weight, bias = self._names(module)
        up_left = (padding[0], padding[1])
        if depthwise:
            self.add(Depthwise(self.value, result, weight, bias, kernel, up_left, module.stride[0]))
        else:
            stride = module.stride[0]
            self.add(Product(self.value, result, weight, bias, kernel, up_left, self.dot, stride, self.fused))
        return None

    def add_linear(self, node: fx.Node, module: nn.Linear) -> str | None:
        if not self.value.flat and (self.value.pixels > 1 or len(node.meta["tensor_meta"].shape) != 2):
            return "its input is not flat"
        if not self._trainable(module):
            return "its parameters are frozen or shared"
        if self.value.grad_border or self.value.of is not None:  # other readers may want a border around the data
            self.rebox()
        weight, bias = self._names(module)
        result = value_of(shape_of(node) or ())
        self.add(Product(self.value, result, weight, bias, precision=self.dot, fused=self.fused))
        return None

    def add_group_norm(self, node: fx.Node, module: nn.GroupNorm) -> str | None:
        return self._norm(module, module.num_groups, module.eps)

    def add_layer_norm(self, node: fx.Node, module: nn.LayerNorm) -> str | None:
        if self.value.pixels > 1 or tuple(module.normalized_shape) != (self.value.channels,):
            return "it does not normalise single vectors"
        return self._norm(module, 1, module.eps)

    def _norm(self, module: nn.GroupNorm | nn.LayerNorm, groups: int, eps: float) -> str | None:
        v = self.value
        for wrong, why in (
            (v.stride % 16, "its input is not a layer's result"),
            (v.flat and v.pixels > 1, "its input is a flattened image"),
            (not self._trainable(module), "its parameters are frozen or shared"),
            ((module.weight is None) != (module.bias is None), "it has no bias"),
        ):
            if wrong:
                return why
        weight = self.names[id(module.weight)] if module.weight is not None else None
        bias = self.names[id(module.bias)] if module.bias is not None else None
        self.add(GroupNorm(v, self._alike(), groups, eps, weight, bias))
        return None

    def add_relu(self, node: fx.Node) -> str | None:
        before = next((layer for layer in reversed(self.layers) if layer.result is self.value), None)
        if isinstance(before, _FUSE_RELU) and not self.value.relu:
            self.value.relu = True
            return None
        return self.add_activation(node, "relu")

    def add_activation(self, node: fx.Node, kind: str, slope: float = 0.0) -> str | None:
        if self.value.stride % 16:
            return "its input is not a layer's result"
        self.add(Activation(self.value, self._alike(), kind, slope))
        return None

    def add_add(self, node: fx.Node, other: Value) -> str | None:
        a, b = self.value, other
        if (a.channels, a.height, a.width, a.flat) != (b.channels, b.height, b.width, b.flat):
            return "its inputs have different shapes"
        if a.stride % 16 or b.stride % 16:
            return "its input is not a layer's result"
        wanted = a.wanted or b.wanted
        self.add(Sum(a, b, Value(a.channels, a.height, a.width, flat=a.flat, wanted=wanted, stride=a.stride)))
        return None

    def add_flatten(self, node: fx.Node) -> str | None:
        if shape_of(node) != (self.value.channels * self.value.pixels,):
            return "it does not make one row of each sample"
        self.value.flat = True
        return None

    def add_max_pool(self, node: fx.Node, window: Any, stride: Any, padding: Any, dilation: Any) -> str | None:
        size, step, pad = _square(window), _square(stride if stride not in (None, ()) else window), _square(padding)
        if size is None or step is None or pad is None or _square(dilation) != 1:
            return "its windows are not square or are dilated"
        if size > 15:
            return "its windows are wider than 15"
        if self.value.flat or self.value.stride % 16:
            return "its input is not a layer's image"
        source = self.value
        pool = MaxPool(source, value_of(shape_of(node) or ()), size, step, pad)
        before = self.layers[-1] if self.layers else None
        if isinstance(before, Product) and before.result is source and not before.linear:
            before.pool, pool.conv = pool, before
        self.add(pool)
        return None

    def add_mean_pool(self, node: fx.Node, window: Any, stride: Any, padding: Any, plain: bool) -> str | None:
        size, step = _square(window), _square(stride if stride not in (None, ()) else window)
        if size is None or step is None or _square(padding) != 0 or not plain:
            return "its windows are not square, are padded, or divide by something else"
        if self.value.flat or self.value.stride % 16:
            return "its input is not a layer's image"
        self.add(MeanPool(self.value, value_of(shape_of(node) or ()), size, step))
        return None

    def add_global_mean(self, node: fx.Node) -> str | None:
        if self.value.flat or self.value.stride % 16:
            return "its input is not a layer's image"
        self.add(GlobalMean(self.value, value_of(shape_of(node) or ())))
        return None

    def add_dropout(self, node: fx.Node, rate: float) -> str | None:
        if rate == 0.0:
            return None
        if rate >= 1.0:
            return "it drops everything"
        if self.value.stride % 16:
            return "its input is not a layer's result"
        self.add(Dropout(self.value, self._alike(), rate, self.calls))
        self.calls += 1
        return None

    def add_identity(self, node: fx.Node) -> None:
        return None

    def _alike(self) -> Value:
        v = self.value
        return Value(v.channels, v.height, v.width, flat=v.flat, wanted=v.wanted, stride=v.stride)

    def _names(self, module: nn.Conv2d | nn.Linear) -> tuple[str, str | None]:
        return self.names[id(module.weight)], self.names[id(module.bias)] if module.bias is not None else None

    def _trainable(self, module: nn.Module) -> bool:
        return all(id(p) in self.names for p in module.parameters(recurse=False))


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of one sample of a node's output, if it can be a value between layers."""
    meta = node.meta.get("tensor_meta")
    shape = getattr(meta, "shape", None)
    if shape is None or len(shape) not in (2, 4) or shape[0] != 2:
        return None
    return tuple(shape[1:])


def value_of(shape: tuple[int, ...]) -> Value:
    return Value(shape[0], flat=True) if len(shape) == 1 else Value(shape[0], shape[1], shape[2])


def _square(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    return int(size[0]) if len(set(size)) == 1 else None
