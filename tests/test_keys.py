"""Keys: the hash written out gives JAX's own numbers, whatever is drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust import _keys

SEEDS = (0, 1, 2**31, 123456789)
SHAPES = ((), (1,), (7,), (2, 3), (0,), (4, 0))


def data(key):
    return np.asarray(jax.random.key_data(key))


@pytest.mark.parametrize("seed", SEEDS)
def test_folds_and_splits_are_those_of_jax(seed):
    theirs = jax.random.key(seed)
    ours = _keys.threefry(theirs)
    for index in (0, 1, 2**31 - 1, np.uint32(4_000_000_000)):
        np.testing.assert_array_equal(
            data(jax.random.fold_in(ours, index)), data(jax.random.fold_in(theirs, index))
        )
    for shape in (1, 3, (2, 3)):
        np.testing.assert_array_equal(
            data(jax.random.split(ours, shape)), data(jax.random.split(theirs, shape))
        )
    j, i = jnp.int32(5), jnp.int32(7)
    np.testing.assert_array_equal(
        data(_keys.fold_pair(ours, j, i)),
        data(jax.random.fold_in(jax.random.fold_in(theirs, j), i)),
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_draws_are_those_of_jax(shape):
    theirs = jax.random.key(3)
    ours = _keys.threefry(theirs)
    for dtype in (jnp.uint8, jnp.uint16, jnp.uint32):
        a, b = (jax.random.bits(key, shape, dtype) for key in (ours, theirs))
        np.testing.assert_array_equal(a, b)
        assert a.dtype == dtype
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32):
        a, b = (jax.random.normal(key, shape, dtype) for key in (ours, theirs))
        np.testing.assert_array_equal(np.asarray(a, np.float32), np.asarray(b, np.float32))
        assert a.dtype == dtype
    with jax.enable_x64():
        a, b = (jax.random.normal(key, shape, jnp.float64) for key in (ours, theirs))
        np.testing.assert_array_equal(a, b)
        assert a.dtype == jnp.float64


def test_draws_in_a_batch_are_those_one_by_one():
    key = jax.random.key(11)

    @jax.jit
    def batched(key):
        ours = _keys.threefry(key)
        draw = lambda j, i: jax.random.normal(_keys.fold_pair(ours, j, i), (3,))  # noqa: E731
        rows = jax.vmap(draw, (None, 0))
        return jax.vmap(rows, (0, None))(jnp.arange(4), jnp.arange(5))

    found = batched(key)
    for j in range(4):
        for i in range(5):
            one = jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, j), i), (3,))
            np.testing.assert_array_equal(found[j, i], one)


def test_a_key_stays_what_it_is_and_goes_back_to_the_standard():
    theirs = jax.random.key(2)
    ours = _keys.threefry(theirs)
    assert _keys.threefry(ours) is ours
    back = _keys.standard(ours)
    assert jax.random.key_impl(back) == "threefry2x32"
    np.testing.assert_array_equal(data(back), data(theirs))


def test_other_generators_only_seed():
    hardware = jax.random.key(2, impl="rbg")
    ours = _keys.threefry(hardware)
    assert jax.random.key_impl(ours) == jax.random.key_impl(_keys.threefry(jax.random.key(0)))
    assert (data(ours) != data(_keys.threefry(jax.random.key(3, impl="rbg")))).any()


def test_more_numbers_than_the_counter_holds_are_refused():
    with pytest.raises(ValueError, match=r"at most 2\*\*32 - 1 numbers"):
        jax.jit(lambda k: jax.random.bits(_keys.threefry(k), (2**32,))).lower(jax.random.key(0))
