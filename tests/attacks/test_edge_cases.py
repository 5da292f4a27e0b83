"""Where attacks break: flat models, saturation, ties, NaN, empty balls, inputs on their bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust import attacks

W = np.array([[1, -1, 0], [2, -2, 0], [-0.5, 0.5, 0]], np.float32)
# Margins of the first two rows, the third at two bounds, the fourth on the boundary at them.
X = np.array([[0.6, 0.5, 0.2], [0.1, 0.1, 0.9], [0.5, 1.0, 0.0], [0.0, 0.25, 1.0]], np.float32)
Y = np.array([0, 1, 0, 0])
KEY = jax.random.key(0)
# The third class is far behind, so that these are models of two classes.
PLAIN = {
    "w": W,
    "b": np.array([0, 0, -50], np.float32),
    "stairs": np.array(False),
    "nan_above": np.array(np.inf, np.float32),
}


def model(params, x):
    """One program for every case, so that each attack compiles once."""
    x = jnp.where(params["stairs"], jnp.round(4 * x) / 4, x)
    logits = x @ params["w"] + params["b"].reshape(1, -1)
    return jnp.where(x[:, :1] > params["nan_above"], jnp.nan, logits)


def every(params, x=X, y=Y, eps=0.3, mask=(True, True, True), lower=(0, 0, 0), upper=(1, 1, 1)):
    """All attacks with few steps, in the same shapes every time."""
    kw = {"bounds": tuple(np.array(v, np.float32) for v in (lower, upper)), "mask": np.array(mask)}
    ball = {"eps": np.broadcast_to(np.float32(eps), 4), **kw}
    few = {"num_steps": 3, "num_points": 2}
    return {
        "fgsm": attacks.fgsm(model, params, x, y, **ball),
        "fgsm l2": attacks.fgsm(model, params, x, y, norm="l2", **ball),
        "pgd l1": attacks.pgd(model, params, KEY, x, y, num_steps=3, norm="l1", **ball),
        "mi_fgsm": attacks.mi_fgsm(model, params, x, y, num_steps=3, **ball),
        "pgn": attacks.pgn(model, params, KEY, x, y, **few, **ball),
        "dn": attacks.dn(model, params, KEY, x, y, norm="l2", **few, **ball),
        "deepfool": attacks.deepfool(model, params, x, y, **kw),
        "carlini_wagner": attacks.carlini_wagner(
            model, params, x, y, num_steps=30, num_bisections=6, warm_start=False, **kw
        ),
        "carlini_wagner linf": attacks.carlini_wagner(
            model, params, x, y, num_steps=20, num_bisections=4, norm="linf", warm_start=False, **kw
        ),
    }


def predict(params, x):
    return np.asarray(model(params, jnp.asarray(x)).argmax(-1))


def test_the_plain_case():
    np.testing.assert_array_equal(predict(PLAIN, X), Y)
    for name, result in every(PLAIN).items():
        np.testing.assert_array_equal(result.label, predict(PLAIN, result.x_adv), err_msg=name)
        np.testing.assert_array_equal(result.success, np.asarray(result.label) != Y, err_msg=name)
        assert result.success[1], name
        assert (np.asarray(result.distance) > 0).all(), name


FLAT = {
    "stairs": PLAIN | {"stairs": np.array(True)},
    "constant": PLAIN | {"w": 0 * W, "b": np.array([1, 0, 0], np.float32)},
    "all equal": PLAIN | {"w": 0 * W, "b": np.zeros(3, np.float32)},
}


@pytest.mark.parametrize("case", FLAT)
def test_zero_gradients_fail_without_nan(case):
    params = FLAT[case]
    x = np.array(X)
    x[3] = [0.6, 0.6, 0.6]
    y = predict(params, x)
    for name, result in every(params, x, y, eps=1e-3).items():
        assert np.isfinite(result.x_adv).all(), name
        assert not result.success.any(), name
        assert np.isinf(result.distance).all(), name
        np.testing.assert_array_equal(result.label, y)


def test_wrong_from_the_start_is_at_distance_zero():
    for name, result in every(PLAIN, y=1 - Y).items():
        assert result.success.all(), name
        np.testing.assert_array_equal(result.x_adv, X, err_msg=name)
        np.testing.assert_array_equal(result.distance, 0, err_msg=name)
        np.testing.assert_array_equal(result.label, Y)


def test_empty_ball_returns_the_input():
    for name, result in every(PLAIN, eps=0).items():
        if name.startswith(("deepfool", "carlini")):
            continue
        np.testing.assert_array_equal(result.x_adv, X, err_msg=name)
        assert not result.success.any(), name


def test_saturated_softmax_does_not_stop_the_attack():
    # Margins of thousands: the softmax is 0 and 1 exactly in float32.
    sure = PLAIN | {"w": 1e4 * W}
    assert set(np.unique(jax.nn.softmax(model(sure, X[:3]))).tolist()) == {0.0, 1.0}
    want, got = every(PLAIN), every(sure)
    for name in ("fgsm", "fgsm l2", "pgd l1", "mi_fgsm", "dn", "deepfool"):
        np.testing.assert_array_equal(got[name].success, want[name].success, err_msg=name)
        np.testing.assert_allclose(got[name].x_adv, want[name].x_adv, atol=1e-4, err_msg=name)


def test_logits_of_minus_infinity():
    ruled_out = PLAIN | {"b": np.array([0, 0, -np.inf], np.float32)}
    want = every(PLAIN)
    for name, result in every(ruled_out).items():
        np.testing.assert_allclose(result.x_adv, want[name].x_adv, atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(result.success, want[name].success, err_msg=name)


def test_nan_outputs_are_never_a_success():
    # The first row starts just below the edge and is pushed over it; the second starts beyond.
    broken = PLAIN | {"w": -W, "nan_above": np.array(0.7, np.float32)}
    x = np.array([[0.69, 0.1, 0.1], [0.9, 0.1, 0.1], [0.1] * 3, [0.2] * 3], np.float32)
    results = every(broken, x, np.array([1, 1, 1, 1]), eps=0.05)
    for name, result in results.items():
        assert np.isfinite(result.x_adv).all(), name
        nan = np.isnan(model(broken, result.x_adv)).any(-1)
        assert nan[1], name
        np.testing.assert_array_equal(np.asarray(result.label) == -1, nan, err_msg=name)
        assert not np.asarray(result.success)[nan].any(), name
        assert np.isinf(np.asarray(result.distance)[nan]).all(), name


def test_ties_go_to_the_first_class():
    # The last row lies on the boundary: class 0 is predicted, and to be class 1 is to be wrong.
    assert float(np.ptp(model(PLAIN, X[3:])[0, :2])) == 0
    for name, result in every(PLAIN, y=np.array([0, 1, 0, 1])).items():
        assert float(result.distance[3]) == 0, name
        assert bool(result.success[3]), name
    for name, result in every(PLAIN).items():
        assert bool(result.success[3]), name
    assert 0 < float(every(PLAIN)["deepfool"].distance[3]) < 1e-3


def test_mask_and_feature_bounds():
    lower, upper = (0.0, 0.0, -2.0), (0.7, 1.0, 5.0)
    results = every(
        PLAIN, eps=[0.1, 0.2, 0.4, 0.5], mask=(True, False, True), lower=lower, upper=upper
    )
    for name, result in results.items():
        x_adv = np.asarray(result.x_adv)
        np.testing.assert_array_equal(x_adv[:, 1], X[:, 1], err_msg=name)
        assert (x_adv >= np.float32(lower)).all(), name
        assert (x_adv <= np.float32(upper)).all(), name
        assert not np.array_equal(x_adv, X), name


def test_mask_of_each_example():
    each = np.array([[True, False, False], [False] * 3, [True] * 3, [False, True, False]])
    result = attacks.fgsm(model, PLAIN, X, Y, eps=0.1, mask=each, bounds=None)
    np.testing.assert_array_equal(np.asarray(result.x_adv) != X, each)


@pytest.mark.parametrize(("norm", "order"), [("l1", 1), ("l2", 2), ("linf", np.inf)])
def test_results_lie_in_the_ball_and_box_exactly(norm, order):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(64, 40)).astype(np.float32)
    x[:, 0], x[:, 1] = 0.0, 1.0
    w = rng.normal(size=(40, 3)).astype(np.float32)
    y = (x @ w).argmax(-1)
    eps = np.float32(8 / 255)
    linear = lambda w, x: x @ w  # noqa: E731
    result = attacks.fgsm(linear, w, x, y, eps=eps, norm=norm)
    sizes = np.linalg.norm(np.asarray(result.x_adv, np.float64) - x, order, axis=1)
    assert sizes.max() <= eps
    assert sizes.max() > 0.999 * eps
    assert result.x_adv.min() >= 0
    assert result.x_adv.max() <= 1


def test_one_example():
    result = attacks.fgsm(
        model,
        PLAIN,
        X[:1],
        Y[:1],
        eps=np.array([0.7]),
        mask=np.array([True]),
        bounds=(0, [1, 1, 1]),
    )
    assert result.x_adv.shape == (1, 3)
    assert result.success[0]


def test_double_precision():
    with jax.enable_x64(True):
        x, params = X.astype(np.float64), jax.tree.map(np.float64, PLAIN)
        params["stairs"] = PLAIN["stairs"]
        result = attacks.deepfool(model, params, x, Y, bounds=None)
        assert result.x_adv.dtype == jnp.float64
        d = params["w"][:, 0] - params["w"][:, 1]
        want = np.abs(x @ d) / np.linalg.norm(d)
        np.testing.assert_allclose(result.distance[:3], want[:3], rtol=2e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_inputs_of_a_model_in_single_precision(dtype):
    x = jnp.asarray(X, dtype)
    ends = {"lower": np.zeros(3, dtype), "upper": np.ones(3, dtype)}
    for name, result in every(PLAIN, x=x, **ends).items():
        assert result.x_adv.dtype == dtype, name
        np.testing.assert_array_equal(result.label, predict(PLAIN, result.x_adv), err_msg=name)
        # The first row's margin is 0.8 over a slope of 2 * 2.29; half precision is coarse.
        if name == "deepfool":
            exact = float(np.ptp(X[0] @ W[:, :2]) / np.linalg.norm(W[:, 0] - W[:, 1]))
            assert exact <= 1.02 * float(result.distance[0]) < 1.4 * exact, name
