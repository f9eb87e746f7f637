"""Flower: FedAvg of its message API on its simulation engine, whose Ray actors train clients in parallel."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from typing import Any

# Read by Flower and Ray when they are imported: no messages home, no cluster of somebody else's.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ADDRESS"] = "local"

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_parts import build, kept_model, probe_loss, resident, set_precision, train_client
from workloads import CLIENTS, WORKLOADS, arguments, report


def client_app(name: str, device: str, precision: str, threads: int) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(threads)
        set_precision(precision)
        model = kept_model(name, device)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        steps = train_client(model, WORKLOADS[name], client, device, precision)
        metrics = {"num-examples": len(resident(name, device)[client][1]), "steps": steps}
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
        return Message(content=content, reply_to=message)

    return app


def total_steps(replies: list[RecordDict], weight: str) -> MetricRecord:
    """What the strategy keeps of a round: the local steps of the clients that answered."""
    return MetricRecord({"steps": sum(reply["metrics"]["steps"] for reply in replies)})


def main() -> None:
    actors = {"type": int, "help": "clients that train at the same time; a core each unless said"}
    options = arguments(__doc__, workers=actors)
    workers = options.workers or min(options.threads, CLIENTS)
    workload = WORKLOADS[options.workload]
    model = build(workload)
    ticks: list[float] = []
    results: list[Any] = []
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        def tick(server_round: int, arrays: ArrayRecord) -> None:
            ticks.append(time.perf_counter())  # called before the first round and after each

        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=CLIENTS,  # a fraction would be of the nodes that have come up when the first round begins
            min_available_nodes=CLIENTS,
            train_metrics_aggr_fn=total_steps,
        )
        rounds = options.warmup + options.rounds
        arrays = ArrayRecord(model.state_dict())
        results.append(strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=tick))

    before = probe_loss(model, workload)
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        on_gpu = options.device == "cuda"
        share = int(10_000 / workers) / 10_000  # Ray counts in ten-thousandths; rounded up, the last would not fit
        run_simulation(
            server,
            client_app(workload.name, options.device, options.precision, max(1, options.threads // workers)),
            num_supernodes=CLIENTS,
            backend_config={
                "init_args": {"num_cpus": workers, "num_gpus": int(on_gpu), "log_to_driver": False},
                "client_resources": {"num_cpus": 1, "num_gpus": share if on_gpu else 0.0},
            },
        )
    (result,) = results
    ms = [1000 * (end - start) for start, end in itertools.pairwise(ticks)]
    steps = sum(metrics["steps"] for metrics in result.train_metrics_clientapp.values())
    if not steps:
        raise SystemExit("no client answered; Flower's log says why")
    model.load_state_dict(result.arrays.to_torch_state_dict())
    losses = before, probe_loss(model, workload)
    report("Flower", ["flwr", "ray", "torch"], options, ms, losses, steps, workers=workers)


if __name__ == "__main__":
    main()
