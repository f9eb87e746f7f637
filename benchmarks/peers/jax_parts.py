"""What the two scripts on JAX share: precision, images with the channels last, crops, the probe."""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
from workloads import CROP, Arrays, Workload, probe

# What jax calls the precisions; bf16 is a cast in each script.
MATMUL = {"float32": "highest", "tf32": "tensorfloat32", "bf16": "default"}


def configure(options: argparse.Namespace) -> None:
    jax.config.update("jax_platforms", options.device)
    jax.config.update("jax_default_matmul_precision", MATMUL[options.precision])


def clients_of(workload: Workload) -> list[Arrays]:
    """jax's convolutions are at their best with the channels last."""
    return [(x.transpose(0, 2, 3, 1).copy() if x.ndim == 4 else x, y) for x, y in workload.clients()]


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


def probe_inputs(clients: list[Arrays]) -> tuple[jax.Array, jax.Array]:
    """Some samples of every client; of images, the middle."""
    x, y = probe(clients)
    if x.ndim == 4:
        edge = (x.shape[1] - CROP) // 2
        return standardize(jnp.asarray(x[:, edge : edge + CROP, edge : edge + CROP], jnp.float32)), jnp.asarray(y)
    return jnp.asarray(x), jnp.asarray(y)
