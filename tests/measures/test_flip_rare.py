"""Rare flips against exact linear answers, and what the method cannot do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrobust as jr

KEY = jax.random.key(5)
UNIT = jr.perturbations.gaussian(1.0)
SMALL = {"num_particles": 100, "num_runs": 8}


def plane(w, x):
    return jnp.stack([jnp.zeros(x.shape[0], x.dtype), x @ w], axis=1)


def at_probabilities(dimension, exact):
    """Weights and inputs whose flip probabilities are the given ones."""
    w = jnp.ones(dimension) / np.sqrt(dimension)
    distance = jnp.asarray(-scipy.stats.norm.ppf(exact), jnp.float32)
    return w, jnp.outer(distance, w)


def covered(result, exact):
    return (result.interval[:, 0] < exact) & (exact < result.interval[:, 1])


def test_from_a_hundredth_to_1e_minus_12():
    exact = np.array([0.3, 1e-2, 1e-3, 1e-6, 1e-12])
    w, x = at_probabilities(100, exact)
    result = jr.rare_flip_probability(
        plane, w, KEY, x, perturbation=UNIT, num_particles=500, num_runs=16, confidence=0.999
    )
    assert (result.status == jr.RareStatus.OK).all()
    assert (abs(result.probability / exact - 1) < 0.25).all()
    assert covered(result, exact).all()
    assert int(result.num_levels[0]) == 0  # plain Monte Carlo will do
    assert (jnp.diff(result.num_levels) > 0).all()
    np.testing.assert_array_equal(result.num_evaluations, 17 * 500 * (1 + 10 * result.num_levels))


def test_coverage_and_bias_reduced():
    """Twenty examples with noise of their own, at each of two probabilities."""
    exact = np.repeat([1e-2, 1e-6], 20)
    w, x = at_probabilities(2, exact)
    result = jr.rare_flip_probability(plane, w, KEY, x, perturbation=UNIT, **SMALL)
    assert covered(result, exact).sum() >= 40 * 0.95 - 4 * np.sqrt(40 * 0.95 * 0.05)
    ratio = np.asarray(result.probability) / exact
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(40)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [2, 100])
@pytest.mark.parametrize("exact", [1e-3, 1e-6, 1e-9, 1e-12])
def test_intervals_cover_in_ninety_of_a_hundred(dimension, exact):
    w, x = at_probabilities(dimension, np.full(100, exact))
    result = jr.rare_flip_probability(plane, w, KEY, x, perturbation=UNIT)
    assert covered(result, exact).sum() >= 90
    assert (abs(result.probability / exact - 1) < 0.25).mean() >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("exact", [1e-3, 1e-6, 1e-12])
def test_many_dimensions(exact):
    w, x = at_probabilities(3072, np.array([exact]))
    result = jr.rare_flip_probability(plane, w, KEY, x, perturbation=UNIT)
    assert abs(float(result.probability[0]) / exact - 1) < 0.25
    assert covered(result, exact).all()


def test_a_flat_margin_is_stuck_and_says_so():
    def constant(params, x):
        return jnp.broadcast_to(jnp.array([[0.0, 1.0]]), (x.shape[0], 2))

    result = jr.rare_flip_probability(
        constant, {}, KEY, jnp.ones((1, 2)), perturbation=UNIT, **SMALL
    )
    assert int(result.status[0]) == jr.RareStatus.STUCK
    assert result.probability[0] == 0
    upper = 1 - 0.025 ** (1 / 800)  # no flips in 800 draws
    np.testing.assert_allclose(result.interval[0], [0, upper], rtol=1e-4)


def test_a_margin_that_leads_nowhere_is_stuck_and_bounded():
    def dome(params, x):  # the margin rises to just short of a flip
        return jnp.stack([jnp.full(x.shape[0], 1.0), jnp.tanh(x[:, 0]) - 1e-3], axis=1)

    result = jr.rare_flip_probability(dome, {}, KEY, jnp.zeros((1, 2)), perturbation=UNIT, **SMALL)
    assert int(result.status[0]) == jr.RareStatus.STUCK
    assert result.probability[0] == 0
    assert result.interval[0, 0] == 0
    assert 0 < result.interval[0, 1] < 1e-3


def test_invalid_outputs_are_told_and_allowed_for():
    def fragile(w, x):
        return jnp.where(x[:, :1] > 3.3, jnp.nan, plane(w, x))

    w, x = at_probabilities(2, np.array([1e-3]))  # x[0] = 2.2; invalid with probability 0.13
    result = jr.rare_flip_probability(fragile, w, KEY, x, perturbation=UNIT, **SMALL)
    assert int(result.status[0]) == jr.RareStatus.INVALID
    assert 0.1 < result.interval[0, 1] < 0.25


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_runs": 1}, "num_runs"),
        ({"num_particles": 5}, "num_particles"),
        ({"num_moves": 0}, "num_moves"),
        ({"confidence": 1.0}, "confidence"),
        ({"labels": jnp.array([0, 1, 1])}, "labels"),
        ({"perturbation": jr.perturbations.from_sampler(lambda k, x: x)},
         "push-forward of a normal draw"),
    ],
)  # fmt: skip
def test_misuse(change, match):
    with pytest.raises(ValueError, match=match):
        jr.rare_flip_probability(
            plane, jnp.ones(2), KEY, jnp.ones((2, 2)), **{"perturbation": UNIT} | change
        )
