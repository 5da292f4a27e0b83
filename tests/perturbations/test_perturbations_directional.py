"""Noise that leans along a direction: its law, its ends, and what it refuses."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrobust as jr
from jaxrobust.perturbations.base import transform_batch

P = jr.perturbations
KEY = jax.random.key(0)
NORMS = ["l1", "l2", "linf"]
ORDER = {"l1": 1, "l2": 2, "linf": np.inf}
N = 4000

_transform_batch = jax.jit(transform_batch)


def normal(num, size, seed=3):
    return np.random.default_rng(seed).normal(size=(num, size))


def push(perturbation, x, z):
    return np.asarray(_transform_batch(perturbation, jnp.asarray(z, jnp.float32), x))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kappa", [0.0, 0.7, 5.0])
def test_it_is_the_formula(norm, kappa):
    """The noise is r xi / |xi|_p with xi = kappa v + z: plain NumPy in double precision."""
    z = normal(50, 6)
    direction = np.random.default_rng(1).normal(size=(50, 2, 3)) * 1e3
    radius = np.linspace(0.1, 3, 50)
    noise = P.directional(direction.astype("float32"), kappa, radius, norm=norm)
    x = jnp.full((50, 2, 3), 0.5)
    flat = direction.reshape(50, 6)
    xi = kappa * flat / np.linalg.norm(flat, axis=1, keepdims=True) + z
    eta = radius[:, None] * xi / np.linalg.norm(xi, ORDER[norm], axis=1, keepdims=True)
    np.testing.assert_allclose(push(noise, x, z), 0.5 + eta.reshape(x.shape), atol=3e-6)


@pytest.mark.parametrize("size", [2, 16, 3072])
@pytest.mark.parametrize("norm", NORMS)
def test_without_a_lean_it_is_noise_on_the_sphere(norm, size):
    """Two samples: kappa 0 against the sphere's own sampler (the exact one for l2)."""
    num = 500 if size > 100 else N
    direction = normal(1, size, 9)[0]
    zeros = jnp.zeros((num, size))
    leaning = push(P.directional(direction, 0.0, 2.0, norm=norm), zeros, normal(num, size))
    own = P.uniform_sphere if norm == "l2" else P.gaussian_sphere
    free = push(own(2.0, norm=norm), zeros, normal(num, size, 4))
    np.testing.assert_allclose(np.linalg.norm(leaning, ORDER[norm], axis=1), 2.0, rtol=5e-6)
    for statistic in (lambda v: v[:, 0], lambda v: v @ direction, lambda v: np.abs(v).sum(1)):
        a, b = statistic(leaning), statistic(free)
        if np.ptp(np.concatenate([a, b])) > 1e-4:  # the l1 length of l1 noise is a constant
            assert scipy.stats.ks_2samp(a, b).pvalue > 1e-3


@pytest.mark.parametrize("size", [2, 16, 3072])
def test_the_cosine_has_its_law(size):
    """For l2 the cosine c with v has sqrt(D - 1) c / sqrt(1 - c^2) noncentral t."""
    num, kappa = (500 if size > 100 else N), 2.0
    noise = P.directional(np.eye(size)[0], kappa, 1.0, norm="l2")
    c = push(noise, jnp.zeros((num, size)), normal(num, size))[:, 0].astype(np.float64)
    t = math.sqrt(size - 1) * c / np.sqrt(np.maximum(1 - c**2, 1e-12))
    assert scipy.stats.kstest(t, scipy.stats.nct(size - 1, kappa).cdf).pvalue > 1e-3


