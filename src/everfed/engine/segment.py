"""The part of a lowered model that no kernel exists for: torch's own operations, batched over clients."""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.func import functional_call, vmap

from everfed.engine.layers import Step, Update
from everfed.engine.values import Value
from everfed.learning.dropout import counted_dropout
from everfed.learning.precision import autocast


class Segment:
    """Some layers in a row as one, through `torch.func`, with torch's autograd inside."""

    def __init__(
        self,
        source: Value,
        result: Value,
        module: fx.GraphModule,
        names: dict[str, str],
        call: int,
        seed: int,
        precision: str,
    ) -> None:
        self.source, self.result, self.module, self.precision = source, result, module, precision
        self.results, self.title = [result], ""
        self.seed = seed
        self.names = names  # of the trainable parameters: here -> in the whole model
        self.call = call  # dropout layers before this segment
        self.shapes = {name: p.shape for name, p in module.named_parameters() if name in names}
        self.offset, self.splits = 0, 1
        self.size = 16 * -(-sum(s.numel() for s in self.shapes.values()) // 16)

    def parameters(self) -> dict[str, Tensor]:
        where, start = {}, 0
        for name, shape in self.shapes.items():
            where[self.names[name]] = torch.arange(start, start + shape.numel())
            start += shape.numel()
        return where

    def step_with(self, step: Step, update: Update) -> bool:
        return False

    def bytes(self, batch: int) -> int:
        """A guess: what autograd keeps inside is not known before it runs."""
        return 3 * 4 * self.size + 4 * self.source.bytes(batch, 4) + 4 * self.result.bytes(batch, 4)

    def allocate(self, clients: int, batch: int, device: torch.device) -> None:
        self.gradient = torch.zeros(clients * self.size, device=device)

    def forward(self, step: Step) -> None:
        masters = step.masters.as_strided((step.clients, step.masters.shape[-1]), (step.stride, 1))
        parts, start = {}, self.offset
        for name, shape in self.shapes.items():
            part = masters[:, start : start + shape.numel()]
            parts[name] = part.detach().reshape(step.clients, *shape).requires_grad_()
            start += shape.numel()
        s = self.source
        x = s.as_torch(s.data, s.at, step.clients).float().contiguous()
        x = (x.flatten(2) if s.flat else x).detach().requires_grad_(s.wanted)
        with torch.enable_grad(), autocast(self.precision):
            iteration = step.first[: step.clients] + step.number
            y = vmap(self._run, in_dims=(0, 0, 0, 0))(parts, x, step.who[: step.clients], iteration)
        self.saved = (x, parts, y)
        r = self.result
        view = r.as_torch(r.data, r.at, step.clients)
        view.copy_(y.detach().reshape(view.shape))

    def _run(self, parts: dict[str, Tensor], x: Tensor, client: Tensor, iteration: Tensor) -> Tensor:
        with counted_dropout(step=iteration, client=client, seed=self.seed, calls=self.call, under_vmap=True):
            # A copy, since a layer that works in place may be the first to get it.
            return functional_call(self.module, parts, (x.clone(),))  # type: ignore[no-any-return]

    def backward(self, step: Step) -> None:
        x, parts, y = self.saved
        s, r = self.source, self.result
        gradient = r.as_torch(r.grad, r.grad_at, step.clients).to(y.dtype).reshape(y.shape)
        wanted = [*([x] if s.wanted else []), *parts.values()]
        if not wanted:
            return
        # None where nothing comes through, as after detach(): zeros, as plain autograd's optimisers are given.
        found = torch.autograd.grad(y, wanted, gradient, allow_unused=True) if y.requires_grad else [None] * len(wanted)
        grads = [torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted, strict=True)]
        if s.wanted:
            view = s.as_torch(s.grad, s.grad_at, step.clients)
            to_source = grads.pop(0).reshape(view.shape)
            if s.relu:
                to_source = to_source * (s.as_torch(s.data, s.at, step.clients) > 0)
            view.copy_(to_source)
        rows = self.gradient[: step.clients * self.size].view(step.clients, self.size)
        start = 0
        for grad in grads:
            n = grad[0].numel()
            rows[:, start : start + n] = grad.reshape(step.clients, n)
            start += n
        del self.saved
