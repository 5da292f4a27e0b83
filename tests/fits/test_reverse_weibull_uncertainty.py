"""How sure a reverse Weibull fit is: Kolmogorov-Smirnov, bootstrap, interval of the location."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxrobust.fits import (
    ReverseWeibullStatus,
)
from jaxrobust.fits import reverse_weibull as module

DIVERGED = ReverseWeibullStatus.DIVERGED
METHODS = ("mle", "least_squares")
# Where the second method would only compile the same path again.
SLOW_METHODS = ("mle", pytest.param("least_squares", marks=pytest.mark.slow))
ROWS, SIZE = 64, 500  # as in conftest.py: the tests share compilations
NUM_SAMPLES = 50


# ------------------------------------------------------------------------------- Kolmogorov-Smirnov


@pytest.mark.parametrize("method", METHODS)
def test_ks_statistic_and_pvalue_meet_scipy(draws, fit, method):
    samples = draws(16, SIZE, seed=5)
    result = fit(samples, method)
    for i, sample in enumerate(samples):
        distribution = stats.weibull_max(
            result.shape[i], loc=np.max(sample) + result.excess[i], scale=result.scale[i]
        )
        expected = stats.kstest(sample, distribution.cdf, method="exact")
        assert result.ks_statistic[i] == pytest.approx(expected.statistic, abs=2e-5)
        assert result.ks_pvalue[i] == pytest.approx(expected.pvalue, abs=1e-3)


def test_kolmogorov_distribution():
    x = np.r_[0.0, np.linspace(0.05, 4, 100), 10.0, 100.0]
    ours = jax.jit(jax.vmap(module._kolmogorov_sf))(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(ours, stats.kstwobign.sf(x), rtol=1e-4, atol=1e-6)
    for num, bound in ((10, 3e-3), (50, 5e-4), (500, 1e-4)):
        distance = np.linspace(0.4, 2.0, 50) / num**0.5
        pvalue = jax.jit(jax.vmap(functools.partial(module._kolmogorov_pvalue, num=num)))
        np.testing.assert_allclose(
            pvalue(jnp.float32(distance)), stats.kstwo.sf(distance, num), atol=bound
        )


@pytest.mark.parametrize("method", SLOW_METHODS)
def test_bootstrap_meets_a_plain_loop(weibull, fit, bootstrap, method):
    samples = weibull(1.0, 0.1, 3.0, SIZE, [0, 1])
    key, observed = jax.random.key(7), fit(samples, method)
    expected = []
    for i in range(2):
        keys = [jax.random.fold_in(jax.random.fold_in(key, j), i) for j in range(NUM_SAMPLES)]
        x = np.array([jax.random.exponential(k, (SIZE,)) for k in keys]) ** (1 / observed.shape[i])
        simulated = fit(observed.location[i] - observed.scale[i] * x, method).ks_statistic
        count = np.sum(simulated >= observed.ks_statistic[i])
        expected.append((1 + count) / (1 + NUM_SAMPLES))
    np.testing.assert_allclose(bootstrap(key, samples, method), expected, rtol=1e-6)


def test_bootstrap_pvalue_is_uniform_where_the_plain_one_is_not(weibull, fit, bootstrap):
    samples = weibull(1.0, 0.1, 4.0, SIZE, range(ROWS))
    pvalue = bootstrap(jax.random.key(0), samples)
    error = 1 / (12 * ROWS) ** 0.5
    assert abs(np.mean(pvalue) - 0.5) < 4 * error
    assert stats.kstest(pvalue, "uniform").pvalue > 1e-3
    assert np.mean(fit(samples).ks_pvalue) > 0.5 + 6 * error


def test_bootstrap_rejects_what_is_not_reverse_weibull(bootstrap):
    rng = np.random.default_rng(0)
    samples = np.where(rng.random((10, SIZE)) < 0.5, 0.2, 0.8) + 0.05 * rng.random((10, SIZE))
    assert np.all(bootstrap(jax.random.key(0), samples) < 0.05)


# ------------------------------------------------------------------------------------- the interval


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "freedom"), [(3.0, 1), (1.4, 2)])
def test_interval_ends_where_the_profile_of_scipy_says(weibull, fit, interval, shape, freedom):
    samples = weibull(1.0, 0.5, shape, SIZE, range(3))
    with jax.enable_x64(True):
        result, ends = fit(samples), interval(samples, confidence=0.8)
    assert np.all((result.shape > 2) == (freedom == 1))
    for i, sample in enumerate(samples):
        for end in ends[i][ends[i] > sample.max()]:
            shape, _, scale = stats.weibull_min.fit(end - sample, floc=0)
            profile = np.sum(stats.weibull_min.logpdf(end - sample, shape, scale=scale))
            drop = 2 * (result.log_likelihood[i] - profile)
            assert drop == pytest.approx(stats.chi2.ppf(0.8, freedom), abs=1e-3)


@pytest.mark.slow
def test_interval_is_infinite_where_gumbel_is_as_likely(draws, fit, interval):
    samples = draws(ROWS, SIZE, seed=9)
    with jax.enable_x64(True):
        result, upper = fit(samples), interval(samples)[:, 1]
    threshold = stats.chi2.ppf(0.95, 1) / 2
    seen = []
    for i, sample in enumerate(samples):
        z = (sample - np.mean(sample)) / np.std(sample)
        limit = np.sum(stats.gumbel_r.logpdf(z, *stats.gumbel_r.fit(z)))
        gap = result.log_likelihood[i] - (limit - SIZE * np.log(np.std(sample)))
        if result.status[i] != DIVERGED and abs(gap - threshold) > 0.01:
            assert np.isinf(upper[i]) == (gap < threshold)
            seen.append(gap < threshold)
    assert min(np.mean(seen), 1 - np.mean(seen)) > 0.1  # both happen


@pytest.mark.parametrize("shape", [1.0, 1.5, 4.0])
def test_interval_covers_the_location(weibull, interval, shape):
    ends = np.concatenate(
        [
            interval(weibull(1.0, 0.1, shape, SIZE, range(start, start + ROWS)))
            for start in range(0, 6 * ROWS, ROWS)
        ]
    )
    covered = np.mean((ends[:, 0] <= 1.0) & (ends[:, 1] >= 1.0))
    error = (0.95 * 0.05 / len(ends)) ** 0.5
    assert covered > 0.95 - 4 * error
    # Below shape 2 it is meant to cover more often.
    assert covered < 0.95 + 4 * error or shape < 2


def test_interval_widens_with_confidence(weibull, interval):
    samples = weibull(1.0, 0.1, 3.0, SIZE, [0])
    ends = np.concatenate([interval(samples, confidence=c) for c in (0.3, 0.6, 0.9)])
    assert np.all(np.diff(ends[:, 0]) < 0)
    assert np.all(np.diff(ends[:, 1]) > 0)
