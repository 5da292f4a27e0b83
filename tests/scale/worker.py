"""Measures one small classifier on a mesh of CPU devices, and saves what it found.

    python worker.py OUT MEASURES DEVICES SHAPE [PROCESS NUM_PROCESSES PORT]

MEASURES are names with commas between; DEVICES is the number of forced CPU devices of this process;
SHAPE is of the mesh ("2x4": replicates x examples; "none": no mesh). With PROCESS the mesh is
global, over all processes, and the hosts share the examples.
"""

import os
import sys

OUT, MEASURES, DEVICES, SHAPE, *REST = sys.argv[1:]
# Little optimised: compiling takes most of the time.
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={DEVICES} --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"

import jax  # noqa: E402
import numpy as np  # noqa: E402

if REST:
    process, num_processes, port = map(int, REST)
    jax.distributed.initialize(f"localhost:{port}", num_processes, process)
    assert jax.device_count() == int(DEVICES) * num_processes

from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import jaxrobust as jr  # noqa: E402

AXES = ("replicates", "examples")
NOISE = jr.perturbations.gaussian(0.3)


def apply_fn(params, x):
    return jax.nn.tanh(x @ params["w"]) @ params["v"]


def problem():
    """A network, inputs that no mesh here divides evenly, and labels; the same everywhere."""
    rng = np.random.default_rng(0)
    params = {
        "w": rng.normal(size=(5, 12)).astype(np.float32),
        "v": rng.normal(size=(12, 3)).astype(np.float32),
    }
    x = rng.uniform(size=(13, 5)).astype(np.float32)
    return params, x, np.asarray(apply_fn(params, x)).argmax(axis=1)


def fetch(tree):
    """The values of a result on this host, whoever holds them."""

    def whole(leaf):
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(whole, tree)


def pgd(mesh, params, key, x, labels):
    return jr.attacks.pgd(
        apply_fn, params, key, x, labels,
        eps=0.2, norm="linf", step_size=0.05, num_steps=10, mesh=mesh,
    )  # fmt: skip


def theta(mesh, params, key, x, labels):
    return jr.theta_robustness(
        apply_fn, params, key, x, labels,
        perturbation=NOISE, loss="brier", num_replicates=50, chunk_size=40, mesh=mesh,
    )  # fmt: skip


def flip(mesh, params, key, x, labels):
    return jr.flip_probability(
        apply_fn, params, key, x, perturbation=NOISE, num_samples=200, chunk_size=40, mesh=mesh
    )


def directional(mesh, params, key, x, labels):
    x_adv = pgd(mesh, params, key, x, labels).x_adv  # split over the hosts, where there are several
    return jr.directional_risk(
        apply_fn, params, key, x, labels, x_adv,
        norm="l2", kappas=[0.0, 1.0], num_samples=60, num_resamples=20, chunk_size=40, mesh=mesh,
    )  # fmt: skip


def clever(mesh, params, key, x, labels):
    return jr.clever_score(
        apply_fn, params, key, x,
        radius=0.5, num_batches=12, batch_size=16, chunk_size=40, mesh=mesh,
    )  # fmt: skip


def split(mesh, params, key, x, labels):
    """Flips of inputs that are split to begin with: where there are several hosts, none has all."""
    if mesh is not None:
        sharding = NamedSharding(mesh, PartitionSpec("examples"))
        x = jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return flip(mesh, params, key, x, labels)


def main():
    mesh = None
    if SHAPE != "none":
        shape = [int(size) for size in SHAPE.split("x")]
        # In this order, devices of different processes hold different examples.
        mesh = Mesh(np.array(jax.devices()).reshape(shape, order="F"), AXES)
    params, x, labels = problem()
    found = {}
    for name in MEASURES.split(","):
        rows = slice(12) if name == "split" else slice(None)
        result = globals()[name](mesh, params, jax.random.key(7), x[rows], labels[rows])
        found[name] = fetch(result)
    if jax.process_index() == 0:
        flat, _ = jax.tree_util.tree_flatten_with_path(found)
        np.savez(OUT, **{jax.tree_util.keystr(path): value for path, value in flat})


if __name__ == "__main__":
    main()
