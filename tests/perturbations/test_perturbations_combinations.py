"""Perturbations made of others, of observed data, and of a user's sampler."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrobust as jr
from jaxrobust.perturbations.base import transform_batch

P = jr.perturbations
KEY = jax.random.key(3)
N = 10_000
X = jnp.array([1.0, -2.0, 0.5])
_transform_batch = jax.jit(transform_batch)


def latents(perturbation, x):
    z = np.random.default_rng(5).normal(size=(len(x), perturbation.latent_size(x.shape[1:])))
    return jnp.asarray(z, jnp.float32)


def push(perturbation, x):
    return _transform_batch(perturbation, latents(perturbation, x), x)


def draws(perturbation, x=X, num=N):
    return np.asarray(push(perturbation, jnp.broadcast_to(x, (num, *x.shape))), np.float64)


# --- clipped --------------------------------------------------------------------------------------


def test_clipped_is_numpy_clip_of_the_same_draw():
    noise, lower, upper = P.gaussian(2.0), jnp.array([-1.0, -math.inf, 0.0]), jnp.asarray(1.5)
    found = draws(P.clipped(noise, lower, upper))
    np.testing.assert_array_equal(found, np.clip(draws(noise), lower, upper))
    for j, side in [(0, "both"), (1, "upper"), (2, "both")]:
        assert (found[:, j] == 1.5).mean() > 0.01
        assert (found[:, j] == lower[j]).any() == (side == "both")


def test_clipped_bounds_for_each_example():
    x = jnp.zeros((4, 3))
    lower = -jnp.arange(4.0)[:, None] * jnp.ones((4, 3))
    free = push(P.gaussian(2.0), x)
    found = push(P.clipped(P.gaussian(2.0), lower, 0.25), x)
    np.testing.assert_array_equal(found, np.clip(free, lower, 0.25))
    assert ((found == lower) & (free < lower)).any()


@pytest.mark.parametrize("shape", [(5,), (4, 1), (3, 4, 5)])
def test_clipped_bounds_broadcast_to_an_image(shape):
    x = jnp.zeros((3, 4, 5))
    upper = jnp.arange(math.prod(shape), dtype=float).reshape(shape) / 10
    found = push(P.clipped(P.gaussian(3.0), -0.5, upper), x)
    full = push(P.clipped(P.gaussian(3.0), -0.5, jnp.broadcast_to(upper, x.shape)), x)
    np.testing.assert_array_equal(found, full)


# --- chain ----------------------------------------------------------------------------------------


def test_chain_applies_its_links_in_order_with_noise_of_their_own():
    first, second = P.gaussian(0.5, probability=0.5), P.uniform_ball(2.0, norm="l2")
    both = P.chain(first, P.clipped(second, 0.0, 1.0))
    x = jnp.broadcast_to(X, (100, 3))
    z = latents(both, x)
    assert z.shape == (100, 6 + 5)
    middle = _transform_batch(first, z[:, :6], x)
    expected = _transform_batch(P.clipped(second, 0.0, 1.0), z[:, 6:], middle)
    np.testing.assert_array_equal(_transform_batch(both, z, x), expected)


def test_chain_of_gaussians_adds_variances():
    noise = draws(P.chain(P.gaussian(0.6), P.gaussian(0.8))) - np.asarray(X)
    assert scipy.stats.kstest(noise.ravel(), "norm").pvalue > 1e-3


def jitter(key, x):
    return x + jax.random.uniform(key, x.shape, x.dtype, -1.0, 1.0)


def test_chain_with_a_sampler_hands_each_link_its_own_key():
    chain = P.chain(P.gaussian(0.5), P.from_sampler(jitter), P.from_sampler(jitter))
    assert not chain.has_latent
    x = jnp.broadcast_to(X, (3, 3))
    x_hat = jr.perturb(chain, KEY, x, replicate=4)

    def by_hand(key, x_i):
        for number, link in enumerate([P.gaussian(0.5).sample, jitter, jitter]):
            x_i = link(jax.random.fold_in(key, number), x_i)
        return x_i

    by_hand = jax.jit(by_hand)
    for i in range(3):
        key = jax.random.fold_in(jax.random.fold_in(KEY, 4), i)
        np.testing.assert_allclose(x_hat[i], by_hand(key, x[i]), rtol=1e-6)


def test_chain_of_one_is_the_link_itself():
    noise = P.gaussian(0.5, probability=0.3)
    np.testing.assert_array_equal(draws(P.chain(noise)), draws(noise))


# --- resample -------------------------------------------------------------------------------------

TABLE = jnp.array([[0.0, 10.0, 20.0], [1.0, 11.0, 21.0], [2.0, 12.0, 22.0], [3.0, 13.0, 23.0]])


def test_resample_draws_rows_uniformly_cell_by_cell():
    found = draws(P.resample(TABLE))
    rows = found - np.array([0.0, 10.0, 20.0])
    for j in range(3):
        counts = np.bincount(rows[:, j].astype(int), minlength=4)
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
    # Cells are replaced independently: all 16 pairs of rows are equally frequent.
    pairs = np.bincount((4 * rows[:, 0] + rows[:, 1]).astype(int), minlength=16)
    assert scipy.stats.chisquare(pairs).pvalue > 1e-3
    np.testing.assert_array_equal(rows, np.round(rows))


def test_resample_some_cells_with_a_probability():
    where = jnp.array([True, True, False])
    found = draws(P.resample(TABLE + 100, where=where, probability=0.25))
    changed = found != np.asarray(X)
    assert not changed[:, 2].any()
    assert (np.abs(changed[:, :2].mean(axis=0) - 0.25) < 4 * math.sqrt(0.1875 / N)).all()
    assert (found[changed] >= 100).all()


def test_resample_from_a_table_of_each_example():
    tables = jnp.stack([TABLE, TABLE + 1000])
    x = jnp.zeros((2, 3))
    z = latents(P.resample(TABLE), x)
    own = _transform_batch(P.resample(tables), z, x)
    for i in range(2):
        one = _transform_batch(P.resample(tables[i]), z, x)
        np.testing.assert_array_equal(own[i], one[i])


@pytest.mark.parametrize("extreme", [-40.0, 40.0])
def test_resample_at_extreme_latents_stays_in_the_table(extreme):
    found = P.resample(TABLE).transform(jnp.full(3, extreme), X)
    np.testing.assert_array_equal(found, TABLE[0 if extreme < 0 else -1])


# --- samplers -------------------------------------------------------------------------------------


def test_from_sampler_gets_the_key_of_the_draw():
    x = jnp.arange(6.0).reshape(2, 3)
    x_hat = jr.perturb(P.from_sampler(jitter), KEY, x, replicate=2)
    for i in range(2):
        key = jax.random.fold_in(jax.random.fold_in(KEY, 2), i)
        np.testing.assert_array_equal(x_hat[i], jitter(key, x[i]))


def test_from_sampler_can_be_clipped():
    noise = P.clipped(P.from_sampler(jitter), -0.1, 0.1)
    assert not noise.has_latent
    x_hat = jr.perturb(noise, KEY, jnp.zeros((50, 3)))
    assert np.abs(x_hat).max() == np.float32(0.1)
    assert 0.7 < (np.abs(x_hat) == np.float32(0.1)).mean() < 1


@pytest.mark.parametrize("wrap", [lambda p: p, P.chain, lambda p: P.clipped(p, 0.0, 1.0)])
def test_a_sampler_has_no_latent(wrap):
    with pytest.raises(ValueError, match=r"^perturbation must be a push-forward .* from_sampler"):
        wrap(P.from_sampler(jitter)).latent_size((3,))
