"""The reverse Weibull fit: against SciPy, simulation, and changes of unit."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from jaxrobust.fits import (
    ReverseWeibullStatus,
)
from jaxrobust.fits.reverse_weibull import MAX_SHAPE, MIN_SHAPE

OK, ENDPOINT, DIVERGED, *_ = ReverseWeibullStatus
METHODS = ("mle", "least_squares")
# Where the second method would only compile the same path again.
SLOW_METHODS = ("mle", pytest.param("least_squares", marks=pytest.mark.slow))
ROWS, SIZE = 64, 500  # as in conftest.py: the tests share compilations
KINDS = ("interior", "interior", "interior", "gumbel", "ties", "tiny", "huge", "sharp")


def log_likelihood(sample, excess, scale, shape):
    """By NumPy in double precision."""
    x = np.max(sample) - sample + excess
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(shape > 1, (shape - 1) * np.log(x / scale), 0.0)
    return np.sum(np.log(shape / scale) + density - (x / scale) ** shape)


def scipy_best(sample):
    """The best log-likelihood SciPy finds from several starts within our shapes, or -inf.

    Its own ``weibull_max.fit`` in the sample's units, and a bounded search on the unit interval.
    """
    top, spread = np.max(sample), np.ptp(sample)
    best = -np.inf
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for shape, excess in [(1.5, 0.02), (4.0, 0.4), (20.0, 3.0)]:
            shift = spread * excess
            try:
                found = stats.weibull_max.fit(
                    sample, shape, loc=top + shift, scale=np.mean(top + shift - sample)
                )
            except (ValueError, RuntimeError, stats.FitError):
                continue
            value = np.sum(stats.weibull_max.logpdf(sample, *found))
            inside = MIN_SHAPE <= found[0] <= MAX_SHAPE and found[1] >= top
            if np.all(np.isfinite(found)) and np.isfinite(value) and inside:
                best = max(best, value)

        z = (top - sample) / spread

        def loss(position):
            excess, shape = np.exp(position)
            x = z + excess
            scale = np.max(x) * np.mean((x / np.max(x)) ** shape) ** (1 / shape)
            return -log_likelihood(z * -1.0, excess, scale, shape) / z.size

        bounds = [(np.log(1e-12), np.log(MAX_SHAPE)), (np.log(MIN_SHAPE), np.log(MAX_SHAPE))]
        for shape, excess in [(1.5, 0.02), (20.0, 3.0)]:
            found = optimize.minimize(loss, np.log([excess, shape]), bounds=bounds)
            if np.isfinite(found.fun):
                best = max(best, -found.fun * z.size - z.size * np.log(spread))
    return best


def check_against_scipy(fit, samples):
    """Our log-likelihood is within 1e-3 of SciPy's best or above it, and reported rightly."""
    result = fit(samples, rows=max(ROWS, len(samples)))
    num_valid = 0
    for i, sample in enumerate(samples):
        best = scipy_best(sample)
        num_valid += np.isfinite(best)
        recomputed = log_likelihood(
            sample, float(result.excess[i]), float(result.scale[i]), float(result.shape[i])
        )
        assert recomputed >= best - 1e-3, (i, KINDS[i % len(KINDS)], best)
        assert result.log_likelihood[i] == pytest.approx(recomputed, rel=1e-6, abs=1e-3)
    assert num_valid > 0.9 * len(samples)  # or the comparison says nothing
    assert np.all(result.location >= np.max(samples, axis=-1).astype(result.location.dtype))
    assert np.all(result.excess <= (MAX_SHAPE - 1) * np.ptp(samples, axis=-1) * (1 + 1e-6))
    return result


# ------------------------------------------------------------------------------- maximum likelihood


def test_likelihood_is_no_worse_than_the_best_of_scipy(draws, fit):
    result = check_against_scipy(fit, draws(16, SIZE, seed=1))
    assert set(np.unique(result.status)) == {OK, ENDPOINT, DIVERGED}


@pytest.mark.slow
@pytest.mark.parametrize("x64", [False, True])
def test_likelihood_is_no_worse_than_the_best_of_scipy_on_a_thousand(draws, fit, x64):
    with jax.enable_x64(x64):
        check_against_scipy(fit, draws(1000, SIZE, seed=2 + x64))


@pytest.mark.parametrize("method", SLOW_METHODS)
def test_location_of_500_draws(weibull, fit, method):
    # The error has a standard deviation of about 0.0024, 0.026 and 0.24 (600 samples): the last
    # tolerance is little more than one of them, so it is these seeds that meet it.
    truth = {(1.0, 0.1, 2.0): 0.006, (2.0, 0.5, 3.0): 0.09, (10.0, 1.0, 8.0): 0.3}
    samples = np.concatenate([weibull(*params, 500, range(6)) for params in truth])
    result = fit(samples, method)
    for i, ((location, *_), tolerance) in enumerate(truth.items()):
        error = np.abs(result.location[6 * i : 6 * i + 6] - location)
        assert np.max(error) < tolerance
    assert np.all((result.status == OK) | (result.status == ENDPOINT))


