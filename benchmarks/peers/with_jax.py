"""JAX without a framework, as somebody who knows it well writes a round: jit(vmap over clients(scan over steps)).

The data lie on the device; batches are drawn, cropped and mirrored inside the compiled round, which takes the server's
parameters, the data and a key and returns the new parameters. The data are arguments, since arrays that a compiled
function closes over are constants of the program.

Clients go side by side (vmap), or one after the other (lax.map, still inside the one compiled round), which is faster
where one client fills the device. --over both times either and reports the faster.
"""

from __future__ import annotations

import statistics
import time

import jax
import jax.numpy as jnp
from jax_parts import clients_of, configure, probe_inputs, training_inputs
from workloads import CLASSES, CLIENTS, CROP, LOCAL_STEPS, WORKLOADS, Workload, arguments, report

Params = dict[str, jax.Array]


def shapes(workload: Workload) -> dict[str, tuple[int, ...]]:
    if workload.name == "digits40":
        return {"w1": (64, 64), "b1": (64,), "w2": (64, CLASSES), "b2": (CLASSES,)}
    flat = 64 * (CROP // 4) ** 2
    convolutions = {"k1": (5, 5, 3, 64), "c1": (64,), "k2": (5, 5, 64, 64), "c2": (64,)}
    return convolutions | {
        "w1": (flat, 384), "b1": (384,), "w2": (384, 192), "b2": (192,), "w3": (192, CLASSES), "b3": (CLASSES,),
    }  # fmt: skip


def initial(workload: Workload) -> Params:
    """Uniform within 1/sqrt(inputs), as torch starts."""
    found, inputs = {}, 1
    for number, (name, shape) in enumerate(shapes(workload).items()):
        inputs = int(jnp.prod(jnp.array(shape[:-1]))) if len(shape) > 1 else inputs
        key = jax.random.fold_in(jax.random.PRNGKey(0), number)
        found[name] = jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) / inputs**0.5
    assert sum(p.size for p in found.values()) == workload.parameters
    return found


def network(params: Params, x: jax.Array) -> jax.Array:
    for i in ("1", "2") if "k1" in params else ():
        axes = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, params[f"k{i}"], (1, 1), "SAME", dimension_numbers=axes)
        x = jax.nn.relu(x + params[f"c{i}"])
        # Padded by one on either side, as in torch_parts.py; "SAME" would pad the right side alone.
        pad = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pad)
    x = x.reshape(len(x), -1)
    last = max(name for name in params if name.startswith("w"))
    for name in sorted(name for name in params if name.startswith("w")):
        x = x @ params[name] + params["b" + name[1:]]
        x = x if name == last else jax.nn.relu(x)
    return x


def main() -> None:
    options = arguments(__doc__, over={"choices": ("vmap", "map", "both"), "default": "both"})
    workload = WORKLOADS[options.workload]
    configure(options)
    number = jnp.bfloat16 if options.precision == "bf16" else jnp.float32
    clients = clients_of(workload)
    x, y = (jnp.stack([jnp.asarray(pair[i]) for pair in clients]) for i in (0, 1))

    def loss(params: Params, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        low = jax.tree.map(lambda p: p.astype(number), params)
        chances = jax.nn.log_softmax(network(low, inputs.astype(number)).astype(jnp.float32))
        return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()

    def order(key: jax.Array, held: int) -> jax.Array:
        """[steps, batch] a client's samples of this round: a fresh shuffle, repeating only where it has too few."""
        needed = LOCAL_STEPS * workload.batch
        keys = jax.random.split(key, -(-needed // held))
        numbers = jnp.concatenate([jax.random.permutation(k, held) for k in keys])
        return numbers[:needed].reshape(LOCAL_STEPS, workload.batch)

    def client(params: Params, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple[Params, jax.Array]:
        draw, crops = jax.random.split(key)
        zeros = jax.tree.map(jnp.zeros_like, params)

        def step(state, given):
            params, first, second, count = state
            numbers, crop = given
            gradient = jax.grad(loss)(params, training_inputs(x[numbers], crop), y[numbers])
            count = count + 1
            if workload.optimizer == "adam":
                first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
                second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
                power = count.astype(jnp.float32)
                gradient = jax.tree.map(
                    lambda m, v: m / (1 - 0.9**power) / (jnp.sqrt(v / (1 - 0.999**power)) + 1e-8), first, second
                )
            params = jax.tree.map(lambda p, g: p - workload.lr * g, params, gradient)
            return (params, first, second, count), None

        begin = (params, zeros, zeros, jnp.zeros((), jnp.int32))
        given = order(draw, len(y)), jax.random.split(crops, LOCAL_STEPS)
        (params, _, _, count), _ = jax.lax.scan(step, begin, given)
        return params, count

    def play(over: str, params: Params, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple[Params, jax.Array]:
        """One round: (the server's new model, local steps taken)."""
        keys = jax.random.split(key, CLIENTS)
        if over == "vmap":
            trained, steps = jax.vmap(client, (None, 0, 0, 0))(params, x, y, keys)
        else:
            trained, steps = jax.lax.map(lambda given: client(params, *given), (x, y, keys))
        return jax.tree.map(lambda p: p.mean(axis=0), trained), steps.sum()

    compiled, probe_loss, seen = jax.jit(play, static_argnums=0), jax.jit(loss), probe_inputs(clients)
    before = float(probe_loss(initial(workload), *seen))

    def timed(over: str) -> tuple[list[float], float, int]:
        """(milliseconds of every round, the loss after them, local steps taken)"""
        params, ms, steps = initial(workload), [], 0
        for number_of_round in range(options.warmup + options.rounds):
            began = time.perf_counter()
            params, taken = jax.block_until_ready(compiled(over, params, x, y, jax.random.PRNGKey(number_of_round)))
            ms.append(1000 * (time.perf_counter() - began))
            steps += int(taken)
        return ms, float(probe_loss(params, *seen)), steps

    found = {over: timed(over) for over in (("vmap", "map") if options.over == "both" else (options.over,))}
    medians = {over: statistics.median(ms[options.warmup :]) for over, (ms, _, _) in found.items()}
    best = min(medians, key=lambda over: medians[over])
    ms, after, steps = found[best]
    name = f"JAX, by hand ({best} over clients)"
    report(name, ["jax", "jaxlib"], options, ms, (before, after), steps, over=best, ms_by=medians)


if __name__ == "__main__":
    main()
