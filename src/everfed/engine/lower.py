"""From a torch module to layers with kernels: which parts are lowered, which are not, and why.

The module is traced. Where exactly one tensor is alive between two operations, the model can be
cut; a piece of one operation that a kernel exists for becomes a layer, and everything else stays
with torch, in segments as long as needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from everfed.engine.layers import Layer
from everfed.engine.pointwise import Dropout, Rebox
from everfed.engine.pools import MaxPool, MeanPool
from everfed.engine.product import Product
from everfed.engine.segment import Segment
from everfed.engine.values import Value
from everfed.learning.dropout import counted_dropout
from everfed.learning.task import Task

# How Triton multiplies float32 numbers: "tf32x3" splits each into three TF32 products, about as exact as float32.
_DOT = {"float32": "tf32x3", "tf32": "tf32", "bf16": "tf32"}


# Layers for which it pays to leave torch's operations.
_WORTH_A_CUT = ("conv2d", "linear", "max_pool", "mean_pool")


class CannotLowerError(Exception):
    """Why a model must be trained by the general path."""


@dataclass(frozen=True)
class Lowered:
    """A model as a chain of layers, and one line for each of its operations that says how it runs."""

    input: Value
    layers: list[Layer]
    output: Value
    notes: list[str]


def lower(task: Task, exact: bool = False) -> Lowered:
    """The task's model as layers, or `CannotLowerError`. exact: true float32 products, for the interpreter."""
    try:
        graph = fx.symbolic_trace(task.module)
        sample = task.data.inputs(2)
        with torch.no_grad(), counted_dropout(task.seed, torch.zeros((), dtype=torch.int64, device=sample.device), 0):
            ShapeProp(graph).propagate(sample)
    except Exception as error:  # tracing runs the user's code, which may raise anything
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CannotLowerError(f"the model cannot be traced ({reason})") from error
    return _Lowering(task, graph, tuple(sample.shape[1:]), "ieee" if exact else _DOT[task.precision]).run()


