"""Randomised quasi-Monte Carlo: Sobol points with a digital shift, as standard normal latents."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.scipy.special import ndtri

from jaxrobust.perturbations.base import Perturbation

Array = jax.Array

# Independent scrambles: enough to estimate an error from their spread.
SCRAMBLES = 16

_BITS = 30


@functools.lru_cache(maxsize=8)
def _directions(size: int, num_bits: int) -> np.ndarray:
    """Direction numbers ``[num_bits, size]`` of SciPy's Sobol sequence, as 30-bit integers.

    Point k is the exclusive or of the direction numbers at the bits of its Gray code, and the Gray
    code of 2^b is bits b and b - 1: the points at powers of two give all the numbers.
    """
    numbers = np.zeros((num_bits, size), np.uint32)
    for bit in range(num_bits):
        sequence = scipy.stats.qmc.Sobol(size, scramble=False, bits=_BITS)
        sequence.fast_forward(2**bit)
        point = np.round(sequence.random(1)[0] * 2**_BITS).astype(np.uint32)
        numbers[bit] = point ^ numbers[bit - 1] if bit else point
    return numbers


def direction_numbers(size: int, num_samples: int) -> Array:
    """Direction numbers for latents of a size, enough for ``num_samples`` points.

    Raises:
        ValueError: for more dimensions than the sequence has.
    """
    most = scipy.stats.qmc.Sobol.MAXDIM
    if size > most:
        raise ValueError(
            f'sampling="sobol" reaches {most} dimensions; the perturbation has a latent of size'
            f' {size}. Use sampling="random".'
        )
    return jnp.asarray(_directions(size, max(1, math.ceil(math.log2(num_samples)))))


def draw(
    directions: Array,
    per_scramble: int,
    perturbation: Perturbation,
    key: Array,
    j: Array,
    i: Array,
    x: Array,
) -> Array:
    """The latent of replicate j of example i: point ``j mod per_scramble`` of scramble ``j //``.

    Every scramble of every example shifts all points by its own random digits, so each point by
    itself is uniform and the scrambles are independent.
    """
    scramble, point = j // per_scramble, j % per_scramble
    gray = point ^ (point >> 1)
    bits = (gray >> jnp.arange(directions.shape[0])) & 1
    chosen = jnp.where(bits[:, None] == 1, directions, jnp.zeros_like(directions))
    digits = jax.lax.reduce(chosen, jnp.uint32(0), jax.lax.bitwise_xor, (0,))
    shift_key = jax.random.fold_in(jax.random.fold_in(key, scramble), i)
    shift = jax.random.bits(shift_key, digits.shape, jnp.uint32) >> (32 - _BITS)
    dtype: Any = jnp.promote_types(x.dtype, jnp.float32)
    # Half a step from either end, so the normal stays finite (in float32 too).
    uniform = ((digits ^ shift) >> (_BITS - 23)).astype(dtype) + 0.5
    return ndtri(uniform * 2.0**-23)
