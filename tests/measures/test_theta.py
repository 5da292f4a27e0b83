"""theta-robustness against closed forms, plain loops, and every promise of its docstring."""

import fractions

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import Mesh

import jaxrobust as jr

KEY = jax.random.key(11)


def linear(w, x):
    return x @ w


def classifier(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def gaussian_curve(p):
    return lambda sigma: jr.perturbations.gaussian(sigma, probability=jnp.asarray(p))


N, D, K = 12, 4, 3
X = jnp.asarray(np.random.default_rng(0).normal(size=(N, D)), jnp.float32)
W = jnp.arange(1.0, D + 1) / 4
Y = X @ W + 0.5
LABELS = jnp.arange(N) % K
PARAMS = {
    "w": jnp.asarray(np.random.default_rng(1).normal(size=(D, 5)), jnp.float32),
    "v": jnp.asarray(np.random.default_rng(2).normal(size=(5, K)), jnp.float32),
}
NOISE = jr.perturbations.gaussian(0.5)


def brier(p, labels):
    onehot = np.eye(p.shape[1])[np.asarray(labels)]
    return np.square(onehot - p).sum(axis=1).mean() / 2


def quantile_standard_error(losses, alpha, ppf):
    """Standard error of a sample quantile: sqrt(q (1 - q) / m) / density."""
    step = 1e-3
    density = 2 * step / (ppf(1 - alpha + step) - ppf(1 - alpha - step))
    return np.sqrt(alpha * (1 - alpha) / losses.size) / density


# --- against the truth ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sigma", "mse", "n", "weights", "scales", "alpha"),
    [
        (0.3, 1.0, 31, [2.0], [1.0], 0.05),
        (1.0, 1.0, 31, [2.0], [1.0], 0.05),
        (0.3, 0.0, 31, [2.0], [1.0], 0.05),
        (0.5, 0.2, 5, [1.0, -3.0, 0.5], [0.1, 2.0, 0.0], 0.2),
        (0.1, 4.0, 200, [1.0, 1.0], [1.0, 3.0], 0.5),
    ],
)
def test_linear_model_against_noncentral_chi_square(sigma, mse, n, weights, scales, alpha):
    w, s = jnp.array(weights), jnp.array(scales)
    x = jnp.ones((n, w.size))
    m = 4000
    result = jr.theta_robustness(
        linear,
        w,
        KEY,
        x,
        x @ w + np.sqrt(mse),
        perturbation=jr.perturbations.gaussian(sigma, feature_scale=s),
        alpha=alpha,
        num_replicates=m,
    )
    variance = sigma**2 * float(jnp.square(w * s).sum())

    def ppf(q):
        return scipy.stats.ncx2.ppf(q, n, n * mse / variance) * variance / n

    exact = jr.exact.linear_theta(
        weights, sigma, mse, num_examples=n, feature_scale=scales, alpha=alpha
    )
    error = quantile_standard_error(result.losses, alpha, ppf)
    assert abs(float(result.theta) - exact) < 4 * error
    assert result.interval[0] <= result.theta <= result.interval[1]
    # The mean loss is the clean loss plus the variance of one prediction, and so is the shift.
    losses = np.asarray(result.losses, np.float64)
    assert abs(losses.mean() - (mse + variance)) < 4 * losses.std() / np.sqrt(m)
    shift = np.asarray(result.shift, np.float64)
    assert abs(shift.mean() - variance) < 4 * shift.std() / np.sqrt(m)
    np.testing.assert_allclose(result.baseline, mse, rtol=1e-4, atol=1e-6)


