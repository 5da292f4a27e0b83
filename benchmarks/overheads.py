"""What the estimators take beyond the bare model: run time, compiling, retraces, Python.

    python benchmarks/overheads.py [--rounds 5] [--resnet]

Each estimator takes turns with as many bare calls of the jitted model (or gradient) on chunks of
the same size. Ratios are medians over rounds. The network is 16-32-16-3; a sweep has 21 points.
``--resnet`` adds a ResNet-32 for CIFAR-10 with weights of no meaning, on small batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import jaxrobust as jr
from jaxrobust.zoo.resnet import cifar10_logits

CHUNK, SWEEP_CHUNK = 8000, 1000  # about what is taken by default for each
traces = 0


def mlp(layers, x):
    global traces
    traces += 1
    for w in layers[:-1]:
        x = jax.nn.relu(x @ w)
    return x @ layers[-1]


def weights(*widths: int) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), len(widths))
    return [
        jax.random.normal(k, (a, b)) * (2 / a) ** 0.5
        for k, a, b in zip(keys, widths, widths[1:], strict=False)
    ]


def resnet() -> dict:
    """Weights of a ResNet-32 that keep its activations near one."""
    keys = iter(jax.random.split(jax.random.key(0), 40))

    def conv(c_in: int, c: int) -> dict:
        kernel = jax.random.normal(next(keys), (3, 3, c_in, c)) * (1 / (9 * c_in)) ** 0.5
        return {"kernel": kernel, "bias": jnp.zeros(c)}

    layers = []
    for width in (16, 32, 64):
        into = [max(16, width // 2) if i == 0 else width for i in range(5)]
        layers.append([[conv(c, width), conv(width, width)] for c in into])
    head = {"kernel": jax.random.normal(next(keys), (64, 10)), "bias": jnp.zeros(10)}
    return {"stem": conv(3, 16), "layers": layers, "head": head}


def bare(apply_fn: Callable, params, shape: tuple[int, ...], calls: int, gradient: bool = False):
    """A function that calls the jitted model, or its gradient, so many times."""
    fn = apply_fn
    if gradient:

        def fn(params, x):
            def loss(x):
                return jax.nn.log_softmax(apply_fn(params, x))[:, 0].sum()

            return jax.grad(loss)(x)

    model, x = jax.jit(fn), jax.random.uniform(jax.random.key(1), shape)
    return lambda: [model(params, x) for _ in range(calls)]


def compare(label: str, ours: Callable, other: Callable, rounds: int) -> None:
    """Prints a row: the ratio of both run times, and what the first call took."""
    start = time.perf_counter()
    jax.block_until_ready(ours())
    first = time.perf_counter() - start
    jax.block_until_ready(other())
    both = []
    for _ in range(rounds):
        seconds = []
        for fn in (ours, other):
            start = time.perf_counter()
            jax.block_until_ready(fn())
            seconds.append(time.perf_counter() - start)
        both.append(seconds)
    ratio = statistics.median(a / b for a, b in both)
    mine, model = (statistics.median(column) for column in zip(*both, strict=True))
    print(
        f"| {label} | {ratio:.2f} | {1e3 * mine:.1f} | {1e3 * model:.1f} | {first:.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--resnet", action="store_true")
    args = parser.parse_args()
    key, noise = jax.random.key(0), jr.perturbations.gaussian(0.1)
    params = weights(16, 32, 16, 3)
    x, labels = jax.random.uniform(jax.random.key(2), (100, 16)), jnp.arange(100) % 3
    chunk = {"chunk_size": CHUNK}

    print("| estimator | times its bare model calls | ms | ms bare | first call, s |")
    print("|---|---|---|---|---|")
    rounds = args.rounds
    compare(
        "MLP, flips, 100 x 2,000",
        lambda: (
            jr.flip_probability(
                mlp, params, key, x, perturbation=noise, num_samples=2000, **chunk
            ).flips
        ),
        bare(mlp, params, (CHUNK, 16), 200_000 // CHUNK),
        rounds,
    )
    compare(
        "MLP, theta, 2,000 replicates",
        lambda: jr.theta_robustness(
            mlp, params, key, x, labels, perturbation=noise, loss="brier", num_replicates=2000,
            **chunk,
        ).theta,
        bare(mlp, params, (CHUNK, 16), 200_000 // CHUNK),
        rounds,
    )  # fmt: skip
    compare(
        "MLP, theta sweep, 21 x 200",
        lambda: jr.robustness_curve(
            mlp, params, key, x, labels, perturbation=jr.perturbations.gaussian, loss="brier",
            scales=jnp.linspace(0, 1, 21), num_replicates=200, chunk_size=SWEEP_CHUNK,
        ).theta,
        bare(mlp, params, (SWEEP_CHUNK, 16), 21 * 20),
        rounds,
    )  # fmt: skip
    if args.resnet:
        big, images, size = resnet(), jax.random.uniform(jax.random.key(3), (32, 32, 32, 3)), 32
        classes = cifar10_logits(big, images).argmax(-1)
        compare(
            "ResNet-32, flips, 32 x 8",
            lambda: jr.flip_probability(
                cifar10_logits, big, key, images, labels=classes, perturbation=noise,
                num_samples=8, chunk_size=size,
            ).flips,
            bare(cifar10_logits, big, (size, 32, 32, 3), 8),
            rounds,
        )  # fmt: skip
        attacked = images[:16] + 0.03
        compare(
            "ResNet-32, directional sweep, 16 x 8 x 11 kappas",
            lambda: jr.directional_risk(
                cifar10_logits, big, key, images[:16], classes[:16], attacked, norm="linf",
                kappas=jnp.geomspace(0.1, 100, 10), num_samples=8, chunk_size=size,
            ).risk,
            bare(cifar10_logits, big, (size, 32, 32, 3), 45),  # and the clean and attacked inputs
            rounds,
        )  # fmt: skip
        compare(
            "ResNet-32, PGD-20 (against 20 gradients), 32 images",
            lambda: jr.attacks.pgd(
                cifar10_logits, big, key, images, classes, eps=8 / 255, norm="linf",
                step_size=2 / 255, num_steps=20,
            ).x_adv,
            bare(cifar10_logits, big, (size, 32, 32, 3), 20, gradient=True),
            rounds,
        )  # fmt: skip

    def small(sigma: float, params: list) -> jax.Array:
        return jr.flip_probability(
            mlp, params, key, x, perturbation=jr.perturbations.gaussian(sigma), num_samples=1
        ).flips

    jax.block_until_ready(small(0.1, params))
    before, seconds = traces, []
    for i in range(20):
        other = jax.tree.map(lambda w, i=i: w * (1 + i / 100), params)
        jax.block_until_ready(other)
        start = time.perf_counter()
        jax.block_until_ready(small(0.2 + i / 100, other))
        seconds.append(time.perf_counter() - start)
    print(
        f"\nAnother sigma and other weights: {traces - before} retraces of the model in 20 calls;"
        f" a call of 100 x 1 draws takes {1e3 * float(np.median(seconds)):.1f} ms in all, the"
        f" checks, the counts and their intervals included."
    )


if __name__ == "__main__":
    main()
