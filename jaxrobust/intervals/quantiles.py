"""Distribution-free intervals for quantiles, from order statistics."""

from __future__ import annotations

import decimal
import fractions
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from jaxrobust import _checks
from jaxrobust.intervals._common import SIDES, Side, check_confidence

Array = jax.Array


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

    Nor is 1 - 0.18 anything but 82/100. A float32 means the shortest decimal that reads back as
    that float32.
    """
    if isinstance(value, fractions.Fraction):
        return value
    if isinstance(value, (int, decimal.Decimal)):
        return fractions.Fraction(value)
    number = np.asarray(value)
    if number.shape != () or number.dtype.kind not in "iuf" or not np.isfinite(number):
        raise ValueError(f"a fraction must be one finite number; got {_checks.describe(value)}.")
    # Fifteen digits are all that a double holds of a decimal number: the rest, as in
    # 1 - 0.18 = 0.8200000000000001, is the rounding of whatever computed it.
    return fractions.Fraction(f"{number[()]:.15g}" if number.dtype == np.float64 else str(number))


def quantile_ranks(
    num_samples: int, q: Any, confidence: Any = 0.95, *, side: Side = "both"
) -> QuantileRanks:
    """Ranks of the order statistics that estimate and bound the q-quantile of any distribution.

    The product ``q * num_samples`` is exact: q = 1 - 0.18 of 1000 samples is rank 820 (plain
    floating point gives 821).

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
    _checks.choice("side", side, SIDES)
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
