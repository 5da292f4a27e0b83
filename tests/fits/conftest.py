"""Samples of maxima and their reverse Weibull fits, as the tests of those fits share them."""

import jax
import numpy as np
import pytest
from scipy import stats

from jaxrobust.fits import fit_reverse_weibull, ks_pvalue_bootstrap, location_interval

ROWS, NUM_SAMPLES = 64, 50  # most batches have as many rows, so that the tests share compilations
KINDS = ("interior", "interior", "interior", "gumbel", "ties", "tiny", "huge", "sharp")


def draw(kind, rng, size):
    """A sample of maxima, rounded to float32 so that every precision sees the same numbers."""
    shape = np.exp(rng.uniform(np.log(1.2), np.log(30)))
    sample = 1.0 - rng.uniform(0.01, 0.5) * rng.weibull(shape, size)
    if kind == "gumbel":
        sample = rng.gumbel(size=size)
    elif kind == "ties":
        sample = np.round(3 - rng.weibull(3.0, size), 1)
    elif kind == "tiny":
        sample = sample * 1e-25
    elif kind == "huge":
        sample = sample * 1e25
    elif kind == "sharp":  # shapes below 1: the free likelihood is unbounded
        sample = -rng.weibull(rng.uniform(0.5, 1.2), size)
    return sample.astype(np.float32).astype(float)


@pytest.fixture(scope="session")
def draws():
    """Samples ``[num, size]`` of all kinds in turn."""

    def function(num, size, seed):
        rng = np.random.default_rng(seed)
        return np.stack([draw(KINDS[i % len(KINDS)], rng, size) for i in range(num)])

    return function


@pytest.fixture(scope="session")
def weibull():
    """One reverse Weibull sample for each seed."""

    def function(location, scale, shape, size, seeds):
        distribution = stats.weibull_max(shape, loc=location, scale=scale)
        return np.stack(
            [distribution.rvs(size, random_state=np.random.default_rng(s)) for s in seeds]
        )

    return function


def padded(samples, rows=ROWS):
    samples = np.asarray(samples)
    return np.concatenate([samples, np.repeat(samples[:1], rows - len(samples), axis=0)])


@pytest.fixture(scope="session")
def fit():
    """Fits at most ``rows`` samples at once; NumPy arrays come back."""

    def function(samples, method="mle", rows=ROWS):
        result = fit_reverse_weibull(padded(samples, rows), method=method)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(samples)], result)

    return function


@pytest.fixture(scope="session")
def interval():
    """The intervals of the location of at most ``rows`` samples."""

    def function(samples, confidence=0.95, rows=ROWS):
        return np.asarray(location_interval(padded(samples, rows), confidence=confidence))[
            : len(samples)
        ]

    return function


@pytest.fixture(scope="session")
def bootstrap():
    """The p-values of at most ``ROWS`` samples."""

    def function(key, samples, method="mle"):
        pvalue = ks_pvalue_bootstrap(key, padded(samples), method=method, num_samples=NUM_SAMPLES)
        return np.asarray(pvalue)[: len(samples)]

    return function
