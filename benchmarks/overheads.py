"""What the estimators take beyond the bare model: run time, compiling, retraces, Python.

    python benchmarks/overheads.py [--rounds 5] [--networks mlp resnet lite0]

Each estimator takes turns with as many bare calls of the jitted model (or gradient) on chunks of
the same size. Ratios are medians over rounds. ``mlp`` is a network 16-32-16-3; its sweep has 21
points. ``resnet`` is ResNet-32 for CIFAR-10 with weights of no meaning, on small batches, ``lite0``
EfficientNet-Lite0 for ImageNet with weights from the folder of JAXROBUST_DATA.
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
from jaxrobust.zoo.efficientnet import load_imagenet
from jaxrobust.zoo.resnet import cifar10_logits

CHUNK, SWEEP_CHUNK = 8000, 1000  # about what is taken by default for each
KEY, NOISE = jax.random.key(0), jr.perturbations.gaussian(0.1)
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


def of_mlp(rounds: int) -> None:
    """Rows of the small network, and what a call costs that hardly draws."""
    params = weights(16, 32, 16, 3)
    x, labels = jax.random.uniform(jax.random.key(2), (100, 16)), jnp.arange(100) % 3
    calls = bare(mlp, params, (CHUNK, 16), 200_000 // CHUNK)
    compare(
        "MLP, flips, 100 x 2,000",
        lambda: jr.flip_probability(
            mlp, params, KEY, x, perturbation=NOISE, num_samples=2000, chunk_size=CHUNK
        ).flips,
        calls,
        rounds,
    )  # fmt: skip
    compare(
        "MLP, theta, 2,000 replicates",
        lambda: jr.theta_robustness(
            mlp, params, KEY, x, labels, perturbation=NOISE, loss="brier", num_replicates=2000,
            chunk_size=CHUNK,
        ).theta,
        calls,
        rounds,
    )  # fmt: skip
    compare(
        "MLP, theta sweep, 21 x 200",
        lambda: jr.robustness_curve(
            mlp, params, KEY, x, labels, perturbation=jr.perturbations.gaussian, loss="brier",
            scales=jnp.linspace(0, 1, 21), num_replicates=200, chunk_size=SWEEP_CHUNK,
        ).theta,
        bare(mlp, params, (SWEEP_CHUNK, 16), 21 * 20),
        rounds,
    )  # fmt: skip

    def small(sigma: float, params: list) -> jax.Array:
        return jr.flip_probability(
            mlp, params, KEY, x, perturbation=jr.perturbations.gaussian(sigma), num_samples=1
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
        f" checks, the counts and their intervals included.\n",
        flush=True,
    )


def of_images(name: str, apply_fn: Callable, params, images, steps: int, rounds: int) -> None:
    """Rows of a convolutional network."""
    size = len(images)
    shape = images.shape
    labels = apply_fn(params, images).argmax(-1)
    compare(
        f"{name}, flips, {size} x 8",
        lambda: jr.flip_probability(
            apply_fn, params, KEY, images, labels=labels, perturbation=NOISE, num_samples=8,
            chunk_size=size,
        ).flips,
        bare(apply_fn, params, shape, 8),
        rounds,
    )  # fmt: skip
    half = size // 2
    compare(
        f"{name}, directional sweep, {half} x 8 x 11 kappas",
        lambda: jr.directional_risk(
            apply_fn, params, KEY, images[:half], labels[:half], images[:half] + 0.03, norm="linf",
            kappas=jnp.geomspace(0.1, 100, 10), num_samples=8, chunk_size=size,
        ).risk,
        bare(apply_fn, params, shape, 45),  # and the clean and attacked inputs
        rounds,
    )  # fmt: skip
    compare(
        f"{name}, PGD-{steps} (against {steps} gradients), {size} images",
        lambda: jr.attacks.pgd(
            apply_fn, params, KEY, images, labels, eps=8 / 255, norm="linf", step_size=2 / 255,
            num_steps=steps,
        ).x_adv,
        bare(apply_fn, params, shape, steps, gradient=True),
        rounds,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--networks", nargs="+", default=["mlp"], choices=["mlp", "resnet", "lite0"]
    )
    args = parser.parse_args()
    print("| estimator | times its bare model calls | ms | ms bare | first call, s |")
    print("|---|---|---|---|---|")
    if "resnet" in args.networks:
        images = jax.random.uniform(jax.random.key(3), (32, 32, 32, 3))
        of_images("ResNet-32", cifar10_logits, resnet(), images, 20, args.rounds)
    if "lite0" in args.networks:
        images = jax.random.uniform(jax.random.key(3), (4, 224, 224, 3))
        of_images("EfficientNet-Lite0", *load_imagenet(), images, 5, args.rounds)
    if "mlp" in args.networks:
        of_mlp(args.rounds)


if __name__ == "__main__":
    main()
