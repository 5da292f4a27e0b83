"""What the constructors and ``perturb`` refuse, naming the argument."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr

P = jr.perturbations
KEY = jax.random.key(0)
NAN = math.nan
INF = math.inf
EYE = np.eye(2)
TABLE = np.ones((4, 2))
GAUSS = P.gaussian(1.0)

CONSTRUCTORS = [
    (lambda: P.gaussian("a"), TypeError, "sigma"),
    (lambda: P.gaussian(None), TypeError, "sigma"),
    (lambda: P.gaussian(1j), TypeError, "sigma"),
    (lambda: P.gaussian(True), TypeError, "sigma"),
    (lambda: P.gaussian(-0.1), ValueError, "sigma"),
    (lambda: P.gaussian(NAN), ValueError, "sigma"),
    (lambda: P.gaussian(INF), ValueError, "sigma"),
    (lambda: P.gaussian([0.1, -0.1]), ValueError, "sigma"),
    (lambda: P.gaussian(1.0, feature_scale="a"), TypeError, "feature_scale"),
    (lambda: P.gaussian(1.0, feature_scale=[1.0, -1.0]), ValueError, "feature_scale"),
    (lambda: P.gaussian(1.0, feature_scale=[1.0, NAN]), ValueError, "feature_scale"),
    (lambda: P.gaussian(1.0, where=[1, 0]), TypeError, "where"),
    (lambda: P.gaussian(1.0, where=jnp.ones(2)), TypeError, "where"),
    (lambda: P.gaussian(1.0, integer=[1, 0]), TypeError, "integer"),
    (lambda: P.gaussian(1.0, probability=1.5), ValueError, "probability"),
    (lambda: P.gaussian(1.0, probability=-0.1), ValueError, "probability"),
    (lambda: P.gaussian(1.0, probability=NAN), ValueError, "probability"),
    (lambda: P.gaussian(1.0, probability=True), TypeError, "probability"),
    (lambda: P.gaussian(1.0, probability="a"), TypeError, "probability"),
    (lambda: P.multivariate_normal("a"), TypeError, "cov"),
    (lambda: P.multivariate_normal(EYE == 1), TypeError, "cov"),
    (lambda: P.multivariate_normal(EYE + 0j), TypeError, "cov"),
    (lambda: P.multivariate_normal(1.0), ValueError, "cov must be square"),
    (lambda: P.multivariate_normal(np.ones(3)), ValueError, "cov must be square"),
    (lambda: P.multivariate_normal(np.ones((2, 3))), ValueError, "cov must be square"),
    (lambda: P.multivariate_normal(np.ones((0, 0))), ValueError, "cov must be square"),
    (lambda: P.multivariate_normal(np.ones((2, 2, 2, 2))), ValueError, "cov must be square"),
    (lambda: P.multivariate_normal(EYE * NAN), ValueError, "cov must be finite"),
    (lambda: P.multivariate_normal([[1, 2], [0, 9]]), ValueError, "cov must be symmetric"),
    (lambda: P.multivariate_normal([[1, 2], [2, 1]]), ValueError, "cov must be positive semi"),
    (lambda: P.multivariate_normal([EYE, -EYE]), ValueError, "cov must be positive semi"),
    (lambda: P.multivariate_normal(EYE, mean="a"), TypeError, "mean"),
    (lambda: P.multivariate_normal(EYE, mean=NAN), ValueError, "mean"),
    (lambda: P.ensemble("a"), TypeError, "members"),
    (lambda: P.ensemble(np.ones((3, 2))), ValueError, "members"),
    (lambda: P.ensemble(np.ones((3, 1, 2))), ValueError, "members"),
    (lambda: P.ensemble(np.ones((3, 1, 2)), ddof=0), ValueError, "members"),
    (lambda: P.ensemble(np.ones((3, 3, 2)), ddof=3), ValueError, "members"),
    (lambda: P.ensemble(np.full((3, 3, 2), NAN)), ValueError, "members"),
    (lambda: P.ensemble(np.ones((3, 3, 2)), ddof=-1), ValueError, "ddof"),
    (lambda: P.ensemble(np.ones((3, 3, 2)), ddof=1.0), TypeError, "ddof"),
    *[
        (lambda make=make, radius=radius: make(radius, norm="l2"), error, "radius")
        for make in (P.uniform_ball, P.uniform_sphere, P.gaussian_sphere)
        for error, radii in [(ValueError, (-1.0, NAN, INF)), (TypeError, ("a", None))]
        for radius in radii
    ],
    *[
        (lambda make=make, norm=norm: make(1.0, norm=norm), ValueError, "norm")
        for make in (P.uniform_ball, P.uniform_sphere, P.gaussian_sphere)
        for norm in ("l3", 2, None, INF)
    ],
    (lambda: P.clipped(lambda key, x: x, 0.0, 1.0), TypeError, "perturbation"),
    (lambda: P.clipped(GAUSS, "a", 1.0), TypeError, "lower"),
    (lambda: P.clipped(GAUSS, 0.0, None), TypeError, "upper"),
    (lambda: P.clipped(GAUSS, NAN, 1.0), ValueError, "lower"),
    (lambda: P.clipped(GAUSS, 0.0, [1.0, NAN]), ValueError, "upper"),
    (lambda: P.clipped(GAUSS, 1.0, 0.0), ValueError, "lower"),
    (lambda: P.clipped(GAUSS, [0.0, 2.0], 1.0), ValueError, "lower"),
    (lambda: P.clipped(GAUSS, np.zeros(2), np.ones(3)), ValueError, "lower and upper"),
    (lambda: P.chain(), ValueError, "chain"),
    (lambda: P.chain(GAUSS, 0.1), TypeError, "perturbation"),
    (lambda: P.resample("a"), TypeError, "table"),
    (lambda: P.resample(1.0), ValueError, "table"),
    (lambda: P.resample(np.ones((0, 2))), ValueError, "table"),
    (lambda: P.resample([[1.0, NAN]]), ValueError, "table"),
    (lambda: P.resample(TABLE, where=[1, 0]), TypeError, "where"),
    (lambda: P.resample(TABLE, probability=1.5), ValueError, "probability"),
    (lambda: P.from_sampler(3), TypeError, "fn"),
    (lambda: P.from_sampler(None), TypeError, "fn"),
]


@pytest.mark.parametrize(("make", "error", "match"), CONSTRUCTORS)
def test_constructors(make, error, match):
    with pytest.raises(error, match=rf"^{match}\b"):
        make()


X = jnp.zeros((3, 2))
SHAPES = [
    (P.gaussian(np.ones(4)), "sigma"),
    (P.gaussian(np.ones(1)), "sigma"),
    (P.gaussian(np.ones((3, 2))), "sigma"),
    (P.gaussian(1.0, probability=np.ones(2)), "probability"),
    (P.gaussian(1.0, feature_scale=np.ones(3)), "feature_scale"),
    (P.gaussian(1.0, feature_scale=np.ones((2, 2))), "feature_scale"),
    (P.gaussian(1.0, feature_scale=np.ones((3, 3))), "feature_scale"),
    (P.gaussian(1.0, where=np.ones(3, bool)), "where"),
    (P.gaussian(1.0, where=np.ones((4, 2), bool)), "where"),
    (P.gaussian(1.0, integer=np.ones((3, 2, 1), bool)), "integer"),
    (P.multivariate_normal(np.eye(3)), "cov"),
    (P.multivariate_normal([EYE] * 4), "cov"),
    (P.multivariate_normal(EYE, mean=np.ones(3)), "mean"),
    (P.multivariate_normal(EYE, mean=np.ones((4, 2))), "mean"),
    (P.ensemble(np.ones((3, 5, 4))), "members"),
    (P.ensemble(np.ones((4, 5, 2))), "members"),
    (P.uniform_ball(np.ones(2), norm="l2"), "radius"),
    (P.gaussian_sphere(np.ones((3, 1)), norm="l1"), "radius"),
    (P.clipped(GAUSS, np.zeros(3), 1.0), "lower"),
    (P.clipped(GAUSS, 0.0, np.ones((4, 2))), "upper"),
    (P.clipped(P.gaussian(np.ones(4)), 0.0, 1.0), "sigma"),
    (P.chain(GAUSS, P.gaussian(np.ones(4))), "sigma"),
    (P.resample(np.ones((5, 3))), "table"),
    (P.resample(np.ones((4, 5, 2))), "table"),
    (P.resample(TABLE, where=np.ones(3, bool)), "where"),
]


@pytest.mark.parametrize(("perturbation", "match"), SHAPES)
def test_parameters_that_do_not_fit_the_input(perturbation, match):
    with pytest.raises(ValueError, match=rf"^{match} must\b"):
        jr.perturb(perturbation, KEY, X)


@pytest.mark.parametrize(
    ("fn", "got"),
    [
        (lambda key, x: x[:1], r"shape \(1,\)"),
        (lambda key, x: x.astype(int), "int32"),
        (lambda key, x: None, "None"),
        (lambda key, x: 1.0, "1.0"),
    ],
)
def test_a_sampler_that_returns_something_else(fn, got):
    with pytest.raises(ValueError, match=rf"^fn .* shape \(2,\) and dtype float32; got .*{got}"):
        jr.perturb(P.from_sampler(fn), KEY, X)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "match"),
    [
        ((GAUSS, jax.random.PRNGKey(0), X), {}, TypeError, "key must be a typed PRNG key"),
        ((GAUSS, 0, X), {}, TypeError, "key must be a typed PRNG key"),
        ((GAUSS, None, X), {}, TypeError, "key must be a typed PRNG key"),
        ((GAUSS, jax.random.split(KEY, 2), X), {}, ValueError, "key must be one key"),
        ((GAUSS, KEY, X.astype(int)), {}, TypeError, "x must be floating-point"),
        ((GAUSS, KEY, np.zeros((3, 2), "uint8")), {}, TypeError, "x must be floating-point"),
        ((GAUSS, KEY, [["a"]]), {}, TypeError, "x must be floating-point"),
        ((GAUSS, KEY, X[0]), {}, ValueError, "x must have a leading axis"),
        ((GAUSS, KEY, X[:0]), {}, ValueError, "x must hold at least one example"),
        ((GAUSS, KEY, X[:, :0]), {}, ValueError, "x must hold at least one example"),
        ((GAUSS, KEY, X.at[1, 1].set(NAN)), {}, ValueError, r"x must be finite; .* \(1, 1\)"),
        ((GAUSS, KEY, X.at[1, 1].set(INF)), {}, ValueError, "x must be finite"),
        ((0.1, KEY, X), {}, TypeError, "perturbation must be"),
        ((P.gaussian, KEY, X), {}, TypeError, "perturbation must be"),
        ((GAUSS, KEY, X), {"replicate": -1}, ValueError, "replicate must be at least 0"),
        ((GAUSS, KEY, X), {"replicate": 1.5}, TypeError, "replicate must be a whole number"),
        ((GAUSS, KEY, X), {"replicate": True}, TypeError, "replicate must be a whole number"),
        ((GAUSS, KEY, X), {"replicate": [0, 1]}, TypeError, "replicate must be a whole number"),
    ],
)
def test_perturb(args, kwargs, error, match):
    with pytest.raises(error, match=rf"^{match}"):
        jr.perturb(*args, **kwargs)


def test_values_are_not_looked_at_inside_a_trace():
    bad = jax.jit(lambda sigma, x: jr.perturb(P.gaussian(sigma), KEY, x))
    assert np.isnan(bad(jnp.asarray(NAN), X)).all()
    # Shapes and types are, there too.
    with pytest.raises(ValueError, match="sigma must be shared"):
        bad(jnp.ones(4), X)
    with pytest.raises(TypeError, match="x must be floating-point"):
        bad(1.0, X.astype(int))
