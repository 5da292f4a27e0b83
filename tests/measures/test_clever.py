"""CLEVER: against closed forms, a plain loop over its points, and a grid that misses nothing."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxrobust as jr
from jaxrobust import CleverStatus as Status
from jaxrobust.fits import ReverseWeibullFit
from jaxrobust.measures.clever import _estimate, _margins, _sampling

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


# ------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(
    ("norm", "expected"), [("linf", [2 / 7, 2 / 7]), ("l2", [0.3, 0.4]), ("l1", [0.3, 0.5])]
)
def test_linear_model_is_exact(norm, expected):
    result = clever(linear, straight(), radius=jnp.array([0.3, 1.0, 0.0]), norm=norm)
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


@pytest.mark.slow
@pytest.mark.parametrize(("size", "expected"), [(2, 1.999), (10, 1.98), (50, 1.82)])
def test_known_bias_of_the_sample(size, expected):
    def norm_margin(params, x):  # margin |x| + 1, near |x0| = 1: gradients of length 1 at most
        del params
        margin = jnp.sum(x**2, axis=1) / 2 + 1
        return jnp.stack([margin, jnp.zeros_like(margin)], axis=1)

    x = jnp.zeros((1, size)).at[0, 0].set(1.0)  # the true maximum of |x| in the ball is 2
    result = jr.clever_score(norm_margin, (), KEY, x, radius=1.0, num_batches=200, batch_size=256)
    np.testing.assert_allclose(result.lipschitz[0, 1], expected, atol=0.03)


# ------------------------------------------------------------------------- the points it draws


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


# ------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    "targets",
    ["given", *(pytest.param(t, marks=pytest.mark.slow) for t in ("top2", "least", "random"))],
)
def test_targets_are_those_asked_for(targets):
    everything = clever(network, NETWORK, POINT)
    margin, label = np.asarray(everything.margin[0]), int(everything.label[0])
    others = np.array([j for j in range(4) if j != label])
    expected = {
        "top2": np.full(N, np.nanargmin(margin)),
        "least": np.full(N, np.nanargmax(margin)),
        "given": others,
    }
    result = clever(
        network, NETWORK, jnp.repeat(POINT, N, axis=0),
        targets=others if targets == "given" else targets,
    )  # fmt: skip
    np.testing.assert_array_equal(result.target, expected.get(targets, result.target))
    assert np.all(np.isin(result.target, others))
    target = int(result.target[0])  # its draws are those of the untargeted score
    np.testing.assert_allclose(result.maxima[0, target], everything.maxima[0, target], rtol=1e-5)
    scored = np.asarray(result.status) != Status.NOT_SCORED
    np.testing.assert_array_equal(scored.sum(axis=1), 1)
    np.testing.assert_array_equal(~scored, np.isnan(result.per_class))


@pytest.mark.parametrize("which", ["top2", "least", "random"])
def test_masked_classes_are_never_chosen(which):
    logits = jnp.array([[3.0, -jnp.inf, 1.0, 0.0], [-jnp.inf, 0.0, -jnp.inf, -jnp.inf]])
    at = _margins.choose(KEY, logits, which)
    np.testing.assert_array_equal(at.label, [0, 1])
    assert int(at.targets[0, 0]) in {"top2": [2], "least": [3], "random": [2, 3]}[which]
    np.testing.assert_array_equal(at.masked[:, 0], [False, True])
    assert int(at.targets[1, 0]) != 1


def test_random_targets_are_uniform_over_the_others():
    logits = jnp.zeros((3000, 4)).at[:, 2].set(1.0).at[:, 3].set(-jnp.inf)
    at = _margins.choose(KEY, logits, "random")
    share = np.bincount(at.targets[:, 0], minlength=4) / 3000
    np.testing.assert_allclose(share, [0.5, 0.5, 0, 0], atol=4 * 0.5 / 3000**0.5)


def test_thousand_classes():
    weights = jax.random.normal(jax.random.key(1), (2, 1000))
    x = jnp.array([[1.0, 0.5], [-1.0, 0.2], [0.3, 1.0]])
    result = clever(lambda w, x: x @ w, weights, x, radius=9.0, targets="top2")
    chex.assert_shape(result.maxima, (N, 1000, G))
    logits = np.asarray(x @ weights)
    for i in range(N):
        second, first = np.argsort(logits[i])[-2:]
        assert (int(result.label[i]), int(result.target[i])) == (first, second)
        gradient = weights[:, first] - weights[:, second]
        exact = jr.exact.linear_clever(gradient, logits[i, first] - logits[i, second], 9.0)
        np.testing.assert_allclose(result.score[i], exact, rtol=1e-4)


# ------------------------------------------------------------------------------------- verdicts


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


def test_masked_classes_are_left_out_of_the_smallest():
    def masked(params, x):
        logits = network(params, x)
        return jnp.where(jnp.arange(4)[None] == 3, -jnp.inf, logits)

    result, free = clever(masked, NETWORK, POINT), clever(network, NETWORK, POINT)
    assert int(free.label[0]) != 3
    others = jnp.array([j for j in range(3) if j != int(free.label[0])])
    assert flags(result, 0, 3) == Status.MASKED
    assert np.isnan(result.per_class[0, 3])
    np.testing.assert_allclose(result.score[0], jnp.min(free.per_class[0, others]), rtol=1e-4)


def test_misclassified_inputs_are_scored_for_their_prediction_and_marked():
    result = clever(linear, straight(), labels=np.array([0, 1, 0]))
    np.testing.assert_allclose(result.score, 0.4, rtol=1e-6)
    marked = np.asarray(result.status[:, 1]) & Status.MISCLASSIFIED
    np.testing.assert_array_equal(marked != 0, [False, True, False])


def test_target_that_is_the_prediction_has_score_0():
    label = int(np.argmax(network(NETWORK, POINT)))
    other = (label + 1) % 4
    x = jnp.repeat(POINT, N, axis=0)
    result = clever(network, NETWORK, x, targets=np.array([label, other, other]))
    assert float(result.score[0]) == 0
    assert np.all(result.score[1:] > 0)
    np.testing.assert_array_equal(result.target, [label, other, other])
    assert flags(result, 0, label) & Status.TIED_CLASSES


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


# ------------------------------------------------------------------------------------------ JAX


def test_new_values_compile_nothing():
    compiled = (_sampling._sample, _estimate._estimate)
    sizes = []
    for seed in range(3):
        params = (0.5 + seed, jnp.full(2, 0.1 * seed), 1.0 + seed)
        x = ZERO + 0.1 * seed
        jr.clever_score(
            bowl, params, jax.random.key(seed), x, radius=1.0 + seed,
            confidence=0.9 + 0.01 * seed, **SMALL,
        )  # fmt: skip
        sizes.append([c._cache_size() for c in compiled])
    assert sizes[0] == sizes[-1]


def test_traces_under_jit_and_vmap():
    score = functools.partial(clever, network, NETWORK)
    result = jax.eval_shape(jax.jit(lambda x, r: score(x, radius=r)), POINT, jnp.float32(1.0))
    shapes = {
        "score": (1,), "target": (1,), "per_class": (1, 4), "lipschitz": (1, 4),
        "maxima": (1, 4, G), "ks_statistic": (1, 4), "ks_pvalue": (1, 4), "status": (1, 4),
        "interval": (1, 2), "per_class_interval": (1, 4, 2), "label": (1,), "margin": (1, 4),
        "slope": (1, 4), "zero_share": (1, 4), "crossing": (1, 4), "radius": (1,),
    }  # fmt: skip
    assert {name: getattr(result, name).shape for name in shapes} == shapes
    mapped = jax.eval_shape(jax.vmap(score), jnp.stack([POINT, POINT]))
    assert mapped.per_class.shape == (2, 1, 4)


@pytest.mark.parametrize("num_batches", [2, pytest.param(G, marks=pytest.mark.slow)])
def test_double_precision(num_batches):
    with jax.enable_x64(True):
        key, x = jax.random.key(3), jnp.zeros((N, 2), jnp.float64)
        params = (0.5, jnp.array([0.3, 0.0]), 1.0)  # the gradient is w - x
        result = jr.clever_score(
            bowl, params, key, x, radius=1.0, num_batches=num_batches, batch_size=B
        )
        noise = jr.perturbations.uniform_ball(1.0, norm="l2")
        draw = jax.vmap(lambda j: jr.perturb(noise, key, x, replicate=j))
        points = np.asarray(draw(jnp.arange(num_batches * B)))
    maxima = np.linalg.norm(points - np.array([0.3, 0.0]), axis=-1).reshape(-1, B, N).max(axis=1).T
    np.testing.assert_allclose(result.maxima[:, 1], maxima, rtol=1e-13)
    end = maxima.max(axis=1)  # of two maxima there is no fit
    if num_batches > 2:
        with jax.enable_x64(True):
            end = jr.fits.fit_reverse_weibull(maxima).location
    np.testing.assert_allclose(result.score, 0.5 / np.asarray(end), rtol=1e-12)
    for name, value in result._asdict().items():
        for leaf in jax.tree.leaves(value):
            assert leaf.dtype in (jnp.float64, jnp.int32), name


def loops(jaxpr, inside=False):
    """Layouts of the convolutions in the bodies of loops, however deep."""
    found = []
    for eqn in jaxpr.eqns:
        if inside and eqn.primitive.name == "conv_general_dilated":
            found.append(tuple(map(tuple, eqn.params["dimension_numbers"])))
        within = inside or eqn.primitive.name in ("scan", "while")
        for value in eqn.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    found += loops(part, within)
    return found


@pytest.mark.parametrize("race", [False, True])
def test_convolutions_suit_loops_on_the_cpu(race):
    def convolve(kernels, x):  # NCHW, which is slow inside loops
        for kernel in kernels:
            x = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME"))
        return x.mean(axis=(2, 3))

    kernels, x = [jnp.ones((3, 2, 3, 3)), jnp.ones((4, 3, 3, 3))], jnp.zeros((2, 2, 6, 6))
    request = _sampling.check(
        convolve, kernels, KEY, x, radius=1.0, norm="l2", targets="all", bounds=None, mesh=None
    )
    run = functools.partial(
        _sampling.sample, _sampling.GradientNorm(convolve, "l2"), convolve, kernels,
        num_batches=30, batch_size=4, chunk_size=None, progress=False, race=race,
    )  # fmt: skip
    found = loops(jax.make_jaxpr(lambda key: run(key, request))(KEY).jaxpr)
    assert len(found) >= 4  # forward, and back to the inputs, in both layers
    image = (0, 3, 1, 2)
    assert set(found) == {(image, (3, 2, 0, 1), image)}


BAD = [
    ({"key": 0}, TypeError, "key"),
    ({"x": np.zeros((3, 2), int)}, TypeError, "x"),
    ({"x": np.zeros(3, np.float32)}, ValueError, "x"),
    ({"x": np.full((3, 2), np.nan, np.float32)}, ValueError, "x"),
    ({"apply_fn": "model"}, TypeError, "apply_fn"),
    ({"apply_fn": lambda w, x: x[:, :1]}, ValueError, "binary"),
    ({"radius": -1.0}, ValueError, "radius"),
    ({"radius": np.nan}, ValueError, "radius"),
    ({"radius": np.ones(2)}, ValueError, "radius"),
    ({"radius": "far"}, TypeError, "radius"),
    ({"norm": "l3"}, ValueError, "norm"),
    ({"targets": "best"}, ValueError, "targets"),
    ({"targets": np.array([0, 1, 2])}, ValueError, "targets"),
    ({"targets": np.array([0, 1])}, ValueError, "targets"),
    ({"targets": np.zeros(3)}, TypeError, "targets"),
    ({"num_batches": 0}, ValueError, "num_batches"),
    ({"num_batches": 2.0}, TypeError, "num_batches"),
    ({"batch_size": 0}, ValueError, "batch_size"),
    ({"bounds": 1.0}, ValueError, "bounds"),
    ({"bounds": (0.1, 1.0)}, ValueError, "bounds"),
    ({"bounds": (np.zeros(3), 1.0)}, ValueError, "bounds"),
    ({"bounds": (-1.0, "up")}, TypeError, "bounds"),
    ({"labels": np.array([0, 1])}, ValueError, "labels"),
    ({"confidence": 1.0}, ValueError, "confidence"),
    ({"chunk_size": 0}, ValueError, "chunk_size"),
    ({"mesh": 2}, TypeError, "mesh"),
]


@pytest.mark.parametrize(("change", "error", "match"), BAD)
def test_bad_input(change, error, match):
    given = {"apply_fn": linear, "params": straight(), "key": KEY, "x": ZERO, "radius": 1.0}
    with pytest.raises(error, match=match):
        jr.clever_score(**{**given, **SMALL, **change})
