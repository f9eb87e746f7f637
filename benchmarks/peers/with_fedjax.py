"""FedJAX: its federated_averaging with the jit backend, the one it uses on a single device."""

from __future__ import annotations

import time
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
from fedjax.algorithms import fed_avg
from jax_parts import clients_of, configure, probe_inputs, training_inputs
from workloads import CLASSES, CLIENTS, LOCAL_STEPS, WORKLOADS, Workload, arguments, report

# FedJAX was written for a jax that had this name; the function is still there under another one.
jax.tree_map = jax.tree_util.tree_map
Batch = dict[str, jax.Array]


def network(workload: Workload, inputs: jax.Array) -> jax.Array:
    if workload.name == "digits40":
        return hk.nets.MLP([64, CLASSES])(inputs)
    layers = [hk.Conv2D(64, 5), jax.nn.relu, hk.MaxPool((3, 3, 1), (2, 2, 1), "SAME")]
    layers += [hk.Conv2D(64, 5), jax.nn.relu, hk.MaxPool((3, 3, 1), (2, 2, 1), "SAME")]
    return hk.Sequential([*layers, hk.Flatten(), hk.nets.MLP([384, 192, CLASSES])])(inputs)


def main() -> None:
    options = arguments(__doc__)
    workload = WORKLOADS[options.workload]
    configure(options)
    clients = clients_of(workload)
    transformed = hk.without_apply_rng(hk.transform(lambda inputs: network(workload, inputs)))
    number = jnp.bfloat16 if options.precision == "bf16" else jnp.float32

    def loss(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        low = jax.tree_util.tree_map(lambda p: p.astype(number), params)
        chances = jax.nn.log_softmax(transformed.apply(low, inputs.astype(number)).astype(jnp.float32))
        return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()

    def gradient(params: Any, batch: Batch, rng: jax.Array) -> Any:
        return jax.grad(loss)(params, training_inputs(batch["x"], rng), batch["y"])

    x, y = probe_inputs(clients)
    params = transformed.init(jax.random.PRNGKey(0), x[:1])
    assert sum(p.size for p in jax.tree_util.tree_leaves(params)) == workload.parameters
    probe_loss = jax.jit(loss)
    before = float(probe_loss(params, x, y))

    optimizers = fedjax.optimizers
    local = (optimizers.adam if workload.optimizer == "adam" else optimizers.sgd)(workload.lr)
    # By steps, not epochs: where a client has too few samples, they repeat.
    batching = fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch, num_epochs=None, num_steps=LOCAL_STEPS)
    algorithm = fed_avg.federated_averaging(gradient, local, optimizers.sgd(1.0), batching)
    data = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in clients]
    steps = CLIENTS * sum(1 for _ in data[0].shuffle_repeat_batch(batching))
    state = algorithm.init(params)
    ms = []
    for number_of_round in range(options.warmup + options.rounds):
        began = time.perf_counter()
        keys = jax.random.split(jax.random.PRNGKey(number_of_round), CLIENTS)
        state, _ = algorithm.apply(state, list(zip(range(CLIENTS), data, keys, strict=True)))
        jax.block_until_ready(state.params)
        ms.append(1000 * (time.perf_counter() - began))
    losses = before, float(probe_loss(state.params, x, y))
    report("FedJAX", ["fedjax", "jax", "jaxlib", "dm-haiku"], options, ms, losses, steps * len(ms))


if __name__ == "__main__":
    main()
