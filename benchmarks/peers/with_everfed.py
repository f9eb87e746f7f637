"""everfed: `ef.start` with its defaults, timed by iterating over it."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from torch_parts import build, probe_loss
from workloads import CLIENTS, CROP, LOCAL_STEPS, WORKLOADS, arguments, report

import everfed as ef


def main() -> None:
    options = arguments(
        __doc__, method={"choices": ("fedavg", "algorithm1"), "default": "fedavg"}, trainer={"default": "auto"}
    )
    workload = WORKLOADS[options.workload]
    torch.set_num_threads(options.threads)
    model = build(workload)
    data = ef.from_arrays(workload.clients())
    if workload.name == "paper40":
        data = replace(data, augment=ef.AUGMENTS["crop-flip"](size=CROP))
    cycles = [1, 5, 10, 20] * (CLIENTS // 4) if options.method == "algorithm1" else np.ones(CLIENTS, int)
    rounds = options.warmup + options.rounds + 1  # an evaluation may fall into the last, which is left out
    run = ef.start(
        model, data, ef.Fleet.from_cycles(cycles), options.method,
        rounds=rounds, local_steps=LOCAL_STEPS, batch_size=workload.batch,
        client=ef.Adam(workload.lr) if workload.optimizer == "adam" else ef.SGD(workload.lr),
        keep_state=False, eval_every=rounds, device=options.device, precision=options.precision,
        trainer=options.trainer,
    )  # fmt: skip
    before = probe_loss(model, workload)
    ms, participants = [], []
    began = time.perf_counter()
    for record in run:  # a record holds the length of the server's step, so the device has finished
        now = time.perf_counter()
        ms.append(1000 * (now - began))
        participants.append(len(record.participants))
        began = now
    model.load_state_dict(run.params)
    name = "everfed" if options.method == "fedavg" else "everfed, Algorithm 1"
    name += "" if options.trainer == "auto" else f", {options.trainer}"
    losses = before, probe_loss(model, workload)
    mean = float(np.mean(participants[options.warmup : -1]))
    report(name, ["everfed", "torch"], options, ms[:-1], losses, participants=mean)


if __name__ == "__main__":
    main()
