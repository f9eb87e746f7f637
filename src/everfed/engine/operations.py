"""What an operation of a traced model is called by the lowering rules, and with which options."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

Operation = tuple[str | None, dict[str, Any]]

_MODULES: dict[type, Callable[[Any], Operation]] = {
    nn.Conv2d: lambda m: ("conv2d", {"module": m}),
    nn.Linear: lambda m: ("linear", {"module": m}),
    nn.GroupNorm: lambda m: ("group_norm", {"module": m}),
    nn.LayerNorm: lambda m: ("layer_norm", {"module": m}),
    nn.ReLU: lambda m: ("relu", {}),
    nn.ReLU6: lambda m: ("activation", {"kind": "relu6"}),
    nn.LeakyReLU: lambda m: ("activation", {"kind": "leaky", "slope": m.negative_slope}),
    nn.Tanh: lambda m: ("activation", {"kind": "tanh"}),
    nn.Sigmoid: lambda m: ("activation", {"kind": "sigmoid"}),
    nn.SiLU: lambda m: ("activation", {"kind": "silu"}),
    nn.GELU: lambda m: ("activation", {"kind": _gelu(m.approximate)}),
    nn.Flatten: lambda m: ("flatten", {}),
    nn.Identity: lambda m: ("identity", {}),
    nn.Dropout: lambda m: ("dropout", {"rate": m.p}),
    nn.MaxPool2d: lambda m: (
        "max_pool",
        {"window": m.kernel_size, "stride": m.stride, "padding": m.padding, "dilation": m.dilation},
    ),
    nn.AvgPool2d: lambda m: (
        "mean_pool",
        {
            "window": m.kernel_size,
            "stride": m.stride,
            "padding": m.padding,
            "plain": m.divisor_override is None and not m.ceil_mode,
        },
    ),
    nn.AdaptiveAvgPool2d: lambda m: ("global_mean", {}) if _one(m.output_size) else (None, {}),
}

_RELU = (F.relu, F.relu_, torch.relu, torch.relu_)
_ADD = (operator.add, operator.iadd, torch.add)
_SIMPLE: dict[Any, str] = {
    torch.tanh: "tanh", F.tanh: "tanh", torch.tanh_: "tanh", torch.sigmoid: "sigmoid", F.sigmoid: "sigmoid",
    torch.sigmoid_: "sigmoid", F.silu: "silu", F.relu6: "relu6",
}  # fmt: skip
_LEAKY = (F.leaky_relu, F.leaky_relu_)


def operation(node: fx.Node, graph: fx.GraphModule) -> Operation:
    """The lowering rule of a node and its options; (None, {}) without a rule."""
    if node.op == "call_module":
        module = graph.get_submodule(str(node.target))
        return _MODULES[type(module)](module) if type(module) in _MODULES else (None, {})
    named = node.target if node.op == "call_method" else None
    if node.target in _RELU or named in ("relu", "relu_"):
        return "relu", {}
    if node.target in _SIMPLE or named in ("tanh", "sigmoid", "tanh_", "sigmoid_"):
        return "activation", {"kind": _SIMPLE.get(node.target, str(named).rstrip("_"))}
    if node.target in _LEAKY:
        slope = node.kwargs.get("negative_slope", node.args[1] if len(node.args) > 1 else 0.01)
        return ("activation", {"kind": "leaky", "slope": slope}) if isinstance(slope, int | float) else (None, {})
    if node.target is F.gelu:
        return "activation", {"kind": _gelu(node.kwargs.get("approximate", "none"))}
    if node.target is torch.flatten or named in ("flatten", "view", "reshape"):
        return "flatten", {}
    if node.target in _ADD or named in ("add", "add_"):
        both = len(node.args) == 2 and all(isinstance(a, fx.Node) for a in node.args) and not node.kwargs
        return ("add", {}) if both else (None, {})
    if node.target is F.adaptive_avg_pool2d:
        return ("global_mean", {}) if len(node.args) == 2 and _one(node.args[1]) else (None, {})
    if node.target is torch.mean or named == "mean":
        return _mean(node)
    if node.target in (F.max_pool2d, F.avg_pool2d):
        return _functional_pool(node)
    return None, {}


def in_place(node: fx.Node, graph: fx.GraphModule) -> bool:
    """Whether an operation writes into what it reads."""
    if node.op == "call_module":
        return bool(getattr(graph.get_submodule(str(node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    asked = bool(node.kwargs.get("inplace")) or any(a is True for a in node.args)  # F.relu(x, True)
    return asked or node.target is operator.iadd or name.endswith("_")


def _gelu(approximate: Any) -> str:
    return "gelu" if approximate == "none" else "gelu by tanh"


def _one(size: Any) -> bool:
    return bool(size == 1 or (isinstance(size, tuple | list) and list(size) == [1, 1]))


def _mean(node: fx.Node) -> Operation:
    given = {**dict(zip(("input", "dim", "keepdim"), node.args, strict=False)), **node.kwargs}
    dims = given.get("dim")
    over = isinstance(dims, tuple | list) and sorted(d % 4 for d in dims if isinstance(d, int)) == [2, 3]
    image = len(getattr(_input_of(node), "shape", ())) == 4
    return ("global_mean", {}) if over and image and "dtype" not in given and len(node.args) <= 3 else (None, {})


def _input_of(node: fx.Node) -> Any:
    return node.args[0].meta.get("tensor_meta") if node.args and isinstance(node.args[0], fx.Node) else None


def _functional_pool(node: fx.Node) -> Operation:
    names = ("input", "kernel_size", "stride", "padding")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    known = {"window": given.get("kernel_size"), "stride": given.get("stride"), "padding": given.get("padding", 0)}
    if len(node.args) > len(names):
        return None, {}
    if node.target is F.max_pool2d:
        return "max_pool", {**known, "dilation": given.get("dilation", 1)}
    plain = given.get("divisor_override") is None and not given.get("ceil_mode", False)
    return "mean_pool", {**known, "plain": plain}
