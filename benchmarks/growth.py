"""How run time grows: replicates, examples, features, classes, noise levels and kappas.

    python benchmarks/growth.py [--rounds 3]

Each row takes a size and four times that size in turns, after compiling: 4 is growth in proportion;
below 4, part of the work is shared. Each point of CLEVER costs one forward pass and a backward pass
for each class, and each level of a sweep its own model calls on draws that all levels share. The
network has one hidden layer of 64 units; it is wider where there are more features or classes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

import jaxrobust as jr

KEY = jax.random.key(0)
BASE = {"m": 1000, "n": 64, "d": 16, "classes": 4, "levels": 5, "kappas": 4, "batches": 10}


def network(params, x):
    return jax.nn.relu(x @ params[0]) @ params[1]


def model(d: int, classes: int, n: int):
    first, second, third = jax.random.split(jax.random.key(1), 3)
    params = [jax.random.normal(first, (d, 64)), jax.random.normal(second, (64, classes))]
    x = jax.random.normal(third, (n, d))
    return network, params, KEY, x


def theta(m, n, d, classes, **_):
    found = jr.theta_robustness(
        *model(d, classes, n), jnp.arange(n) % classes, loss="brier", num_replicates=m,
        perturbation=jr.perturbations.gaussian(0.1),
    )  # fmt: skip
    return found.theta


def curve(m, n, d, classes, levels, **_):
    found = jr.robustness_curve(
        *model(d, classes, n), jnp.arange(n) % classes, loss="brier", num_replicates=m,
        perturbation=jr.perturbations.gaussian, scales=jnp.linspace(0, 1, levels),
    )  # fmt: skip
    return found.theta


def flip(m, n, d, classes, **_):
    return jr.flip_probability(
        *model(d, classes, n), num_samples=m, perturbation=jr.perturbations.gaussian(0.1)
    ).flips


def directional(m, n, d, classes, kappas, **_):
    apply_fn, params, key, x = model(d, classes, n)
    labels = network(params, x).argmax(axis=1)
    return jr.directional_risk(
        apply_fn, params, key, x, labels, x + 0.1, norm="l2", num_samples=m // 4,
        kappas=jnp.linspace(0, 20, kappas), num_resamples=10,
    ).risk  # fmt: skip


def clever(m, n, d, classes, batches, **_):
    return jr.clever_score(
        *model(d, classes, n // 16), radius=0.5, num_batches=batches, batch_size=m // 4, race=False
    ).score


MEASURES = {theta: "mnd", curve: "levels", flip: "mnd", directional: "kappas", clever: "classes"}
NAMES = {"m": "draws", "n": "examples", "d": "features"}


def seconds(fn: Callable, sizes: dict[str, int]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(fn(**sizes))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print("| measure | what grows | from | to | times as long |")
    print("|---|---|---|---|---|")
    for measure, grows in MEASURES.items():
        for what in grows if set(grows) <= set(NAMES) else [grows]:
            larger = {**BASE, what: 4 * BASE[what]}
            pair = (BASE, larger)
            for sizes in pair:
                seconds(measure, sizes)  # compiles
            took = [[seconds(measure, sizes) for sizes in pair] for _ in range(rounds)]
            ratio = statistics.median(long / short for short, long in took)
            print(
                f"| {measure.__name__} | {NAMES.get(what, what)} | {BASE[what]} | {larger[what]}"
                f" | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