def test_brier_against_a_plain_loop():
    m, alpha = 40, 0.1
    result = jr.theta_robustness(
        classifier, PARAMS, KEY, X, LABELS,
        perturbation=NOISE, loss="brier", num_replicates=m, alpha=alpha, chunk_size=9,
    )  # fmt: skip
    clean = np.asarray(jax.nn.softmax(classifier(PARAMS, X)))
    losses, shift = [], []
    for j in range(m):
        p = np.asarray(jax.nn.softmax(classifier(PARAMS, jr.perturb(NOISE, KEY, X, replicate=j))))
        losses.append(brier(p, LABELS))
        shift.append(np.square(p - clean).sum(axis=1).mean())
    np.testing.assert_allclose(result.losses, losses, rtol=1e-5)
    np.testing.assert_allclose(result.shift, shift, rtol=1e-4)
    np.testing.assert_allclose(result.baseline, brier(clean, LABELS), rtol=1e-5)
    np.testing.assert_allclose(
        result.theta, np.quantile(losses, 0.9, method="inverted_cdf"), rtol=1e-5
    )
    np.testing.assert_allclose(result.shift_at_theta, shift[np.argsort(losses)[35]], rtol=1e-4)
    np.testing.assert_allclose(result.shift_mean, np.mean(shift), rtol=1e-4)
    np.testing.assert_allclose(
        result.shift_quantile, np.quantile(shift, 0.9, method="inverted_cdf"), rtol=1e-4
    )


def test_brier_score_of_a_guess_and_of_a_sure_mistake():
    def constant(logits, x):
        return jnp.broadcast_to(logits[None], (x.shape[0], logits.size))

    common = {"perturbation": NOISE, "loss": "brier", "num_replicates": 3}
    x, labels = jnp.ones((4, 2)), jnp.zeros(4, jnp.int32)
    guess = jr.theta_robustness(constant, jnp.zeros(10), KEY, x, labels, **common)
    np.testing.assert_allclose(guess.theta, 0.45, rtol=1e-6)
    wrong = jnp.full(10, -100.0).at[3].set(100.0)
    np.testing.assert_allclose(
        jr.theta_robustness(constant, wrong, KEY, x, labels, **common).theta, 1.0
    )
    masked = jnp.array([1.0, 2.0, -jnp.inf])  # a class that is ruled out is no failure
    assert jnp.isfinite(jr.theta_robustness(constant, masked, KEY, x, labels, **common).theta)


@pytest.mark.parametrize(
    ("alpha", "m", "rank"),
    [(0.18, 1000, 820), (0.41, 100, 59), (1, 10, 1), (1.0, 10, 1), (np.float32(0.18), 1000, 820),
     (fractions.Fraction(1, 3), 9, 6), (0.05, 1000, 950)],
)  # fmt: skip
def test_the_ceiling_is_exact(alpha, m, rank):
    result = jr.theta_robustness(
        linear, W, KEY, X, Y, perturbation=NOISE, alpha=alpha, num_replicates=m
    )
    assert result.theta == jnp.sort(result.losses)[rank - 1]


def test_a_callable_loss_sees_outputs_and_targets():
    def absolute(outputs, y):
        return jnp.abs(outputs - y)

    common = {"perturbation": jr.perturbations.gaussian(0.0), "num_replicates": 5}
    result = jr.theta_robustness(linear, W, KEY, X, Y, loss=absolute, **common)
    np.testing.assert_allclose(result.theta, 0.5, rtol=1e-5)


def test_one_column_outputs_and_targets_are_alike():
    common = {"perturbation": NOISE, "num_replicates": 20}
    flat = jr.theta_robustness(linear, W, KEY, X, Y, **common)
    column = jr.theta_robustness(linear, W[:, None], KEY, X, Y, **common)
    np.testing.assert_allclose(flat.losses, column.losses, rtol=1e-5)
    column = jr.theta_robustness(linear, W[:, None], KEY, X, Y[:, None], **common)
    np.testing.assert_allclose(flat.losses, column.losses, rtol=1e-5)


def test_probabilities_give_the_same_as_their_logits():
    def probabilities(params, x):
        return jax.nn.softmax(classifier(params, x))

    common = {"perturbation": NOISE, "loss": "brier", "num_replicates": 20}
    logits = jr.theta_robustness(classifier, PARAMS, KEY, X, LABELS, **common)
    given = jr.theta_robustness(
        probabilities, PARAMS, KEY, X, LABELS, outputs="probabilities", **common
    )
    np.testing.assert_allclose(logits.losses, given.losses, rtol=1e-5)


# --- curves ---------------------------------------------------------------------------------------


