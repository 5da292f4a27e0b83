"""The convolution remedy changes layouts, never numbers, and leaves alone what is well."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxrobust._convolutions import loop_friendly

RNG = np.random.default_rng(0)
IMAGES = jnp.asarray(RNG.normal(size=(4, 8, 8, 3)), jnp.float32)
KERNEL = jnp.asarray(RNG.normal(size=(3, 3, 3, 6)), jnp.float32)


def conv(x, kernel, numbers=("NHWC", "HWIO", "NHWC"), **kw):
    kw = {"window_strides": (2, 2), "padding": ((1, 1), (1, 1)), **kw}
    return lax.conv_general_dilated(x, kernel, dimension_numbers=numbers, **kw)


def nchw(x, kernel):
    return conv(x.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1), ("NCHW", "OIHW", "NCHW"))


@jax.custom_jvp
def custom(x):
    return nchw(x, KERNEL)


custom.defjvp(lambda primals, tangents: (custom(*primals), nchw(tangents[0], KERNEL)))


@jax.custom_vjp
def custom_backward(x):
    return nchw(x, KERNEL)


custom_backward.defvjp(
    lambda x: (custom_backward(x), x.shape), lambda shape, g: (jnp.full(shape, g.sum()),)
)


def network(x):
    return jax.nn.relu(conv(x, KERNEL)).sum()


def looped(x):
    return lax.scan(lambda c, _: (c + nchw(c, KERNEL).mean(), None), x, None, length=2)[0]


def condition(x):
    return lax.cond(x[0, 0, 0, 0] > 0, lambda x: nchw(x, KERNEL), lambda x: -nchw(x, KERNEL), x)


def until(x):
    def body(state):
        return state[0] + 1, state[1] + nchw(state[1], KERNEL).mean()

    return lax.while_loop(lambda s: s[0] < 2, body, (0, x))[1]


FUNCTIONS = {
    "canonical": lambda x: conv(x, KERNEL),
    "nchw": lambda x: nchw(x, KERNEL),
    "jit": jax.jit(lambda x: {"out": nchw(x, KERNEL), "n": 3}),
    "custom_jvp": custom,
    "custom_vjp": custom_backward,
    "grad": jax.grad(network),
    "grad of custom_jvp": jax.grad(lambda x: jnp.sin(custom(x)).sum()),
    "grad of custom_vjp": jax.grad(lambda x: jnp.sin(custom_backward(x)).sum()),
    "grad of remat": jax.grad(jax.checkpoint(lambda x: jnp.sin(nchw(x, KERNEL)).sum())),
    "scan": looped,
    "cond": condition,
    "while": until,
    "vmap": jax.vmap(lambda x: conv(x.reshape(1, 8, 8, 3), KERNEL)),
    "groups": lambda x: conv(x, KERNEL[:, :, :1], feature_group_count=3),
    "kernel gradient": lambda x: jax.grad(lambda k: jnp.sin(conv(x, k)).sum())(KERNEL),
    "one dimension": lambda x: lax.conv(x[:, 0].swapaxes(1, 2), KERNEL[0].T, (1,), "SAME"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_numbers(name):
    fn = FUNCTIONS[name]
    want, got = jax.jit(fn)(IMAGES), jax.jit(loop_friendly(fn))(IMAGES)
    assert jax.tree.structure(want) == jax.tree.structure(got)
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


def convolutions(jaxpr):
    """Dimension numbers of every convolution in a jaxpr, however deep."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "conv_general_dilated":
            found.append(tuple(map(tuple, eqn.params["dimension_numbers"])))
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found += convolutions(inner)
    return found


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"one dimension"}))
def test_every_convolution_becomes_canonical(name):
    found = convolutions(jax.make_jaxpr(loop_friendly(FUNCTIONS[name]))(IMAGES).jaxpr)
    assert found
    image = (0, 3, 1, 2)
    assert set(found) == {(image, (3, 2, 0, 1), image)}


def test_under_transformations_of_the_caller():
    fn, friendly = FUNCTIONS["nchw"], loop_friendly(FUNCTIONS["nchw"])
    stack = jnp.stack([IMAGES, 2 * IMAGES])
    np.testing.assert_allclose(jax.vmap(friendly)(stack), jax.vmap(fn)(stack), rtol=1e-5, atol=1e-5)
    for f in (FUNCTIONS["custom_jvp"], FUNCTIONS["custom_vjp"], fn):
        want = jax.grad(lambda x, f=f: jnp.sin(f(x)).sum())(IMAGES)
        got = jax.grad(lambda x, f=f: jnp.sin(loop_friendly(f)(x)).sum())(IMAGES)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    mesh = jax.make_mesh((4,), ("examples",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(friendly, mesh=mesh, in_specs=P("examples"), out_specs=P("examples"))
    np.testing.assert_allclose(jax.jit(sharded)(IMAGES), fn(IMAGES), rtol=1e-5, atol=1e-5)


def test_custom_derivatives_survive():
    # The derivative written by hand is wrong on purpose, so losing it would show.
    @jax.custom_jvp
    def doubled(x):
        return x

    doubled.defjvp(lambda primals, tangents: (primals[0], 2 * tangents[0]))
    gradient = jax.grad(lambda x: loop_friendly(lambda x: doubled(nchw(x, KERNEL)))(x).sum())
    plain = jax.grad(lambda x: nchw(x, KERNEL).sum())
    np.testing.assert_allclose(gradient(IMAGES), 2 * plain(IMAGES), rtol=1e-5, atol=1e-5)


def test_nothing_to_do_leaves_the_program_alone(monkeypatch):
    def dense(x):
        return jax.nn.relu(x.reshape(4, -1) @ jnp.ones((192, 2)))

    for fn in (dense, FUNCTIONS["canonical"]):
        assert str(jax.make_jaxpr(loop_friendly(fn))(IMAGES)) == str(jax.make_jaxpr(fn)(IMAGES))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    fn = FUNCTIONS["nchw"]
    assert str(jax.make_jaxpr(loop_friendly(fn))(IMAGES)) == str(jax.make_jaxpr(fn)(IMAGES))


def test_traces_the_function_once():
    calls = []

    def fn(x):
        calls.append(None)
        return nchw(x, KERNEL)

    jitted = jax.jit(loop_friendly(fn))
    jitted(IMAGES), jitted(IMAGES)
    assert len(calls) == 1
