"""The engine: the same draws for any chunk size, mesh or way of reducing them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxrobust as jr
from jaxrobust import montecarlo
from jaxrobust.perturbations.sweep import single, sweep

M, N, D = 13, 10, 3
KEY = jax.random.key(7)
X = jnp.linspace(-1.0, 1.0, N * D).reshape(N, D)
STEP = jnp.arange(1.0, N + 1)[:, None] * jnp.ones((N, D)) / 10  # each example its own scale
NOISE = jr.perturbations.gaussian(0.7, feature_scale=STEP, probability=jnp.asarray(0.6))


def meshes():
    devices = np.array(jax.devices())
    assert devices.size >= 4
    yield None
    yield Mesh(devices[:1], ("replicates",))
    yield Mesh(devices[:2], ("examples",))
    yield Mesh(devices[:4], ("replicates",))
    yield Mesh(devices[:4].reshape(2, 2), ("replicates", "examples"))
    yield Mesh(devices[:3].reshape(1, 3), ("replicates", "examples"))


def draws_by_loop(perturbation, x=X):
    """Every draw by a plain loop over single examples: the definition of the draws."""
    out = np.zeros((M, *x.shape), x.dtype)
    for j in range(M):
        out[j] = jr.perturb(perturbation, KEY, x, replicate=j)
    return out


def reduce(score, over, perturbation=NOISE, extras=(), x=X, **kwargs):
    points = perturbation if not isinstance(perturbation, jr.perturbations.Perturbation) else None
    points = points or single(perturbation)
    # Compiled, as every measure calls it.
    return jax.jit(
        lambda key, x, points, extras: montecarlo.reduce_draws(
            score, points, (), key, x, extras, num_replicates=M, over=over, **kwargs
        )
    )(KEY, x, points, extras)


def test_a_draw_depends_on_its_key_and_global_indices_only():
    draws = draws_by_loop(NOISE)
    for j, i in [(0, 0), (3, 7), (12, 9)]:
        key = jax.random.fold_in(jax.random.fold_in(KEY, j), i)
        one = jr.perturbations.gaussian(0.7, feature_scale=STEP[i], probability=jnp.asarray(0.6))
        np.testing.assert_array_equal(draws[j, i], jax.jit(one.sample)(key, X[i]))


CHUNKS_AND_MESHES = [(chunk, None) for chunk in (1, 7, 64, None)] + [
    (7, mesh) for mesh in meshes() if mesh is not None
]


@pytest.mark.parametrize(("chunk_size", "mesh"), CHUNKS_AND_MESHES)
def test_draws_are_bit_identical_for_any_chunk_and_mesh(chunk_size, mesh):
    # A maximum and an integer sum do not depend on their order, so they must agree bit for bit.
    draws = draws_by_loop(NOISE)
    kwargs = {"chunk_size": chunk_size, "mesh": mesh}
    highest = reduce(lambda p, x: x, "replicates", combine="max", **kwargs)
    np.testing.assert_array_equal(highest[0], draws.max(axis=0))

    def score(params, x_hat, x):
        return {"sum": x_hat, "changed": (x_hat != x).astype(jnp.int32)}

    summed = reduce(score, "examples", extras=(X,), **kwargs)
    np.testing.assert_array_equal(summed["changed"][0], (draws != np.asarray(X)).sum(axis=1))
    np.testing.assert_allclose(summed["sum"][0], draws.sum(axis=1), rtol=1e-6, atol=1e-6)


def test_every_reduction_over_either_axis():
    draws = draws_by_loop(NOISE)
    for over, axis in (("replicates", 0), ("examples", 1)):
        for combine in ("max", "min", "sum"):
            got = reduce(lambda p, x: x, over, combine=combine, chunk_size=7)[0]
            want = getattr(draws, combine)(axis=axis)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_explicit_mesh_from_make_mesh():
    mesh = montecarlo.as_mesh(jax.make_mesh((2, 2), ("replicates", "examples")))
    counts = reduce(lambda p, x: (x > 0).astype(jnp.int32), "replicates", mesh=mesh)
    np.testing.assert_array_equal(counts[0], (draws_by_loop(NOISE) > 0).sum(axis=0))


def test_a_sweep_uses_the_same_draws_at_every_point():
    sigmas = jnp.array([0.0, 0.5, 1.0])
    points = sweep(lambda s: jr.perturbations.gaussian(s, feature_scale=STEP), sigmas)
    assert points.is_varying == (True, False)  # only sigma is stacked, the scales are kept once
    highest = reduce(lambda p, x: x, "replicates", points, combine="max", chunk_size=7)
    np.testing.assert_array_equal(highest[0], X)
    for s, sigma in enumerate(sigmas):
        noise = jr.perturbations.gaussian(sigma, feature_scale=STEP)
        np.testing.assert_array_equal(highest[s], draws_by_loop(noise).max(axis=0))


def test_a_sweep_over_per_example_parameters_is_sharded_with_the_examples():
    sigmas = jnp.array([0.5, 1.0])
    points = sweep(lambda s: jr.perturbations.gaussian(1.0, feature_scale=s * STEP), sigmas)
    mesh = Mesh(np.array(jax.devices()[:4]), ("examples",))
    plain = reduce(lambda p, x: x, "replicates", points, combine="max")
    np.testing.assert_array_equal(
        plain, reduce(lambda p, x: x, "replicates", points, combine="max", mesh=mesh)
    )


def test_a_sweep_that_does_not_depend_on_its_point():
    points = sweep(lambda s: NOISE, jnp.arange(3.0))
    highest = reduce(lambda p, x: x, "replicates", points, combine="max")
    assert highest.shape == (3, N, D)
    np.testing.assert_array_equal(highest[2], draws_by_loop(NOISE).max(axis=0))


def test_samplers_take_part():
    flip = jr.perturbations.from_sampler(
        lambda key, x: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), -x, x)
    )
    chained = jr.perturbations.chain(flip, jr.perturbations.gaussian(0.1))
    for noise in (flip, chained):
        highest = reduce(lambda p, x: x, "replicates", noise, combine="max", chunk_size=7)
        np.testing.assert_array_equal(highest[0], draws_by_loop(noise).max(axis=0))


def test_hardware_generator_keys_give_the_same_draws_for_any_chunk():
    key = jax.random.key(3, impl="rbg")
    results = [
        montecarlo.reduce_draws(
            lambda p, x: x,
            single(NOISE),
            (),
            key,
            X,
            num_replicates=M,
            over="replicates",
            combine="max",
            chunk_size=chunk,
        )
        for chunk in (1, 8, None)
    ]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_image_shaped_examples():
    x = jnp.arange(2.0 * 4 * 4 * 3).reshape(2, 4, 4, 3)
    noise = jr.perturbations.gaussian(1.0)
    highest = reduce(lambda p, x: x, "replicates", noise, x=x, combine="max", chunk_size=3)
    np.testing.assert_array_equal(highest[0], draws_by_loop(noise, x).max(axis=0))


def test_model_calls_are_exactly_the_draws_when_they_divide():
    seen = []

    def score(params, x_hat):
        jax.debug.callback(lambda size: seen.append(int(size)), x_hat.shape[0])
        return x_hat[:, 0]

    points = sweep(jr.perturbations.gaussian, jnp.arange(1.0, 4.0))
    out = montecarlo.reduce_draws(
        score, points, (), KEY, X, num_replicates=12, over="replicates", chunk_size=6
    )
    jax.block_until_ready(out)
    jax.effects_barrier()
    assert sum(seen) == 3 * 12 * N
    assert max(seen) <= 6


@pytest.mark.parametrize("total", [1, 7, 97, 143, 1000, 9973])
@pytest.mark.parametrize("at_most", [1, 5, 64, 1000, 20000])
def test_blocks_cover_with_little_waste(total, at_most):
    block = montecarlo.split_evenly(total, at_most)
    blocks = -(-total // block)
    assert 1 <= block <= max(1, at_most)
    assert blocks * block - total < blocks  # less than one unit of waste for each block


def test_map_examples_matches_one_call():
    def fn(w, x, y):
        return x @ w + y[:, None], x.sum()[None].repeat(x.shape[0])

    w, y = jnp.ones((D, 2)), jnp.arange(N, dtype=jnp.float32)
    for mesh in meshes():
        for chunk in (4, None):
            out, _ = montecarlo.map_examples(fn, w, X, y, chunk_size=chunk, mesh=mesh)
            np.testing.assert_allclose(out, X @ w + y[:, None], rtol=1e-6)


def test_one_trace_for_other_values_of_a_perturbation():
    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(points, key):
        return montecarlo.reduce_draws(
            lambda p, x: x, points, (), key, X, num_replicates=M, over="examples"
        )

    for sigma in (0.1, 0.2):
        run(sweep(lambda s, c=sigma: jr.perturbations.gaussian(c * s), jnp.arange(4.0)), KEY)


def test_progress_counts_every_block_once(monkeypatch):
    tqdm = pytest.importorskip("tqdm.auto")
    counts = {"total": [], "updates": 0, "closed": 0}

    class Bar(tqdm.tqdm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs, disable=False)
            counts["total"].append(self.total)

        def update(self, n=1):
            counts["updates"] += n
            return super().update(n)

        def close(self):
            counts["closed"] += not self.disable
            super().close()

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    for _ in range(2):
        with montecarlo.progress_bar(True, "test") as bar:
            jax.block_until_ready(reduce(lambda p, x: x, "replicates", chunk_size=13, bar=bar))
    assert counts["total"] == [N, N]
    assert counts["updates"] == 2 * N
    assert counts["closed"] >= 2
    assert not montecarlo._bars


@pytest.mark.parametrize(
    ("mesh", "error"),
    [("cpu", TypeError), (Mesh(np.array(jax.devices()[:2]), ("data",)), ValueError)],
)
def test_bad_mesh(mesh, error):
    with pytest.raises(error, match="mesh"):
        montecarlo.as_mesh(mesh)


@pytest.mark.parametrize(("chunk", "error"), [(0, ValueError), (2.5, TypeError), (True, TypeError)])
def test_bad_chunk_size(chunk, error):
    with pytest.raises(error, match="chunk_size"):
        montecarlo.chunk_examples(chunk, (3,))


@pytest.mark.parametrize(("axes", "shape"), [(None, None), (("replicates", "examples"), (2, 2))])
def test_groups_of_replicates_are_reduced_apart(axes, shape):
    mesh = axes and Mesh(np.array(jax.devices()[:4]).reshape(shape), axes)
    out = montecarlo.reduce_draws(
        lambda p, x: x, single(NOISE), (), KEY, X, num_replicates=12, num_groups=4,
        over="replicates", combine="max", chunk_size=8, mesh=mesh,
    )  # fmt: skip
    draws = draws_by_loop(NOISE)[:12].reshape(4, 3, N, D)
    np.testing.assert_array_equal(out[0], draws.max(axis=1))
