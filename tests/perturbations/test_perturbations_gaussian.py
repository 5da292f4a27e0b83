"""Gaussian noise: its distribution, its masks, its covariances."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrobust as jr
from jaxrobust.perturbations.base import transform_batch

P = jr.perturbations
N = 10_000
X = jnp.array([1.5, -2.0, 7.0, 0.25])
SCALE = jnp.array([1.0, 3.0, 0.5, 0.0])


_transform_batch = jax.jit(transform_batch)


def push(perturbation, x):
    """Pushes normal draws forward, one for each example of a batch; drawn by NumPy, for speed."""
    z = np.random.default_rng(5).normal(size=(len(x), perturbation.latent_size(x.shape[1:])))
    return _transform_batch(perturbation, jnp.asarray(z, jnp.float32), x)


def draws(perturbation, x=X, num=N):
    """Independent draws around one input, [num, ...]."""
    return np.asarray(push(perturbation, jnp.broadcast_to(x, (num, *x.shape))), np.float64)


def columns(perturbation, latent):
    """The matrix of a push-forward that is linear in z."""
    z = jnp.eye(latent)
    return np.asarray(jax.vmap(lambda e: perturbation.transform(e, jnp.zeros(4)))(z)).T


def assert_covariance(noise, expected, errors=4.5):
    """Sample mean 0 and covariance as expected, each entry within some standard errors."""
    num = len(noise)
    spread = np.sqrt(np.diag(expected))
    assert (np.abs(noise.mean(axis=0)) <= errors * spread / math.sqrt(num) + 1e-7).all()
    error = np.sqrt((np.outer(spread, spread) ** 2 + expected**2) / num)
    found = np.cov(noise.T, ddof=0, bias=True)
    assert (np.abs(found - expected) <= errors * error + 1e-6).all()


# --- independent noise ----------------------------------------------------------------------------


def test_noise_is_normal_with_the_scale_of_each_feature():
    noise = draws(P.gaussian(0.3, feature_scale=SCALE)) - np.asarray(X)
    for j in range(3):
        assert scipy.stats.kstest(noise[:, j] / (0.3 * float(SCALE[j])), "norm").pvalue > 1e-3
    assert (noise[:, 3] == 0).all()  # a constant column gets no noise
    assert_covariance(noise, np.diag((0.3 * np.asarray(SCALE)) ** 2))


@pytest.mark.parametrize("probability", [1.0, 0.4])
def test_without_noise_the_input_is_returned_exactly(probability):
    x = jnp.asarray(np.random.default_rng(2).normal(size=(50, 4)) * 1e3, jnp.float32)
    for noise in (
        P.gaussian(0.0, probability=probability),
        P.gaussian(2.0, feature_scale=0.0, probability=probability),
        P.gaussian(2.0, where=jnp.zeros(4, bool), probability=probability),
    ):
        np.testing.assert_array_equal(push(noise, x), x)


@pytest.mark.parametrize("kind", ["plain", "array"])
def test_each_cell_is_perturbed_with_its_probability(kind):
    p = 0.3 if kind == "plain" else jnp.asarray(0.3)
    changed = draws(P.gaussian(1.0, probability=p)) != np.asarray(X)
    error = math.sqrt(0.3 * 0.7 / N)
    assert (np.abs(changed.mean(axis=0) - 0.3) < 4 * error).all()
    # Cells are independent of each other, so the number changed is binomial.
    counts = np.bincount(changed.sum(axis=1), minlength=5)
    expected = N * scipy.stats.binom.pmf(np.arange(5), 4, 0.3)
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3
    # Which cells change says nothing about the size of the noise in them.
    noise = draws(P.gaussian(1.0, probability=p))[:, 0] - float(X[0])
    assert scipy.stats.kstest(noise[changed[:, 0]], "norm").pvalue > 1e-3


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_probabilities_at_the_ends(probability, share):
    changed = draws(P.gaussian(1.0, probability=jnp.asarray(probability))) != np.asarray(X)
    assert changed.mean() == share


def test_cells_outside_the_mask_are_untouched_bit_by_bit():
    where = jnp.array([True, False, True, False])
    x = np.random.default_rng(2).normal(size=(500, 4)).astype(np.float32)
    x[0, 1] = -0.0
    for probability in (1.0, 0.5):
        x_hat = push(P.gaussian(9.0, where=where, probability=probability), x)
        bits, kept = (np.asarray(a).view(np.uint32)[:, [1, 3]] for a in (x_hat, x))
        np.testing.assert_array_equal(bits, kept)
        changed = np.asarray(x_hat != x)[:, [0, 2]].mean()
        assert changed > 0.99 if probability == 1.0 else 0.4 < changed < 0.6


def test_integer_cells_stay_whole_numbers():
    x = jnp.array([3.0, -1.0, 0.4, 100.0])
    integer = jnp.array([True, True, False, True])
    x_hat = draws(P.gaussian(0.8, integer=integer), x)
    np.testing.assert_array_equal(x_hat[:, [0, 1, 3]], np.round(x_hat[:, [0, 1, 3]]))
    assert (x_hat[:, 2] != np.round(x_hat[:, 2])).mean() > 0.99
    # The rounded normal: P(k) = Phi((k + .5) / .8) - Phi((k - .5) / .8).
    steps = np.arange(-3, 4)
    cdf = scipy.stats.norm(scale=0.8).cdf
    expected = cdf(steps + 0.5) - cdf(steps - 0.5)
    expected[[0, -1]] += cdf(-3.5)
    counts = [(np.clip(x_hat[:, 0] - 3, -3, 3) == step).sum() for step in steps]
    assert scipy.stats.chisquare(counts, N * expected).pvalue > 1e-3


def test_integer_cells_that_are_not_chosen_keep_their_value():
    x = jnp.array([3.0, 0.4])  # the second is not whole, and is left so unless perturbed
    noise = P.gaussian(5.0, integer=jnp.array([True, True]), probability=0.5)
    x_hat = draws(noise, x)
    whole = x_hat == np.round(x_hat)
    kept = x_hat == np.asarray(x, np.float64)
    assert (whole | kept).all()
    for j, same in enumerate([0.5 + 0.5 * (2 * scipy.stats.norm.cdf(0.1) - 1), 0.5]):
        assert abs(kept[:, j].mean() - same) < 4 * math.sqrt(same * (1 - same) / N)


def test_one_draw_serves_every_sigma_and_probability():
    x = jnp.broadcast_to(X, (200, 4))
    small, large = (push(P.gaussian(s), x) - x for s in (0.5, 2.0))
    np.testing.assert_allclose(large, 4 * small, rtol=1e-4, atol=1e-5)
    rare, often = (push(P.gaussian(1.0, probability=jnp.asarray(p)), x) for p in (0.2, 0.7))
    chosen = rare != x
    assert (often[chosen] == rare[chosen]).all()  # the cells of a smaller p are among the larger's
    assert (often != x).sum() > chosen.sum()


@pytest.mark.parametrize("shape", [(5,), (4, 1), (4, 5), (1, 1), ()])
def test_parameters_broadcast_to_an_image(shape):
    x = jnp.zeros((3, 4, 5))
    scale = jnp.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    where = (scale % 2 == 1) if shape else jnp.asarray(True)
    x_hat = push(P.gaussian(1.0, feature_scale=scale, where=where, integer=~where), x)
    full = jnp.broadcast_to(scale, (4, 5))
    same = P.gaussian(1.0, feature_scale=full, where=jnp.broadcast_to(where, (4, 5)))
    np.testing.assert_array_equal(x_hat, push(same, x))


# --- full covariance ------------------------------------------------------------------------------

ROOT = np.random.default_rng(0).normal(size=(4, 4))
COV = ROOT @ ROOT.T / 4
SINGULAR = ROOT[:, :2] @ ROOT[:, :2].T


@pytest.mark.parametrize("cov", [COV, SINGULAR, np.zeros((4, 4)), np.diag([4.0, 0.0, 1.0, 9.0])])
def test_covariance_of_multivariate_normal(cov):
    noise = P.multivariate_normal(cov)
    matrix = columns(noise, 4)
    np.testing.assert_allclose(matrix @ matrix.T, cov, atol=1e-6 * max(1, np.abs(cov).max()))
    assert_covariance(draws(noise) - np.asarray(X), cov)


def test_multivariate_normal_is_normal_with_a_mean():
    mean = jnp.array([1.0, 0.0, -2.0, 0.5])
    noise = draws(P.multivariate_normal(COV, mean=mean)) - np.asarray(X + mean)
    squared = np.einsum("ni,ij,nj->n", noise, np.linalg.inv(COV), noise)
    assert scipy.stats.kstest(squared, scipy.stats.chi2(4).cdf).pvalue > 1e-3
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=4.5 * COV.max() ** 0.5 / math.sqrt(N))


def test_noise_of_a_singular_covariance_stays_in_its_range():
    noise = draws(P.multivariate_normal(SINGULAR)) - np.asarray(X)
    outside = scipy.linalg.null_space(SINGULAR, rcond=1e-8)
    assert outside.shape == (4, 2)
    assert np.abs(noise @ outside).max() < 2e-5


def test_each_example_has_its_own_covariance():
    covs = np.stack([COV, SINGULAR, np.zeros((4, 4))])
    x = jnp.stack([X, -X, 2 * X])
    noise = P.multivariate_normal(covs, mean=jnp.ones((3, 4)))
    x_hat = push(noise, x)
    for i in range(3):
        one = push(P.multivariate_normal(covs[i]), x)[i] + 1
        np.testing.assert_allclose(x_hat[i], one, rtol=1e-5, atol=1e-6)


def test_a_diagonal_covariance_is_independent_noise():
    scale = np.array([1.0, 3.0, 0.5, 0.0])
    x = jnp.broadcast_to(X, (50, 4))
    full = push(P.multivariate_normal(np.diag(scale**2)), x)
    np.testing.assert_allclose(
        full, push(P.gaussian(1.0, feature_scale=scale), x), rtol=1e-5, atol=1e-6
    )


def test_noise_is_continuous_in_the_covariance():
    # Equal eigenvalues part, and eigenvectors turn by any angle; the draws must hardly move.
    x = jnp.broadcast_to(X, (50, 4))
    turned = np.eye(4) + 1e-3 * (COV - np.eye(4))
    plain, moved = (push(P.multivariate_normal(c), x) for c in (np.eye(4), turned))
    assert 0 < np.abs(plain - moved).max() < 1e-2


def test_a_traced_covariance_gives_the_same_noise():
    x = jnp.broadcast_to(X, (20, 4))
    traced = jax.jit(lambda cov: push(P.multivariate_normal(cov), x))
    for cov in (COV, SINGULAR, np.eye(4)):
        plain = push(P.multivariate_normal(cov), x)
        np.testing.assert_allclose(traced(jnp.asarray(cov)), plain, atol=2e-3)


@pytest.mark.parametrize("wrong", [COV - 2 * np.eye(4), COV + np.eye(4, k=1), COV * math.nan])
def test_a_traced_covariance_that_is_none_gives_nan(wrong):
    x_hat = jax.jit(lambda cov: push(P.multivariate_normal(cov), X[None]))(wrong)
    assert np.isnan(x_hat).all()


# --- ensembles ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("num_members", [2, 7])
def test_ensemble_has_the_covariance_of_its_members(ddof, num_members):
    members = np.random.default_rng(1).normal(size=(num_members, 4)) + 50
    cov = np.cov(members.T, ddof=ddof)
    matrix = columns(factor_of(P.ensemble(members[None], ddof=ddof)), num_members)
    np.testing.assert_allclose(matrix @ matrix.T, cov, atol=2e-5)
    assert np.linalg.matrix_rank(cov, tol=1e-8) == min(4, num_members - 1)
    noise = P.ensemble(np.broadcast_to(members, (N, num_members, 4)), ddof=ddof)
    assert noise.latent_size((4,)) == num_members
    assert_covariance(draws(noise) - np.asarray(X), cov)


def factor_of(noise):
    """The perturbation of the first example alone."""
    return jax.tree.map(lambda leaf: leaf[0], noise)


def test_ensemble_of_images_and_of_equal_members():
    members = np.random.default_rng(2).normal(size=(2, 3, 4, 5))
    members[1] = 1.0
    x = jnp.zeros((2, 4, 5))
    x_hat = push(P.ensemble(members), x)
    flat = push(P.ensemble(members.reshape(2, 3, 20)), x.reshape(2, 20))
    np.testing.assert_array_equal(x_hat, flat.reshape(2, 4, 5))
    assert (x_hat[1] == 0).all()
    assert (x_hat[0] != 0).all()
