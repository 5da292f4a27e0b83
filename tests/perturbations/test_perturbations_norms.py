"""Noise in lp balls and on lp spheres: exactly uniform, exactly of the radius."""

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
NORMS = ["l1", "l2", "linf"]
ORDER = {"l1": 1, "l2": 2, "linf": np.inf}
SIZES = [1, 2, 5, 40]


_transform_batch = jax.jit(transform_batch)


def push(perturbation, x):
    """Pushes normal draws forward, one for each example of a batch; drawn by NumPy, for speed."""
    z = np.random.default_rng(5).normal(size=(len(x), perturbation.latent_size(x.shape[1:])))
    return _transform_batch(perturbation, jnp.asarray(z, jnp.float32), x)


def noise_of(perturbation, size, num=N):
    return np.asarray(push(perturbation, jnp.zeros((num, size))), np.float64)


def assert_same_law(values, distribution):
    assert scipy.stats.kstest(values, distribution.cdf).pvalue > 1e-3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("norm", NORMS)
def test_radius_of_the_ball(norm, size):
    noise = noise_of(P.uniform_ball(2.0, norm=norm), size)
    radius = np.linalg.norm(noise, ORDER[norm], axis=-1) / 2
    assert radius.max() <= 1 + 1e-6
    # The share of the volume within r is r^D, so r^D is uniform and the mean is D / (D + 1).
    assert_same_law(radius**size, scipy.stats.uniform())
    spread = math.sqrt(size / (size + 2)) / (size + 1)
    assert abs(radius.mean() - size / (size + 1)) < 4 * spread / math.sqrt(N)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("norm", NORMS)
def test_coordinates_of_the_ball(norm, size):
    noise = noise_of(P.uniform_ball(1.0, norm=norm), size)
    # A slice of the ball at height t has the volume of a smaller ball of one dimension less.
    law = {
        "l1": scipy.stats.beta(1, size),  # of the absolute value
        "l2": scipy.stats.beta((size + 1) / 2, (size + 1) / 2, loc=-1, scale=2),
        "linf": scipy.stats.uniform(-1, 2),
    }[norm]
    for j in (0, size - 1):
        assert_same_law(np.abs(noise[:, j]) if norm == "l1" else noise[:, j], law)
    assert_signs_are_free(noise)


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_coordinates_of_the_sphere(norm, size):
    noise = noise_of(P.uniform_sphere(1.0, norm=norm), size)
    law = {
        "l1": scipy.stats.beta(1, size - 1),
        "l2": scipy.stats.beta((size - 1) / 2, (size - 1) / 2, loc=-1, scale=2),
    }[norm]
    for j in (0, size - 1):
        assert_same_law(np.abs(noise[:, j]) if norm == "l1" else noise[:, j], law)
    assert_signs_are_free(noise)


def assert_signs_are_free(noise):
    """Every sign is a fair coin, and independent of its neighbour's."""
    signs = np.sign(noise[:, :2])
    counts = [(signs == pair).all(axis=-1).sum() for pair in ([1, 1], [1, -1], [-1, 1], [-1, -1])]
    assert sum(counts) == len(noise)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("size", SIZES[1:])
def test_the_cube_has_uniform_faces(size):
    noise = noise_of(P.uniform_sphere(1.0, norm="linf"), size)
    face = np.abs(noise).argmax(axis=-1)
    np.testing.assert_array_equal(np.abs(noise).max(axis=-1), 1)
    which = 2 * face + (noise[np.arange(N), face] > 0)
    counts = np.bincount(which, minlength=2 * size)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    # On a face, every other coordinate is uniform, here the next one.
    other = noise[np.arange(N), (face + 1) % size]
    assert_same_law(other, scipy.stats.uniform(-1, 2))


@pytest.mark.parametrize("size", [2, 40])
def test_coordinates_are_uncorrelated(size):
    for norm in NORMS:
        for make in (P.uniform_ball, P.uniform_sphere):
            noise = noise_of(make(1.0, norm=norm), size)
            correlation = np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]
            assert abs(correlation) < 4 / math.sqrt(N)


@pytest.mark.parametrize("make", [P.uniform_sphere, P.gaussian_sphere])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [1, 7, 3072])
def test_spheres_have_exactly_their_radius(make, norm, size):
    noise = noise_of(make(0.25, norm=norm), size, 200)
    radius = np.linalg.norm(noise, ORDER[norm], axis=-1)
    np.testing.assert_allclose(radius, 0.25, rtol=0 if norm == "linf" else 5e-6)
    assert len(np.unique(noise, axis=0)) == (2 if size == 1 else 200)


@pytest.mark.parametrize("norm", NORMS)
def test_gaussian_sphere_is_a_projected_normal(norm):
    noise = noise_of(P.gaussian_sphere(1.0, norm=norm), 6)
    z = np.random.default_rng(0).normal(size=(N, 6))
    direct = z / np.linalg.norm(z, ORDER[norm], axis=-1, keepdims=True)
    for statistic in (lambda v: v[:, 0], lambda v: np.sort(np.abs(v), axis=-1)[:, 2]):
        assert scipy.stats.ks_2samp(statistic(noise), statistic(direct)).pvalue > 1e-3


def test_gaussian_sphere_is_far_from_the_corners_in_linf():
    size = 3072
    ratio = {}
    for make in (P.gaussian_sphere, P.uniform_sphere):
        noise = noise_of(make(1.0, norm="linf"), size, 500)
        ratio[make] = np.linalg.norm(noise, axis=-1).mean() / math.sqrt(size)
    assert ratio[P.gaussian_sphere] == pytest.approx(0.26, abs=0.01)
    # Uniform coordinates have the root mean square 1 / sqrt(3).
    assert ratio[P.uniform_sphere] == pytest.approx(1 / math.sqrt(3), abs=0.002)


@pytest.mark.parametrize("make", [P.uniform_ball, P.uniform_sphere, P.gaussian_sphere])
@pytest.mark.parametrize("norm", NORMS)
def test_radius_zero_and_a_radius_for_each_example(make, norm):
    x = jnp.arange(24.0).reshape(4, 3, 2)
    np.testing.assert_array_equal(push(make(0.0, norm=norm), x), x)
    radii = jnp.array([0.0, 1.0, 2.0, 5.0])
    own = push(make(radii, norm=norm), jnp.zeros_like(x))
    unit = push(make(1.0, norm=norm), jnp.zeros_like(x))
    np.testing.assert_allclose(own, radii[:, None, None] * unit, rtol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_a_latent_of_zeros_is_no_nan(norm):
    for make in (P.uniform_ball, P.uniform_sphere, P.gaussian_sphere):
        noise = make(1.0, norm=norm)
        z = jnp.zeros(noise.latent_size((3,)))
        np.testing.assert_array_equal(noise.transform(z, jnp.ones(3)), jnp.ones(3))


def test_extreme_latents_are_finite():
    z = jnp.array([8.0, -8.0, 30.0, 1e-30, 0.5, 0.5])
    for norm in NORMS:
        for make in (P.uniform_ball, P.uniform_sphere, P.gaussian_sphere):
            noise = make(1.0, norm=norm)
            x_hat = noise.transform(z[: noise.latent_size((4,))], jnp.zeros(4))
            assert np.isfinite(x_hat).all()
            assert np.linalg.norm(x_hat, ORDER[norm]) <= 1 + 1e-6
