"""One kind of key for every draw: the same numbers however they are batched, and drawn fast.

The keys are threefry, JAX's default. The hash is written out here once more because JAX, to compile
it faster, rolls its rounds into a loop on the CPU: every few rounds then go through memory. Written
out they fuse with what comes before and after, and the same numbers take half the time.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend import random as extend_random

# Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": Threefry-2x32, 20 rounds.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


@jax.jit
def _hash(key: tuple[Array, Array], high: Array, low: Array) -> tuple[Array, Array]:
    """Threefry-2x32 of the counter ``(high, low)``: two words of 32 bits."""
    words = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    high, low = high + words[0], low + words[1]
    for group in range(5):
        for turn in _ROTATIONS[group % 2]:
            high = high + low
            low = high ^ ((low << jnp.uint32(turn)) | (low >> jnp.uint32(32 - turn)))
        high = high + words[(group + 1) % 3]
        low = low + words[(group + 2) % 3] + jnp.uint32(group + 1)
    return high, low


def _hash_places(key: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The hashes of the places ``0, 1, ...`` of an array of a shape."""
    size = math.prod(shape)
    if size >= 2**32:
        raise ValueError(f"one draw may have at most 2**32 - 1 numbers; got the shape {shape}.")
    low = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return _hash((key[0], key[1]), jnp.zeros_like(low), low)


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    high, low = _hash_places(key, shape)
    if bit_width == 64:
        return (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
    return (high ^ low).astype(jnp.dtype(f"uint{bit_width}"))


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.stack(_hash_places(key, tuple(shape)), axis=-1)


def _fold_in(key: Array, data: Array | int) -> Array:
    low = jnp.asarray(data).astype(jnp.uint32)
    return jnp.stack(_hash((key[0], key[1]), jnp.zeros_like(low), low))


_IMPL = extend_random.define_prng_impl(
    key_shape=(2,),
    seed=extend_random.threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_unrolled",
    tag="fryu",
)


def threefry(key: Array) -> Array:
    """Returns a threefry key: of the same draws as ``key`` if it is one, else seeded by it.

    The hardware generators (``rbg``) give other numbers under ``vmap`` than one by one, which
    would break the promise of identical draws for any chunk size or number of devices.
    """
    kind = jax.random.key_impl(key)
    if kind == _IMPL:
        return key
    if kind == "threefry2x32":
        data = jax.random.key_data(key)
    else:
        data = jax.random.bits(key, (2,), "uint32")
    return jax.random.wrap_key_data(data, impl=_IMPL)


def standard(key: Array) -> Array:
    """The same key as JAX itself makes it: for code that is not ours."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")


def fold_pair(key: Array, j: Array, i: Array) -> Array:
    """``fold_in(fold_in(key, j), i)``, computed once even where a compiler would fuse it.

    Fused into the draws of a small example, it would be computed again for each of its numbers.
    """
    return as_it_is(jax.random.fold_in(jax.random.fold_in(key, j), i))


def as_it_is(draws: Array) -> Array:
    """Keeps a compiler from fusing draws (or keys) with what uses them.

    Fused multiplications and additions round once instead of twice, and whether they are fused
    would depend on the batch: the same draws would give inputs an ulp apart.
    """
    if not jnp.issubdtype(draws.dtype, jax.dtypes.prng_key):
        return jax.lax.optimization_barrier(draws)
    data = jax.lax.optimization_barrier(jax.random.key_data(draws))
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(draws))
