"""The race of an untargeted score: classes that cannot be the nearest are dropped early.

The final score of a class is its margin over the location of a distribution fitted to all of its
maxima. The location is at least the largest maximum, so the margin over the largest maximum so far
is an upper bound on the score. For a lower bound one must know how far above its maxima the fit may
put the location: at the largest shape that it allows, 79 standard deviations above their mean. A
class whose lower bound is above the smallest upper bound is dropped. The deviation is that of the
maxima so far, with something added for how little they tell; the bound may fail, and seldom does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrobust import montecarlo
from jaxrobust.fits._weibull_search import MAX_SHAPE
from jaxrobust.measures.clever._margins import Margins

Array = jax.Array

# (index of the first batch, number of batches, margins) -> what was found, [G, n, T] each
RunFn = Callable[[Array, int, Margins], dict[str, Array]]

# How far the location of a reverse Weibull distribution of the largest shape lies above the mean.
_MEAN, _SQUARE = (math.gamma(1 + k / MAX_SHAPE) for k in (1, 2))
_FARTHEST = _MEAN / math.sqrt(_SQUARE - _MEAN**2)  # in standard deviations; 79
# Standard deviation allowed for at least, relative to the largest maximum: where the gradient is
# constant but for a small region, the first batches may all miss that region.
_LEAST_SPREAD = 0.01
_DOUBT = 2.0  # standard errors of that spread, about
_FIRST_LOOK, _FIRST_SHARE = 15, 0.1  # batches at least, and share of all
_MOST_ROUNDS = 20
_MIN_ROUND = 5


def worth_it(num_batches: int, at: Margins) -> bool:
    """Whether there are classes to drop, and batches left after the first look."""
    return at.targets.shape[-1] > 1 and num_batches >= 2 * _FIRST_LOOK


def race(run: RunFn, at: Margins, num_batches: int) -> tuple[dict[str, Array], Array, Array]:
    """Runs the batches in rounds, each with the classes that are left.

    Args:
        run: Measures some batches. Its draws depend on the index of the batch alone.
        at: The margins.
        num_batches: G.

    Returns:
        What was found (the maxima ``norm [G, n, T]``, NaN once a class was dropped; the rest of all
        batches together ``[1, n, T]``, zeros of those before), which classes are left ``[n, T]``,
        and how many batches each was in ``[n, T]``.
    """
    size = montecarlo.split_evenly(num_batches, max(_MIN_ROUND, num_batches // _MOST_ROUNDS))
    rounds = math.ceil(num_batches / size)
    first_look = max(_FIRST_LOOK, _FIRST_SHARE * num_batches)

    def play(state: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], Any]:
        live, maxima = state
        # The live classes first, for the loop over classes ends with the last of them.
        order = jnp.argsort(~live, axis=-1, stable=True)
        ordered = Margins(at.label, *(_sort(a, order) for a in (*at[1:-1], live)))
        found = run(number * size, size, ordered)
        found = jax.tree.map(lambda a: _sort(a, jnp.argsort(order, axis=-1)), found)
        batch = number * size + jnp.arange(size)
        real = (batch < num_batches)[:, None, None]
        norm = jnp.where((live | at.masked)[None] & real, found["norm"], jnp.nan)
        maxima = jax.lax.dynamic_update_slice_in_dim(maxima, norm, number * size, axis=0)
        done = (number + 1) * size
        late = (done >= first_look) & (done < num_batches)
        left = jnp.where(late, live & may_be_nearest(maxima, live, at.margin, done), live)
        rest = {
            "slope": jnp.where(real, found["slope"], 0).max(axis=0),
            "crossing": jnp.where(real, found["crossing"], jnp.inf).min(axis=0),
            "zeros": jnp.where(real, found["zeros"], 0).sum(axis=0),
        }
        return (left, maxima), (rest, live * real.sum())

    shapes = jax.eval_shape(lambda at: run(jnp.int32(0), size, at), at)
    maxima = jnp.full((rounds * size, *at.margin.shape), jnp.nan, shapes["norm"].dtype)
    (live, maxima), (rest, batches) = jax.lax.scan(play, (at.live, maxima), jnp.arange(rounds))
    found = {
        "norm": maxima[:num_batches],
        "slope": rest["slope"].max(axis=0, keepdims=True),
        "crossing": rest["crossing"].min(axis=0, keepdims=True),
        "zeros": rest["zeros"].sum(axis=0, keepdims=True),
    }
    return found, live, batches.sum(axis=0)


def may_be_nearest(maxima: Array, live: Array, margin: Array, done: Array | int) -> Array:
    """Which classes may still have the smallest score ``[n, T]``.

    Args:
        maxima: ``[G, n, T]``, NaN in batches still to come.
        live: ``[n, T]``, classes that were in all batches so far.
        margin: ``[n, T]``, at the clean input.
        done: How many batches there were.
    """
    largest = jnp.nanmax(maxima, axis=0)
    spread = jnp.maximum(jnp.nanstd(maxima, axis=0), _LEAST_SPREAD * largest)
    spread *= 1 + _DOUBT / jnp.sqrt(1.0 * done)
    end = jnp.maximum(jnp.nanmean(maxima, axis=0) + _FARTHEST * spread, largest)
    # Without any gradient there is no bound: it may be masked.
    known = live & (largest > 0) & jnp.isfinite(largest) & jnp.isfinite(margin)
    upper = jnp.where(known, margin / jnp.where(known, largest, 1), jnp.inf)
    lower = jnp.where(known, margin / jnp.where(known, end, 1), 0)
    return lower <= upper.min(axis=-1, keepdims=True)


def _sort(a: Array, order: Array) -> Array:
    """Orders the classes of ``[..., n, T]``."""
    return jnp.take_along_axis(a, jnp.broadcast_to(order, a.shape), axis=-1)