def test_a_curve_is_its_points():
    scales = jnp.array([0.0, 0.3, 1.0])
    common = {"loss": "brier", "num_replicates": 60, "chunk_size": 50}
    curve = jr.robustness_curve(
        classifier, PARAMS, KEY, X, LABELS,
        perturbation=gaussian_curve(0.5), scales=scales, **common,
    )  # fmt: skip
    for s, sigma in enumerate(scales):
        point = jr.theta_robustness(
            classifier, PARAMS, KEY, X, LABELS, perturbation=gaussian_curve(0.5)(sigma), **common
        )
        np.testing.assert_allclose(curve.theta[s], point.theta, rtol=1e-6)
        np.testing.assert_allclose(curve.interval[s], point.interval, rtol=1e-6)
    np.testing.assert_allclose(curve.ratio, curve.theta / curve.baseline, rtol=1e-6)
    np.testing.assert_allclose(curve.ratio[0], 1.0, rtol=1e-5)
    assert bool(curve.normalised)


def test_zero_baseline_has_no_ratio_and_says_so():
    curve = jr.robustness_curve(
        linear, W, KEY, X, X @ W,
        perturbation=jr.perturbations.gaussian, scales=jnp.array([0.0, 1.0]), num_replicates=60,
    )  # fmt: skip
    assert not bool(curve.normalised)
    assert jnp.isnan(curve.ratio).all()
    assert curve.theta[0] == 0
    assert curve.theta[1] > 0


# --- the same answer however it is computed -------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk_size", "shape", "axes"),
    [(1, None, None), (7, None, None), (64, None, None),
     (None, (1,), ("replicates",)), (7, (2,), ("examples",)), (None, (4,), ("replicates",)),
     (5, (2, 2), ("replicates", "examples"))],
)  # fmt: skip
def test_chunks_and_meshes_agree(chunk_size, shape, axes):
    common = {"perturbation": NOISE, "loss": "brier", "num_replicates": 21}
    plain = jr.theta_robustness(classifier, PARAMS, KEY, X, LABELS, **common)
    mesh = None
    if shape:
        mesh = Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), axes)
    other = jr.theta_robustness(
        classifier, PARAMS, KEY, X, LABELS, chunk_size=chunk_size, mesh=mesh, **common
    )
    np.testing.assert_allclose(plain.losses, other.losses, rtol=1e-6)
    np.testing.assert_allclose(plain.theta, other.theta, rtol=1e-6)


def test_inside_jit_vmap_pmap_and_grad():
    def theta(params, key, sigma):
        return jr.theta_robustness(
            classifier, params, key, X, LABELS,
            perturbation=jr.perturbations.gaussian(sigma), loss="brier", num_replicates=30,
        ).theta  # fmt: skip

    keys = jax.random.split(KEY, 2)
    plain = [theta(PARAMS, key, 0.5) for key in keys]
    np.testing.assert_allclose(jax.jit(theta)(PARAMS, keys[0], 0.5), plain[0], rtol=1e-6)
    batched = jax.vmap(theta, (None, 0, None))(PARAMS, keys, 0.5)
    np.testing.assert_allclose(batched, plain, rtol=1e-6)
    mapped = jax.pmap(theta, in_axes=(None, 0, None))(PARAMS, keys, 0.5)
    np.testing.assert_allclose(mapped, plain, rtol=1e-6)
    gradient = jax.grad(theta, argnums=2)(PARAMS, keys[0], 0.5)
    step = 1e-3
    difference = theta(PARAMS, keys[0], 0.5 + step) - theta(PARAMS, keys[0], 0.5 - step)
    np.testing.assert_allclose(gradient, difference / (2 * step), rtol=0.05)


def test_sweeps_and_new_weights_do_not_retrace():
    traced = chex.assert_max_traces(classifier, n=4)  # shape check, clean, and the loop's body

    def run(params, sigma, p, alpha):
        jr.robustness_curve(
            traced, params, KEY, X, LABELS, perturbation=gaussian_curve(p),
            scales=sigma * jnp.linspace(0.0, 1.0, 4), loss="brier", alpha=alpha, num_replicates=60,
        )  # fmt: skip

    chex.clear_trace_counter()
    run(PARAMS, 1.0, 0.5, 0.05)
    with jax.log_compiles(False):
        run(jax.tree.map(lambda a: 2 * a, PARAMS), 0.3, 1.0, 0.1)
    compiled = jr.measures.theta._theta._cache_size()
    run(PARAMS, 0.7, 0.25, 0.2)
    assert jr.measures.theta._theta._cache_size() == compiled


