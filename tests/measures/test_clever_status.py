"""What CLEVER says of its scores, and what it makes of models and inputs at the edge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust import CleverStatus as Status
from jaxrobust.measures.clever import _estimate, _margins, score

KEY = jax.random.key(3)
N, G, B = 3, 20, 16  # three margins and twenty batches everywhere: the fits compile once
SMALL = {"num_batches": G, "batch_size": B}
W = jnp.array([[3.0, 0.0], [-4.0, 0.0]])  # logits x @ W: the margin's gradient is (3, -4)
ZERO = jnp.zeros((N, 2))


def linear(params, x):
    """Two classes; linear, with faults to be switched on as data, so that it compiles once."""
    flat = jnp.where(params["rounded"], jnp.round(4 * x) / 4, x)
    logits = flat @ params["weights"] + params["bias"][None]
    first = x[:, 0]
    fault = params["kink"] * jnp.maximum(first - 0.7, 0) - params["cliff"] * (first > 0.4)
    logits = logits + jnp.where(jnp.arange(2)[None] == 0, fault[:, None], 0)
    return jnp.where(params["softmax"], jax.nn.softmax(logits), logits)


def straight(bias=(2.0, 0.0), weights=W, **faults):
    base = {"rounded": False, "kink": 0.0, "cliff": 0.0, "softmax": False}
    return {"weights": weights, "bias": jnp.array(bias), **base, **faults}


def bowl(params, x):
    """Two classes; margin ``g0 + w . x - k |x|^2 / 2``."""
    g0, w, k = params
    margin = g0 + x @ w - k * jnp.sum(x**2, axis=1) / 2
    return jnp.stack([margin, jnp.zeros_like(margin)], axis=1)


def clever(apply_fn, params, x=ZERO, radius=1.0, **kwargs):
    return jr.clever_score(apply_fn, params, KEY, x, radius=radius, **{**SMALL, **kwargs})


def flags(result, example=0, target=1):
    return Status(int(result.status[example, target]))


def test_masked_gradients_give_no_score():
    result = clever(linear, straight(rounded=True))
    assert np.all(np.isnan(result.score))
    assert np.all(np.isnan(result.interval))
    np.testing.assert_array_equal(result.lipschitz[:, 1], 0.0)
    np.testing.assert_array_equal(result.zero_share[:, 1], 1.0)
    assert flags(result) & Status.ZERO_GRADIENTS
    assert flags(result) & Status.STEEPER


def test_constant_model_lasts_to_the_radius_and_says_so():
    result = clever(linear, straight(weights=jnp.zeros((2, 2))))
    np.testing.assert_array_equal(result.score, 1.0)
    assert flags(result) == Status.CENSORED | Status.ZERO_GRADIENTS | Status.CONSTANT


def test_a_step_that_no_gradient_shows_is_found_by_the_points():
    result = clever(linear, straight(weights=W / 5, cliff=3.0))  # the gradient has length 1
    np.testing.assert_array_equal(result.score, 1.0)
    assert np.all(result.crossing[:, 1] < 1)
    assert np.all(result.crossing[:, 1] >= 0.4)
    assert flags(result) & Status.REFUTED
    assert flags(result) & Status.STEEPER


def test_the_fit_speaks_for_or_against_the_maxima():
    rng = np.random.default_rng(1)
    maxima = [
        2 - rng.weibull(3.0, G),
        np.r_[1 + 1e-3 * rng.random(G - 3), 2 + 0.1 * rng.random(3)],  # two clumps
        1 + rng.pareto(1.0, G),  # no upper end
    ]
    logits, zero = jnp.array([[2.0, 0.0]] * N), jnp.zeros((N, 1))
    at = _margins.choose(KEY, logits, "all")
    found = {"slope": zero, "crossing": zero + jnp.inf, "zero_share": zero}
    result = _estimate.estimate(
        jnp.float32(maxima)[:, None], at, logits, at.margin, jnp.float32(9.0), found, None, 0.95,
        score._first_order,
    )  # fmt: skip
    good, clumps, endless = (Status(int(s)) for s in result.status[:, 0])
    assert good == Status.OK
    assert clumps & Status.POOR_FIT
    assert endless & Status.DIVERGED
    np.testing.assert_array_equal(result.interval[2, 0, 0], 0.0)  # the end may be anywhere
    np.testing.assert_allclose(result.score, 2 / result.end, rtol=1e-6)


def test_few_distinct_maxima_are_ties():
    # Gradients of length 1, and in a small region 2.
    result = clever(linear, straight((0.5, 0.0), jnp.array([[1.0, 0.0], [0.0, 0.0]]), kink=1.0))
    assert set(np.unique(np.asarray(result.maxima[:, 1]))) == {1.0, 2.0}
    assert np.all(np.asarray(result.status[:, 1]) & (Status.TIES | Status.CONSTANT))
    assert np.any(np.asarray(result.status[:, 1]) & Status.TIES)
    assert np.all(result.lipschitz[:, 1] >= result.maxima[:, 1].max(axis=1))


@pytest.mark.parametrize(
    ("bias", "score", "target", "status"),
    [
        ((2.0, -np.inf), np.nan, -1, Status.MASKED),
        ((0.0, 0.0), 0.0, 1, Status.TIED_CLASSES | Status.CONSTANT),
        ((2.0, np.nan), np.nan, None, Status.INVALID),
        ((np.inf, 0.0), np.nan, None, Status.INVALID),
    ],
)
def test_logits_at_the_edge(bias, score, target, status):
    result = clever(linear, straight(bias))
    np.testing.assert_array_equal(result.score, score)
    np.testing.assert_array_equal(result.interval, np.full((N, 2), score))
    if target is not None:
        np.testing.assert_array_equal(result.target, target)
        assert flags(result) == status
    else:
        scored = np.asarray(result.status)
        assert np.all(np.any(scored & status, axis=1))


def test_misclassified_inputs_are_scored_for_their_prediction_and_marked():
    result = clever(linear, straight(), labels=np.array([0, 1, 0]))
    np.testing.assert_allclose(result.score, 0.4, rtol=1e-6)
    marked = np.asarray(result.status[:, 1]) & Status.MISCLASSIFIED
    np.testing.assert_array_equal(marked != 0, [False, True, False])


def test_probabilities_are_noticed():
    result = clever(linear, straight(softmax=True))
    assert np.all(np.asarray(result.status[:, 1]) & Status.PROBABILITIES)
    assert not np.any(np.asarray(clever(linear, straight()).status[:, 1]) & Status.PROBABILITIES)


@pytest.mark.parametrize("num_batches", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_too_few_batches_to_fit(num_batches):
    result = clever(bowl, (0.5, jnp.zeros(2), 1.0), num_batches=num_batches)
    np.testing.assert_allclose(result.lipschitz[:, 1], result.maxima[:, 1].max(axis=1))
    np.testing.assert_allclose(result.score, np.minimum(0.5 / result.lipschitz[:, 1], 1), rtol=1e-6)
    np.testing.assert_array_equal(result.interval[:, 0], 0.0)
    np.testing.assert_allclose(result.interval[:, 1], result.score)
    assert flags(result) & Status.NO_FIT
    assert np.all(np.isnan(result.ks_pvalue))


def test_one_point_in_a_batch():
    result = clever(bowl, (0.5, jnp.zeros(2), 1.0), batch_size=1)
    points = [
        jr.perturb(jr.perturbations.uniform_ball(1.0, norm="l2"), KEY, ZERO, replicate=j)
        for j in range(G)
    ]
    np.testing.assert_allclose(result.maxima[:, 1].T, np.linalg.norm(points, axis=-1), rtol=1e-5)
    assert np.all(result.lipschitz[:, 1] >= result.maxima[:, 1].max(axis=1))
