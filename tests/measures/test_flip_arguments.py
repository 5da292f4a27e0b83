"""What the three flip measures refuse: the argument, what was expected, and what came."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr

P = jr.perturbations
KEY = jax.random.key(5)
X = jnp.ones((2, 2))
UNIT = P.gaussian(1.0)
NAN = float("nan")
MEASURES = {
    "flip_probability": {"num_samples": 100},
    "decide_flip": {"threshold": 0.1, "max_samples": 512},
    "rare_flip_probability": {"num_particles": 20, "num_runs": 2},
}


def plane(params, x):
    return jnp.stack([jnp.zeros(x.shape[0], x.dtype), x.sum(axis=1)], axis=1)


def one_column(params, x):
    return x.sum(axis=1, keepdims=True)


def half_of_the_rows(x):
    return np.zeros((len(x) // 2, 2))


def never(x):
    raise RuntimeError("the licence of this model ran out")


def measure(name, **change):
    arguments = {"apply_fn": plane, "params": None, "key": KEY, "x": X, "perturbation": UNIT}
    arguments |= MEASURES[name] | change
    positional = [arguments.pop(name) for name in ("apply_fn", "params", "key", "x")]
    return getattr(jr, name)(*positional, **arguments)


def raises(error, message):
    """The whole message, or so much of it as stands between the dots."""
    pattern = ".*".join(map(re.escape, message.split("...")))
    # JAX adds a line of its own to what is raised while it traces.
    return pytest.raises(error, match=rf"(?s)^{pattern}($|\n-----)")


ALL = [
    ({"labels": jnp.array([0, 1, 1])}, ValueError,
     "labels must have one label for each of the 2 examples of x, shape (2,); got an array of shape"
     " (3,) and dtype int32."),
    ({"labels": jnp.array([0, 2])}, ValueError,
     "labels must be labels from 0 to 1 (the model has 2 classes); got 2 at index 1."),
    ({"labels": jnp.array([0.0, 1.0])}, TypeError,
     "labels must be integer class labels, shape (2,); got an array of shape (2,) and dtype"
     " float32."),
    ({"perturbation": P.multivariate_normal(np.eye(3))}, ValueError,
     "cov must be of 2 features, those of one example of x, of shape (2,); got 3 features."),
    ({"perturbation": P.multivariate_normal([np.eye(2)] * 3)}, ValueError,
     "cov must be shared by all examples, or have a leading axis of the 2 examples of x; got one of"
     " 3 for x of shape (2, 2)."),
    ({"perturbation": P.gaussian(1.0, feature_scale=np.ones((3, 2)))}, ValueError,
     "feature_scale must be shared by all examples...2 examples of x; got one of 3 for..."),
    ({"perturbation": P.ensemble(np.ones((3, 4, 2)))}, ValueError,
     "members must be shared by all examples...2 examples of x; got one of 3 for..."),
    ({"perturbation": "gaussian"}, TypeError,
     "perturbation must be a jaxrobust perturbation...; got 'gaussian' of type str."),
    ({"confidence": 0.0}, ValueError, "confidence must be between 0 and 1; got 0.0."),
    ({"confidence": 95}, ValueError, "confidence must be between 0 and 1; got 95."),
    ({"apply_fn": one_column}, ValueError,
     "apply_fn must return one column for each class, shape [B, K] with K >= 2; got shape (2, 1). "
     "...through jaxrobust.models.binary(apply_fn)."),
    ({"key": 3}, TypeError, "key must be a typed PRNG key...; got 3 of type int."),
    ({"x": X.at[1, 0].set(NAN)}, ValueError, "x must be finite; got nan at index (1, 0)."),
    # Models that are called back.
    ({"apply_fn": jr.models.from_numpy(never)}, RuntimeError, "the licence of this model ran out"),
    ({"apply_fn": jr.models.from_numpy(half_of_the_rows)}, ValueError,
     "predict must return scores [B, K] or values [B] for 2 inputs of shape (2, 2); got an array of"
     " shape (1, 2) and dtype float64."),
]  # fmt: skip


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize(("change", "error", "message"), ALL)
def test_what_all_of_them_refuse(name, change, error, message):
    with raises(error, message):
        measure(name, **change)


SAMPLERS = [
    (lambda key, x: x[:1], "an array of shape (1,) and dtype float32."),
    (lambda key, x: x.astype(int), "an array of shape (2,) and dtype int32."),
    (lambda key, x: None, "None of type NoneType."),
]


@pytest.mark.parametrize("name", ["flip_probability", "decide_flip"])
@pytest.mark.parametrize(("fn", "got"), SAMPLERS)
def test_a_sampler_that_returns_something_else(name, fn, got):
    expected = "fn (the sampler) must return one perturbed example of shape (2,) and dtype float32;"
    with raises(ValueError, f"{expected} got {got}"):
        measure(name, perturbation=P.from_sampler(fn))


@pytest.mark.parametrize(
    ("name", "change"),
    [("flip_probability", {"sampling": "sobol"}), ("rare_flip_probability", {})],
)
def test_a_sampler_where_a_normal_draw_is_needed(name, change):
    with raises(ValueError, "perturbation must be a push-forward of a normal draw here..."):
        measure(name, perturbation=P.from_sampler(lambda key, x: x), **change)


OWN = [
    ("flip_probability", {"num_samples": 0}, ValueError, "num_samples must be at least 1; got 0."),
    ("flip_probability", {"sampling": "halton"}, ValueError,
     "sampling must be one of 'random', 'sobol'; got 'halton'."),
    *[("decide_flip", {"threshold": value}, ValueError,
       f"threshold must be between 0 and 1; got {value}.") for value in (0.0, 1.0, -0.1, 1.5, NAN)],
    ("decide_flip", {"threshold": "small"}, TypeError,
     "threshold must be real numbers; got 'small' of type str."),
    ("decide_flip", {"threshold": np.full(2, 0.1)}, ValueError,
     "threshold must be one number for all examples; got an array of shape (2,) and dtype"
     " float64."),
    ("decide_flip", {"max_samples": 0}, ValueError, "max_samples must be at least 1; got 0."),
    ("rare_flip_probability", {"num_runs": 1}, ValueError, "num_runs must be at least 2; got 1."),
    ("rare_flip_probability", {"num_particles": 5}, ValueError,
     "num_particles must be at least 20; got 5."),
    ("rare_flip_probability", {"num_moves": 0}, ValueError, "num_moves must be at least 1; got 0."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "error", "message"), OWN)
def test_what_one_of_them_refuses(name, change, error, message):
    with raises(error, message):
        measure(name, **change)


CONSTRUCTORS = [
    (lambda: P.multivariate_normal([[1, 2], [0, 9]]),
     "cov must be symmetric; got entries that differ from their mirror by 2.0."),
    (lambda: P.multivariate_normal([[2, 3], [3, 2]]),
     "cov must be positive semi-definite (no eigenvalue below zero); got an eigenvalue of -..."),
    (lambda: P.multivariate_normal([[1, NAN], [NAN, 1]]),
     "cov must be finite; got nan at index (0, 1)."),
    (lambda: P.multivariate_normal(np.ones((2, 3))),
     "cov must be square, shape [d, d] or [n, d, d]; got an array of shape (2, 3) and dtype"
     " float64."),
    (lambda: P.ensemble(np.ones((5, 1, 2))),
     "members must hold at least 2 members for each example...; got 1."),
    (lambda: P.gaussian(1.0, feature_scale=[0.5, -0.5]),
     "feature_scale must be finite and not negative; got -0.5 at index 1."),
    (lambda: P.gaussian(1.0, feature_scale=[[0.5, 1.0], [NAN, 1.0]]),
     "feature_scale must be finite and not negative; got nan at index (1, 0)."),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), CONSTRUCTORS)
def test_uncertainties_that_are_none(make, message):
    with raises(ValueError, message):
        make()


def test_an_eigenvalue_below_zero_by_rounding_is_none():
    """A covariance of rank one in float32, as an estimate from few measurements gives it."""
    a = np.random.default_rng(0).normal(size=(40, 1)).astype(np.float32)
    cov = a @ a.T
    assert np.linalg.eigvalsh(cov).min() < 0
    x_hat = np.asarray(jr.perturb(P.multivariate_normal(cov), KEY, jnp.zeros((3, 40))))
    direction = a[:, 0] / np.linalg.norm(a)
    along = x_hat @ direction
    assert (np.abs(along) > 0.1).any()
    np.testing.assert_allclose(x_hat, np.outer(along, direction), atol=0.02)


def test_standard_errors_of_zero_are_no_noise():
    still = P.gaussian(1.0, feature_scale=jnp.zeros((2, 2)))
    result = measure("flip_probability", perturbation=still)
    assert result.flips.tolist() == [0, 0]
    np.testing.assert_allclose(result.interval[:, 1], 1 - 0.025 ** (1 / 100), rtol=1e-5)


@pytest.mark.parametrize("name", ["decide_flip", "rare_flip_probability"])
def test_an_error_far_from_zero_reaches_the_user_too(name):
    """It is raised in compiled code, long after the trial call on zeros."""

    def not_far(x):
        if np.abs(x).max() > 100:
            raise RuntimeError("input out of range: recalibrate")
        return np.stack([np.zeros(len(x)), x.sum(axis=1)], axis=1)

    with pytest.raises(jax.errors.JaxRuntimeError, match="out of range: recalibrate"):
        jax.block_until_ready(measure(name, apply_fn=jr.models.from_numpy(not_far), x=1000 * X))
