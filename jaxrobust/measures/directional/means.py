"""Means over the initially correct examples, with intervals and their bootstrap."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import intervals
from jaxrobust._keys import threefry

Array = jax.Array

# Replicates are numbered from 0, so that no draw of any example comes from this number.
_BOOTSTRAP = np.uint32(2**32 - 1)


class Means(NamedTuple):
    """Means of K values over the chosen examples.

    Attributes:
        mean: ``[K]``; NaN if there are no examples, or one's value is NaN.
        interval: ``[K, 2]``; of the mean over the population they were drawn from.
        resampled: ``[B, K]``; means of B bootstrap samples of them.
    """

    mean: Array
    interval: Array
    resampled: Array


@functools.partial(jax.jit, static_argnames="num_resamples")
def summarise(
    key: Array, values: Array, where: Array, confidence: Array, *, num_resamples: int
) -> Means:
    """Means of values ``[K, n]`` in [0, 1] over the examples ``where [n]``.

    The key may have been used for draws by :mod:`jaxrobust.montecarlo`.
    """
    mean = masked_mean(values, where)
    return Means(
        mean=mean,
        interval=mean_intervals(values, where, confidence),
        resampled=_resample(
            jax.random.fold_in(threefry(key), _BOOTSTRAP), values, where, num_resamples
        ),
    )


def masked_mean(values: Array, where: Array) -> Array:
    """Means ``[K]`` of values ``[K, n]`` over the examples ``where [n]``; NaN if there are none."""
    return jax.vmap(lambda row: jnp.where(where, row, 0).sum())(values) / where.sum()


def mean_intervals(values: Array, where: Array, confidence: Array) -> Array:
    """Intervals ``[K, 2]`` of the means; ``[0, 1]`` if there are no examples."""
    return jax.vmap(lambda row: intervals.bounded_mean(row, confidence, where=where))(values)


def _resample(key: Array, values: Array, where: Array, num_resamples: int) -> Array:
    """The means ``[B, K]`` over B bootstrap samples of the examples ``where [n]``.

    Each sample draws as many examples as there are, with replacement; all K values of an example
    go together.
    """
    num_examples = where.shape[0]
    total = where.sum()
    chosen_first = values[:, jnp.argsort(~where, stable=True)]

    def one(number: Array) -> Array:
        share = jax.random.uniform(jax.random.fold_in(key, number), (num_examples,))
        drawn = jnp.minimum((share * total).astype(jnp.int32), jnp.maximum(total - 1, 0))
        weights = jnp.zeros(num_examples, jnp.int32).at[drawn].add(jnp.arange(num_examples) < total)

        def mean(row: Array) -> Array:
            # Not a product: a NaN of an example that was not drawn is no NaN of the mean.
            return jnp.where(weights > 0, weights.astype(row.dtype) * row, 0).sum() / total

        return jax.vmap(mean)(chosen_first)

    return jax.lax.map(one, jnp.arange(num_resamples))
