"""A device without PyTorch: one hidden layer in NumPy, on a client's own array file.

    python -m everfed.device run --superlink fleet.example:8000 --root-certificates ca.crt --key key --client 7 \
        --state-dir /var/lib/everfed/state --node-config 'data="/var/lib/everfed/digits.npz"' digits:app

The file holds `x` (samples, features), float32, and `y`, whole numbers. The server runs the example beside this one,
examples/flower-fleet, whose experiment has this model, these steps and this energy.
"""

import numpy as np

from everfed.device.app import device_app
from everfed.energy.fleet import Fleet
from everfed.flower.energy import Simulated
from everfed.scheduling.policies import UniformWindow


def load(config):
    """The client's samples, from the file that its node's configuration names."""
    with np.load(config["data"]) as file:
        return file["x"].reshape(len(file["y"]), -1).astype(np.float32), file["y"].astype(np.int64)


def train(parameters, data, work):
    """SGD on the cross-entropy of a network with one hidden layer of ReLUs, as torch names its parameters."""
    (x, y), losses = data, []
    w1, b1, w2, b2 = (parameters[name] for name in ("1.weight", "1.bias", "3.weight", "3.bias"))
    for batch in work.minibatches(len(y)):
        inputs, labels = x[batch], y[batch]
        hidden = np.maximum(inputs @ w1.T + b1, 0.0)
        scores = hidden @ w2.T + b2
        scores -= scores.max(axis=1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        losses.append(-log_p[np.arange(len(labels)), labels].mean())
        slope = np.exp(log_p)
        slope[np.arange(len(labels)), labels] -= 1.0
        slope /= len(labels)
        back = (slope @ w2) * (hidden > 0.0)
        for value, gradient in ((w2, slope.T @ hidden), (b2, slope.sum(0)), (w1, back.T @ inputs), (b1, back.sum(0))):
            value -= work.lr * gradient
    return parameters, float(np.mean(losses))


app = device_app(
    train,
    load,
    policy=UniformWindow(),
    energy=Simulated(Fleet.from_cycles([1, 5, 10, 20] * 2)),
    local_steps=10,
    batch_size=10,
    lr=0.1,
)
