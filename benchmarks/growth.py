"""How run time grows: replicates, examples, features, classes, noise levels and kappas.

    python benchmarks/growth.py [--rounds 3]

Each row takes a size and four times that size in turns, after compiling: 4 is growth in proportion;
below 4, part of the work is shared. Each point of CLEVER costs one forward pass and a backward pass
for each class, and each level of a sweep its own model calls on draws that all levels share. The
network has one hidden layer of 64 units.
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
BASE = {"draws": 1000, "examples": 64, "features": 16, "classes": 4, "levels": 5, "kappas": 4}


def network(params, x):
    return jax.nn.relu(x @ params[0]) @ params[1]


class Case:
    """A model and its inputs, of given sizes."""

    def __init__(self, draws, examples, features, classes, levels, kappas):
        keys = jax.random.split(jax.random.key(1), 3)
        params = [
            jax.random.normal(keys[0], (features, 64)),
            jax.random.normal(keys[1], (64, classes)),
        ]
        x = jax.random.normal(keys[2], (examples, features))
        self.model = (network, params, KEY, x)
        self.labels = network(params, x).argmax(axis=1)
        self.draws = draws
        self.levels = jnp.linspace(0, 1, levels)
        self.kappas = jnp.linspace(0, 20, kappas)


def theta(case):
    return jr.theta_robustness(
        *case.model, case.labels, loss="brier", num_replicates=case.draws,
        perturbation=jr.perturbations.gaussian(0.1),
    ).theta  # fmt: skip


def curve(case):
    return jr.robustness_curve(
        *case.model, case.labels, loss="brier", num_replicates=case.draws, scales=case.levels,
        perturbation=jr.perturbations.gaussian,
    ).theta  # fmt: skip


def flip(case):
    return jr.flip_probability(
        *case.model, num_samples=case.draws, perturbation=jr.perturbations.gaussian(0.1)
    ).flips


def directional(case):
    return jr.directional_risk(
        *case.model, case.labels, case.model[-1] + 0.1, norm="l2", num_samples=case.draws // 4,
        kappas=case.kappas, num_resamples=10,
    ).risk  # fmt: skip


def clever(case):
    return jr.clever_score(
        *case.model, radius=0.5, num_batches=10, batch_size=case.draws // 64, race=False
    ).score


ROWS = (
    (theta, ("draws", "examples", "features")),
    (curve, ("levels",)),
    (flip, ("draws", "examples", "features")),
    (directional, ("kappas",)),
    (clever, ("draws", "examples", "classes")),
)


def seconds(measure: Callable, case: Case) -> float:
    start = time.perf_counter()
    jax.block_until_ready(measure(case))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print("| measure | what grows | from | to | times as long |")
    print("|---|---|---|---|---|")
    for measure, grows in ROWS:
        for what in grows:
            small, large = BASE[what], 4 * BASE[what]
            cases = (Case(**BASE), Case(**{**BASE, what: large}))
            for case in cases:
                seconds(measure, case)  # compiles
            took = [[seconds(measure, case) for case in cases] for _ in range(rounds)]
            ratio = statistics.median(long / short for short, long in took)
            print(f"| {measure.__name__} | {what} | {small} | {large} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
