"""Weng et al. 2018 (arXiv 1801.10578), tables 2 and 3, on MNIST: CLEVER beside attacks and SLOPE.

    JAXROBUST_DATA=FOLDER python benchmarks/reproduce_clever.py [--full] [--networks mlp bounded]

Networks as in the paper, trained here from a key: MLP (one hidden layer, softplus(10 x) / 10), CNN,
the MLP by defensive distillation (T = 100), and the MLP with bounded ReLU, min(relu(x), 1). Test
images that are classed rightly; targets least likely, random, runner-up, and none; l2 and linf.

For each row: mean CLEVER (with its mean interval), mean distance of Carlini-Wagner and of I-FGSM
(the nearest of a grid of eps), mean SLOPE, the share of images whose CLEVER is above the nearest
attack, the share of fits that Kolmogorov-Smirnov accepts at 5%, and the share of scores at the
radius. Then the score against the number of batches, from the same maxima. By default all is
reduced, narrow networks too; --full is the paper's sizes: 20 images, N_b = 500, N_s = 1024.
"""

from __future__ import annotations

import argparse
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxrobust as jr
from jaxrobust import zoo

RADIUS = {"l2": 5.0, "linf": 0.3}
TARGETS = ("least", "random", "top2", "all")
NETWORKS = ("mlp", "cnn", "distilled", "bounded")
EPS = {"l2": np.geomspace(0.1, 10, 13), "linf": np.geomspace(0.01, 0.6, 13)}


class MLP(nn.Module):
    """One hidden layer, smooth or bounded."""

    width: int
    bounded: bool = False

    @nn.compact
    def __call__(self, x):  # noqa: D102
        x = nn.Dense(self.width)(x - 0.5)
        x = jnp.clip(x, 0, 1) if self.bounded else nn.softplus(10 * x) / 10
        return nn.Dense(10)(x)


class CNN(nn.Module):
    """Four convolutions in two blocks, two hidden layers."""

    widths: tuple[int, int, int]

    @nn.compact
    def __call__(self, x):  # noqa: D102
        x = x.reshape(-1, 28, 28, 1) - 0.5
        for width in self.widths[:2]:
            x = nn.relu(nn.Conv(width, (3, 3), padding="VALID")(x))
            x = nn.relu(nn.Conv(width, (3, 3), padding="VALID")(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(self.widths[2])(x))
        return nn.Dense(10)(x)


def train(key, network, x, targets, temperature, steps):
    """Cross-entropy with soft or one-hot targets at a temperature; Adam, batches of 128."""
    start, draw = jax.random.split(key)
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-3, steps))
    params = network.init(start, x[:1])

    def loss(params, x, targets):
        logits = network.apply(params, x) / temperature
        return optax.softmax_cross_entropy(logits, targets).mean()

    @jax.jit
    def step(params, memory, x, targets, key):
        chosen = jax.random.randint(key, (128,), 0, len(x))
        gradient = jax.grad(loss)(params, x[chosen], targets[chosen])
        change, memory = optimizer.update(gradient, memory)
        return optax.apply_updates(params, change), memory

    memory = optimizer.init(params)
    for key in jax.random.split(draw, steps):  # no scan, where convolutions are slow on a CPU
        params, memory = step(params, memory, x, targets, key)
    return params


def build(name, key, data, width, channels, steps):
    """A network's ``apply_fn, params``."""
    x, targets = jnp.asarray(data.x_train), jax.nn.one_hot(data.y_train, 10)
    network = CNN(channels) if name == "cnn" else MLP(width, bounded=name == "bounded")
    if name == "distilled":
        teacher_key, key = jax.random.split(key)
        teacher = train(teacher_key, network, x, targets, 100.0, steps)
        targets = jax.nn.softmax(jax.jit(network.apply)(teacher, x) / 100.0)
        return network.apply, train(key, network, x, targets, 100.0, steps)
    return network.apply, train(key, network, x, targets, 1.0, steps)


