"""How sure: confidence intervals for counts and for quantiles, without assumptions on the model."""

from __future__ import annotations

import decimal
import fractions
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats

from jaxrobust import _checks

Array = jax.Array
Side = Literal["both", "lower", "upper"]

_SIDES = ("both", "lower", "upper")


def check_confidence(confidence: Any) -> None:
    """Raises unless a concrete confidence lies strictly between 0 and 1."""
    _checks.values("confidence", confidence, lambda v: (v > 0) & (v < 1), "between 0 and 1")


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
        ValueError: for a count below 0 or above its total, a confidence outside (0, 1), or an
            unknown side.

    Source: Clopper & Pearson 1934, Biometrika 26, 404-413.

    Example:
        >>> import jaxrobust as jr
        >>> lower, upper = jr.intervals.clopper_pearson(0, 10_000, 0.95, side="upper")
        >>> f"{lower:.4f} {upper:.6f}"
        '0.0000 0.000300'
    """
    _checks.choice("side", side, _SIDES)
    check_confidence(confidence)
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

    return _host_call(on_host, dtype, count, total, confidence)


def _host_call(fn: Any, dtype: Any, *args: Any) -> Array:
    """``fn(*args) -> [..., 2]`` on the host: at once for known values, as a callback for traced."""
    if _checks.is_concrete(args):
        return jnp.asarray(fn(*(np.asarray(a) for a in args)))
    shape = jnp.broadcast_shapes(*(jnp.shape(a) for a in args))
    args = tuple(jnp.broadcast_to(a, shape) for a in args)
    result = jax.ShapeDtypeStruct((*shape, 2), dtype)
    return jax.pure_callback(fn, result, *args, vmap_method="broadcast_all")


class QuantileRanks(NamedTuple):
    """Which order statistics estimate a quantile and bound it, 1-based; see :func:`quantile`.

    Attributes:
        estimate: rank of the point estimate, ``ceil(q m)`` and at least 1.
        lower: rank of the lower bound; 0 stands for minus infinity.
        upper: rank of the upper bound; ``m + 1`` stands for plus infinity.
    """

    estimate: int
    lower: int
    upper: int


def exact_fraction(value: Any) -> fractions.Fraction:
    """The decimal number that was written: 0.18 is 18/100, not the nearest binary fraction.

    A float32 means the shortest decimal that reads back as that float32.
    """
    if isinstance(value, fractions.Fraction):
        return value
    if isinstance(value, (int, decimal.Decimal)):
        return fractions.Fraction(value)
    return fractions.Fraction(str(np.asarray(value)[()]))


def quantile_ranks(
    num_samples: int, q: Any, confidence: Any = 0.95, *, side: Side = "both"
) -> QuantileRanks:
    """Ranks of the order statistics that estimate and bound the q-quantile of any distribution.

    The product ``q * num_samples`` is exact: q = 1 - 0.18 of 1000 samples is rank 820 (binary
    floating point would give 821).

    Args:
        num_samples: m, the number of samples.
        q: in [0, 1]: a number, or an exact ``fractions.Fraction``.
        confidence: between 0 and 1.
        side: ``"both"``, ``"lower"`` or ``"upper"``: where the error may lie.

    Returns:
        Whole-number ranks; see :class:`QuantileRanks`.

    Raises:
        ValueError: for a q outside [0, 1], a confidence outside (0, 1), or an unknown side.

    Source: David & Nagaraja 2003, Order Statistics, section 7.1.

    Example:
        >>> import jaxrobust as jr
        >>> jr.intervals.quantile_ranks(1000, 0.95, 0.95, side="upper")
        QuantileRanks(estimate=950, lower=0, upper=962)
    """
    _checks.count("num_samples", num_samples)
    _checks.choice("side", side, _SIDES)
    check_confidence(confidence)
    exact = exact_fraction(q)
    if not 0 <= exact <= 1:
        raise ValueError(f"q must be from 0 to 1; got {q}.")
    tail = (1 - float(confidence)) / (2 if side == "both" else 1)
    # The number of samples up to the quantile is binomial(m, q) (or more, for a discrete loss), so
    # the r-th smallest is at least the quantile with probability P(binomial <= r - 1).
    below = scipy.stats.binom(num_samples, float(exact))
    upper = int(below.ppf(1 - tail)) + 1 if side != "lower" else num_samples + 1
    # It exceeds the quantile with probability P(binomial <= r - 1), below tail for this rank.
    lower = int(below.ppf(tail)) if side != "upper" else 0
    return QuantileRanks(
        estimate=max(1, math.ceil(exact * num_samples)),
        lower=max(0, lower),
        upper=min(upper, num_samples + 1),
    )


def order_statistics(samples: Array, ranks: QuantileRanks) -> Array:
    """``(estimate, lower, upper)`` ``[..., 3]`` from samples ``[..., m]`` and their ranks.

    Ranks may be traced. Rank 0 gives ``-inf`` and rank m + 1 ``inf``.
    """
    infinite = jnp.full((*samples.shape[:-1], 1), jnp.inf, samples.dtype)
    padded = jnp.concatenate([-infinite, jnp.sort(samples, axis=-1), infinite], axis=-1)
    return jnp.stack([padded[..., r] for r in ranks], axis=-1)


def quantile(samples: Any, q: Any, confidence: Any = 0.95, *, side: Side = "both") -> Array:
    """A distribution-free confidence interval for a quantile, from order statistics.

    Its ends are samples, so nothing is assumed about the distribution. When there are too few
    samples for an end, that end is infinite: a 95% upper bound on the 0.95-quantile needs 59.

    Args:
        samples: ``[..., m]``, independent and alike along the last axis.
        q: in [0, 1]; structure (not traced).
        confidence: between 0 and 1; structure.
        side: ``"both"``, ``"lower"`` or ``"upper"``.

    Returns:
        Interval ends ``[..., 2]``; ``-inf`` or ``inf`` where an end is not available.

    Raises:
        TypeError: for samples that are not numbers.
        ValueError: for no samples, NaN samples, a q outside [0, 1], or a confidence outside (0, 1).

    Example:
        >>> import jax.numpy as jnp, jaxrobust as jr
        >>> jr.intervals.quantile(jnp.arange(1.0, 1001.0), 0.95, 0.95).tolist()
        [936.0, 964.0]
    """
    samples = _checks.real_array("samples", samples)
    if samples.ndim < 1 or samples.shape[-1] == 0:
        raise ValueError(
            f"samples must have shape [..., m] with m > 0; got {_checks.describe(samples)}."
        )
    _checks.values("samples", samples, lambda v: ~np.isnan(v), "numbers, not NaN")
    ranks = quantile_ranks(samples.shape[-1], q, confidence, side=side)
    return order_statistics(samples, ranks)[..., 1:]
