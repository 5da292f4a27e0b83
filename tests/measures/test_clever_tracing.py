"""CLEVER under JAX: compilations, transformations, precision, loops, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust.measures.clever import _estimate, _sampling

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
    given = {"apply_fn": bowl, "params": (0.5, ZERO[0], 1.0), "key": KEY, "x": ZERO, "radius": 1.0}
    with pytest.raises(error, match=match):
        jr.clever_score(**{**given, **SMALL, **change})
