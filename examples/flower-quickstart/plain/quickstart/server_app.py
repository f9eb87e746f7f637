"""What the server runs."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over some rounds, and save the model."""
    config = context.run_config
    strategy = FedAvg(min_available_nodes=task.CLIENTS, fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial_model()),
        train_config=ConfigRecord({"learning-rate": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    last = result.evaluate_metrics_clientapp[config["num-server-rounds"]]
    np.savez(config["model"], *result.arrays.to_numpy_ndarrays(), accuracy=last["eval_acc"])
