"""What every node runs."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from everfed.flower import EnergyMod, Simulated
from quickstart import task

app = ClientApp(mods=[EnergyMod(task.POLICY, Simulated(task.FLEET))])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on this client's samples."""
    samples, labels, _, _ = task.load_data(context.node_config["partition-id"])
    model, loss = task.train(
        message.content["arrays"].to_numpy_ndarrays(),
        samples,
        labels,
        context.run_config["local-epochs"],
        message.content["config"]["learning-rate"],
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on samples that this client does not train on."""
    _, _, samples, labels = task.load_data(context.node_config["partition-id"])
    loss, accuracy = task.evaluate(message.content["arrays"].to_numpy_ndarrays(), samples, labels)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(labels)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
