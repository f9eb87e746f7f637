"""From a torch module to layers with kernels: which parts are lowered, which are not, and why.

The module is traced. Where exactly one tensor is alive between two operations, the model can be
cut; a piece in which kernels exist for all operations becomes layers, and everything else stays
with torch, in segments as long as needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch.fx.passes.shape_prop import ShapeProp

from everfed.engine.layers import Layer
from everfed.engine.making import Making, shape_of, value_of
from everfed.engine.operations import in_place, operation
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
    """The driver: pieces of the model in turn, each as layers or as a part of the segment that waits."""

    def __init__(self, task: Task, graph: fx.GraphModule, shape: tuple[int, ...], dot: str) -> None:
        self.task, self.graph = task, graph
        names = {id(p): name for name, p in task.module.named_parameters() if name in set(task.layout.names)}
        nodes = list(graph.graph.nodes)
        if sum(n.op == "placeholder" for n in nodes) != 1:
            raise CannotLowerError("the model takes more than one argument")
        (self.start,) = (n for n in nodes if n.op == "placeholder")
        (end,) = (n for n in nodes if n.op == "output")
        if not isinstance(end.args[0], fx.Node):
            raise CannotLowerError("the model returns more than one tensor")
        self.nodes = [n for n in nodes if n.op not in ("placeholder", "output")]
        idle = [n for n in self.nodes if not n.users]
        if idle:  # it may change its input in place, and where it stands it could be taken for the output
            raise CannotLowerError(f"nothing uses the result of its operation '{idle[0]}'")
        self.made = Making(_input(shape), names, dot, fused=not task.gradients)
        self.cut = self.start  # the operation that made the value where the layers end
        self.pending: list[fx.Node] = []
        self.notes: list[str] = []

    def run(self) -> Lowered:
        for piece in _pieces(self.start, self.nodes):
            reason = self._lower_piece(piece)
            if reason is None:
                self.notes += [f"{_title(n, self.graph)}: kernel" for n in piece if _is_tensor(n)]
            else:
                self.pending.extend(piece)
                self.notes.append(f"{_title(piece[-1], self.graph)}: torch, {reason}")
        if self.pending:
            self._close()
        layers, value = self.made.layers, self.made.value
        if not any(isinstance(layer, Product) for layer in layers):
            raise CannotLowerError("no convolution or linear layer of it has a kernel")
        self._check_shared()
        if value.pixels > 1:
            raise CannotLowerError("its outputs are not one row of logits per sample, or are a flattened image")
        if value.grad_border or value.relu:  # the loss writes gradients without a border, and does not ask for a ReLU
            self.made.rebox()
        return Lowered(self.made.input, layers, self.made.value, self.notes)

    def _lower_piece(self, piece: list[fx.Node]) -> str | None:
        """Add layers for all operations of a piece; or say why not, and leave everything as it was."""
        nodes = [n for n in piece if _is_tensor(n)]
        several = len(nodes) > 1
        kinds = {n: operation(n, self.graph) for n in nodes}
        for node in nodes:
            why = "no kernel for it" if kinds[node][0] is None else None
            if why is None and shape_of(node) is None:
                why = "its output is neither a vector nor an image"
            if why:
                return f"several tensors at once, and {_title(node, self.graph)} has no kernel" if several else why
        worth = any(kind in _WORTH_A_CUT for kind, _ in kinds.values())
        if self.pending and (not worth or shape_of(self.pending[-1]) is None):
            return "runs with the previous operation"
        before, pending, cut = self.made.snapshot(), self.pending, self.cut
        if self.pending:
            self._close()
        values = {self.cut: self.made.shared(_reads(self.cut, nodes))}
        for node in nodes:
            sources = [values[n].pop() for n in _tensors(node)]
            reason = "it changes a value that others read" if in_place(node, self.graph) and sources[0].of else None
            kind, options = kinds[node]
            self.made.value = sources[0]
            reason = reason or getattr(self.made, f"add_{kind}")(node, *sources[1:], **options)
            if reason is not None:
                self.made.restore(before)
                self.pending, self.cut = pending, cut
                return f"{_title(node, self.graph)}: {reason}" if several else reason
            self.made.name(_title(node, self.graph))
            values[node] = [self.made.value] if node is nodes[-1] else self.made.shared(_reads(node, nodes))
        self.cut = nodes[-1]
        return None

    def _close(self) -> None:
        """Turn the operations that wait into one segment."""
        nodes, source = self.pending, self.made.value
        self.pending = []
        shape = shape_of(nodes[-1])
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
                names[name] = self.made.names[id(p)] if id(p) in self.made.names else _missing(name)
        segment = Segment(source, value_of(shape), module, names, self.made.calls, self.task.seed, self.task.precision)
        self.made.add(segment)
        titles = [_title(node, self.graph) for node in nodes if _is_tensor(node)]
        self.made.name(" to ".join(dict.fromkeys((titles[0], titles[-1]))) + " in torch")
        self.made.calls += _dropout_calls(module, source, self.task)
        self.cut = nodes[-1]

    def _check_shared(self) -> None:
        seen: set[str] = set()
        for layer in self.made.layers:
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


def _input(shape: tuple[int, ...]) -> Value:
    if len(shape) == 1:
        return Value(shape[0], flat=True, wanted=False)
    if len(shape) == 3:
        channels = shape[0]
        # Four values are the least that load together; padding a photo's 3 colours to 16 would waste most reads.
        return Value(channels, shape[1], shape[2], wanted=False, stride=4 if channels <= 4 else 0)
    raise CannotLowerError(f"its samples have shape {shape}, neither a vector nor an image")


def _is_tensor(node: fx.Node) -> bool:
    return "tensor_meta" in node.meta or node.op == "get_attr"


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The tensors that an operation reads, as often as it reads them."""
    return [a for a in (*node.args, *node.kwargs.values()) if isinstance(a, fx.Node) and _is_tensor(a)]


def _reads(node: fx.Node, readers: list[fx.Node]) -> int:
    return sum(_tensors(reader).count(node) for reader in readers)


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
