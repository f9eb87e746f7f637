"""FedJAX: its federated_averaging with the jit backend, the one it uses on a single device."""

from __future__ import annotations

import time
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
from fedjax.algorithms import fed_avg
from workloads import CLASSES, CLIENTS, CROP, LOCAL_STEPS, WORKLOADS, Workload, arguments, probe, report

# FedJAX was written for a jax that had this name; the function is still there under another one.
jax.tree_map = jax.tree_util.tree_map
Batch = dict[str, jax.Array]
# What jax calls the precisions; bf16 is a cast below.
MATMUL = {"float32": "highest", "tf32": "tensorfloat32", "bf16": "default"}


def network(workload: Workload, inputs: jax.Array) -> jax.Array:
    if workload.name == "digits40":
        return hk.nets.MLP([64, CLASSES])(inputs)
    layers = [hk.Conv2D(64, 5), jax.nn.relu, hk.MaxPool((3, 3, 1), (2, 2, 1), "SAME")]
    layers += [hk.Conv2D(64, 5), jax.nn.relu, hk.MaxPool((3, 3, 1), (2, 2, 1), "SAME")]
    return hk.Sequential([*layers, hk.Flatten(), hk.nets.MLP([384, 192, CLASSES])])(inputs)


def standardize(images: jax.Array) -> jax.Array:
    mean, deviation = (f(images, axis=(1, 2, 3), keepdims=True) for f in (jnp.mean, jnp.std))
    return (images - mean) / deviation


def training_inputs(x: jax.Array, rng: jax.Array) -> jax.Array:
    """Crops, mirrors and standardises images [count, height, width, channels] at random, on the device."""
    if x.dtype != jnp.uint8:
        return x
    places, mirror = jax.random.split(rng)
    corners = jax.random.randint(places, (len(x), 2), 0, x.shape[1] - CROP + 1)
    crop = jax.vmap(lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), (CROP, CROP, 3)))
    images = crop(x, corners).astype(jnp.float32)
    mirrored = jax.random.bernoulli(mirror, shape=(len(x), 1, 1, 1))
    return standardize(jnp.where(mirrored, images[:, :, ::-1], images))


def main() -> None:
    options = arguments(__doc__)
    workload = WORKLOADS[options.workload]
    jax.config.update("jax_platforms", options.device)
    jax.config.update("jax_default_matmul_precision", MATMUL[options.precision])
    # jax's convolutions are at their best with the channels last.
    clients = [(x.transpose(0, 2, 3, 1).copy() if x.ndim == 4 else x, y) for x, y in workload.clients()]
    transformed = hk.without_apply_rng(hk.transform(lambda inputs: network(workload, inputs)))
    number = jnp.bfloat16 if options.precision == "bf16" else jnp.float32

    def loss(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        low = jax.tree_util.tree_map(lambda p: p.astype(number), params)
        chances = jax.nn.log_softmax(transformed.apply(low, inputs.astype(number)).astype(jnp.float32))
        return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()

    def gradient(params: Any, batch: Batch, rng: jax.Array) -> Any:
        return jax.grad(loss)(params, training_inputs(batch["x"], rng), batch["y"])

    x, y = probe(clients)
    if x.ndim == 4:
        edge = (x.shape[1] - CROP) // 2
        x = standardize(jnp.asarray(x[:, edge : edge + CROP, edge : edge + CROP], jnp.float32))
    params = transformed.init(jax.random.PRNGKey(0), jnp.asarray(x[:1]))
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
