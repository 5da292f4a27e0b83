"""theta-robustness of a linear model."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats

from jaxrobust import _checks
from jaxrobust.exact import _inputs

# Above this noncentrality a noncentral chi-square variable is normal but for its skewness.
_NEARLY_NORMAL = 1e9


def linear_theta(
    weights: Any,
    sigma: float,
    baseline: float,
    *,
    num_examples: int,
    feature_scale: Any = 1.0,
    alpha: float = 0.05,
) -> float:
    """Exact theta of a linear model under Gaussian noise on every feature.

    With ``s^2 = sigma^2 sum_j w_j^2 s_j^2``, the MSE of n noisy predictions is ``s^2 / n`` times a
    noncentral chi-square variable with n degrees of freedom and noncentrality
    ``n baseline / s^2``; theta is its (1 - alpha) quantile.

    Args:
        weights: ``w [d]`` of the model ``x @ w + b``.
        sigma: noise level, not negative.
        baseline: MSE on the clean inputs, not negative.
        num_examples: n.
        feature_scale: ``s``, a scalar or ``[d]``.
        alpha: in (0, 1).

    Returns:
        theta, the level that the MSE stays below with probability ``1 - alpha``.

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for a negative sigma or baseline, an alpha outside (0, 1), shapes that do not
            fit, or a num_examples below 1.

    Source: Levene & Harris 2026, arXiv 2606.31581, algorithm 1, applied to a linear model.

    Example:
        >>> import jaxrobust as jr
        >>> round(jr.exact.linear_theta([2.0], 0.3, 1.0, num_examples=31), 6)
        1.763049
    """
    weights = _inputs.numbers("weights", weights, 1)
    scale = _inputs.numbers("feature_scale", feature_scale, (0, 1))
    _inputs.broadcast(("weights", weights), ("feature_scale", scale))
    for name, value in (("sigma", sigma), ("baseline", baseline), ("alpha", alpha)):
        _inputs.numbers(name, value, 0)
    _checks.non_negative("sigma", sigma)
    _checks.non_negative("baseline", baseline)
    _checks.values("alpha", alpha, lambda v: (v > 0) & (v < 1), "between 0 and 1")
    n = _checks.count("num_examples", num_examples)
    variance = float(np.square(sigma * weights * scale).sum())
    noncentrality = n * baseline / variance if variance > 0 else np.inf
    if noncentrality > _NEARLY_NORMAL:
        return float(baseline + variance + _tail_of_sum(n, baseline, variance, alpha))
    # With zero noncentrality this is the ordinary chi-square; SciPy takes both.
    return float(variance / n * scipy.stats.ncx2.isf(alpha, n, noncentrality))


def _tail_of_sum(n: int, baseline: float, variance: float, alpha: float) -> float:
    """How far the (1 - alpha) quantile lies above the mean: Cornish-Fisher up to the skewness.

    The terms left out are below 1e-13 of the baseline where this is used; SciPy's quantile fails
    for much larger noncentralities.
    """
    z = scipy.stats.norm.isf(alpha)
    second = 2 * variance * (variance + 2 * baseline) / n
    third = 8 * variance**2 * (variance + 3 * baseline) / n**2
    skew = third / second * (z * z - 1) / 6 if second > 0 else 0.0
    return z * np.sqrt(second) + skew