def test_estimates_centre_on_the_truth(weibull, fit):
    truth = np.array([2.0, 0.5, 3.0])
    result = fit(weibull(*truth, SIZE, range(ROWS)))
    estimates = np.stack([result.location, result.scale, result.shape], axis=-1)
    error = np.std(estimates, axis=0) / ROWS**0.5
    np.testing.assert_array_less(np.abs(np.median(estimates, axis=0) - truth), 4 * error)


def test_double_precision_meets_the_score_equations(weibull, fit):
    samples = weibull(2.0, 0.5, 4.0, SIZE, range(3))
    with jax.enable_x64(True):
        result = fit(samples)

        @jax.jit
        @jax.value_and_grad
        def value(params, sample):
            excess, scale, shape = params
            log_ratio = jnp.log((jnp.max(sample) - sample + excess) / scale)
            return jnp.sum(
                jnp.log(shape / scale) + (shape - 1) * log_ratio - jnp.exp(shape * log_ratio)
            )

        for i in range(3):
            params = jnp.array([result.excess[i], result.scale[i], result.shape[i]])
            expected, gradient = value(params, samples[i])
            np.testing.assert_allclose(gradient * params, 0, atol=1e-5)
            np.testing.assert_allclose(result.log_likelihood[i], expected, rtol=1e-12)


# ------------------------------------------------------------------------------------ least squares


def test_least_squares_meets_scipy(weibull, fit):
    samples = np.concatenate([weibull(2.0, 0.5, c, SIZE, range(3)) for c in (1.3, 2.0, 4.0, 9.0)])
    result = fit(samples, "least_squares")
    t = -np.log((np.arange(SIZE) + 0.5) / SIZE)

    def residual(params, sample):
        location, scale, shape = params
        return location - scale * t ** (1 / shape) - np.sort(sample)

    for i, sample in enumerate(samples):
        top = np.max(sample)
        best = min(
            2
            * optimize.least_squares(
                residual,
                [top + 0.1 * start, np.mean(top + 0.1 * start - sample), start],
                bounds=([top, 0, MIN_SHAPE], [np.inf, np.inf, MAX_SHAPE]),
                args=(sample,),
            ).cost
            for start in (1.5, 3.0, 10.0)
        )
        ours = np.sum(residual((result.location[i], result.scale[i], result.shape[i]), sample) ** 2)
        assert ours <= best * (1 + 1e-3)


def test_least_squares_returns_an_exact_quantile_function(fit):
    t = -np.log((np.arange(SIZE) + 0.5) / SIZE)
    result = fit([3.0 - 0.5 * t ** (1 / 2.5)], "least_squares")
    found = [result.location[0], result.scale[0], result.shape[0]]
    np.testing.assert_allclose(found, [3.0, 0.5, 2.5], rtol=2e-3)
    assert result.status[0] == OK


# ---------------------------------------------------------------------------------- change of units


@pytest.mark.parametrize("method", METHODS)
def test_powers_of_two_change_nothing_in_float32(draws, fit, method):
    samples = draws(5, SIZE, seed=3)  # the first five kinds: scales near 1
    base = fit(samples, method)
    for power in (-90, -20, 30, 90):
        scale = np.float32(2.0**power)
        result = fit(np.float32(samples) * scale, method)
        np.testing.assert_array_equal(result.location, base.location * scale)
        np.testing.assert_array_equal(result.scale, base.scale * scale)
        np.testing.assert_array_equal(result.shape, base.shape)
        np.testing.assert_array_equal(result.status, base.status)


@pytest.mark.parametrize("method", SLOW_METHODS)
@pytest.mark.parametrize(
    ("x64", "scale", "origin", "rtol"),
    [
        (False, 3.0, 10.0, 1e-2),
        (True, 3.0, 1e3, 1e-6),
        (True, 1e9, 7.0, 1e-6),
        (True, 1e-9, -2.0, 1e-3),  # the samples spread over 1e-9 of their size
    ],
)
def test_fit_follows_a_change_of_origin_and_unit(weibull, fit, method, x64, scale, origin, rtol):
    samples = weibull(1.0, 0.5, 3.0, SIZE, range(3))
    with jax.enable_x64(x64):
        base, result = fit(samples, method), fit(samples * scale + origin, method)
    np.testing.assert_allclose(result.excess, base.excess * scale, rtol=rtol)
    np.testing.assert_allclose(result.location - origin, base.location * scale, rtol=rtol)
    np.testing.assert_allclose(result.scale, base.scale * scale, rtol=rtol)
    np.testing.assert_allclose(result.shape, base.shape, rtol=rtol)
    np.testing.assert_array_equal(result.status, base.status)