def distances(model, x, label, target, norm, cw_steps):
    """Distances ``[n]`` of Carlini-Wagner and of I-FGSM, targeted unless ``target`` is None."""
    goal = {"labels": label if target is None else target, "targeted": target is not None}
    cw = jr.attacks.carlini_wagner(*model, x, norm=norm, num_steps=cw_steps, **goal).distance
    nearest = jnp.full(len(x), jnp.inf)
    for eps in EPS[norm]:
        found = jr.attacks.pgd(
            *model, jax.random.key(0), x, eps=eps, norm=norm, step_size=eps / 10,
            num_steps=20, random_start=False, **goal,
        )  # fmt: skip
        nearest = jnp.minimum(nearest, found.distance)
    return cw, nearest


def mean(values):
    """Mean of the finite ones."""
    values = np.asarray(values)
    return values[np.isfinite(values)].mean() if np.isfinite(values).any() else np.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--norms", nargs="+", default=["l2", "linf"])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS))
    parser.add_argument("--images", type=int)
    parser.add_argument("--batches", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--width", type=int, help="units of the MLPs, 1024 in the paper")
    parser.add_argument("--channels", type=int, nargs=3, metavar="C", help="of the CNN: 32 64 200")
    parser.add_argument("--steps", type=int, help="of training")
    parser.add_argument("--cw-steps", type=int)
    args = parser.parse_args()
    images = args.images or (20 if args.full else 6)
    batches = args.batches or (500 if args.full else 50)
    size = args.size or (1024 if args.full else 64)
    width = args.width or (1024 if args.full else 64)
    channels = tuple(args.channels or ((32, 64, 200) if args.full else (8, 16, 32)))
    steps = args.steps or (5000 if args.full else 600)
    cw_steps = args.cw_steps or (200 if args.full else 50)

    data = zoo.datasets.load("mnist")
    print(
        f"{images} images, N_b = {batches}, N_s = {size}, width {width}, channels {channels},"
        f" {steps} steps of training, {cw_steps} of Carlini-Wagner; {jax.devices()}"
    )
    for name in args.networks:
        apply_fn, params = build(
            name, jax.random.key(NETWORKS.index(name)), data, width, channels, steps
        )
        model = (apply_fn, params)
        logits = jax.jit(apply_fn)(params, jnp.asarray(data.x_test))
        right = np.flatnonzero(np.asarray(logits).argmax(1) == data.y_test)
        x, label = jnp.asarray(data.x_test[right[:images]]), data.y_test[right[:images]]
        print(f"\n{name}: accuracy {len(right) / len(logits):.4f}")
        print("norm  target  CLEVER [interval]        CW   I-FGSM    SLOPE  above  K-S ok  at R  s")
        for norm in args.norms:
            for which in args.targets:
                start = time.perf_counter()
                options = {"radius": RADIUS[norm], "norm": norm, "targets": which}
                box = {"bounds": (0.0, 1.0)}
                key = jax.random.key(7)
                clever = jr.clever_score(
                    *model, key, x, num_batches=batches, batch_size=size, labels=label,
                    **options, **box,
                )  # fmt: skip
                slope = jr.slope_score(
                    *model, key, x, num_pairs=batches * size // 2, **options, **box
                )
                target = None if which == "all" else clever.target
                cw, ifgsm = distances(model, x, label, target, norm, cw_steps)
                between = jr.bracket(clever, cw, ifgsm)
                pvalue = np.asarray(clever.ks_pvalue)
                low, high = np.nanmean(clever.interval, axis=0)
                print(
                    f"{norm:5s} {which:6s} {mean(clever.score):8.4f} [{low:.4f}, {high:.4f}]"
                    f" {mean(cw):8.4f} {mean(ifgsm):8.4f} {mean(slope.score):8.4f}"
                    f" {int(between.num_violations) / int(between.num_comparable):6.2f}"
                    f" {np.mean(pvalue[np.isfinite(pvalue)] > 0.05):7.2f}"
                    f" {np.mean(np.asarray(clever.score) >= RADIUS[norm]):5.2f}"
                    f" {time.perf_counter() - start:5.1f}"
                )
            rows, where = np.arange(images), np.asarray(clever.target)
            for count in (c for c in (10, 25, 50, 100, 250, 500) if c <= batches):
                fit = jr.fits.fit_reverse_weibull(clever.maxima[rows, where, :count])
                score = np.minimum(clever.margin[rows, where] / fit.location, RADIUS[norm])
                print(f"{norm:5s} {args.targets[-1]:6s} N_b = {count:3d}: {mean(score):.4f}")


if __name__ == "__main__":
    main()
