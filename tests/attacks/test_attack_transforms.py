"""jit, vmap, chunks, meshes, orders and key kinds all give what the plain call gives."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust import attacks

RNG = np.random.default_rng(0)
NUM, DIM, K = 10, 5, 3
PARAMS = (
    jnp.asarray(RNG.normal(size=(DIM, 8)), jnp.float32),
    jnp.asarray(RNG.normal(size=(8, K)), jnp.float32),
)
X = jnp.asarray(RNG.uniform(0.1, 0.9, size=(NUM, DIM)), jnp.float32)
KEY = jax.random.key(5)
SLOW = pytest.mark.slow


def mlp(params, x):
    return jnp.tanh(x @ params[0]) @ params[1]


Y = mlp(PARAMS, X).argmax(-1)
EPS = jnp.linspace(0.01, 0.3, NUM)


def plain_eps(name, **kw):
    """Every attack with the signature ``(params, key, x, labels, eps, **options)``."""
    attack = getattr(attacks, name)
    keyed = name in ("pgd", "pgn", "dn")
    sized = name not in ("deepfool", "carlini_wagner")

    def call(params, key, x, labels, eps, **options):
        middle = (key,) if keyed else ()
        if sized:
            options["eps"] = eps
        return attack(mlp, params, *middle, x, labels, **kw, **options)

    return call


ATTACKS = {
    "fgsm": plain_eps("fgsm"),
    "pgd": plain_eps("pgd", num_steps=4, num_restarts=2, norm="l2"),
    "mi_fgsm": plain_eps("mi_fgsm", num_steps=3),
    "pgn": plain_eps("pgn", num_steps=2, num_points=2),
    "dn": plain_eps("dn", num_steps=3, num_points=2, norm="l2"),
    "deepfool": plain_eps("deepfool", num_steps=5),
    "carlini_wagner": plain_eps("carlini_wagner", num_steps=20, num_bisections=3),
    "carlini_wagner linf": plain_eps(
        "carlini_wagner", num_steps=20, num_bisections=3, norm="linf", warm_start=False
    ),
}


@functools.cache
def plain(name):
    return ATTACKS[name](PARAMS, KEY, X, Y, EPS)


def assert_same(got, want, atol=2e-5):
    np.testing.assert_allclose(got.x_adv, want.x_adv, atol=atol)
    np.testing.assert_array_equal(got.success, want.success)
    np.testing.assert_array_equal(got.label, want.label)
    np.testing.assert_allclose(got.distance, want.distance, rtol=1e-3, atol=atol)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SLOW) if name == "carlini_wagner linf" else name for name in ATTACKS],
)
def test_result(name):
    result = plain(name)
    assert isinstance(result, attacks.AttackResult)
    assert result.x_adv.shape == X.shape
    assert result.x_adv.dtype == X.dtype
    assert result.success.shape == result.distance.shape == result.label.shape == (NUM,)
    assert result.success.dtype == bool
    assert result.label.dtype == jnp.int32
    assert result.success.any()
    assert np.isinf(np.asarray(result.distance)[~np.asarray(result.success)]).all()
    np.testing.assert_array_equal(result.label, mlp(PARAMS, result.x_adv).argmax(-1))
    assert float(result.x_adv.min()) >= 0
    assert float(result.x_adv.max()) <= 1


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("fgsm", "pgd", "dn", "deepfool") else pytest.param(name, marks=SLOW)
        for name in ATTACKS
    ],
)
def test_mesh_with_chunks(name):
    # 10 examples on 4 devices, 2 at a time: neither divides.
    mesh = jax.make_mesh((4,), ("examples",), axis_types=(jax.sharding.AxisType.Auto,))
    got = ATTACKS[name](PARAMS, KEY, X, Y, EPS, mesh=mesh, chunk_size=2)
    assert_same(got, plain(name))


@pytest.mark.parametrize("name", ["pgd", "deepfool"])
def test_jit(name):
    assert_same(jax.jit(ATTACKS[name])(PARAMS, KEY, X, Y, EPS), plain(name))


def test_draws_belong_to_the_example():
    want = plain("pgd")
    first = jax.tree.map(lambda v: v[:4], want)
    assert_same(ATTACKS["pgd"](PARAMS, KEY, X[:4], Y[:4], EPS[:4]), first)
    other = ATTACKS["pgd"](PARAMS, jax.random.key(6), X, Y, EPS)
    assert not np.allclose(other.x_adv, want.x_adv, atol=1e-3)


def test_hardware_keys_are_independent_of_batching():
    key = jax.random.key(5, impl="rbg")
    call = ATTACKS["pgd"]
    want = call(PARAMS, key, X, Y, EPS)
    assert_same(call(PARAMS, key, X, Y, EPS, chunk_size=3), want)


def test_vmap_over_keys_and_eps():
    keys, radii = jax.random.split(KEY, 3), jnp.array([0.05, 0.1, 0.2])
    call = ATTACKS["pgd"]
    swept = jax.vmap(call, (None, 0, None, None, 0))(PARAMS, keys, X, Y, radii)
    for i in range(3):
        assert_same(jax.tree.map(lambda v, i=i: v[i], swept), call(PARAMS, keys[i], X, Y, radii[i]))


@SLOW
def test_vmap_over_inputs():
    swept = jax.vmap(lambda c: attacks.deepfool(mlp, PARAMS, c, Y, num_steps=5))(
        jnp.stack([X, 0.9 * X])
    )
    assert_same(jax.tree.map(lambda v: v[0], swept), plain("deepfool"))


def test_inside_pmap():
    call = functools.partial(ATTACKS["mi_fgsm"])
    got = jax.pmap(call, in_axes=(None, None, 0, 0, 0))(
        PARAMS, KEY, X.reshape(2, 5, DIM), Y.reshape(2, 5), EPS.reshape(2, 5)
    )
    assert_same(jax.tree.map(lambda v: v.reshape(NUM, *v.shape[2:]), got), plain("mi_fgsm"))


def test_sweeps_never_retrace():
    traced = []

    def model(params, x):
        traced.append(None)
        return mlp(params, x)

    def sweep(scale):
        params = jax.tree.map(lambda v: v * (1 + 0.1 * scale), PARAMS)
        key = jax.random.key(int(10 * scale))
        attacks.fgsm(model, params, X, Y, eps=0.1 * scale)
        attacks.pgd(
            model, params, key, X * scale, Y, eps=0.1 * scale, step_size=0.01 * scale, num_steps=2
        )
        attacks.dn(model, params, key, X, Y, eps=0.1, kappa=scale, num_steps=2, num_points=1)
        attacks.deepfool(model, params, X, Y, overshoot=0.02 * scale, num_steps=2)

    sweep(1.0)
    count = len(traced)
    sweep(0.5)
    sweep(0.25)
    assert len(traced) == count


def test_bound_methods_do_not_retrace():
    class Network:
        @chex.assert_max_traces(n=12)
        def apply(self, params, x):
            return mlp(params, x)

    network = Network()
    for eps in (0.1, 0.2, 0.3, 0.4):
        attacks.fgsm(network.apply, PARAMS, X, Y, eps=eps)
