"""The loop of CUDA graphs, as somebody who knows torch well writes it: one client's round is recorded and replayed.

One module trains one client after the other, as in with_torch.py, but all that a client does is one CUDA graph: the
server's parameters are copied in, the optimiser's state is reset, batches are drawn, cropped and trained on, and the
result is added to the sum. Python then launches one graph a client instead of some thousand kernels. There are
no graphs on a CPU: there the same function runs eagerly, which tests it and says nothing about graphs.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_parts import autocast, build, inputs, optimizer, probe_loss, resident, set_precision, synchronize
from workloads import CLIENTS, LOCAL_STEPS, WORKLOADS, Workload, arguments, report

WARM = 3  # times the function runs before it is recorded, so that libraries have set themselves up


class Recorded:
    """One client's round as a function of tensors that stay where they are, and on CUDA as a graph."""

    def __init__(self, model: nn.Module, workload: Workload, device: str, precision: str) -> None:
        self.model, self.batch, self.precision = model, workload.batch, precision
        pairs = resident(workload.name, device)
        # All clients in one array: a graph reads where it was told when recorded, so the client must be a tensor too.
        self.x, self.y = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
        self.held = len(self.y) // CLIENTS
        self.client = torch.zeros((), dtype=torch.int64, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)  # counted where they happen, replays included
        self.parameters = [p.data for p in model.parameters()]
        self.server = [p.clone() for p in self.parameters]
        self.total = [torch.zeros_like(p) for p in self.parameters]
        self.rule = optimizer(workload, list(model.parameters()))
        for group in self.rule.param_groups:
            if "capturable" in group:  # Adam's; SGD has nothing to count
                group["capturable"] = device == "cuda"
        self.graph = self.record() if device == "cuda" else None

    def train(self) -> None:
        """From the server's parameters to the sum, without a look at any value: nothing here waits for the device."""
        torch._foreach_copy_(self.parameters, self.server)
        for state in self.rule.state.values():  # as fresh as a new optimiser, in the same memory
            torch._foreach_zero_([value for value in state.values() if isinstance(value, Tensor)])
        for numbers in self.order().split(self.batch):
            with autocast(self.precision):
                loss = F.cross_entropy(self.model(inputs(self.x[numbers])), self.y[numbers])
            self.rule.zero_grad()
            loss.backward()
            self.rule.step()
            self.steps += 1
        torch._foreach_add_(self.total, self.parameters)

    def order(self) -> Tensor:
        """The client's samples of this round: a fresh shuffle, repeating only where it has too few.

        Sorted random numbers, since `randperm` may wait for the device.
        """
        needed = LOCAL_STEPS * self.batch
        shuffles = torch.rand((-(-needed // self.held), self.held), device=self.y.device).argsort(dim=1)
        return shuffles.flatten()[:needed] + self.client * self.held

    def record(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()  # recording needs a first run outside of the default stream
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self.train()
        torch.cuda.current_stream().wait_stream(side)
        self.rule.zero_grad()  # gradients of the recording must lie in the graph's own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.train()
        torch._foreach_copy_(self.parameters, self.server)
        self.steps.zero_()
        return graph

    def play(self) -> None:
        """A round of all clients; the model then holds their average."""
        torch._foreach_copy_(self.server, self.parameters)
        torch._foreach_zero_(self.total)
        for client in range(CLIENTS):
            self.client.fill_(client)
            if self.graph is None:
                self.train()
            else:
                self.graph.replay()
        torch._foreach_copy_(self.parameters, torch._foreach_div(self.total, CLIENTS))


def main() -> None:
    options = arguments(__doc__)
    workload = WORKLOADS[options.workload]
    torch.set_num_threads(options.threads)
    set_precision(options.precision)
    torch.manual_seed(0)
    model = build(workload).to(options.device)
    before = probe_loss(model, workload)
    began = time.perf_counter()
    recorded = Recorded(model, workload, options.device, options.precision)
    synchronize(options.device)
    recording, ms = 1000 * (time.perf_counter() - began), []  # recording comes before the rounds, like the data
    for _ in range(options.warmup + options.rounds):
        began = time.perf_counter()
        recorded.play()
        synchronize(options.device)
        ms.append(1000 * (time.perf_counter() - began))
    graph = recorded.graph is not None
    name = "loop of CUDA graphs" if graph else "loop of CUDA graphs, eager for want of CUDA"
    losses, steps = (before, probe_loss(model, workload)), int(recorded.steps)
    report(name, ["torch"], options, ms, losses, steps, graph=graph, ms_recording=round(recording, 3))


if __name__ == "__main__":
    main()
