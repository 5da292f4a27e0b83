"""CLEVER: against closed forms, a plain loop over its points, and a grid that misses nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxrobust as jr
from jaxrobust import CleverStatus as Status
from jaxrobust.fits import ReverseWeibullFit

KEY = jax.random.key(3)
N, G, B = 3, 20, 16  # three margins and twenty batches everywhere: the fits compile once
SMALL = {"num_batches": G, "batch_size": B}
ZERO = jnp.zeros((N, 2))


def bowl(params, x):
    """Two classes; margin ``g0 + w . x - k |x|^2 / 2``."""
    g0, w, k = params
    margin = g0 + x @ w - k * jnp.sum(x**2, axis=1) / 2
    return jnp.stack([margin, jnp.zeros_like(margin)], axis=1)


def network(params, x):
    """Four classes, one hidden layer of ReLU."""
    inner, outer = params
    return jax.nn.relu(x @ inner[:2] + inner[2:]) @ outer


def network_params(hidden=8):
    rng = np.random.default_rng(2)
    return jnp.asarray(rng.normal(size=(3, hidden)), jnp.float32), jnp.asarray(
        rng.normal(size=(hidden, 4)), jnp.float32
    )


NETWORK = network_params()
POINT = jnp.array([[0.3, -0.2]])


def clever(apply_fn, params, x=ZERO, radius=1.0, **kwargs):
    return jr.clever_score(apply_fn, params, KEY, x, radius=radius, **{**SMALL, **kwargs})


def flags(result, example=0, target=1):
    return Status(int(result.status[example, target]))


# ------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(
    ("norm", "expected"), [("linf", [2 / 7, 2 / 7]), ("l2", [0.3, 0.4]), ("l1", [0.3, 0.5])]
)
def test_linear_model_is_exact(norm, expected):
    params = (2.0, jnp.array([3.0, -4.0]), 0.0)
    result = clever(bowl, params, radius=jnp.array([0.3, 1.0, 0.0]), norm=norm)
    np.testing.assert_allclose(result.score, [*expected, 0.0], rtol=1e-6)
    exact = jr.exact.linear_clever([3.0, -4.0], 2.0, result.radius, norm=norm)
    np.testing.assert_allclose(result.score, exact, rtol=1e-6)
    np.testing.assert_allclose(result.interval, np.stack([exact, exact], 1), rtol=1e-6)
    np.testing.assert_array_equal(result.per_class[:, 1], result.score)
    np.testing.assert_array_equal(result.target, 1)
    np.testing.assert_array_equal(result.label, 0)
    np.testing.assert_array_equal(result.margin[:, 1], 2.0)
    capped = np.asarray(result.score) == np.asarray(result.radius)
    for i in range(N):
        assert flags(result, i) == Status.CONSTANT | (Status.CENSORED if capped[i] else Status.OK)


def test_quadratic_margin_is_exact():
    # |gradient| = k |x|: its maximum is k R, so the score of g0 = 1/2 is g0 / (k R).
    result = clever(bowl, (0.5, jnp.zeros(2), 1.0), batch_size=1000)
    np.testing.assert_allclose(result.lipschitz[:, 1], 1.0, atol=2e-3)
    np.testing.assert_allclose(result.score, jr.exact.quadratic_clever(0.5, 0, 1, 1), rtol=2e-3)
    assert np.all((result.interval[:, 0] <= result.score) & (result.score <= result.interval[:, 1]))
    # With the slope 5 at the clean input and the curvature 4 the gradient reaches 9.
    bent = clever(bowl, (2.0, jnp.array([3.0, 4.0]), 4.0), batch_size=1000)
    np.testing.assert_allclose(bent.score, 2 / 9, rtol=0.02)
    capped = clever(bowl, (0.5, jnp.zeros(2), 1.0), radius=0.2, batch_size=1000)
    assert np.all(capped.score == np.float32(0.2))
    assert flags(capped) & Status.CENSORED


def test_score_is_the_margin_over_the_location_of_the_fit():
    result = clever(network, NETWORK, POINT, radius=0.8, bounds=(-0.5, 0.6))
    others = [j for j in range(4) if j != int(result.label[0])]
    fit = jr.fits.fit_reverse_weibull(result.maxima[0, jnp.array(others)])
    np.testing.assert_allclose(result.lipschitz[0, jnp.array(others)], fit.location, rtol=1e-6)
    np.testing.assert_allclose(
        result.per_class[0, jnp.array(others)],
        np.minimum(result.margin[0, jnp.array(others)] / fit.location, 0.8),
        rtol=1e-6,
    )
    assert isinstance(result.fit, ReverseWeibullFit)
    np.testing.assert_array_equal(result.fit.ks_pvalue, result.ks_pvalue)
    np.testing.assert_array_equal(result.fit.location[0, jnp.array(others)], fit.location)
    assert float(result.score[0]) == np.nanmin(result.per_class)
    assert int(result.target[0]) == np.nanargmin(result.per_class[0])


def test_radius_0_sees_the_gradient_at_the_input_alone():
    result = clever(network, NETWORK, POINT, radius=0.0)
    np.testing.assert_array_equal(result.score, 0.0)
    np.testing.assert_array_equal(result.interval, 0.0)
    label = int(result.label[0])
    jacobian = np.asarray(jax.jacobian(lambda v: network(NETWORK, v[None])[0])(POINT[0]))
    length = np.linalg.norm(jacobian[label] - jacobian, axis=-1)
    for j in {0, 1, 2, 3} - {label}:
        np.testing.assert_allclose(result.lipschitz[0, j], length[j], rtol=1e-5)
        assert flags(result, 0, j) == Status.CENSORED | Status.CONSTANT


@pytest.mark.slow
@pytest.mark.parametrize(("size", "expected"), [(2, 1.999), (10, 1.98), (50, 1.82)])
def test_known_bias_of_the_sample(size, expected):
    def norm_margin(params, x):  # margin |x| + 1, near |x0| = 1: gradients of length 1 at most
        del params
        margin = jnp.sum(x**2, axis=1) / 2 + 1
        return jnp.stack([margin, jnp.zeros_like(margin)], axis=1)

    x = jnp.zeros((16, size)).at[:, 0].set(1.0)  # the true maximum of |x| in the ball is 2
    result = jr.clever_score(norm_margin, (), KEY, x, radius=1.0, num_batches=200, batch_size=256)
    ends = np.asarray(result.lipschitz[:, 1])  # of 16 samples
    np.testing.assert_allclose(ends.mean(), expected, atol=2e-3 + 4 * ends.std() / 16**0.5)


# ------------------------------------------------------------------------------ the points it draws


@pytest.mark.parametrize(
    "norm",
    [
        pytest.param("l1", marks=pytest.mark.slow),
        "l2",
        pytest.param("linf", marks=pytest.mark.slow),
    ],
)
def test_maxima_meet_a_plain_loop(norm):
    dual = {"l1": np.inf, "l2": 2, "linf": 1}[norm]
    result = clever(network, NETWORK, POINT, radius=0.8, norm=norm, bounds=(-0.5, 0.6))
    noise = jr.perturbations.uniform_ball(0.8, norm=norm)
    points = [jr.perturb(noise, KEY, POINT, replicate=j)[0] for j in range(G * B)]
    points = jnp.clip(jnp.stack(points), -0.5, 0.6)
    jacobian = jax.jit(jax.vmap(jax.jacobian(lambda v: network(NETWORK, v[None])[0])))(points)
    logits = np.asarray(network(NETWORK, points))
    label = int(result.label[0])
    clean = np.asarray(network(NETWORK, POINT)[0])
    assert label == clean.argmax()
    order = {"l1": 1, "l2": 2, "linf": np.inf}[norm]
    way = np.linalg.norm(points - POINT, ord=order, axis=1)
    for j in range(4):
        if j == label:
            assert np.isnan(result.per_class[0, j])
            assert flags(result, 0, j) == Status.NOT_SCORED
            continue
        length = np.linalg.norm(jacobian[:, label] - jacobian[:, j], ord=dual, axis=-1)
        np.testing.assert_allclose(result.maxima[0, j], length.reshape(G, B).max(axis=1), rtol=1e-5)
        margin = logits[:, label] - logits[:, j]
        slope = np.max(np.abs(margin - (clean[label] - clean[j])) / way)
        np.testing.assert_allclose(result.slope[0, j], slope, rtol=1e-3)
        lost = way[margin < 0]
        np.testing.assert_allclose(result.crossing[0, j], lost.min() if lost.size else np.inf)


def devices(*shape, names):
    return Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), names)


def check_same_answer(**kwargs):
    base, again = clever(network, NETWORK, POINT), clever(network, NETWORK, POINT, **kwargs)
    np.testing.assert_allclose(again.maxima, base.maxima, rtol=1e-5)
    np.testing.assert_allclose(again.score, base.score, rtol=1e-3)
    np.testing.assert_array_equal(again.status, base.status)


@pytest.mark.slow
def test_chunks_change_nothing():
    check_same_answer(chunk_size=5)


@pytest.mark.slow
def test_devices_change_nothing():
    check_same_answer(mesh=devices(4, names=("replicates",)))
    check_same_answer(mesh=devices(2, 2, names=("replicates", "examples")))


def test_each_batch_has_draws_of_its_own():
    maxima = np.asarray(clever(bowl, (0.5, jnp.zeros(2), 1.0)).maxima[:, 1])
    assert np.unique(maxima).size == maxima.size
    other = jr.clever_score(
        bowl, (0.5, jnp.zeros(2), 1.0), jax.random.key(4), ZERO, radius=1.0, **SMALL
    )
    assert not np.any(np.isin(other.maxima[:, 1], maxima))


def test_relu_network_against_a_fine_grid():
    radius = 0.8
    result = clever(network, NETWORK, POINT, radius=radius, batch_size=1000)
    axis = jnp.linspace(-radius, radius, 801)
    grid = jnp.stack(jnp.meshgrid(axis, axis), -1).reshape(-1, 2)
    grid = POINT + grid[jnp.linalg.norm(grid, axis=1) <= radius]
    jacobian = jax.jit(jax.vmap(jax.jacobian(lambda v: network(NETWORK, v[None])[0])))(grid)
    label = int(result.label[0])
    length = jnp.linalg.norm(jacobian[:, label][:, None] - jacobian, axis=-1).max(axis=0)
    for j in {0, 1, 2, 3} - {label}:
        np.testing.assert_allclose(result.lipschitz[0, j], length[j], rtol=0.02)
        exact = min(float(result.margin[0, j] / length[j]), radius)
        np.testing.assert_allclose(result.per_class[0, j], exact, rtol=0.02)


@pytest.mark.slow
def test_bounds_keep_the_search_in_the_box():
    # Gradient x, in the box at most of length sqrt(0.04 + 0.01).
    lower = jnp.array([-0.2, -0.1])
    result = clever(
        bowl, (0.5, jnp.zeros(2), 1.0), radius=3.0, bounds=(lower, jnp.zeros(2)), batch_size=100
    )
    np.testing.assert_allclose(result.lipschitz[:, 1], 0.05**0.5, rtol=1e-5)


@pytest.mark.slow
def test_bounds_of_each_example():
    params, lower = (0.5, jnp.zeros(2), 1.0), jnp.array([-0.2, -0.1])
    base, each = (
        clever(bowl, params, radius=3.0, bounds=(b, 0.0))
        for b in (lower, jnp.broadcast_to(lower, ZERO.shape))
    )
    np.testing.assert_array_equal(each.maxima, base.maxima)


# --------------------------------------------------------------------------------------- its spread


@pytest.mark.parametrize("size", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_interval_covers_the_mean_of_ten_keys(size):
    # The gradient is |x| near |x0| = 1: 2 at most, in one point of the boundary. In two dimensions
    # the shape is 1.5, where the largest maximum of one key is often above other keys' estimates.
    params, x = (1.0, jnp.zeros(size).at[0].set(1.0), 1.0), jnp.zeros((N, size))
    results = [
        jr.clever_score(bowl, params, jax.random.key(k), x, radius=1.0, **SMALL) for k in range(40)
    ]
    scores = np.array([r.score for r in results]).reshape(4, 10, N)  # four times ten keys
    ends = np.array([r.interval for r in results]).reshape(4, 10, N, 2)
    mean = scores.mean(axis=1, keepdims=True)
    inside = (ends[..., 0] <= mean) & (mean <= ends[..., 1])
    assert inside.mean() > 0.95 - 4 * (0.95 * 0.05 / inside.size) ** 0.5
    assert 0 < scores.std() < 0.3 * scores.mean()
    if size == 2:  # covers, and is not wide
        assert np.median(np.diff(ends, axis=-1)) < 0.2 * scores.mean()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 10, 50])
def test_interval_covers_the_mean_of_ten_keys_at_two_hundred_batches(size):
    params, x = (1.0, jnp.zeros(size).at[0].set(1.0), 1.0), jnp.zeros((100, size))
    result = jr.clever_score(bowl, params, KEY, x, radius=1.0, num_batches=200, batch_size=128)
    scores, ends = np.asarray(result.score).reshape(10, 10), np.asarray(result.interval)
    mean, ends = scores.mean(axis=1, keepdims=True), ends.reshape(10, 10, 2)
    inside = (ends[..., 0] <= mean) & (mean <= ends[..., 1])
    assert inside.mean() > 0.95 - 4 * (0.95 * 0.05 / inside.size) ** 0.5
    assert np.median(np.diff(ends, axis=-1)) < 0.3 * scores.mean()
