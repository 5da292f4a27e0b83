"""Rank comparison with adversarial distance, and the published point of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrobust as jr

KEY = jax.random.key(2)


def compare(*args, **kwargs):
    return jr.measures.distance_correlation(*args, **kwargs)


def test_spearman_is_that_of_scipy():
    rng = np.random.default_rng(0)
    distance = rng.integers(0, 12, 40).astype(np.float32)  # with ties
    robustness = (distance + rng.normal(0, 4, 40)).round().astype(np.float32)
    distance[[3, 8]], distance[20] = np.inf, np.nan
    found = jax.jit(compare)(robustness, distance)
    kept = np.isfinite(distance)
    exact = scipy.stats.spearmanr(robustness[kept], distance[kept]).statistic
    np.testing.assert_allclose(found.correlation, exact, rtol=1e-5)
    assert int(found.num_failed) == 3
    np.testing.assert_array_equal(np.isnan(found.rescaled), ~kept)
    assert float(np.nanmax(found.rescaled)) == 1
    error = np.sqrt((1 + exact**2 / 2) / (37 - 3)) * 1.959964
    ends = np.tanh(np.arctanh(exact) + np.array([-error, error]))
    np.testing.assert_allclose(found.interval, ends, rtol=1e-4)


def test_too_few_or_all_equal():
    assert compare(jnp.arange(3.0), jnp.arange(3.0)).interval.tolist() == [-1, 1]
    assert jnp.isnan(compare(jnp.ones(5), jnp.arange(5.0)).correlation)
    failed = compare(jnp.arange(4.0), jnp.full(4, jnp.inf))
    assert int(failed.num_failed) == 4
    assert jnp.isnan(failed.correlation)


def test_equal_distance_unequal_robustness():
    """One boundary near or two of them: the attack sees no difference, the noise does."""

    def strip_or_half_plane(params, x):
        left = jnp.where(x[:, 1] > 5, 1.02 + x[:, 0], jnp.inf)  # a second boundary, for some
        margin = jnp.minimum(1 - x[:, 0], left)
        return jnp.stack([margin, jnp.zeros_like(margin)], axis=1)

    x = jnp.array([[0.0, 0.0], [0.0, 10.0]])
    noise = jr.perturbations.gaussian(1.0, where=jnp.array([True, False]))
    attack = jr.attacks.deepfool(strip_or_half_plane, None, x, jnp.zeros(2, jnp.int32), bounds=None)
    np.testing.assert_allclose(attack.distance, 1.0, atol=0.03)
    n = 20_000
    found = jr.flip_probability(
        strip_or_half_plane, None, KEY, x, perturbation=noise, num_samples=n
    )
    exact = scipy.stats.norm.cdf(1) - np.array([0, scipy.stats.norm.cdf(-1.02)])
    np.testing.assert_allclose(found.robustness, exact, atol=4 * np.sqrt(0.25 / n))


@pytest.mark.parametrize(
    ("robustness", "distance", "confidence", "match"),
    [
        (jnp.ones((2, 2)), jnp.ones(2), 0.95, "robustness must have one value"),
        (jnp.ones(3), jnp.ones(2), 0.95, "distance must have one value"),
        (jnp.ones(2), jnp.array([1.0, -1.0]), 0.95, "distance must be not negative"),
        (jnp.ones(2), jnp.ones(2), 1.0, "confidence"),
    ],
)
def test_misuse(robustness, distance, confidence, match):
    with pytest.raises(ValueError, match=match):
        compare(robustness, distance, confidence=confidence)
