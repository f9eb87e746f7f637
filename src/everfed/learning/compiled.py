"""The gradients of any number of clients as one program, compiled by torch's inductor before the first round.

The batched pass is traced once, forward and backward, with everything fixed but the number of clients: what is left are
plain operations on tensors, which the compiler merges. Nothing of Python runs in a step any more, and small operations
no longer pass their results through memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from everfed.arrays import Inputs, parts
from everfed.errors import first_line
from everfed.learning.recorded import near, own_numbers
from everfed.learning.task import CannotTrainError
from everfed.learning.tracing import traced
from everfed.showing.progress import Bars, view

Key = tuple[Tensor, Tensor]  # the seed as two words, so that a program serves all seeds
Shared = dict[str, Tensor]  # frozen parameters and buffers, which all clients have in common
# The batched pass with all that it reads as arguments.
Pass = Callable[[Tensor, Inputs, Tensor, Tensor, Tensor, Key, Shared], tuple[Tensor, Tensor]]

_MOST_OPERATIONS = 5000  # compiling takes some minutes from here on, as for LSTMs, whose steps are all written out
# Clients in the trace: compilers look at sizes to choose loops and threads. Fewer of large models, to save memory.
_EXAMPLES, _EXAMPLE_BYTES = 32, 1 << 28
# These add at places that data choose. Compiled, threads would add in any order, and bits would change from run to run.
_SCATTERING = {"index_put", "index_put_", "scatter_add", "scatter_add_", "index_add", "index_add_", "scatter_reduce"}
_SHOWN = "compiling"


class Given(NamedTuple):
    """What a pass computes from."""

    rows: Tensor
    x: Inputs
    y: Tensor
    who: Tensor
    iteration: Tensor


class Compiled:
    """The same gradients from a compiled program, for any number of clients."""

    def __init__(
        self, plain: Pass, module: nn.Module, example: Callable[[int], Given], key: Key, together: int | None = None
    ) -> None:
        """plain: the pass to trace. example: made-up arguments for so many clients. Raises CannotTrainError.

        together: clients that the program takes at once, two or more; None: all that it is given.
        """
        frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        self.shared = {name: tensor.detach() for name, tensor in (*frozen, *module.named_buffers())}
        self.key, self.plain, self.together = key, plain, together
        rows = example(1).rows
        hint = max(2, min(together or _EXAMPLES, _EXAMPLE_BYTES // max(1, 4 * rows.shape[1])))
        self.program, self.guards = self._compiled(module, example(hint))
        for clients in (2, 3, 1):
            self._check(example, clients)

    def _check(self, example: Callable[[int], Given], clients: int) -> None:
        """Compare with what it was made from; each with arguments of its own, which a model may write over."""
        expected = self.plain(*example(clients), self.key, self.shared)
        try:
            found = self(*example(clients))
        except Exception as error:  # a size that is wrong, for one
            raise CannotTrainError(f"the compiled program fails for {clients} clients ({first_line(error)})") from error
        if not all(near(one, other) for one, other in zip(found, expected, strict=True)):
            raise CannotTrainError(f"the compiled program gives other gradients for {clients} clients")

    def __call__(
        self, rows: Tensor, x: Inputs, y: Tensor, who: Tensor, iteration: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        when = iteration if isinstance(iteration, Tensor) else torch.full_like(who, iteration)
        given = [part.contiguous() for part in self._flat(Given(rows.detach(), x, y, who, when))]
        # Blocks of nearly the same size, so that none of several is of one client.
        blocks = 1 if self.together is None else -(-len(rows) // self.together)
        found = [self._run(block) for block in zip(*(part.tensor_split(blocks) for part in given), strict=True)]
        if None in found:
            return self.plain(rows, x, y, who, when, self.key, self.shared)
        grads, losses = zip(*(pair for pair in found if pair is not None), strict=True)
        return (grads[0], losses[0]) if blocks == 1 else (torch.cat(grads), torch.cat(losses))

    def _run(self, given: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
        """None if something that the program assumes does not hold for so many clients."""
        count = len(given[0])
        # The program is for two clients and more: of one, sizes could be taken for such that are repeated as needed.
        several = [torch.cat([part, part]) for part in given] if count == 1 else given
        if not all(guard(len(several[0])) for guard in self.guards):
            return None
        with torch.no_grad():
            grads, losses = self.program(*several, *self.key, *self.shared.values())
        return grads[:count], losses[:count]

    def _flat(self, given: Given) -> list[Tensor]:
        return [given.rows, given.y, given.who, given.iteration, *parts(given.x).values()]

    def _compiled(self, module: nn.Module, given: Given) -> tuple[Callable[..., Any], list[Callable[[int], bool]]]:
        names = list(parts(given.x))

        def run(rows: Tensor, y: Tensor, who: Tensor, iteration: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
            inputs, key, shared = rest[: len(names)], rest[len(names) : len(names) + 2], rest[len(names) + 2 :]
            x = dict(zip(names, inputs, strict=True)) if names != [""] else inputs[0]
            return self.plain(rows, x, y, who, iteration, (key[0], key[1]), dict(zip(self.shared, shared, strict=True)))

        before = own_numbers(module)
        graph, fakes, guards = traced(run, self._flat(given), [*self.key, *self.shared.values()], _refuse)
        changed = [name for name, value in own_numbers(module).items() if before.get(name) != value]
        if changed:
            raise CannotTrainError(f"its forward pass changes '{changed[0]}', so that no pass is like the next")
        return _program(graph, fakes), guards


def _refuse(graph: fx.GraphModule) -> None:
    """What a compiled program would not repeat, or would take too long to become."""
    for node in graph.graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target.overloadpacket.__name__
        attends = name.startswith("_scaled_dot_product")  # could drop, but is called without
        if torch.Tag.nondeterministic_seeded in node.target.tags and not attends:
            raise CannotTrainError(f"it draws random numbers by {name}, which a compiled program would draw otherwise")
        if name in _SCATTERING and (name[:9] != "index_put" or (*node.args, *node.kwargs.values())[3:4] == (True,)):
            raise CannotTrainError(f"it adds by {name}, whose order is not fixed in a compiled program")
    count = len(graph.graph.nodes)
    if count > _MOST_OPERATIONS:
        raise CannotTrainError(f"more than {_MOST_OPERATIONS:,} operations take too long to compile; it has {count:,}")


@torch.library.custom_op("everfed::embedding_gradient", mutates_args=())
def _embedding_gradient(grad: Tensor, indices: Tensor, count: int, padding: int, scaled: bool) -> Tensor:
    """torch's own, which the compiler would otherwise write anew with additions in any order."""
    return torch.ops.aten.embedding_dense_backward(grad, indices, count, padding, scaled)  # type: ignore[no-any-return]


@_embedding_gradient.register_fake
def _(grad: Tensor, indices: Tensor, count: int, padding: int, scaled: bool) -> Tensor:
    return grad.new_empty(count, grad.shape[-1])


def _program(graph: fx.GraphModule, fakes: Sequence[Tensor]) -> Callable[..., Any]:
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.embedding_dense_backward.default:
            node.target = torch.ops.everfed.embedding_gradient.default
    graph.recompile()
    try:
        from torch._inductor import standalone_compile

        with warnings.catch_warnings(), Bars({_SHOWN: 1}, view(), delay_s=0.0) as bars:
            bars.update(_SHOWN, 0)  # it may take a minute
            warnings.simplefilter("ignore")  # advice to people who tune the compiler
            program: Callable[..., Any] = standalone_compile(graph, list(fakes), dynamic_shapes="from_graph")
            bars.update(_SHOWN, 1)
    except Exception as error:  # a compiler that is missing, or one that gives up
        raise CannotTrainError(f"torch's compiler fails ({first_line(error)})") from error
    return program
