"""The Gompertz fit: against the paper's curves, SciPy, simulation, and what must not be fitted."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import curve_fit, least_squares

from jaxrobust.fits import GompertzFit, GompertzStatus, fit_gompertz, gompertz
from jaxrobust.fits.gompertz import _fit_batch

X = np.linspace(0.0, 1.0, 101)
PAPER = {
    "deaths": (241.8389, 1.7122, 0.9701, 0.0),
    "flu": (93.1385, 2.042, 0.7317, 0.0),
    "heart": (2.1674, 2.8214, 0.5018, 1.1031),
    "breast": (10.1129, 1.2998, 0.7045, 0.1536),
    "mnist": (31.3285, 4.5410, 0.3991, 0.5594),
}
ROWS = 40  # every batch has this many curves, so that all tests share one compilation


def curve(x, a, b, c, d):
    """The curve by NumPy in double precision."""
    return d + (a - d) * np.exp(-np.exp(-b * (x - c)))


def fit(curves, x=X, weights=None):
    """Fits at most ROWS curves at once; NumPy arrays come back."""
    curves = np.asarray(curves)
    padded = np.concatenate([curves, np.repeat(curves[:1], ROWS - len(curves), axis=0)])
    result = fit_gompertz(x, padded, weights=weights)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[: len(curves)], result)


def parameters(result):
    return np.stack(result[:4], axis=-1)


def standard_errors(result):
    return np.sqrt(np.diagonal(result.covariance, axis1=-2, axis2=-1))


def noisy(params, scale, seed, num=ROWS):
    """Curves with independent noise of standard deviation ``scale`` (one value or [S])."""
    noise = np.random.default_rng(seed).normal(size=(num, X.size))
    return curve(X, *params) + scale * noise


# ------------------------------------------------------------------------------- the curve


def test_curve_matches_numpy_and_broadcasts():
    a, b, c, d = np.array(list(PAPER.values())).T
    expected = [curve(0.3, *params) for params in PAPER.values()]
    np.testing.assert_allclose(gompertz(0.3, a, b, c, d), expected, rtol=1e-6)
    np.testing.assert_allclose(gompertz(X, *PAPER["mnist"]), curve(X, *PAPER["mnist"]), rtol=1e-6)


@pytest.mark.parametrize("x", [-1e4, 0.0, 1e4])
def test_curve_has_finite_gradients_far_out(x):
    gradients = jax.grad(gompertz, argnums=(0, 1, 2, 3, 4))(x, 3.0, 5.0, 0.5, 1.0)
    assert all(np.isfinite(g) for g in gradients)


# --------------------------------------------------------------------------- recovery


def test_recovers_the_papers_curves_in_float32():
    truth = np.array(list(PAPER.values()))
    result = fit(curve(X, *truth.T[:, :, None]))
    assert result.a.dtype == np.float32
    assert result.converged.all()
    np.testing.assert_allclose(parameters(result), truth, rtol=5e-5, atol=5e-5)
    assert (result.r_squared > 1 - 1e-6).all()


def test_recovers_them_to_double_precision_with_x64():
    truth = np.array(list(PAPER.values()))
    curves = curve(X, *truth.T[:, :, None])
    with jax.enable_x64(True):
        result = fit_gompertz(X, curves)
        kept = fit_gompertz(X.astype(np.float32), curves.astype(np.float32))
    assert result.a.dtype == np.float64
    assert result.converged.all()
    np.testing.assert_allclose(parameters(result), truth, rtol=1e-10, atol=1e-10)
    assert kept.a.dtype == np.float32
    np.testing.assert_allclose(parameters(kept), truth, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("name", PAPER)
def test_noise_of_one_percent(name):
    truth = np.array(PAPER[name])
    clean = curve(X, *truth)
    result = fit(noisy(truth, 0.01 * clean, seed=1), weights=1 / clean**2)
    assert result.converged.all()
    assert (result.d >= 0).all()
    assert (result.a >= result.d).all()
    errors = (parameters(result) - truth) / standard_errors(result)
    assert np.abs(errors).max() < 4
    # Unweighted, as a caller who knows nothing of the noise would fit.
    assert fit(noisy(truth, 0.01 * clean, seed=2)).converged.all()


def test_covariance_is_calibrated():
    truth = np.array(PAPER["heart"])
    results = [fit(noisy(truth, 0.01, seed)) for seed in range(5)]
    estimates = np.concatenate([parameters(result) for result in results])
    claimed = np.concatenate([result.covariance for result in results]).mean(axis=0)
    # 200 draws: a standard deviation is known to 5%, and this is four times that.
    ratio = estimates.std(axis=0) / np.sqrt(np.diag(claimed))
    np.testing.assert_allclose(ratio, 1.0, atol=0.2)
    np.testing.assert_allclose(
        np.corrcoef(estimates.T),
        claimed / np.sqrt(np.outer(np.diag(claimed), np.diag(claimed))),
        atol=0.15,
    )


def test_weighted_fit_and_covariance_match_scipy():
    truth = np.array(PAPER["mnist"])
    weights = np.linspace(0.2, 3.0, X.size)
    y = noisy(truth, 0.3 / np.sqrt(weights), seed=3, num=1)
    result = fit(y, weights=weights)
    expected, covariance = curve_fit(curve, X, y[0], p0=truth, sigma=1 / np.sqrt(weights))
    np.testing.assert_allclose(parameters(result)[0], expected, rtol=1e-3)
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    np.testing.assert_allclose(result.covariance[0] / scale, covariance / scale, atol=5e-3)

    residual = weights * (y[0] - curve(X, *expected)) ** 2
    total = weights * (y[0] - np.average(y[0], weights=weights)) ** 2
    np.testing.assert_allclose(result.r_squared[0], 1 - residual.sum() / total.sum(), atol=1e-5)


def test_d_is_zero_exactly_where_the_constraint_holds_it():
    # Below zero at the start: the free optimum has d < 0.
    y = curve(X, 10.0, 5.0, 0.5, -1.0)
    result = fit([y])
    assert result.d[0] == 0

    def model(x, a, b, c):
        return curve(x, a, b, c, 0.0)

    expected, _ = curve_fit(model, X, y, p0=(10.0, 5.0, 0.5))
    np.testing.assert_allclose(parameters(result)[0, :3], expected, rtol=1e-3)


def random_curves(seed, num):
    """Noisy Gompertz, logistic and power curves, and noisy cumulative sums."""
    rng = np.random.default_rng(seed)
    curves = []
    for i in range(num):
        d = rng.choice([0.0, rng.uniform(0, 3)])
        a = 10 ** rng.uniform(-0.5, 2.5)
        b, c = 10 ** rng.uniform(0, 1.6), rng.uniform(0, 1.2)
        y = [
            curve(X, d + a, b, c, d),
            d + a / (1 + np.exp(-b * (X - c))),
            d + a * X ** rng.uniform(0.3, 4),
            d + np.cumsum(rng.exponential(size=X.size)),
        ][i % 4]
        curves.append(y + 10 ** rng.uniform(-3, -1) * np.ptp(y) * rng.normal(size=X.size))
    return np.array(curves)


def best_sse(y):
    """The least SSE that SciPy finds from 30 starts, in double precision."""
    scale = y.max()

    def residual(q):
        d = q[3] ** 2  # squares keep a >= d >= 0
        with np.errstate(over="ignore"):
            return curve(X, d + q[0] ** 2, np.exp(np.clip(q[1], -7, 8)), q[2], d) - y / scale

    costs = [
        least_squares(residual, [1.0, np.log(b), c, 0.3], max_nfev=100).cost
        for b in (0.5, 2.0, 6.0, 20.0, 60.0)
        for c in (-0.1, 0.2, 0.5, 0.8, 1.1, 1.6)
    ]
    return 2 * min(costs) * scale**2


def compare_with_scipy(curves):
    result = fit(curves)
    shown = np.isfinite(result.a)
    assert shown.mean() > 0.85  # some rise after the last point, some have no plateau at all
    for y, params in zip(curves[shown], parameters(result)[shown].astype(float), strict=True):
        assert np.sum((y - curve(X, *params)) ** 2) < (1 + 1e-3) * best_sse(y)


def test_optimum_is_global():
    compare_with_scipy(random_curves(seed=0, num=8))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_optimum_is_global_on_many_curves(seed):
    compare_with_scipy(random_curves(seed, num=ROWS))


# ------------------------------------------------------------- what the data do not support

JUMP = np.where(X > 0.503, 2.0, 1.0)
EXPECTED_STATUS = {
    "gompertz": (curve(X, 10.0, 3.0, 0.6, 1.0), GompertzStatus.OK),
    "logistic": (1 + 1 / (1 + np.exp(-10 * (X - 0.5))), GompertzStatus.OK),
    "saturating exponential": (2 - np.exp(-3 * X), GompertzStatus.OK),
    "constant": (np.full_like(X, 3.0), GompertzStatus.FLAT),
    "zero": (np.zeros_like(X), GompertzStatus.FLAT),
    "noise": (noisy((1.0, 1.0, 0.5, 1.0), 0.1, seed=4, num=1)[0], GompertzStatus.FLAT),
    "rounding": (1 + 1e-7 * np.sin(1e3 * X), GompertzStatus.FLAT),
    "buried": (noisy((1.1, 5.0, 0.5, 1.0), 0.5, seed=5, num=1)[0], GompertzStatus.FLAT),
    "falling line": (3 - X, GompertzStatus.DECREASING),
    "falling, noisy": (noisy((1.0, 1.0, 0.5, 1.0), 0.1, 6, 1)[0] - X, GompertzStatus.DECREASING),
    "falling exponential": (np.exp(-4 * X), GompertzStatus.DECREASING),
    "falling gompertz": (curve(1 - X, 9.0, 4.0, 0.4, 1.0), GompertzStatus.DECREASING),
    "nan": (np.where(X == 0.5, np.nan, 1 + X), GompertzStatus.INVALID),
    "infinite": (np.where(X == 1.0, np.inf, 1 + X), GompertzStatus.INVALID),
    "all nan": (np.full_like(X, np.nan), GompertzStatus.INVALID),
    "line": (5 * X, GompertzStatus.UNSATURATED),
    "lifted line": (1 + 5 * X, GompertzStatus.UNSATURATED),
    "line on a high base": (100 + X, GompertzStatus.UNSATURATED),
    "noisy line": (
        (1 + 5 * X) * (noisy((1, 1, 0.5, 1), 0.01, 7, 1)[0]),
        GompertzStatus.UNSATURATED,
    ),
    "slow exponential": (np.exp(0.5 * X), GompertzStatus.UNSATURATED),
    "exponential": (np.exp(2 * X), GompertzStatus.UNSATURATED),
    "fast exponential": (np.exp(8 * X), GompertzStatus.UNSATURATED),
    "exponential from zero": (np.expm1(2 * X), GompertzStatus.UNSATURATED),
    "noisy exponential": (
        np.exp(3 * X) * noisy((1, 1, 0.5, 1), 0.01, 8, 1)[0],
        GompertzStatus.UNSATURATED,
    ),
    "square": (X**2, GompertzStatus.UNSATURATED),
    "lifted square": (1 + 3 * X**2, GompertzStatus.UNSATURATED),
    "cube": (1 + X**3, GompertzStatus.UNSATURATED),
    "polynomial": (1 + X + X**2, GompertzStatus.UNSATURATED),
    "hyperbolic sine": (np.sinh(3 * X), GompertzStatus.UNSATURATED),
    "inflection far beyond": (curve(X, 10.0, 2.0, 1.8, 1.0), GompertzStatus.UNSATURATED),
    "jump": (JUMP, GompertzStatus.UNDETERMINED),
    "jump with one point inside": (np.where(X == 0.5, 1.4, JUMP), GompertzStatus.UNDETERMINED),
    "last point alone": (np.where(X == 1.0, 2.0, 1.0), GompertzStatus.UNSATURATED),
    "noisy jump": (JUMP + noisy((0, 1, 0.5, 0), 0.01, 9, 1)[0], GompertzStatus.UNDETERMINED),
    "taken off before": (11 - np.exp(-3 * X), GompertzStatus.UNDETERMINED),
}
WITHOUT_CURVE = (
    GompertzStatus.INVALID,
    GompertzStatus.TOO_FEW,
    GompertzStatus.FLAT,
    GompertzStatus.DECREASING,
)


@pytest.fixture(scope="module")
def verdicts():
    result = fit([y for y, _ in EXPECTED_STATUS.values()])
    return {
        name: jax.tree.map(lambda leaf, i=i: leaf[i], result)
        for i, name in enumerate(EXPECTED_STATUS)
    }


@pytest.mark.parametrize("name", EXPECTED_STATUS)
def test_status(verdicts, name):
    result, expected = verdicts[name], EXPECTED_STATUS[name][1]
    assert GompertzStatus(int(result.status)) is expected
    assert result.converged == (expected is GompertzStatus.OK)
    if expected in WITHOUT_CURVE:
        assert all(np.isnan(leaf).all() for leaf in result[:6])
    else:
        assert 0.9 < result.r_squared <= 1
    if expected is GompertzStatus.OK:
        assert np.isfinite(parameters(result)).all()
        assert np.linalg.eigvalsh(result.covariance.astype(float)).min() > 0


def test_unsaturated_curve_still_follows_the_data(verdicts):
    result = verdicts["polynomial"]
    y = EXPECTED_STATUS["polynomial"][0]
    np.testing.assert_allclose(curve(X, *parameters(result).astype(float)), y, atol=5e-3)


@pytest.mark.parametrize("name", ["square", "exponential", "line"])
def test_noise_does_not_saturate_a_curve(name):
    y = 1 + EXPECTED_STATUS[name][0]
    noise = np.random.default_rng(10).normal(size=(ROWS, X.size))
    result = fit(y * (1 + 0.01 * noise))
    # Of 1000 such squares about ten pass for saturating, of the others none.
    assert np.mean(result.status == GompertzStatus.UNSATURATED) >= 0.95


def test_pure_noise_is_never_a_rise():
    result = fit(1 + 0.1 * np.random.default_rng(11).normal(size=(ROWS, X.size)))
    assert (result.status == GompertzStatus.FLAT).all()


@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_fewer_than_five_points(num):
    result = fit_gompertz(X[:num], np.ones((2, 3, num)))
    chex.assert_shape([result.a, result.status], (2, 3))
    chex.assert_shape(result.covariance, (2, 3, 4, 4))
    assert (result.status == GompertzStatus.TOO_FEW).all()
    assert np.isnan(parameters(result)).all()


def test_five_points_are_enough():
    weights = np.isin(np.arange(101), [10, 30, 50, 70, 95]).astype(float)
    truth = PAPER["mnist"]
    result = fit([curve(X, *truth)], weights=weights)
    assert result.converged[0]
    np.testing.assert_allclose(parameters(result)[0], truth, rtol=1e-3)
    weights[50] = 0.0
    assert fit([curve(X, *truth)], weights=weights).status[0] == GompertzStatus.TOO_FEW


def test_repeated_x_count_once():
    x = np.round(3 * X) / 3
    assert fit([curve(x, *PAPER["mnist"])], x=x).status[0] == GompertzStatus.TOO_FEW


# ------------------------------------------------------------------------- weights, units


def test_points_of_weight_zero_are_ignored():
    y = np.tile(curve(X, *PAPER["mnist"]), (3, 1))
    weights = np.where(X == 0.5, 0.0, 1.0)
    y[1, 50] = np.nan
    y[2, 50] = 1e6
    result = fit(y, weights=weights)
    assert result.converged.all()
    np.testing.assert_array_equal(parameters(result)[1:], parameters(result)[[0, 0]])
    x = np.where(X == 0.5, np.inf, X)
    np.testing.assert_array_equal(parameters(fit(y, x, weights)), parameters(result))
    assert (fit(y, x).status == GompertzStatus.INVALID).all()


def test_all_weights_zero():
    result = fit([curve(X, *PAPER["mnist"])], weights=np.zeros_like(X))
    assert result.status[0] == GompertzStatus.TOO_FEW
    assert np.isnan(parameters(result)).all()


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_bad_weights_are_refused_or_in_a_trace_reported(weight):
    weights = np.ones_like(X)
    weights[3] = weight
    with pytest.raises(ValueError, match="weights"):
        fit_gompertz(X, X, weights=weights)
    y = jnp.asarray(np.tile(curve(X, *PAPER["mnist"]), (ROWS, 1)), jnp.float32)
    traced = _fit_batch(jnp.asarray(X, jnp.float32), y, jnp.asarray(weights, jnp.float32))
    assert (traced.status == GompertzStatus.INVALID).all()


def test_scale_of_weights_does_not_matter():
    y = noisy(PAPER["breast"], 0.05, seed=12, num=3)
    one, many = fit(y, weights=1 + X), fit(y, weights=1e12 * (1 + X))
    difference = (parameters(many) - parameters(one)) / standard_errors(one)
    assert np.abs(difference).max() < 0.01
    np.testing.assert_allclose(many.covariance, one.covariance, rtol=1e-2)


def test_units_and_order_of_the_points_do_not_matter():
    y = noisy(PAPER["breast"], 0.05, seed=13, num=3)
    one = fit(y)
    other = fit(1e4 * y[:, ::-1], x=500 + 20 * X[::-1])
    expected = parameters(one) * [1e4, 1 / 20, 20, 1e4] + [0, 0, 500, 0]
    np.testing.assert_allclose(parameters(other), expected, rtol=2e-3, atol=2e-2)
    units = np.array([1e4, 1 / 20, 20, 1e4])
    ratio = standard_errors(other) / (standard_errors(one) * units)
    np.testing.assert_allclose(ratio, 1, rtol=2e-2)
    assert (other.status == one.status).all()


def test_offset_of_the_loss_is_found_in_d():
    result = fit([curve(X, *PAPER["mnist"]) + 1e3])
    assert result.converged[0]
    truth = np.add(PAPER["mnist"], (1e3, 0, 0, 1e3))
    np.testing.assert_allclose(parameters(result)[0], truth, rtol=1e-3)


def test_integers_are_welcome():
    result = fit(np.round(1e4 * curve(X, *PAPER["mnist"]))[None].astype(int))
    np.testing.assert_allclose(parameters(result)[0, 1:3], PAPER["mnist"][1:3], rtol=1e-3)


# ----------------------------------------------------------------------- transformations


def test_batch_vmap_and_loop_agree():
    y = noisy(PAPER["mnist"], 0.2, seed=14, num=6).astype(np.float32)
    weights = np.random.default_rng(15).uniform(0.5, 2, size=(6, X.size)).astype(np.float32)
    loop = [fit_gompertz(X, one, weights=w) for one, w in zip(y, weights, strict=True)]
    stacked = GompertzFit(*map(np.stack, zip(*loop, strict=True)))
    assert stacked.converged.all()

    mapped = jax.vmap(lambda one, w: fit_gompertz(X, one, weights=w))(y, weights)
    np.testing.assert_allclose(parameters(mapped), parameters(stacked), rtol=1e-4)
    np.testing.assert_allclose(mapped.covariance, stacked.covariance, rtol=1e-2, atol=1e-7)

    batch = fit(y)
    for i in range(3):
        alone = fit_gompertz(X, y[i])
        # In single precision an optimum is a spot a hundredth of a standard error wide.
        off = np.abs(np.stack(alone[:4]) - parameters(batch)[i])
        assert (off < 0.02 * standard_errors(batch)[i]).all()
    nested = fit_gompertz(X, np.tile(y[:5], (8, 1)).reshape(2, 4, 5, X.size))  # 40 curves
    chex.assert_shape([nested.a, nested.r_squared, nested.converged], (2, 4, 5))
    chex.assert_shape(nested.covariance, (2, 4, 5, 4, 4))
    np.testing.assert_array_equal(nested.a[1, 2], batch.a[:5])


def test_no_curve_is_an_empty_batch():
    result = jax.eval_shape(lambda y: fit_gompertz(X, y), np.ones((0, X.size)))
    chex.assert_shape(result.covariance, (0, 4, 4))


def test_new_numbers_do_not_retrace():
    fit([X + 1])
    before = _fit_batch._cache_size()
    fit([X**2], x=X + 3, weights=X)
    fit([curve(X, *PAPER["flu"])])
    assert _fit_batch._cache_size() == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X[None], X, None), ValueError, r"x must .* shape \[S\]"),
        ((X[:0], X[:0], None), ValueError, "x must .* S >= 1"),
        ((1.0, X, None), ValueError, "x must"),
        ((X, X[:5], None), ValueError, r"y must .* S = 101"),
        ((X, X[:, None], None), ValueError, "y must"),
        ((X, 1.0, None), ValueError, "y must"),
        ((X, X, X[:5]), ValueError, "weights must have the shape of x"),
        ((X, X, X[None]), ValueError, "weights must"),
        ((X, X, X - 0.5), ValueError, "weights must be finite and not negative"),
        (("abc", X, None), TypeError, "x must be real"),
        ((X, X + 1j, None), TypeError, "y must be real"),
        ((X, X > 0, None), TypeError, "y must be real"),
        ((X, X, X > 0), TypeError, "weights must be real"),
    ],
)
def test_bad_arguments(arguments, error, message):
    x, y, weights = arguments
    with pytest.raises(error, match=message):
        fit_gompertz(x, y, weights=weights)
