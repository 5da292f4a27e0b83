"""Intervals for a probability, from counts: at a fixed sample size, and at all of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from jaxrobust import _checks
from jaxrobust.intervals._common import SIDES, Side, check_confidence, host_call

Array = jax.Array

_BISECTIONS = 60


def clopper_pearson(
    count: Any, total: Any, confidence: Any = 0.95, *, side: Side = "both"
) -> Array:
    """The Clopper-Pearson ("exact") interval for a probability, from successes in a count.

    It covers the true probability at least as often as it says, for any total. Zero successes in N
    give an upper end of about 3 / N (95%, one-sided), never zero.

    The quantiles of the beta distribution come from SciPy in double precision, on the host, since
    float32 cannot resolve them for large counts; inside ``jit`` or ``vmap`` that is a callback.

    Args:
        count: successes, whole numbers ``[...]``.
        total: trials, broadcastable to ``count``.
        confidence: between 0 and 1.
        side: ``"both"``, or all of the error on one side: ``"lower"`` (the upper end is 1) or
            ``"upper"`` (the lower end is 0).

    Returns:
        Interval ends ``[..., 2]``; (0, 1) where ``total`` is 0.

    Raises:
        TypeError: for counts that are not numbers.
        ValueError: for a count below 0 or above its total, counts that are not whole, a confidence
            outside (0, 1), or an unknown side.

    Source: Clopper & Pearson 1934, Biometrika 26, 404-413.

    Example:
        >>> import jaxrobust as jr
        >>> lower, upper = jr.intervals.clopper_pearson(0, 10_000, 0.95, side="upper")
        >>> f"{lower:.4f} {upper:.6f}"
        '0.0000 0.000300'
    """
    _checks.choice("side", side, SIDES)
    check_confidence(confidence)
    for name, value in (("count", count), ("total", total)):
        if _checks.is_concrete(value) and np.asarray(value).dtype.kind not in "iuf":
            raise TypeError(f"{name} must be whole numbers; got {_checks.describe(value)}.")
        _checks.values(name, value, lambda v: v == np.floor(v), "whole numbers")
    if _checks.is_concrete((count, total)):
        host_count, host_total = np.broadcast_arrays(np.asarray(count), np.asarray(total))
        bad = (host_count < 0) | (host_count > host_total)
        if bad.any():
            raise ValueError(
                f"count must be from 0 to total; got count={host_count[bad][0]},"
                f" total={host_total[bad][0]}."
            )
    dtype = jnp.result_type(float)

    def on_host(count: Any, total: Any, confidence: Any) -> np.ndarray:
        count, total, confidence = (np.asarray(a, np.float64) for a in (count, total, confidence))
        tail = (1 - confidence) / (2 if side == "both" else 1)
        lower = np.where(
            count > 0, scipy.special.betaincinv(np.maximum(count, 1), total - count + 1, tail), 0.0
        )
        upper = np.where(
            count < total,
            scipy.special.betainccinv(count + 1, np.maximum(total - count, 1), tail),
            1.0,
        )
        if side == "lower":
            upper = np.ones_like(lower)
        if side == "upper":
            lower = np.zeros_like(upper)
        return np.stack([lower, upper], axis=-1).astype(dtype)

    return host_call(on_host, dtype, count, total, confidence)


def _prior(around: Any) -> tuple[Any, Any]:
    """A beta prior with its mean at ``around``: narrow sequences for probabilities of that size."""
    return 0.5, 0.5 * (1 - around) / around


def _log_wealth(count: Any, total: Any, p: Any, around: Any) -> np.ndarray:
    """Log of the mixture likelihood ratio against p, a martingale if p is true."""
    a, b = _prior(around)
    mixture = scipy.special.betaln(a + count, b + total - count) - scipy.special.betaln(a, b)
    return mixture - scipy.special.xlogy(count, p) - scipy.special.xlog1py(total - count, -p)


def binomial_sequence(
    count: Any, total: Any, confidence: Any = 0.95, *, around: Any = 0.5
) -> Array:
    """A confidence sequence for a probability: intervals valid at all sample sizes together.

    With probability ``confidence`` the truth lies in the intervals of EVERY total, so one may look
    after every draw and stop when one likes. It holds all p against which the likelihood ratio of a
    beta mixture stays below ``1 / (1 - confidence)``.

    Args:
        count: successes so far ``[...]``.
        total: trials so far, broadcastable to ``count``.
        confidence: between 0 and 1.
        around: where the mixture has its mean, in (0, 1): the sequence is narrowest for
            probabilities of that size, and valid for all. Choose it before looking.

    Returns:
        Interval ends ``[..., 2]``.

    Raises:
        ValueError: for a confidence or ``around`` outside (0, 1), or a count outside 0 .. total.

    Source: Robbins 1970, Annals of Mathematical Statistics 41, 1397-1409.

    Example:
        >>> import jaxrobust as jr
        >>> lower, upper = jr.intervals.binomial_sequence(0, 512, 0.95, around=0.01)
        >>> bool(lower == 0), bool(upper < 0.01)
        (True, True)
    """
    check_confidence(confidence)
    _checks.values("around", around, lambda v: (v > 0) & (v < 1), "between 0 and 1")
    _check_counts(count, total)
    dtype = jnp.result_type(float)

    def on_host(count: Any, total: Any, confidence: Any, around: Any) -> np.ndarray:
        count, total, confidence, around = np.broadcast_arrays(
            *(np.asarray(a, np.float64) for a in (count, total, confidence, around))
        )
        limit = -np.log1p(-confidence)
        share = count / np.maximum(total, 1)
        ends = []
        for outside in (np.zeros_like(share), np.ones_like(share)):
            kept, left = share.copy(), outside.copy()
            for _ in range(_BISECTIONS):
                middle = (kept + left) / 2
                inside = _log_wealth(count, total, middle, around) < limit
                kept, left = np.where(inside, middle, kept), np.where(inside, left, middle)
            ends.append(np.where(_log_wealth(count, total, outside, around) < limit, outside, left))
        return np.stack(ends, axis=-1).astype(dtype)

    return host_call(on_host, dtype, count, total, confidence, around)


def _check_counts(count: Any, total: Any) -> None:
    if not _checks.is_concrete((count, total)):
        return
    host_count, host_total = np.broadcast_arrays(np.asarray(count), np.asarray(total))
    bad = (host_count < 0) | (host_count > host_total)
    if bad.any():
        raise ValueError(
            f"count must be from 0 to total; got count={host_count[bad][0]},"
            f" total={host_total[bad][0]}."
        )


def decision_limits(totals: Any, threshold: Any, confidence: Any) -> Array:
    """Counts at which :func:`binomial_sequence` (around the threshold) clears the threshold.

    Args:
        totals: increasing numbers of trials ``[looks]``, concrete.
        threshold: in (0, 1).
        confidence: between 0 and 1.

    Returns:
        int32 ``[looks, 2]``: with at most so many successes the whole interval is below the
        threshold (-1: no number is few enough), and with at least so many it is above
        (total + 1: none is enough).
    """
    totals = np.asarray(totals, np.float64)

    def on_host(threshold: Any, confidence: Any) -> np.ndarray:
        threshold, limit = float(threshold), -np.log1p(-float(confidence))
        few = np.full(totals.shape, -1.0)
        high = np.floor(threshold * totals)
        # The wealth falls towards the threshold from both sides: bisect each side.
        low = few.copy()
        for _ in range(64):
            middle = np.ceil((low + high) / 2)
            clear = (_log_wealth(middle, totals, threshold, threshold) >= limit) & (middle >= 0)
            low, high = np.where(clear, middle, low), np.where(clear, high, middle - 1)
            high = np.maximum(low, high)
        many_low, many_high = np.ceil(threshold * totals), totals + 1
        for _ in range(64):
            middle = np.floor((many_low + many_high) / 2)
            clear = _log_wealth(middle, totals, threshold, threshold) >= limit
            many_high = np.where(clear, middle, many_high)
            many_low = np.where(clear, many_low, np.minimum(middle + 1, many_high))
        return np.stack([low, many_high], axis=-1).astype(np.int32)

    if _checks.is_concrete((threshold, confidence)):
        return jnp.asarray(on_host(threshold, confidence))
    shape = jax.ShapeDtypeStruct((*totals.shape, 2), jnp.int32)
    return jax.pure_callback(on_host, shape, threshold, confidence, vmap_method="sequential")
