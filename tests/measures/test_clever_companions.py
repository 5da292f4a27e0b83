"""What stands beside CLEVER: its second order, slopes, attacks and other radii."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust import CleverStatus as Status
from jaxrobust.measures.clever import _sampling
from jaxrobust.perturbations import uniform_ball

KEY = jax.random.key(3)
SMALL = {"num_batches": 20, "batch_size": 16}
N = 3
ZERO = jnp.zeros((N, 2))
BENT = (2.0, jnp.array([3.0, 4.0]), 4.0)  # margin 2 + w . x - 2 |x|^2, |w| = 5


def bowl(params, x):
    """Two classes; margin ``g0 + w . x - k |x|^2 / 2``."""
    g0, w, k = params
    margin = g0 + x @ w - k * jnp.sum(x**2, axis=1) / 2
    return jnp.stack([margin, jnp.zeros_like(margin)], axis=1)


def second_order(params, radius=1.0, **kwargs):
    return jr.clever_score_second_order(
        bowl, params, KEY, ZERO, radius=radius, **{**SMALL, **kwargs}
    )


# --------------------------------------------------------------------------------- second order


def test_second_order_is_exact_for_a_quadratic_margin():
    result = second_order(BENT)
    np.testing.assert_allclose(result.score, 0.350781, rtol=1e-5)
    np.testing.assert_allclose(result.curvature[:, 1], 4.0, rtol=1e-5)
    np.testing.assert_allclose(result.gradient_norm[:, 1], 5.0, rtol=1e-6)
    np.testing.assert_allclose(result.interval[:, 0], result.score, rtol=1e-5)


@pytest.mark.parametrize(
    ("params", "radius", "expected", "status"),
    [
        # Bends up: the slope alone counts, and no downward curvature is seen.
        ((2.0, jnp.array([3.0, 4.0]), -4.0), 1.0, 0.4, Status.ZERO_GRADIENTS | Status.CONSTANT),
        ((2.0, jnp.array([3.0, 4.0]), 4.0), 0.2, 0.2, Status.CENSORED | Status.CONSTANT),
        ((0.0, jnp.array([3.0, 4.0]), 4.0), 1.0, 0.0, Status.TIED_CLASSES | Status.CONSTANT),
        ((2.0, jnp.zeros(2), 0.0), 0.5, 0.5,
         Status.CENSORED | Status.ZERO_GRADIENTS | Status.CONSTANT),
        (BENT, 0.0, 0.0, Status.CENSORED | Status.CONSTANT),
        ((-np.inf, jnp.zeros(2), 0.0), 1.0, np.nan, Status.MASKED),
        ((np.nan, jnp.zeros(2), 0.0), 1.0, np.nan, Status.INVALID),
    ],
)  # fmt: skip
def test_second_order_at_the_edge(params, radius, expected, status):
    result = second_order(params, radius)
    np.testing.assert_allclose(result.score, expected, rtol=1e-5)
    assert np.all(np.any(np.asarray(result.status) & status == status, axis=1))


def test_smallest_eigenvalue_meets_numpy():
    rng = np.random.default_rng(0)
    matrices = rng.normal(size=(5, 6, 6))
    matrices = jnp.asarray(matrices + matrices.transpose(0, 2, 1), jnp.float32)
    start = jnp.asarray(rng.normal(size=(5, 6)), jnp.float32)

    def product(v):
        return jnp.einsum("bij,bj->bi", matrices, v)

    exact = np.linalg.eigvalsh(matrices)[:, 0]
    found = jax.jit(lambda s: _sampling._smallest_eigenvalue(product, s, 9))(start)
    np.testing.assert_allclose(found, exact, rtol=1e-4)
    fewer = jax.jit(lambda s: _sampling._smallest_eigenvalue(product, s, 3))(start)
    assert np.all(fewer >= exact - 1e-4)
    assert np.any(fewer > exact + 1e-2)


# ------------------------------------------------------------------------------------------ slope


def test_slope_meets_a_plain_loop():
    pairs = 64
    x = jnp.array([[0.1, -0.2], [0.4, 0.0], [0.0, 0.3]])
    result = jr.slope_score(bowl, BENT, KEY, x, radius=0.7, num_pairs=pairs, bounds=(-0.5, 0.6))
    ball = uniform_ball(0.7, norm="l2")
    g = jax.jit(lambda v: bowl(BENT, v)[:, 0])
    for i in range(N):
        steepest = 0.0
        for j in range(pairs):
            key = jax.random.fold_in(jax.random.fold_in(KEY, j), i)
            z = jax.random.normal(key, (8,)).reshape(2, 4)
            ends = jnp.clip(jnp.stack([ball.transform(half, x[i]) for half in z]), -0.5, 0.6)
            a, b = np.asarray(ends)
            steepest = max(steepest, abs(float(jnp.diff(g(ends))[0])) / np.linalg.norm(a - b))
        np.testing.assert_allclose(result.lipschitz[i, 1], steepest, rtol=1e-3)
    margin = np.asarray(g(x))
    np.testing.assert_allclose(
        result.score, np.minimum(margin / result.lipschitz[:, 1], 0.7), rtol=1e-5
    )


def test_slope_of_a_linear_model_comes_near_from_above():
    params = (2.0, jnp.array([3.0, -4.0]), 0.0)
    result = jr.slope_score(bowl, params, KEY, ZERO, radius=1.0, num_pairs=2000)
    assert np.all((result.score >= 0.4 - 1e-6) & (result.score < 0.401))
    np.testing.assert_array_equal(result.target, 1)


@pytest.mark.parametrize(
    ("params", "radius", "expected", "target"),
    [
        ((2.0, jnp.zeros(2), 0.0), 0.5, 0.5, 1),  # constant
        ((0.0, jnp.array([3.0, 4.0]), 4.0), 1.0, 0.0, 1),  # tied classes
        (BENT, 0.0, 0.0, 1),
        ((-np.inf, jnp.zeros(2), 0.0), 1.0, np.nan, -1),  # masked
        ((np.nan, jnp.zeros(2), 0.0), 1.0, np.nan, 1),
    ],
)
def test_slope_at_the_edge(params, radius, expected, target):
    result = jr.slope_score(bowl, params, KEY, ZERO, radius=radius, num_pairs=64)
    np.testing.assert_array_equal(result.score, expected)
    if not np.isnan(params[0]):
        np.testing.assert_array_equal(result.target, target)


# ---------------------------------------------------------------------------------------- bracket


def test_bracket_counts_what_attacks_refute():
    score = jnp.array([0.2, 0.5, 0.4, jnp.nan, 0.4])
    near = jnp.array([0.3, 0.4, jnp.inf, 0.1, 0.0])
    far = jnp.array([0.9, 0.6, 0.8, 0.9, 0.0])
    result = jr.bracket(score, near, far)
    np.testing.assert_allclose(result.upper, np.float32([0.3, 0.4, 0.8, 0.1, 0.0]))
    np.testing.assert_array_equal(result.violated, [False, True, False, False, False])
    np.testing.assert_array_equal(result.comparable, [True, True, True, False, False])
    assert (int(result.num_violations), int(result.num_comparable)) == (1, 4 - 1)


def test_bracket_holds_the_boundary_of_a_linear_model():
    params = (2.0, jnp.array([3.0, -4.0]), 0.0)
    clever = jr.clever_score(bowl, params, KEY, ZERO, radius=1.0, **SMALL)
    attack = jr.attacks.deepfool(bowl, params, ZERO, np.zeros(N, int), norm="l2", bounds=None)
    result = jr.bracket(clever, attack)
    np.testing.assert_allclose(result.lower, 0.4, rtol=1e-6)
    np.testing.assert_allclose(result.upper, 0.4, rtol=0.03)
    assert int(result.num_violations) == 0


def test_bracket_adds_what_the_attack_says_to_the_status():
    params = (2.0, jnp.array([3.0, -4.0]), 0.0)
    clever = jr.clever_score(bowl, params, KEY, ZERO, radius=1.0, **SMALL)
    distance = clever.score * jnp.array([0.5, 1.0, 2.0])
    status = np.asarray(jr.bracket(clever, distance).status)
    np.testing.assert_array_equal(
        status, [Status.CONSTANT | Status.REFUTED, *[Status.CONSTANT] * 2]
    )
    plain = jr.bracket(clever.score, distance).status
    np.testing.assert_array_equal(plain, [Status.REFUTED, Status.OK, Status.OK])


# ------------------------------------------------------------------------------------------ sweep


def test_sweep_tells_what_depends_on_the_radius():
    flat, bent = (2.0, jnp.array([3.0, -4.0]), 0.0), (0.1, jnp.zeros(2), 1.0)
    radii = jnp.array([0.2, 0.5, 1.0])
    before = None
    for params, expected in ((flat, True), (bent, False)):
        result = jr.radius_sweep(bowl, params, KEY, ZERO, radii=radii, **SMALL)
        before = before or _sampling._sample._cache_size()
        np.testing.assert_array_equal(result.stable, expected)
        one = jr.clever_score(bowl, params, KEY, ZERO, radius=0.5, **SMALL)
        np.testing.assert_allclose(result.score[1], one.score, rtol=1e-6)
        np.testing.assert_array_equal(result.status[1], one.status[:, 1])
    assert _sampling._sample._cache_size() == before
    np.testing.assert_array_equal(result.censored[0], True)
    only = jr.radius_sweep(bowl, flat, KEY, ZERO, radii=radii[1:2], **SMALL)
    assert not np.any(only.stable)  # one radius says nothing about others


def test_sweep_knows_when_every_class_is_masked():
    def alone(w, x):
        return jnp.stack([x @ w, jnp.full(len(x), -jnp.inf)], axis=1)

    result = jr.radius_sweep(alone, jnp.ones(2), KEY, ZERO, radii=[0.5, 1.0], **SMALL)
    assert np.all(np.isnan(result.score))
    np.testing.assert_array_equal(result.target, -1)
    np.testing.assert_array_equal(result.status, Status.MASKED)
    assert not np.any(result.stable | result.censored.any(axis=0))


SCORES = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: jr.bracket(SCORES), TypeError, "attack_results"),
        (lambda: jr.bracket(SCORES, SCORES[:2]), ValueError, "attack_results"),
        (lambda: jr.bracket(SCORES, SCORES, -SCORES), ValueError, r"attack_results\[1\]"),
        (lambda: jr.bracket(SCORES, SCORES * np.nan), ValueError, "attack_results"),
        (lambda: jr.bracket(SCORES, "far"), TypeError, "attack_results"),
        (lambda: jr.bracket(1.0, SCORES), ValueError, "clever"),
        (lambda: jr.radius_sweep(bowl, BENT, KEY, ZERO, radii=0.5), ValueError, "radii"),
        (lambda: jr.radius_sweep(bowl, BENT, KEY, ZERO, radii=[]), ValueError, "radii"),
        (lambda: jr.radius_sweep(bowl, BENT, KEY, ZERO, radii=[0.0]), ValueError, "radii"),
        (
            lambda: jr.radius_sweep(bowl, BENT, KEY, ZERO, radii=[1.0], tolerance=-1),
            ValueError,
            "tolerance",
        ),
        (lambda: second_order(BENT, num_steps=0), ValueError, "num_steps"),
        (lambda: second_order(BENT, -1.0), ValueError, "radius"),
        (
            lambda: jr.slope_score(bowl, BENT, KEY, ZERO, radius=1.0, num_pairs=0),
            ValueError,
            "num_pairs",
        ),
        (lambda: jr.slope_score(bowl, BENT, 0, ZERO, radius=1.0), TypeError, "key"),
    ],
)
def test_bad_input(call, error, match):
    with pytest.raises(error, match=match):
        call()
