"""The reverse Weibull fit at the edge: samples on which others run away, or that have no fit."""

import chex
import jax
import numpy as np
import pytest

from jaxrobust.fits import (
    ReverseWeibullStatus,
    fit_reverse_weibull,
    ks_pvalue_bootstrap,
    location_interval,
)
from jaxrobust.fits.reverse_weibull import MAX_SHAPE, MIN_SHAPE

OK, ENDPOINT, DIVERGED, DEGENERATE, INVALID = ReverseWeibullStatus
METHODS = ("mle", "least_squares")
# Where the second method would only compile the same path again.
SLOW_METHODS = ("mle", pytest.param("least_squares", marks=pytest.mark.slow))
ROWS, SIZE = 64, 500  # as in conftest.py: the tests share compilations

HOSTILE = {
    "gumbel": lambda rng, m: rng.gumbel(size=m),
    "frechet": lambda rng, m: rng.pareto(0.7, size=m),
    "heavy below": lambda rng, m: -rng.pareto(0.7, size=m),
    "exponential": lambda rng, m: -rng.exponential(size=m),
    "sharp": lambda rng, m: -rng.weibull(0.5, size=m),
    "coin": lambda rng, m: np.r_[0.0, 1.0, rng.integers(0, 2, m - 2)],
    "ties": lambda rng, m: np.r_[0.0, 2.0, np.round(rng.normal(size=m - 2))],
    "one low": lambda rng, m: np.r_[0.0, 1 + 1e-4 * rng.normal(size=m - 1)],
    "one high": lambda rng, m: np.r_[2.0, 1 + 1e-4 * rng.normal(size=m - 1)],
    "one high, rest equal": lambda rng, m: np.r_[2.0, np.ones(m - 1)],
    "one low, rest equal": lambda rng, m: np.r_[0.0, np.ones(m - 1)],
    "uniform": lambda rng, m: rng.random(m),
    "many decades": lambda rng, m: -(10 ** rng.uniform(-8, 0, m)),
    "far from 0": lambda rng, m: 1e4 + rng.random(m),
}


@pytest.mark.parametrize("size", [pytest.param(3, marks=pytest.mark.slow), SIZE])
@pytest.mark.parametrize("method", SLOW_METHODS)
def test_hostile_samples_stay_bounded(fit, interval, size, method):
    samples = np.float32([make(np.random.default_rng(size), size) for make in HOSTILE.values()])
    result = fit(samples, method)
    lower, upper = interval(samples).T
    top, spread = samples.max(axis=-1), np.ptp(samples, axis=-1)
    assert np.all(result.location >= top)
    assert np.all(result.location <= top + (MAX_SHAPE - 1) * spread * (1 + 1e-6))
    assert np.all((result.shape >= MIN_SHAPE) & (result.shape <= MAX_SHAPE * (1 + 1e-6)))
    assert np.all(np.isin(result.status, [OK, ENDPOINT, DIVERGED]))
    assert not np.any(np.isnan(result.log_likelihood) | np.isnan(result.ks_pvalue))
    at_top = (result.excess == 0) | (result.shape == MIN_SHAPE)
    diverged = result.shape >= MAX_SHAPE * (1 - 1e-6)
    assert np.all((result.status == DIVERGED) == diverged)
    assert np.all((result.status == ENDPOINT) == (at_top & ~diverged))
    assert np.all(lower >= top)
    assert np.all(upper >= lower)
    if method == "mle":
        slack = 1e-5 * spread + 1e-6 * np.abs(top)
        inside = (lower <= result.location + slack) & (upper >= result.location - slack)
        assert np.all(inside | (result.status == DIVERGED))


def test_tails_without_an_end_are_flagged(fit, interval):
    # About half of the Gumbel samples lean towards a distribution with an end; where their shape
    # stays below the bound, the interval tells.
    rng = np.random.default_rng(0)
    gumbel, frechet = rng.gumbel(size=(ROWS, SIZE)), rng.pareto(2.0, size=(ROWS, SIZE))
    result, upper = fit(gumbel), interval(gumbel)[:, 1]
    assert np.mean(result.status == DIVERGED) > 0.3
    assert np.mean(np.isinf(upper)) > 0.8
    assert np.all(np.isinf(upper) | (result.status != DIVERGED))
    for method in METHODS:
        assert np.all(fit(frechet, method).status == DIVERGED)


@pytest.mark.parametrize("method", METHODS)
def test_shape_below_1_ends_at_the_largest_maximum(fit, method):
    samples = -np.random.default_rng(0).weibull(0.5, size=(5, SIZE))
    result = fit(samples, method)
    assert np.all(result.status == ENDPOINT)
    assert np.all(result.shape == MIN_SHAPE)
    if method == "mle":
        np.testing.assert_array_equal(result.location, np.float32(samples.max(axis=-1)))