@pytest.mark.parametrize("norm", NORMS)
def test_a_strong_lean_is_the_direction_itself(norm):
    direction = np.array([[3.0, -4.0, 0.0], [1e-20, 0.0, 0.0], [1e18, 1e18, 0.0]], np.float32)
    noise = P.directional(direction, 1e7, 2.0, norm=norm)
    x_hat = push(noise, jnp.zeros((3, 3)), normal(3, 3))
    wide = direction.astype(np.float64)
    expected = 2 * wide / np.linalg.norm(wide, ORDER[norm], axis=1, keepdims=True)
    np.testing.assert_allclose(x_hat, expected, atol=2e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_zero_direction_and_zero_radius(norm):
    z = normal(3, 4)
    x = jnp.asarray(normal(3, 4, 8), jnp.float32)
    direction = np.array([[0.0] * 4, [1.0] * 4, [1.0] * 4])
    noise = P.directional(direction, 50.0, jnp.array([1.0, 1.0, 0.0]), norm=norm)
    x_hat = push(noise, x, z)
    free = push(P.gaussian_sphere(1.0, norm=norm), x, z)
    np.testing.assert_allclose(x_hat[0], free[0], rtol=1e-6)  # nothing to lean along
    assert (x_hat[1] - np.asarray(x)[1] > 0).all()
    np.testing.assert_array_equal(x_hat[2], x[2])


def test_a_kappa_for_each_example():
    x, z = jnp.zeros((2, 5)), normal(2, 5)
    direction = np.ones(5)
    both = push(P.directional(direction, jnp.array([0.0, 3.0]), 1.0, norm="l2"), x, z)
    for i, kappa in enumerate((0.0, 3.0)):
        alone = push(P.directional(direction, kappa, 1.0, norm="l2"), x, z)
        np.testing.assert_allclose(both[i], alone[i], rtol=1e-6)


def test_gradient_with_respect_to_kappa_is_finite():
    z, x = jnp.asarray(normal(1, 4)[0], jnp.float32), jnp.zeros(4)
    for direction in (jnp.ones(4), jnp.zeros(4)):

        def first(kappa, direction=direction):
            return P.directional(direction, kappa, 1.0, norm="l2").transform(z, x)[0]

        value, slope = jax.value_and_grad(first)(2.0)
        step = (first(2.01) - first(1.99)) / 0.02
        assert slope == pytest.approx(float(step), abs=1e-3)
        assert np.isfinite(value)


BAD = [
    (("a", 1.0, 1.0), {}, TypeError, "direction"),
    (([1.0, math.nan], 1.0, 1.0), {}, ValueError, "direction must be finite"),
    (([1.0, 1.0], None, 1.0), {}, TypeError, "kappa"),
    (([1.0, 1.0], -0.1, 1.0), {}, ValueError, "kappa must be finite and not negative"),
    (([1.0, 1.0], math.nan, 1.0), {}, ValueError, "kappa must be finite and not negative"),
    (([1.0, 1.0], math.inf, 1.0), {}, ValueError, "kappa must be finite and not negative"),
    (([1.0, 1.0], 1.0, "a"), {}, TypeError, "radius"),
    (([1.0, 1.0], 1.0, -1.0), {}, ValueError, "radius must be finite and not negative"),
    (([1.0, 1.0], 1.0, math.nan), {}, ValueError, "radius must be finite and not negative"),
    (([1.0, 1.0], 1.0, 1.0), {"norm": "l3"}, ValueError, "norm must be one of"),
]


@pytest.mark.parametrize(("args", "change", "error", "match"), BAD)
def test_bad_arguments(args, change, error, match):
    with pytest.raises(error, match=rf"^{match}"):
        P.directional(*args, **({"norm": "l2"} | change))


@pytest.mark.parametrize(
    ("direction", "kappa", "radius", "match"),
    [
        (np.ones(3), 1.0, 1.0, "direction must"),
        (np.ones(1), 1.0, 1.0, "direction must"),
        (1.0, 1.0, 1.0, "direction must"),
        (np.ones((4, 2)), 1.0, 1.0, "direction must"),
        (np.ones(2), np.ones(2), 1.0, "kappa must"),
        (np.ones(2), 1.0, np.ones((3, 2)), "radius must"),
    ],
)
def test_parameters_that_do_not_fit_the_input(direction, kappa, radius, match):
    noise = P.directional(direction, kappa, radius, norm="l2")
    with pytest.raises(ValueError, match=match):
        jr.perturb(noise, KEY, jnp.zeros((3, 2)))
