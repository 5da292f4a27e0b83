"""Intervals for the mean of a bounded quantity."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import _checks
from jaxrobust.intervals._common import check_confidence

Array = jax.Array


def bounded_mean(samples: Any, confidence: Any = 0.95, *, where: Any = None) -> Array:
    """An interval for the mean of a distribution on [0, 1], whatever its shape.

    A fixed-size betting interval: valid for any number of samples, also where a normal
    approximation fails (probabilities that are mostly zero), and nearly as narrow as one.

    Args:
        samples: ``[n]`` in [0, 1], independent and alike. Their order must not depend on values.
        confidence: between 0 and 1.
        where: bool ``[n]``; the samples to use, all by default. Data, not structure. With none of
            them the interval is ``[0, 1]``.

    Returns:
        Interval ends ``[2]``; NaN when a sample that is used is NaN.

    Raises:
        TypeError: for a ``where`` that is not bool.
        ValueError: for samples outside [0, 1] or not ``[n]``, a ``where`` of another shape, or a
            confidence outside (0, 1).

    Source: Waudby-Smith & Ramdas 2024, JRSS B 86, 1-27, theorem 3 (hedged capital).

    Example:
        >>> import jax.numpy as jnp, jaxrobust as jr
        >>> lower, upper = jr.intervals.bounded_mean(jnp.tile(jnp.array([0.2, 0.4]), 200))
        >>> bool(0.25 < lower < 0.3 < upper < 0.35)
        True
    """
    samples = _checks.real_array("samples", samples)
    check_confidence(confidence)
    if samples.ndim != 1 or samples.shape[0] == 0:
        raise ValueError(f"samples must have shape [n]; got {_checks.describe(samples)}.")
    _checks.values(
        "samples", samples, lambda v: np.isnan(v) | ((v >= 0) & (v <= 1)), "between 0 and 1"
    )
    where = np.ones(samples.shape, bool) if where is None else jnp.asarray(where)
    if where.dtype != bool:
        raise TypeError(f"where must be bool; got {_checks.describe(where)}.")
    if where.shape != samples.shape:
        raise ValueError(
            f"where must have the shape of samples, {samples.shape}; got {_checks.describe(where)}."
        )
    return _bounded_mean(samples, confidence, where)


@jax.jit
def _bounded_mean(samples: Array, confidence: Array, where: Any) -> Array:
    n = where.sum()
    seen = jnp.cumsum(where)
    mean = (0.5 + jnp.cumsum(jnp.where(where, samples, 0))) / (seen + 1)
    deviations = jnp.where(where, jnp.square(samples - mean), 0)
    variance = (0.25 + jnp.cumsum(deviations)) / (seen + 1)
    before = jnp.concatenate([jnp.full(1, 0.25, samples.dtype), variance[:-1]])
    bet = jnp.sqrt(2 * jnp.log(2 / (1 - confidence)) / (jnp.maximum(n, 1) * before))
    limit = jnp.log(2 / (1 - confidence))

    def below(m: Array) -> Array:  # evidence that the mean is above m
        gains = jnp.log1p(jnp.minimum(bet, 0.75 / m) * (samples - m))
        return gains.sum(where=where) >= limit

    def above(m: Array) -> Array:  # evidence that the mean is below m
        gains = jnp.log1p(jnp.minimum(bet, 0.75 / (1 - m)) * (m - samples))
        return gains.sum(where=where) >= limit

    def bisect(refuted: Any, start: float) -> Array:
        """The last refuted mean on the way from an end of [0, 1] to the sample mean."""

        def step(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            out, inside = ends
            middle = (out + inside) / 2
            is_out = refuted(middle)
            return jnp.where(is_out, middle, out), jnp.where(is_out, inside, middle)

        average = jnp.where(where, samples, 0).sum() / jnp.maximum(n, 1)
        first = (jnp.asarray(start, samples.dtype), average)
        return jax.lax.fori_loop(0, 40, step, first)[0]

    ends = jnp.stack([bisect(below, 0.0), bisect(above, 1.0)])
    return jnp.where((jnp.isnan(samples) & where).any(), jnp.nan, ends)
