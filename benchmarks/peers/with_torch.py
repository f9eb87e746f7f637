"""A round without a framework: one module, one client after the other, their models averaged."""

from __future__ import annotations

import time

import torch
from torch_parts import build, probe_loss, resident, set_precision, synchronize, train_client
from workloads import CLIENTS, WORKLOADS, arguments, report


def main() -> None:
    options = arguments(__doc__)
    workload = WORKLOADS[options.workload]
    torch.set_num_threads(options.threads)
    set_precision(options.precision)
    torch.manual_seed(0)
    model = build(workload).to(options.device)
    resident(workload.name, options.device)  # the data are on the device before the clock starts
    before = probe_loss(model, workload)
    parameters = [p.data for p in model.parameters()]
    ms, steps = [], 0
    for _ in range(options.warmup + options.rounds):
        began = time.perf_counter()
        server = [p.clone() for p in parameters]
        total = [torch.zeros_like(p) for p in parameters]
        for client in range(CLIENTS):
            torch._foreach_copy_(parameters, server)
            steps += train_client(model, workload, client, options.device, options.precision)
            torch._foreach_add_(total, parameters)
        torch._foreach_copy_(parameters, torch._foreach_div(total, CLIENTS))
        synchronize(options.device)
        ms.append(1000 * (time.perf_counter() - began))
    report("torch loop", ["torch"], options, ms, (before, probe_loss(model, workload)), steps)


if __name__ == "__main__":
    main()
