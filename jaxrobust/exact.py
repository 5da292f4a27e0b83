"""Closed-form answers for models simple enough to have one: oracles for tests and for users."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats

from jaxrobust import _checks


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
        ValueError: for a negative sigma or baseline, or an alpha outside (0, 1).

    Source: Levene & Harris 2026, arXiv 2606.31581, algorithm 1, applied to a linear model.

    Example:
        >>> import jaxrobust as jr
        >>> round(jr.exact.linear_theta([2.0], 0.3, 1.0, num_examples=31), 6)
        1.763049
    """
    _checks.non_negative("sigma", sigma)
    _checks.non_negative("baseline", baseline)
    _checks.values("alpha", alpha, lambda v: (v > 0) & (v < 1), "between 0 and 1")
    n = _checks.count("num_examples", num_examples)
    weights = np.asarray(weights, np.float64)
    variance = sigma**2 * np.square(weights * np.asarray(feature_scale, np.float64)).sum()
    if variance == 0:
        return float(baseline)
    # ncx2 with zero noncentrality is chi2; SciPy takes both.
    quantile = scipy.stats.ncx2.ppf(1 - alpha, n, n * baseline / variance)
    return float(variance / n * quantile)
