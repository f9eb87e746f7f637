"""The operations of a batched pass, for any number of clients.

torch's rules for vmap mostly need to know how many clients there are, so a trace is of one number. Here are two, of
different numbers: what is the same in both does not depend on the clients, and what differs is taken as a multiple of
their number plus a constant. Traced a third time with that, no number is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from everfed.errors import first_line
from everfed.learning.task import CannotTrainError

# Primes, so that no size of a model is a multiple of them by chance; a third one is for the check.
_TRIED, _CHECKED = (101, 107), 113

Guard = Callable[[int], bool]


@dataclass(frozen=True)
class _Affine:
    """A number that grows with the clients."""

    times: int
    plus: int

    def at(self, clients: Any) -> Any:
        return self.times * clients + self.plus


def traced(
    run: Callable[..., Any],
    several: Sequence[Tensor],
    fixed: Sequence[Tensor],
    refuse: Callable[[fx.GraphModule], None],
) -> tuple[fx.GraphModule, list[Tensor], list[Guard]]:
    """(the operations, arguments without data, what was assumed of the number of clients).

    several: have a row per client; as many rows as there are mostly. refuse: raises if a first trace shows what is not
    wanted. Raises CannotTrainError.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
    except ImportError as error:
        raise CannotTrainError(f"this version of torch traces in another way ({first_line(error)})") from error

    def trace(clients: int) -> fx.GraphModule:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            rows = [torch.empty(clients, *t.shape[1:], dtype=t.dtype, device=t.device) for t in several]
        fakes = [*rows, *(mode.from_tensor(t) for t in fixed)]
        try:
            return make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*fakes)
        except Exception as error:  # of the model, or of torch where it cannot do without data
            raise CannotTrainError(f"its operations cannot be traced ({first_line(error)})") from error

    first = trace(_TRIED[0])
    refuse(first)
    general = _General(first, trace(_TRIED[1]))
    general.check(trace(_CHECKED))

    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)

    def fake(tensor: Tensor, first: Any) -> Tensor:
        sizes = [first, *[DimDynamic.STATIC] * tensor.ndim][: tensor.ndim]
        made: Tensor = mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
        return made

    fakes = [fake(t, DimDynamic.DYNAMIC) for t in several] + [fake(t, DimDynamic.STATIC) for t in fixed]
    try:
        # Without changes in place: the compiler merges operations more freely then.
        functional = torch.func.functionalize(general, remove="mutations_and_views")
        graph = make_fx(functional, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*fakes)
    except Exception as error:
        raise CannotTrainError(
            f"its operations cannot be traced for any number of clients ({first_line(error)})"
        ) from error
    clients = fakes[0].shape[0].node.expr  # type: ignore[attr-defined]
    if not shapes.replace(clients).free_symbols:
        raise CannotTrainError("one of its operations is made for a certain number of clients")
    return graph, fakes, [_condition(guard.expr) for guard in shapes.guards]


def _condition(expression: Any) -> Guard:
    """Whether something that was assumed in the trace holds for so many clients. All open sizes are that number."""
    known: dict[int, bool] = {}

    def holds(clients: int) -> bool:
        if clients not in known:
            known[clients] = bool(expression.subs(dict.fromkeys(expression.free_symbols, clients)))
        return known[clients]

    return holds


class _General:
    """The operations of two traces as a function for any number of clients."""

    def __init__(self, one: fx.GraphModule, other: fx.GraphModule) -> None:
        self.graph = one
        self.given = [_merged(*arguments) for arguments in self._pairs(other)]

    def _pairs(self, other: fx.GraphModule) -> Iterator[tuple[Any, Any]]:
        nodes, others = list(self.graph.graph.nodes), list(other.graph.nodes)
        if len(nodes) != len(others):
            raise CannotTrainError("its operations differ with the number of clients")
        same = dict(zip(others, nodes, strict=True))
        for node, its in zip(nodes, others, strict=True):
            constant = node.op == "get_attr" and its.op == "get_attr"
            if constant and not torch.equal(getattr(self.graph, node.target), getattr(other, its.target)):
                raise CannotTrainError("it has constants that differ with the number of clients")
            if not constant and (node.op, node.target) != (its.op, its.target) and node.op != "placeholder":
                raise CannotTrainError("its operations differ with the number of clients")
            yield (
                (node.args, node.kwargs),
                fx.node.map_aggregate(
                    (its.args, its.kwargs), lambda a: same.get(a, a) if isinstance(a, fx.Node) else a
                ),
            )

    def check(self, third: fx.GraphModule) -> None:
        """Whether what was concluded from two numbers holds for a third."""
        for mine, (_, its) in zip(self.given, self._pairs(third), strict=True):
            if repr(_at(mine, _CHECKED)) != repr(its):  # as words, since NaN is not even equal to itself
                raise CannotTrainError("its sizes are not multiples of the number of clients")

    def __call__(self, *arguments: Tensor) -> Any:
        clients, rest = arguments[0].shape[0], iter(arguments)
        values: dict[fx.Node, Any] = {}
        for node, given in zip(self.graph.graph.nodes, self.given, strict=True):
            args, kwargs = _at(given, clients, values)
            if node.op == "placeholder":
                values[node] = next(rest)
            elif node.op == "get_attr":
                values[node] = getattr(self.graph, node.target)
            elif node.op == "output":
                return args[0]
            else:
                values[node] = node.target(*args, **kwargs)
        raise AssertionError("a graph ends with its output")


def _merged(one: Any, other: Any) -> Any:
    """Arguments of two traces as one, with `_Affine` where they differ."""
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)) and len(one) == len(other):
        return type(one)(map(_merged, one, other)) if type(one) in (tuple, list) else list(map(_merged, one, other))
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {name: _merged(value, other[name]) for name, value in one.items()}
    if isinstance(one, slice) and isinstance(other, slice):
        return slice(*map(_merged, (one.start, one.stop, one.step), (other.start, other.stop, other.step)))
    if type(one) is type(other) and (one == other or (one != one and other != other)):
        return one
    if type(one) is int and type(other) is int:
        times, left = divmod(other - one, _TRIED[1] - _TRIED[0])
        if not left:
            return _Affine(times, one - times * _TRIED[0])
    raise CannotTrainError("its operations differ with the number of clients")


def _at(given: Any, clients: Any, values: dict[fx.Node, Any] | None = None) -> Any:
    """Merged arguments for so many clients; values: of earlier operations, in the place of their names."""
    if isinstance(given, _Affine):
        return given.at(clients)
    if isinstance(given, fx.Node) and values is not None:
        return values[given]
    if isinstance(given, (tuple, list)):
        return type(given)(_at(part, clients, values) for part in given)
    if isinstance(given, dict):
        return {name: _at(part, clients, values) for name, part in given.items()}
    if isinstance(given, slice):
        return slice(*(_at(part, clients, values) for part in (given.start, given.stop, given.step)))
    return given