def test_float64():
    with jax.enable_x64(True):
        x, w = np.ones((9, 2)), np.array([1.0, 2.0])
        result = jr.theta_robustness(
            linear, jnp.asarray(w), KEY, x, x @ w + 1, perturbation=jr.perturbations.gaussian(0.5),
            num_replicates=30,
        )  # fmt: skip
        assert result.losses.dtype == jnp.float64
        hat = jr.perturb(jr.perturbations.gaussian(0.5), KEY, jnp.asarray(x), replicate=3)
        want = np.square(np.asarray(hat) @ w - x @ w - 1).mean()
        np.testing.assert_allclose(result.losses[3], want, rtol=1e-13)


def test_one_example_and_one_replicate():
    result = jr.theta_robustness(linear, W, KEY, X[:1], Y[:1], perturbation=NOISE, num_replicates=1)
    assert result.theta == result.losses[0]
    assert result.interval.tolist() == [-np.inf, np.inf]


def test_too_few_replicates_have_a_one_sided_interval():
    result = jr.theta_robustness(linear, W, KEY, X, Y, perturbation=NOISE, num_replicates=50)
    assert np.isfinite(result.interval[0])
    assert result.interval[1] == np.inf
    assert not np.isnan(result.interval).any()


def test_interval_covers_the_exact_theta():
    n, m, repeats = 4, 100, 300
    w, x = jnp.array([1.0]), jnp.zeros((n, 1))
    exact = jr.exact.linear_theta([1.0], 1.0, 0.25, num_examples=n)

    def interval(key):
        return jr.theta_robustness(
            linear, w, key, x, jnp.full(n, 0.5), perturbation=jr.perturbations.gaussian(1.0),
            num_replicates=m, confidence=0.9,
        ).interval  # fmt: skip

    lower, upper = jax.jit(jax.vmap(interval))(jax.random.split(KEY, repeats)).T
    covered = ((lower <= exact) & (exact <= upper)).mean()
    assert covered > 0.9 - 4 * np.sqrt(0.9 * 0.1 / repeats)


# --- failure is data, misuse is an error ----------------------------------------------------------


def test_replicates_with_nan_are_counted_and_theta_is_withheld():
    def fragile(w, x):
        out = x @ w
        return jnp.where(out > 2.5, jnp.nan, out)

    result = jr.theta_robustness(fragile, W, KEY, X, Y, perturbation=NOISE, num_replicates=100)
    assert 0 < int(result.num_invalid) < 100
    assert int(result.num_invalid) == int(jnp.isnan(result.losses).sum())
    assert jnp.isnan(result.theta)
    assert jnp.isnan(result.interval).all()
    assert jnp.isnan(result.shift_at_theta)


def one_column(params, x):
    return x @ params["w"][:, :1]


def three_axes(w, x):
    return jnp.zeros((x.shape[0], 2, 2))


def forgets_the_batch(w, x):
    return jnp.zeros(3)


def two_outputs(w, x):
    return x, x


def simplex(params, x):
    return jax.nn.softmax(classifier(params, x))