class _Lowering:
    def __init__(self, task: Task, graph: fx.GraphModule, shape: tuple[int, ...], dot: str) -> None:
        self.task, self.graph, self.dot = task, graph, dot
        self.names = {id(p): name for name, p in task.module.named_parameters() if name in set(task.layout.names)}
        self.layers: list[Layer] = []
        self.notes: list[str] = []
        self.pending: list[fx.Node] = []
        self.calls = 0  # dropout layers so far
        self.value = self.input = _input(shape)
        nodes = list(graph.graph.nodes)
        if sum(n.op == "placeholder" for n in nodes) != 1:
            raise CannotLowerError("the model takes more than one argument")
        (self.start,) = (n for n in nodes if n.op == "placeholder")
        (end,) = (n for n in nodes if n.op == "output")
        if not isinstance(end.args[0], fx.Node):
            raise CannotLowerError("the model returns more than one tensor")
        self.last = end.args[0]
        self.nodes = [n for n in nodes if n.op not in ("placeholder", "output")]
        idle = [n for n in self.nodes if not n.users]
        if idle:  # it may change its input in place, and where it stands it could be taken for the output
            raise CannotLowerError(f"nothing uses the result of its operation '{idle[0]}'")

    def run(self) -> Lowered:
        for piece in _pieces(self.start, self.nodes):
            node = piece[-1]
            tensors = [n for n in piece if "tensor_meta" in n.meta or n.op == "get_attr"]
            reason = self._lower_node(node) if tensors == [node] else "several tensors at once"
            if reason is not None:
                self.pending.extend(piece)
            how = "kernel" if reason is None else f"torch, {reason}"
            self.notes.append(f"{_title(node, self.graph)}: {how}")
        if self.pending:
            self._close()
        if not any(isinstance(layer, Product) for layer in self.layers):
            raise CannotLowerError("no convolution or linear layer of it has a kernel")
        self._check_shared()
        if self.value.pixels > 1:
            raise CannotLowerError("its outputs are not one row of logits per sample, or are a flattened image")
        if self.value.grad_border:  # the loss writes gradients without a border
            self._rebox()
        return Lowered(self.input, self.layers, self.value, self.notes)

    def _lower_node(self, node: fx.Node) -> str | None:
        """Add a layer for this operation; or say why not."""
        kind, options = _operation(node, self.graph)
        if kind is None:
            return "no kernel for it"
        if _shape(node) is None:
            return "its output is neither a vector nor an image"
        if self.pending and (kind not in _WORTH_A_CUT or _shape(self.pending[-1]) is None):
            return "runs with the previous operation"
        before = (list(self.layers), self.pending, self.value, self.calls)
        if self.pending:
            self._close()
        reason: str | None = getattr(self, f"_{kind}")(node, **options)
        if reason is not None:
            self.layers, self.pending, self.value, self.calls = before
        return reason

    def _close(self) -> None:
        """Turn the operations that wait into one segment."""
        nodes, source = self.pending, self.value
        self.pending = []
        shape = _shape(nodes[-1])
        if shape is None:
            raise CannotLowerError(f"the output of {nodes[-1]} is neither flat nor an image")
        made = fx.Graph()
        (start,) = {i for n in nodes for i in n.all_input_nodes if i not in nodes} or {self.start}
        copies = {start: made.placeholder("x")}
        for node in nodes:
            copies[node] = made.node_copy(node, lambda n: copies[n])
        made.output(copies[nodes[-1]])
        module = fx.GraphModule(self.graph, made)
        names = {}
        for name, p in module.named_parameters():
            if p.requires_grad:
                names[name] = self.names[id(p)] if id(p) in self.names else _missing(name)
        result = _value(shape)
        seed = self.task.seed
        self.layers.append(Segment(source, result, module, names, self.calls, seed, self.task.precision))
        self.calls += _dropout_calls(module, source, self.task)
        self.value = result

    def _conv2d(self, node: fx.Node, module: nn.Conv2d) -> str | None:
        kernel = (module.kernel_size[0], module.kernel_size[1])
        padding = module.padding
        if padding == "same" and kernel[0] % 2 and kernel[1] % 2:
            padding = (kernel[0] // 2, kernel[1] // 2)
        elif padding == "valid":
            padding = (0, 0)
        if isinstance(padding, str):
            return "an even kernel with padding 'same'"
        for wrong, why in (
            (module.stride != (1, 1), "its stride is not 1"),
            (module.dilation != (1, 1), "it is dilated"),
            (module.groups != 1, "it has groups"),
            (module.padding_mode != "zeros", "it does not pad with zeros"),
            (padding[0] >= kernel[0] or padding[1] >= kernel[1], "its padding is as wide as its kernel"),
            (not self._trainable(module), "its parameters are frozen or shared"),
            (self.value.flat, "its input is flat"),
        ):
            if wrong:
                return why
        self._product(node, module, kernel, (padding[0], padding[1]))
        return None

    def _linear(self, node: fx.Node, module: nn.Linear) -> str | None:
        if not self.value.flat and (self.value.pixels > 1 or len(node.meta["tensor_meta"].shape) != 2):
            return "its input is not flat"
        if not self._trainable(module):
            return "its parameters are frozen or shared"
        if self.value.grad_border:
            self._rebox()
        self._product(node, module, None, (0, 0))
        return None

    def _product(
        self, node: fx.Node, module: nn.Conv2d | nn.Linear, kernel: tuple[int, int] | None, padding: tuple[int, int]
    ) -> None:
        result = _value(_shape(node) or ())
        bias = self.names[id(module.bias)] if module.bias is not None else None
        weight = self.names[id(module.weight)]
        self.layers.append(Product(self.value, result, weight, bias, kernel, padding, self.dot))
        self.value = result

    def _rebox(self) -> None:
        v = self.value
        self.value = Value(v.channels, v.height, v.width, flat=True, wanted=v.wanted, stride=v.stride)
        self.layers.append(Rebox(v, self.value))

    def _relu(self, node: fx.Node) -> str | None:
        before = self.layers[-1] if self.layers else None
        fused = isinstance(before, Product | MaxPool | MeanPool) and before.result is self.value
        if not fused or self.value.relu or node is self.last:
            return "a ReLU is fused with the layer before it, and this one has none"
        self.value.relu = True
        return None

    def _flatten(self, node: fx.Node) -> str | None:
        if _shape(node) != (self.value.channels * self.value.pixels,):
            return "it does not make one row of each sample"
        self.value.flat = True
        return None

    def _max_pool(self, node: fx.Node, window: Any, stride: Any, padding: Any, dilation: Any) -> str | None:
        size, step, pad = _square(window), _square(stride if stride not in (None, ()) else window), _square(padding)
        if size is None or step is None or pad is None or _square(dilation) != 1:
            return "its windows are not square or are dilated"
        if size > 15:
            return "its windows are wider than 15"
        if self.value.flat or self.value.stride % 16:
            return "its input is not a layer's image"
        source, result = self.value, _value(_shape(node) or ())
        pool = MaxPool(source, result, size, step, pad)
        before = self.layers[-1] if self.layers else None
        if isinstance(before, Product) and before.result is source and not before.linear:
            before.pool, pool.conv = pool, before
        self.layers.append(pool)
        self.value = result
        return None

    def _mean_pool(self, node: fx.Node, window: Any, stride: Any, padding: Any, plain: bool) -> str | None:
        size, step = _square(window), _square(stride if stride not in (None, ()) else window)
        if size is None or step is None or _square(padding) != 0 or not plain:
            return "its windows are not square, are padded, or divide by something else"
        if self.value.flat or self.value.stride % 16:
            return "its input is not a layer's image"
        result = _value(_shape(node) or ())
        self.layers.append(MeanPool(self.value, result, size, step))
        self.value = result
        return None

    def _dropout(self, node: fx.Node, rate: float) -> str | None:
        if rate == 0.0:
            return None
        if rate >= 1.0:
            return "it drops everything"
        if self.value.stride % 16:
            return "its input is not a layer's result"
        v = self.value
        result = Value(v.channels, v.height, v.width, flat=v.flat, wanted=v.wanted, stride=v.stride)
        self.layers.append(Dropout(v, result, rate, self.calls))
        self.calls += 1
        self.value = result
        return None

    def _identity(self, node: fx.Node) -> None:
        return None

    def _trainable(self, module: nn.Module) -> bool:
        return all(id(p) in self.names for p in module.parameters(recurse=False))

    def _check_shared(self) -> None:
        seen: set[str] = set()
        for layer in self.layers:
            for name in layer.parameters():
                if name in seen:
                    raise CannotLowerError(f"the parameter '{name}' is used more than once")
                seen.add(name)
        missing = set(self.task.layout.names) - seen
        if missing:
            raise CannotLowerError(f"the parameter '{sorted(missing)[0]}' is used outside of its layer, or not at all")


def _pieces(start: fx.Node, nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """The operations, cut wherever a single tensor goes on."""
    pieces: list[list[fx.Node]] = []
    piece: list[fx.Node] = []
    alive = {start}
    position = {n: i for i, n in enumerate(nodes)}
    for i, node in enumerate(nodes):
        piece.append(node)
        alive.add(node)
        alive = {n for n in alive if any(position.get(u, len(nodes)) > i for u in n.users)}
        if alive <= {node} or node is nodes[-1]:
            pieces.append(piece)
            piece = []
    if piece:
        pieces.append(piece)
    return pieces


def _operation(node: fx.Node, graph: fx.GraphModule) -> tuple[str | None, dict[str, Any]]:
    """The lowering rule of a node and its arguments; (None, {}) without a rule."""
    if node.op == "call_module":
        m: Any = graph.get_submodule(str(node.target))
        rules: dict[type, tuple[str, Any]] = {
            nn.Conv2d: ("conv2d", lambda: {"module": m}),
            nn.Linear: ("linear", lambda: {"module": m}),
            nn.ReLU: ("relu", dict),
            nn.Flatten: ("flatten", dict),
            nn.Identity: ("identity", dict),
            nn.Dropout: ("dropout", lambda: {"rate": m.p}),
            nn.MaxPool2d: (
                "max_pool",
                lambda: {"window": m.kernel_size, "stride": m.stride, "padding": m.padding, "dilation": m.dilation},
            ),
            nn.AvgPool2d: (
                "mean_pool",
                lambda: {
                    "window": m.kernel_size,
                    "stride": m.stride,
                    "padding": m.padding,
                    "plain": m.divisor_override is None and not m.ceil_mode,
                },
            ),
        }
        if type(m) in rules:
            kind, options = rules[type(m)]
            return kind, options()
        return None, {}
    named = node.target if node.op == "call_method" else None
    if node.target in (F.relu, torch.relu) or named == "relu":
        return "relu", {}
    if node.target is torch.flatten or named in ("flatten", "view", "reshape"):
        return "flatten", {}
    if node.target in (F.max_pool2d, F.avg_pool2d):
        return _functional_pool(node)
    return None, {}


def _functional_pool(node: fx.Node) -> tuple[str | None, dict[str, Any]]:
    names = ("input", "kernel_size", "stride", "padding")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    known = {"window": given.get("kernel_size"), "stride": given.get("stride"), "padding": given.get("padding", 0)}
    if len(node.args) > len(names):
        return None, {}
    if node.target is F.max_pool2d:
        return "max_pool", {**known, "dilation": given.get("dilation", 1)}
    plain = given.get("divisor_override") is None and not given.get("ceil_mode", False)
    return "mean_pool", {**known, "plain": plain}


def _input(shape: tuple[int, ...]) -> Value:
    if len(shape) == 1:
        return Value(shape[0], flat=True, wanted=False)
    if len(shape) == 3:
        channels = shape[0]
        # Four values are the least that load together; padding a photo's 3 colours to 16 would waste most reads.
        return Value(channels, shape[1], shape[2], wanted=False, stride=4 if channels <= 4 else 0)
    raise CannotLowerError(f"its samples have shape {shape}, neither a vector nor an image")


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of one sample of a node's output, if it can be a value between layers."""
    meta = node.meta.get("tensor_meta")
    shape = getattr(meta, "shape", None)
    if shape is None or len(shape) not in (2, 4) or shape[0] != 2:
        return None
    return tuple(shape[1:])


def _value(shape: tuple[int, ...]) -> Value:
    if len(shape) == 1:
        return Value(shape[0], flat=True)
    return Value(shape[0], shape[1], shape[2])


def _square(size: Any) -> int | None:
    if isinstance(size, int):
        return size
    return int(size[0]) if len(set(size)) == 1 else None


def _title(node: fx.Node, graph: fx.GraphModule) -> str:
    if node.op == "call_module":
        return f"{node.target} {type(graph.get_submodule(str(node.target))).__name__}"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return str(name)


def _missing(name: str) -> str:
    raise CannotLowerError(f"the parameter '{name}' is shared")


def _dropout_calls(module: fx.GraphModule, source: Value, task: Task) -> int:
    """How many times a segment calls dropout, found by running it once."""
    device = task.data.device
    shape = (source.channels, source.height, source.width)
    x = torch.zeros(2, *shape, device=device)
    x = x.flatten(1) if source.flat else x
    with torch.no_grad(), counted_dropout(task.seed, torch.zeros((), dtype=torch.int64, device=device), 0) as counted:
        module(x)
    return int(counted.calls)
