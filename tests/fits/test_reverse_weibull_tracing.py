"""The reverse Weibull fit under JAX: batches, precision, compilations, gradients."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust.fits import (
    ReverseWeibullFit,
    ReverseWeibullStatus,
    fit_reverse_weibull,
    ks_pvalue_bootstrap,
    location_interval,
)
from jaxrobust.fits import reverse_weibull as module

OK, ENDPOINT, DIVERGED, *_ = ReverseWeibullStatus
METHODS = ("mle", "least_squares")
ROWS, SIZE = 64, 500  # as in conftest.py: the tests share compilations


def test_leading_axes_change_nothing(draws):
    samples = draws(ROWS, SIZE, seed=4).astype(np.float32)
    flat = fit_reverse_weibull(samples)
    assert isinstance(flat, ReverseWeibullFit)
    chex.assert_shape(flat, (ROWS,))
    assert flat.status.dtype == jnp.int32
    compiled = module._fit._cache_size()
    shaped = fit_reverse_weibull(samples.reshape(4, ROWS // 4, SIZE))
    assert module._fit._cache_size() == compiled
    chex.assert_shape(shaped, (4, ROWS // 4))
    chex.assert_trees_all_equal(jax.tree.map(jnp.ravel, shaped), flat)


@pytest.mark.slow
def test_jit_and_vmap_agree(draws):
    samples = draws(ROWS, SIZE, seed=4).astype(np.float32)
    flat = fit_reverse_weibull(samples)
    mapped = jax.jit(jax.vmap(fit_reverse_weibull))(samples.reshape(4, ROWS // 4, SIZE))
    # Where the likelihood is flat, its maximum moves with the rounding of sums.
    chex.assert_trees_all_close(jax.tree.map(jnp.ravel, mapped), flat, rtol=1e-2)
    single = fit_reverse_weibull(samples[0])
    chex.assert_trees_all_close(single, jax.tree.map(lambda leaf: leaf[0], flat), rtol=1e-3)


@pytest.mark.parametrize("dtype", [pytest.param(jnp.float32, marks=pytest.mark.slow), jnp.float64])
def test_results_keep_the_precision_of_the_sample(dtype):
    with jax.enable_x64(True):
        sample = jax.ShapeDtypeStruct((3, 2, 9), dtype)
        for method in METHODS:
            result = jax.eval_shape(lambda s, m=method: fit_reverse_weibull(s, method=m), sample)
            assert {leaf.dtype for leaf in result} == {jnp.dtype(dtype), jnp.dtype(jnp.int32)}
            assert {leaf.shape for leaf in result} == {(3, 2)}
        ends = jax.eval_shape(location_interval, sample)
        assert (ends.shape, ends.dtype) == ((3, 2, 2), dtype)
        pvalue = jax.eval_shape(ks_pvalue_bootstrap, jax.random.key(0), sample)
        assert (pvalue.shape, pvalue.dtype) == ((3, 2), dtype)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bfloat16])
def test_other_numbers_become_float32(dtype):
    result = jax.eval_shape(fit_reverse_weibull, jax.ShapeDtypeStruct((9,), dtype))
    assert result.location.dtype == jnp.float32


def test_new_values_compile_nothing(fit, interval, bootstrap):
    calls = {
        module._fit: lambda samples: fit(samples),
        module._interval: lambda s: interval(s, confidence=1 / (1 + float(s[0, 0]) ** 2)),
        module._bootstrap: lambda s: bootstrap(jax.random.key(int(1e3 * s[0, 0] ** 2)), s),
    }
    for compiled, call in calls.items():
        sizes = []
        for seed in range(3):
            call(np.random.default_rng(seed).normal(size=(2, SIZE)))
            sizes.append(compiled._cache_size())
        assert sizes[0] == sizes[-1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_gradient_meets_finite_differences(fit, method):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        samples = [1 - rng.weibull(4.0, SIZE), rng.gumbel(size=SIZE), -rng.weibull(0.8, SIZE)]

        def summary(result):
            return result.location + 0.3 * result.scale + 0.1 * result.shape

        gradient = jax.grad(lambda s: jnp.sum(summary(fit_reverse_weibull(s, method=method))))(
            np.stack(samples)
        )
        assert {*fit(samples, method).status} == {OK, DIVERGED, ENDPOINT}
        for i, sample in enumerate(samples):
            # None so near the top that a shift would make it the largest.
            which = np.argsort(sample)[: -SIZE // 50 : SIZE // 15]
            shifts = 1e-4 * np.ptp(sample) * np.eye(SIZE)[which]
            moved = summary(fit(np.concatenate([sample + shifts, sample - shifts]), method))
            numeric = (moved[: which.size] - moved[which.size :]) / (2e-4 * np.ptp(sample))
            np.testing.assert_allclose(gradient[i][which], numeric, atol=2e-3)
            np.testing.assert_allclose(np.sum(gradient[i]), 1, rtol=1e-6)  # moves with the sample
