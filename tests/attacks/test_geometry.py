"""Balls, steps and draws: exact where they must be, uniform where they say so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from jaxrobust.attacks import _geometry

RNG = np.random.default_rng(0)
ORDER = {"l1": 1, "l2": 2, "linf": np.inf}
NORMS = sorted(ORDER)
project = jax.jit(_geometry.project, static_argnames="norm")
settle = jax.jit(_geometry.settle, static_argnames="norm")
steepest = jax.jit(_geometry.steepest, static_argnames="norm")
draw_ball = jax.jit(_geometry.draw_ball, static_argnames="norm")
length = jax.jit(_geometry.length, static_argnames="norm")
unit = jax.jit(_geometry.unit, static_argnames="norm")


def col(value):
    return jnp.asarray(value, jnp.float32).reshape(-1, 1)


@pytest.mark.parametrize("norm", NORMS)
def test_length_and_unit_of_extreme_rows(norm):
    v = jnp.asarray([[3.0, -4.0], [0.0, 0.0], [3e-30, -4e-30], [3e30, 4e30]], jnp.float32)
    want = np.linalg.norm(np.asarray(v, np.float64), ORDER[norm], axis=1)
    np.testing.assert_allclose(length(v, norm)[:, 0], want, rtol=1e-6)
    lengths = np.linalg.norm(np.asarray(unit(v, norm), np.float64), ORDER[norm], axis=1)
    np.testing.assert_allclose(lengths, [1, 0, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_projection_is_the_nearest_point(norm):
    x = np.zeros((1, 4), np.float32)
    point = RNG.normal(size=(1, 4))
    got = project(
        jnp.asarray(x), jnp.asarray(point, jnp.float32), norm, col(0.7), col(-np.inf), col(np.inf)
    )
    constraint = {
        "l1": lambda v: 0.7 - np.abs(v).sum(),
        "l2": lambda v: 0.49 - (v**2).sum(),
        "linf": lambda v: 0.7 - np.abs(v),
    }[norm]
    want = optimize.minimize(
        lambda v: ((v - point[0]) ** 2).sum(),
        0.3 * point[0],
        constraints={"type": "ineq", "fun": constraint},
        options={"ftol": 1e-12},
    )
    np.testing.assert_allclose(got[0], want.x, atol=2e-4)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 50.0])
def test_settled_inputs_are_inside_to_the_last_bit(norm, scale):
    n, d = 200, 301
    x = RNG.uniform(size=(n, d)).astype(np.float32)
    x[:, :3] = [0.0, 1.0, 1e-4]
    eps = (scale * RNG.uniform(0.5, 1, size=n)).astype(np.float32)
    far = x + (10 * scale * RNG.normal(size=(n, d))).astype(np.float32)
    box = (jnp.zeros((1, 1)), jnp.ones((1, 1)))
    inner = project(jnp.asarray(x), jnp.asarray(far), norm, col(eps), *box)
    got = settle(jnp.asarray(x), inner, norm, col(eps), *box)
    got = np.asarray(got)
    assert got.min() >= 0
    assert got.max() <= 1
    sizes = np.linalg.norm(got.astype(np.float64) - x, ORDER[norm], axis=1)
    assert (sizes <= eps).all()
    # ... and no further inside than rounding asks.
    assert np.abs(got - np.asarray(inner)).max() <= 5e-6 * max(scale, 1)


def test_steepest_l1_step_fills_the_box_in_order():
    g = jnp.asarray([[3.0, -5.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    x = jnp.asarray([[0.9, 0.2, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]])
    step = steepest(g, "l1", col([0.4, 0.4]), x, col(0.0), col(1.0))
    np.testing.assert_allclose(step, [[0.1, -0.2, 0.1, 0], [0, 0, 0, 0]], atol=1e-6)
    free = steepest(g, "l1", col([0.4, 0.4]), x, col(-np.inf), col(np.inf))
    np.testing.assert_allclose(free, [[0, -0.4, 0, 0], [0, 0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_draws_are_uniform_in_the_ball(norm):
    n, d = 4000, 5
    keys = jax.random.split(jax.random.key(1), n)
    mask = jnp.asarray([[1.0, 1.0, 0.0, 1.0, 1.0]])
    v = np.asarray(draw_ball(keys, jnp.zeros((n, d)), norm, mask))
    assert (v[:, 2] == 0).all()
    # In a ball of k = 4 dimensions the k-th power of the length is uniform ...
    sizes = np.linalg.norm(v, ORDER[norm], axis=1)
    assert stats.kstest(sizes**4, "uniform").pvalue > 1e-3
    # ... and so is, by symmetry, the sign of every coordinate, whatever the others are.
    signs = np.sign(v[:, [0, 1, 3, 4]])
    assert np.abs(signs.mean(0)).max() < 4 / np.sqrt(n)
    assert np.abs(signs.T @ signs / n - np.eye(4)).max() < 4 / np.sqrt(n)
    # The second moment of a coordinate: 1/3 for linf, 1/(k+2) for l2, 2/((k+1)(k+2)) for l1.
    second = {"linf": 1 / 3, "l2": 1 / 6, "l1": 2 / 30}[norm]
    squares = v[:, 0] ** 2
    assert abs(squares.mean() - second) < 4 * squares.std() / np.sqrt(n)