def one(value, rest):
    return np.float32([value] + [rest] * (SIZE - 1))


WITHOUT_A_FIT = [
    (one(0.0, 0.0), DEGENERATE, 0.0),  # masked gradients
    (one(2.5, 2.5), DEGENERATE, 2.5),
    (one(-2.5, -2.5), DEGENERATE, -2.5),
    (one(1 + 2.0**-22, 1.0), DEGENERATE, 1 + 2.0**-22),  # two units of rounding
    (one(np.nan, 1.0), INVALID, np.nan),
    (one(np.inf, 1.0), INVALID, np.nan),
    (one(-np.inf, 1.0), INVALID, np.nan),
    (one(-3e38, 3e38), INVALID, np.nan),  # the range overflows
]


@pytest.mark.parametrize("method", SLOW_METHODS)
def test_samples_without_a_fit(fit, interval, bootstrap, method):
    samples, status, location = (np.array(column) for column in zip(*WITHOUT_A_FIT, strict=True))
    result = fit(samples, method)
    np.testing.assert_array_equal(result.status, status)
    np.testing.assert_array_equal(result.location, np.float32(location))
    np.testing.assert_array_equal(interval(samples), np.float32(location)[:, None].repeat(2, 1))
    length = np.where(status == DEGENERATE, 0.0, np.nan)
    np.testing.assert_array_equal(result.scale, length)
    np.testing.assert_array_equal(result.excess, length)
    for unknown in (result.shape, result.log_likelihood, result.ks_statistic, result.ks_pvalue):
        assert np.all(np.isnan(unknown))
    assert np.all(np.isnan(bootstrap(jax.random.key(0), samples, method)))


@pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_fewer_maxima_than_parameters(size):
    result = fit_reverse_weibull(np.ones((4, size)))
    chex.assert_shape(result, (4,))
    assert np.all(result.status == INVALID)
    assert np.all(np.isnan(result.location))
    interval = location_interval(np.ones((4, size)))
    chex.assert_shape(interval, (4, 2))
    assert np.all(np.isnan(interval))
    assert np.all(np.isnan(ks_pvalue_bootstrap(jax.random.key(0), np.ones((4, size)))))


def test_bad_samples_leave_their_neighbours_alone(weibull, fit):
    good = weibull(1.0, 0.1, 3.0, SIZE, [0, 1])
    mixed = fit([good[0], np.full(SIZE, np.nan), np.zeros(SIZE), good[1]])
    np.testing.assert_array_equal(mixed.status, [OK, INVALID, DEGENERATE, OK])
    for got, expected in zip(mixed, fit(good), strict=True):
        np.testing.assert_allclose(got[[0, 3]], expected, rtol=1e-6)


SAMPLE = np.arange(5.0)
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: fit_reverse_weibull("many"), TypeError, "maxima"),
        (lambda: fit_reverse_weibull(SAMPLE > 1), TypeError, "maxima"),
        (lambda: fit_reverse_weibull(SAMPLE + 1j), TypeError, "maxima"),
        (lambda: fit_reverse_weibull(1.0), ValueError, "maxima"),
        (lambda: fit_reverse_weibull(np.zeros((3, 0))), ValueError, "maxima"),
        (lambda: fit_reverse_weibull(SAMPLE, method="moments"), ValueError, "method"),
        (lambda: location_interval(SAMPLE, confidence=1.0), ValueError, "confidence"),
        (lambda: location_interval(SAMPLE, confidence=0.0), ValueError, "confidence"),
        (lambda: location_interval(SAMPLE, confidence=np.nan), ValueError, "confidence"),
        (lambda: location_interval(SAMPLE, confidence=SAMPLE), ValueError, "confidence"),
        (lambda: location_interval(SAMPLE, confidence="high"), TypeError, "confidence"),
        (lambda: location_interval(1.0), ValueError, "maxima"),
        (lambda: ks_pvalue_bootstrap(0, SAMPLE), TypeError, "key"),
        (lambda: ks_pvalue_bootstrap(jax.random.split(KEY), SAMPLE), ValueError, "key"),
        (lambda: ks_pvalue_bootstrap(KEY, 1.0), ValueError, "maxima"),
        (lambda: ks_pvalue_bootstrap(KEY, SAMPLE, num_samples=0), ValueError, "num_samples"),
        (lambda: ks_pvalue_bootstrap(KEY, SAMPLE, num_samples=9.0), TypeError, "num_samples"),
        (lambda: ks_pvalue_bootstrap(KEY, SAMPLE, method=None), ValueError, "method"),
    ],
)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
