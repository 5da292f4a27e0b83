"""Real-world robustness of Iris, Ionosphere, WDBC and the Kepler objects of interest.

Scher & Truegler (arXiv 2204.10046): over 20 repeats, how well do two estimates of the robustness of
all examples agree, and does adversarial distance rank the examples in the same order?

    python benchmarks/reproduce_flip.py [--full] [--data-dir DIR] [-o FOLDER]

Iris and Ionosphere get noise of several scales, with covariance ``scale^2 C`` in units of the
features' standard deviations: ``C = I / N``, or ``A A^T / tr(A A^T)`` with normal ``A``. In WDBC
the ten means have the standard errors that the data set gives; the Kepler objects have their
measured errors. Without a data folder, the data sets that need none are run. Reduced by default.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import jaxrobust as jr
from jaxrobust import zoo

matplotlib.use("Agg")
import matplotlib.pyplot as plt

KEPLER = ("period", "impact", "duration", "depth", "prad", "insol", "steff", "slogg", "srad")


class Case(NamedTuple):
    """A model, its examples, what can happen to them, and the units of distances."""

    title: str
    apply_fn: Callable[[Any, jax.Array], jax.Array]
    params: Any
    x: jax.Array
    y: jax.Array
    perturbation: Any
    unit: np.ndarray


class Result(NamedTuple):
    """What was found for a case."""

    num_samples: list[int]
    smallest: list[float]
    robustness: jax.Array
    comparison: Any
    accuracy: float
    seconds: float


def small_sets(name: str, scales: list[float], key: jax.Array, data_dir: str | None) -> list[Case]:
    """Iris or Ionosphere under identity and random covariances."""
    key_train, key_cov = jax.random.split(key)
    model = zoo.load_model(name, key_train, data_dir=data_dir)
    data = model.dataset
    x = jnp.concatenate([data.x_train, data.x_test])
    y = jnp.concatenate([data.y_train, data.y_test])
    size = x.shape[1]
    unit = np.where(data.feature_scale > 0, data.feature_scale, 1)
    root = np.asarray(jax.random.normal(key_cov, (size, size)), np.float64)
    shapes = {"identity": np.eye(size) / size, "random": root @ root.T / np.trace(root @ root.T)}
    cases = []
    for kind, shape in shapes.items():
        for scale in scales:
            # Constant and yes/no columns stay as they are.
            moved = np.where(data.numeric, data.feature_scale, 0).astype(np.float64)
            cov = scale**2 * shape * np.outer(moved, moved)
            noise = jr.perturbations.multivariate_normal(cov.astype(np.float32))
            title = f"{name}, {kind} covariance, scale {scale:g}"
            cases.append(Case(title, model.apply_fn, model.params, x, y, noise, unit))
    return cases


def wdbc(key: jax.Array, data_dir: str | None) -> Case:
    """The means of each tumour, with their standard errors."""
    model = zoo.load_model("breast-cancer", key, data_dir=data_dir)
    data = model.dataset
    x = jnp.concatenate([data.x_train, data.x_test])
    y = jnp.concatenate([data.y_train, data.y_test])
    errors = jnp.pad(x[:, 10:20], ((0, 0), (0, 20)))
    noise = jr.perturbations.gaussian(1.0, feature_scale=errors)
    return Case("breast-cancer, standard errors", model.apply_fn, model.params, x, y, noise,
                data.feature_scale)  # fmt: skip


def kepler(key: jax.Array, path: pathlib.Path, rows: int) -> Case:
    """Confirmed planets or false positives, with measured errors."""
    with gzip.open(path, "rt") as file:
        table = list(csv.DictReader(line for line in file if not line.startswith("#")))
    table = [row for row in table if row["koi_disposition"] in ("CONFIRMED", "FALSE POSITIVE")]

    def column(name: str) -> np.ndarray:
        return np.array([float(row[name] or "nan") for row in table])

    values = np.stack([column(f"koi_{name}") for name in KEPLER], axis=1)
    ends = [np.abs(np.stack([column(f"koi_{name}_err{k}") for name in KEPLER], axis=1))
            for k in (1, 2)]  # fmt: skip
    errors = (ends[0] + ends[1]) / 2
    whole = np.isfinite(values).all(axis=1) & np.isfinite(errors).all(axis=1)
    y = np.array([row["koi_disposition"] == "CONFIRMED" for row in table], np.int32)[whole]
    values, errors = values[whole].astype(np.float32), errors[whole].astype(np.float32)
    # Heavy tails: the network sees arcsinh(value / median), the noise is in measured units.
    median = np.median(np.abs(values), axis=0)
    seen = np.arcsinh(values / median)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[len(y) // 4 :], order[: len(y) // 4]
    data = dataclasses.replace(
        zoo.datasets.load("iris"),
        name="kepler", title="Kepler objects of interest", num_classes=2, feature_names=KEPLER,
        x_train=seen[train], y_train=y[train], x_test=seen[test], y_test=y[test],
        numeric=np.ones(len(KEPLER), bool), integer=np.zeros(len(KEPLER), bool),
        feature_scale=seen[train].std(axis=0), source="NASA Exoplanet Archive",
    )  # fmt: skip
    model = zoo.train(key, data, hidden=(32, 16), num_steps=2000, batch_size=128)

    def apply_fn(params: Any, x: jax.Array) -> jax.Array:
        return model.apply_fn(params, jnp.arcsinh(x / median))

    test = test[:rows]
    noise = jr.perturbations.gaussian(1.0, feature_scale=errors[test])
    return Case("kepler, measured errors", apply_fn, model.params, jnp.asarray(values[test]),
                jnp.asarray(y[test]), noise, values[train].std(axis=0))  # fmt: skip


def measure(case: Case, key: jax.Array, num_samples: list[int], repeats: int) -> Result:
    """Smallest correlation between repeats for each number of draws, and ranks by distance."""
    start = time.perf_counter()
    keys = jax.random.split(key, repeats)
    smallest = []
    for number in num_samples:
        found = np.stack([
            np.asarray(jr.flip_probability(
                case.apply_fn, case.params, k, case.x, perturbation=case.perturbation,
                num_samples=number,
            ).robustness)
            for k in keys
        ])  # fmt: skip
        smallest.append(float(np.corrcoef(found).min()))
    clean = case.apply_fn(case.params, case.x).argmax(axis=1)
    unit = jnp.asarray(case.unit)[None, :]

    def in_units(params: Any, u: jax.Array) -> jax.Array:
        return case.apply_fn(params, u * unit)

    # The prediction is what may flip, so the attack starts from the predicted label.
    attack = jr.attacks.deepfool(in_units, case.params, case.x / unit, clean, bounds=None)
    robustness = jnp.asarray(found.mean(axis=0))
    return Result(
        num_samples=num_samples,
        smallest=smallest,
        robustness=robustness,
        comparison=jr.measures.distance_correlation(robustness, attack.distance),
        accuracy=float((clean == case.y).mean()),
        seconds=time.perf_counter() - start,
    )


def plot(case: Case, result: Result, path: pathlib.Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.plot(result.num_samples, 1 - np.array(result.smallest), "o-")
    left.axhline(1e-3, color="0.6", lw=1)
    left.set(xscale="log", yscale="log", xlabel="draws of each example",
             ylabel="1 − smallest correlation of repeats")  # fmt: skip
    right.plot(result.comparison.rescaled, result.robustness, ".", ms=4, alpha=0.6)
    lower, upper = np.asarray(result.comparison.interval)
    right.set(xlabel="adversarial distance, rescaled", ylabel="real-world robustness R",
              title=f"Spearman {float(result.comparison.correlation):.2f}"
              f" [{lower:.2f}, {upper:.2f}]")  # fmt: skip
    right.set_xscale("log")  # heavy-tailed features have heavy-tailed distances
    figure.suptitle(case.title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Reproduces arXiv 2204.10046.")
    parser.add_argument("--full", action="store_true", help="10,000 draws, 20 repeats, all rows")
    parser.add_argument("--data-dir", default=os.environ.get("JAXROBUST_DATA"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("flip_plots"))
    arguments = parser.parse_args()
    full, data_dir = arguments.full, arguments.data_dir
    scales = [0.25, 0.5, 1.0, 2.0] if full else [0.5, 2.0]
    num_samples, repeats = ([100, 1000, 10_000], 20) if full else ([100, 1000], 5)
    key, *keys = jax.random.split(jax.random.key(arguments.seed), 5)

    cases = small_sets("iris", scales, keys[0], data_dir)
    if "ionosphere" in zoo.datasets.available(data_dir):
        cases += small_sets("ionosphere", scales, keys[1], data_dir)
    cases.append(wdbc(keys[2], data_dir))
    path = pathlib.Path(data_dir or "") / "kepler_koi.csv.gz"
    if path.is_file():
        cases.append(kepler(keys[3], path, 10**6 if full else 400))
    arguments.output.mkdir(parents=True, exist_ok=True)
    print(f"{repeats} repeats; smallest correlation between two of them, for {num_samples} draws")
    for case in cases:
        result = measure(case, key, num_samples, repeats)
        smallest = " ".join(f"{value:.5f}" for value in result.smallest)
        lower, upper = np.asarray(result.comparison.interval)
        print(
            f"{case.title:42s} n={len(case.x):4d} accuracy {result.accuracy:.3f}"
            f" mean R {float(result.robustness.mean()):.4f} smallest {smallest}"
            f" Spearman {float(result.comparison.correlation):.3f} [{lower:.2f}, {upper:.2f}]"
            f" failed attacks {int(result.comparison.num_failed)} ({result.seconds:.0f} s)",
            flush=True,
        )
        plot(
            case,
            result,
            arguments.output / f"{case.title.replace(', ', '_').replace(' ', '-')}.png",
        )


if __name__ == "__main__":
    main()
