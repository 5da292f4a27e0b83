"""The theta section, computed: against direct calls, slow loops and closed forms."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust.report import ThetaConfig, theta, theta_report

X = jax.random.normal(jax.random.key(0), (30, 3))
W = jnp.array([1.0, -2.0, 0.5])
SMALL = ThetaConfig(scales=(0.0, 0.4, 0.8), num_replicates=60, num_resamples=10)


def linear(w, x):
    return x @ w


def test_curves_are_those_of_robustness_curve_in_one_trace():
    traces = []

    def counted(w, x):
        traces.append(x.shape)
        return x @ w

    arguments = (counted, W, jax.random.key(1), X, X @ W + 1)
    theta_report(*arguments, config=dataclasses.replace(SMALL, probabilities=(1.0,)))
    batches = [shape for shape in traces if shape != X.shape]
    assert batches, "the noisy copies go through the model in larger batches"
    found = theta_report(*arguments, config=SMALL)
    # Only the checks of the shape of the outputs, once a curve, trace again.
    assert [shape for shape in traces if shape != X.shape] == batches
    assert found.num_inputs == 4 * (3 * 60 + 1) * 30

    scale = jnp.asarray(np.asarray(X, np.float64).std(axis=0), jnp.float32)
    assert found.probability.tolist() == [0.25, 0.5, 0.75, 1.0]
    for i, p in enumerate(jnp.float32(found.probability)):
        direct = jr.robustness_curve(
            *arguments,
            perturbation=lambda s, p=p: jr.perturbations.gaussian(
                s, feature_scale=scale, probability=p
            ),
            scales=jnp.array(SMALL.scales),
            num_replicates=60,
        )
        for name in jr.RobustnessCurve._fields:
            own, other = getattr(found.curve, name)[i], getattr(direct, name)
            np.testing.assert_allclose(own, other, rtol=1e-6, err_msg=name)


def test_resampled_thetas_are_those_of_a_slow_loop():
    losses = np.random.default_rng(0).exponential(size=(4, 37)).astype(np.float32)
    config = ThetaConfig(num_replicates=37, num_resamples=25, alpha=0.18)
    found = theta._resample(np.random.default_rng(5), losses, config)
    rng = np.random.default_rng(5)
    for row in found:
        counts = rng.multinomial(37, np.full(37, 1 / 37))
        for scale, value in enumerate(row):
            repeated = np.sort(np.repeat(losses[scale], counts))
            assert value == repeated[config.rank - 1]


def test_resampling_shows_the_spread_over_keys():
    """The bootstrap's spread of theta is that of theta over keys, up to a factor of 1.5."""
    config = ThetaConfig(
        probabilities=(1.0,), scales=(0.5,), num_replicates=400, num_resamples=300, alpha=0.2
    )
    noise = lambda s: jr.perturbations.gaussian(s, feature_scale=np.ones(3, np.float32))  # noqa: E731
    runs = [
        theta._curve(linear, W, jax.random.key(k), X, X @ W + 1, noise, config, None, False)
        for k in range(61)
    ]
    over_keys = [float(curve.theta[0]) for curve in runs[1:]]
    losses = runs[0].losses
    resampled = theta._resample(np.random.default_rng(0), losses, config)
    ratio = resampled.std() / np.std(over_keys)
    # The standard error of the denominator alone is 9%.
    assert 1 / 1.5 < ratio < 1.5


def test_settled_choices():
    labels = jnp.arange(30) % 2
    two = jnp.stack([W, -W], axis=1)
    scale = jnp.array([1.0, 0.0, 2.0])
    config, clean = theta.settle(SMALL, linear, two, X, labels, scale, None)
    assert config.loss == "brier"
    assert config.probabilities == (0.25, 0.5, 0.75, 1.0)
    assert clean.num_correct == int(((X @ two).argmax(1) == labels).sum())
    low, high = clean.accuracy_interval
    assert low < clean.num_correct / 30 < high
    assert (clean.num_perturbed, clean.num_features, clean.num_outputs) == (2, 3, 2)

    where = jnp.array([True, False, False])
    config, clean = theta.settle(SMALL, linear, W, X, X @ W, scale, where)
    assert config.loss == "mse"
    assert clean.num_correct is None
    assert config.probabilities == (1.0,), "one numeric feature: p = 1 only"
    asked = ThetaConfig(probabilities=(0.5,))
    assert theta.settle(asked, linear, W, X, X @ W, scale, where)[0].probabilities == (0.5,)


def test_constant_columns_get_no_noise():
    x = X.at[:, 1].set(1e7 / 3)
    scale = theta.deviation(x)
    assert scale[1] == 0
    np.testing.assert_allclose(scale[::2], np.asarray(x, np.float64).std(axis=0)[::2], rtol=1e-6)
    assert theta.settle(SMALL, linear, W, x, x @ W, scale, None)[1].num_perturbed == 2


def test_zero_baseline_fits_theta_itself():
    found = theta_report(linear, W, jax.random.key(0), X, X @ W, config=SMALL)
    assert not found.curve.normalised.any()
    assert np.isnan(found.curve.ratio).all()
    assert np.isnan(found.landmarks.threshold).all()


@pytest.mark.slow
def test_double_precision():
    with jax.enable_x64(True):
        x = jnp.asarray(np.asarray(X), jnp.float64)
        w = jnp.asarray(np.asarray(W), jnp.float64)
        found = theta_report(linear, w, jax.random.key(0), x, x @ w + 1, config=SMALL)
        assert found.curve.theta.dtype == jnp.float64


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("scales", (), ValueError),
        ("scales", (0.0, -0.1), ValueError),
        ("scales", (0.0, float("nan")), ValueError),
        ("scales", (0.0, 0.5, 0.5), ValueError),
        ("scales", "abc", TypeError),
        ("probabilities", (0.0, 1.0), ValueError),
        ("probabilities", (1.5,), ValueError),
        ("probabilities", (0.5, 0.5), ValueError),
        ("num_replicates", 0, ValueError),
        ("num_replicates", 10.0, TypeError),
        ("num_resamples", -1, ValueError),
        ("chunk_size", 0, ValueError),
        ("alpha", 0.0, ValueError),
        ("alpha", 1.1, ValueError),
        ("confidence", 1.0, ValueError),
        ("outputs", "logit", ValueError),
        ("loss", "hinge", ValueError),
        ("noise_unit", "metre", ValueError),
    ],
)
def test_bad_settings_name_themselves(setting, value, error):
    with pytest.raises(error, match=setting):
        ThetaConfig(**{setting: value})
