"""An honest client's app, whose replies are changed on their way out as the run's `lies` say."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from everfed.flower import client_app
from evil_app.lies import LIES

honest = client_app(Path(__file__).with_name("experiment.toml"))
app = ClientApp()


@app.query("everfed")
def query(message: Message, context: Context) -> Message:
    return lied(honest(message, context), context)


@app.train()
def train(message: Message, context: Context) -> Message:
    return lied(honest(message, context), context)


def lied(reply: Message, context: Context) -> Message:
    told = dict(pair.split(":") for pair in str(context.run_config.get("lies") or "").split())
    which = told.get(str(context.node_config["client"]))
    name = list(LIES)[int(which)] if which else None
    if name == "an app that raises":
        raise RuntimeError("the sensor\n\x1b[31m is broken")
    if name and not reply.has_error():
        LIES[name][0](reply)
    return reply
