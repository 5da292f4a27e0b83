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


@pytest.mark.slow
@pytest.mark.parametrize(("exact", "seeds"), [(1e-3, 100), (1e-6, 40)])
def test_intervals_cover_in_many_dimensions(exact, seeds):
    w, x = at_probabilities(3072, np.full(seeds, exact))
    result = jr.rare_flip_probability(
        plane, w, KEY, x, perturbation=UNIT, num_particles=200, num_runs=10
    )
    share = covered(result, exact).mean()
    print(f"{exact:g}: covered by {share:.0%} of {seeds}, status {np.bincount(result.status)}")
    assert share >= 0.9


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


def test_absurdly_small_settings_are_marked_and_claim_little():
    """A third of these die on the way: what is left of those is a ceiling."""
    exact = np.full(60, 1e-6)
    w, x = at_probabilities(2, exact)
    result = jr.rare_flip_probability(
        plane, w, KEY, x, perturbation=UNIT, num_particles=40, num_runs=6, num_moves=2
    )
    stuck = np.asarray(result.status) == jr.RareStatus.STUCK
    assert 60 * 0.3 - 4 * 3.6 <= stuck.sum() <= 60 * 0.3 + 4 * 3.6
    lower, upper = np.asarray(result.interval).T
    assert (lower[stuck] == 0).all()
    assert (lower[~stuck] > 0).all()
    assert (upper >= np.asarray(result.probability)).all()
    assert np.median(upper[stuck]) < 0.1  # it says something still
    share = covered(result, exact)
    assert share[stuck].all()  # the ceiling is that of a level below
    assert share.sum() >= 60 * 0.95 - 4 * np.sqrt(60 * 0.95 * 0.05)


def test_a_ceiling_is_that_of_the_last_level_that_all_runs_reached():
    """Three runs, one of which died at the third level: what the others found there is no part."""
    from jaxrobust.measures.flip import rare

    num = 50
    alive = np.full((1, 3, 6), num)
    alive[0, :, :4] = [[10, 12, 9, 1], [8, 11, 0, 1], [13, 10, 12, 30]]
    runs = rare._Run(None, jnp.asarray(alive), jnp.array([[7, 0, 9]]), jnp.zeros((1, 3)), None)
    yes, no = jnp.array([True]), jnp.array([False])
    found = np.asarray(rare._interval(jnp.array([4]), runs, yes, no, num, 0.95))[0]
    share = alive[0, :, :2] / num
    logs = np.log(share).sum(axis=1)
    least = ((1 - share) / (num * share)).sum(axis=1).mean()
    variance = max(logs.var(ddof=1), least)
    t = scipy.stats.t.ppf(0.975, 2)
    error = np.sqrt(variance / 3 + variance**2 / 4)
    np.testing.assert_allclose(found, [0, np.exp(logs.mean() + variance / 2 + t * error)], 1e-5)
    alive[0, 1, 0] = 0  # nothing is known at all
    found = rare._interval(
        jnp.array([4]), runs._replace(alive=jnp.asarray(alive)), yes, no, num, 0.95
    )
    assert found.tolist() == [[0, 1]]


def test_runs_that_agree_by_chance_are_no_certainty():
    from jaxrobust.measures.flip import rare

    counts = jnp.full((1, 3, 2), 10)  # 0.2 * 0.2 in each of three runs of 50
    lower, upper = np.asarray(rare._log_interval(counts, 50, 0.95))[0]
    error = scipy.stats.t.ppf(0.975, 2) * np.sqrt(2 * 0.8 / 10 / 3)
    assert np.log(upper / lower) >= 2 * error
    assert lower < 0.04 < upper


def test_invalid_outputs_are_told_and_allowed_for():
    def fragile(w, x):
        return jnp.where(x[:, :1] > 3.3, jnp.nan, plane(w, x))

    w, x = at_probabilities(2, np.array([1e-3]))  # x[0] = 2.2; invalid with probability 0.13
    result = jr.rare_flip_probability(fragile, w, KEY, x, perturbation=UNIT, **SMALL)
    assert int(result.status[0]) == jr.RareStatus.INVALID
    assert 0.1 < result.interval[0, 1] < 0.25