GOOD = {
    "apply_fn": classifier, "params": PARAMS, "key": KEY, "x": X, "y": LABELS,
    "perturbation": NOISE, "loss": "brier", "num_replicates": 20,
}  # fmt: skip
REGRESSION = {"apply_fn": linear, "params": W, "y": Y, "loss": "mse"}


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"key": 0}, TypeError, r"key must be a typed PRNG key.*jax\.random\.key"),
        ({"key": jax.random.PRNGKey(0)}, TypeError, r"key must be a typed.*wrap_key_data"),
        ({"key": jax.random.split(KEY, 2)}, ValueError, "key must be one key"),
        ({"x": np.ones((N, D), np.int32)}, TypeError, "x must be floating-point.*int32"),
        ({"x": X[0]}, ValueError, r"x must have a leading axis.*\(4,\)"),
        ({"x": X[:0], "y": LABELS[:0]}, ValueError, "x must hold at least one example"),
        ({"x": X.at[2, 1].set(jnp.nan)}, ValueError, r"x must be finite.*\(2, 1\)"),
        ({"y": LABELS[:-1]}, ValueError, r"y must have one label.*12 examples.*\(11,\)"),
        ({"y": LABELS.astype(float)}, TypeError, "y must be integer class labels.*float32"),
        ({"y": LABELS.at[5].set(3)}, ValueError, "y must be labels from 0 to 2.*got 3 at index 5"),
        ({"y": LABELS.at[5].set(-1)}, ValueError, "y must be labels from 0 to 2.*got -1"),
        (REGRESSION | {"y": Y[:-1]}, ValueError, r"y must have the shape.*\(12,\)"),
        (REGRESSION | {"y": Y.at[0].set(jnp.inf)}, ValueError, "y must be finite"),
        (REGRESSION | {"y": ["a"] * N}, TypeError, "y must be real numbers"),
        ({"alpha": 0.0}, ValueError, "alpha must be above 0 and at most 1; got 0.0"),
        ({"alpha": 1.5}, ValueError, "alpha must be"),
        ({"alpha": float("nan")}, ValueError, "alpha must be"),
        ({"confidence": 1.0}, ValueError, "confidence must be between 0 and 1"),
        ({"num_replicates": 0}, ValueError, "num_replicates must be at least 1"),
        ({"num_replicates": 10.0}, TypeError, "num_replicates must be a whole number"),
        ({"chunk_size": -4}, ValueError, "chunk_size"),
        ({"mesh": 4}, TypeError, "mesh"),
        ({"loss": "rmse"}, ValueError, "loss must be one of 'mse', 'brier'"),
        ({"outputs": "logit"}, ValueError, "outputs must be one of"),
        ({"apply_fn": simplex}, ValueError, 'look like probabilities.*outputs="probabilities"'),
        ({"outputs": "probabilities"}, ValueError, 'expects rows in .*outputs="logits"'),
        ({"apply_fn": one_column}, ValueError, r"K >= 2.*models\.binary"),
        ({"apply_fn": three_axes}, ValueError, r"apply_fn must return outputs of shape"),
        ({"apply_fn": forgets_the_batch}, ValueError, r"apply_fn must return.*\(3,\)"),
        ({"apply_fn": two_outputs}, ValueError, "apply_fn must return one floating-point array"),
        ({"apply_fn": "model"}, TypeError, "apply_fn must be a callable"),
        ({"perturbation": 0.1}, TypeError, "perturbation must be a jaxrobust perturbation"),
        ({"perturbation": jr.perturbations.gaussian}, TypeError, "perturbation"),
        ({"perturbation": jr.perturbations.gaussian(0.1, where=np.ones(3, bool))}, ValueError,
         r"where must fit one example.*\(4,\).*\(3,\)"),
        ({"perturbation": jr.perturbations.gaussian(np.ones(5))}, ValueError, "sigma.*12 examples"),
        ({"loss": lambda out, y: out}, ValueError, "loss must return one value for each"),
    ],
)  # fmt: skip
def test_misuse_names_the_argument(change, error, match):
    arguments = GOOD | change
    positional = [arguments.pop(name) for name in ("apply_fn", "params", "key", "x", "y")]
    with pytest.raises(error, match=match):
        jr.theta_robustness(*positional, **arguments)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"perturbation": NOISE}, TypeError, "perturbation must be a function"),
        ({"perturbation": lambda s: s}, TypeError, "perturbation must be a jaxrobust"),
        ({"scales": 0.5}, ValueError, r"scales must have shape \[S\]"),
        ({"scales": []}, ValueError, r"scales must have shape \[S\]"),
        ({"scales": [0.1, -0.1]}, ValueError, "sigma must be finite and not negative.*scales.1."),
        ({"scales": [0.1, np.nan]}, ValueError, "sigma must be finite"),
    ],
)
def test_misuse_of_a_curve(change, error, match):
    arguments = {"perturbation": jr.perturbations.gaussian, "scales": [0.1]} | change
    with pytest.raises(error, match=match):
        jr.robustness_curve(classifier, PARAMS, KEY, X, LABELS, loss="brier", **arguments)


def test_a_traced_alpha_is_refused_with_a_reason():
    def theta(alpha):
        return jr.theta_robustness(linear, W, KEY, X, Y, perturbation=NOISE, alpha=alpha).theta

    with pytest.raises(TypeError, match="alpha must be a known number"):
        jax.jit(theta)(0.05)
