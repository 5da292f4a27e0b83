"""Directional noisy risk of a linear boundary, in any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import scipy.special

from jaxrobust import _checks
from jaxrobust.exact import _inputs

Array = np.ndarray

# A log-concave integrand is integrated over the stretch where it is above exp(-_DROP) of its
# maximum, with Gauss-Legendre nodes.
_DROP = 50.0
# A bound on arguments whose square is taken; no chi variable is ever as large.
_FAR = 1e100
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)


def linear_directional(dimension: int, tau: Any, kappa: Any) -> Array:
    """Directional noisy risk (l2) of a linear boundary, exactly.

    Noise ``eta = r xi / |xi|_2`` with ``xi ~ N(kappa v, I)`` crosses a flat boundary that lies at
    the distance ``tau r`` along the direction ``v`` when ``v . xi > tau |xi|``, so
    ``R(kappa) = P[T > sqrt(D - 1) tau / sqrt(1 - tau^2)]`` with T noncentral t of D - 1 degrees of
    freedom and noncentrality kappa. It is computed as a one-dimensional integral that stays
    accurate where the usual series for the noncentral t do not (large D or kappa).

    Args:
        dimension: D, the number of features.
        tau: distance of the boundary over the radius of the noise, ``[...]``. At 1 and beyond the
            noise never reaches it (risk 0); a negative one means that the clean input is already on
            the far side.
        kappa: how strongly the noise leans along ``v``, ``[...]``; zero is uniform on the sphere.

    Returns:
        Risks ``[...]``, in [0, 1].

    Raises:
        TypeError: for a dimension that is not a whole number, or values that are not numbers.
        ValueError: for a dimension below 1, non-finite values, or shapes that do not fit.

    Source: "How Worst-Case Are Adversarial Attacks? Linking Adversarial and Statistical
    Robustness" 2026: its directional noisy risk, at a linear boundary.

    Example:
        >>> import jaxrobust as jr
        >>> jr.exact.linear_directional(16, 0.5, [0.0, 1.0, 2.0, 4.0]).round(5).tolist()
        [0.02048, 0.13308, 0.42741, 0.95218]
    """
    size = _checks.count("dimension", dimension)
    tau = _inputs.numbers("tau", tau)
    kappa = _inputs.numbers("kappa", kappa)
    shape = _inputs.broadcast(("tau", tau), ("kappa", kappa))
    tau, kappa = (np.broadcast_to(a, shape).ravel() for a in (tau, kappa))
    # The cosine of the angle between the noise and v is above tau, or not below -tau.
    mirrored = tau < 0
    risk = _far_side(size, np.abs(tau), np.where(mirrored, -kappa, kappa))
    return np.where(mirrored, 1 - risk, risk).reshape(shape)


def linear_kappa_at(dimension: int, tau: float, level: float = 0.25) -> float:
    """The smallest kappa at which :func:`linear_directional` reaches a level.

    Args:
        dimension: D, the number of features.
        tau: distance of the boundary over the radius of the noise.
        level: of the risk, between 0 and 1.

    Returns:
        kappa; 0 when uniform noise already reaches the level, ``inf`` when no noise does.

    Raises:
        TypeError: for a dimension that is not a whole number.
        ValueError: for a dimension below 1, a non-finite tau, or a level outside (0, 1).

    Example:
        >>> import jaxrobust as jr
        >>> round(jr.exact.linear_kappa_at(16, 0.5, 0.25), 6)
        1.470512
    """
    _inputs.numbers("tau", tau, 0)
    _inputs.numbers("level", level, 0)
    _checks.values("level", level, lambda v: (v > 0) & (v < 1), "between 0 and 1")

    def excess(kappa: float) -> float:
        return float(linear_directional(dimension, tau, kappa)) - float(level)

    if excess(0.0) >= 0:
        return 0.0
    if tau >= 1:
        return math.inf
    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-14))


def _far_side(size: int, tau: Array, kappa: Array) -> Array:
    """``P[v . xi > tau |xi|]`` for ``tau >= 0``, entry by entry."""
    risk = np.zeros_like(tau)
    inside = tau < 1
    if size == 1:
        risk[inside] = scipy.special.ndtr(kappa[inside])
        return risk
    slope = np.zeros_like(tau)
    slope[inside] = tau[inside] / np.sqrt((1 - tau[inside]) * (1 + tau[inside]))
    # The event is kappa + Z > slope * S, Z normal and S chi of D - 1 degrees of freedom. Whichever
    # of the two is integrated over, the probability of the other must not be a steep step.
    for chosen, integral in ((slope <= 1, _over_chi), (slope > 1, _over_normal)):
        chosen &= inside
        risk[chosen] = integral(size - 1, slope[chosen], kappa[chosen])
    return np.clip(risk, 0, 1)


def _over_chi(freedom: int, slope: Array, kappa: Array) -> Array:
    """Integrates ``P[kappa + Z > slope * s]`` over the chi density of ``s``."""
    peak = math.sqrt(freedom - 1)

    def log_chi(s: Array) -> Array:
        # Relative to the peak of the density, where direct logarithms would cancel for large D.
        u = s - peak
        if peak == 0:
            return -0.5 * u * u
        with np.errstate(divide="ignore"):
            return (freedom - 1) * np.log1p(u / peak) - u * (peak + 0.5 * u)

    def log_both(s: Array) -> Array:
        return log_chi(s) + scipy.special.log_ndtr(kappa[:, None] - slope[:, None] * s)

    zero, top = np.zeros_like(kappa), np.full_like(kappa, peak)
    return _integrate(log_both, zero, zero, top) / _integrate(log_chi, zero, top, top)


def _over_normal(freedom: int, slope: Array, kappa: Array) -> Array:
    """Integrates ``P[slope * S < kappa + z]`` over the normal density of ``z``."""

    def log_both(z: Array) -> Array:
        reach = np.clip((kappa[:, None] + z) / slope[:, None], 0, _FAR)
        with np.errstate(divide="ignore"):
            log_cdf = np.log(scipy.special.gammainc(freedom / 2, np.square(reach) / 2))
        return log_cdf - 0.5 * np.square(z)

    # Beyond this z the chi variable is below its bound almost surely, and only the normal falls.
    flat = slope * (math.sqrt(freedom) + 12) - kappa
    low = np.maximum(-kappa, 0)
    area = _integrate(log_both, -kappa, low, np.maximum(flat, low))
    return area / math.sqrt(2 * math.pi)


def _integrate(log_f: Callable[[Array], Array], start: Array, low: Array, high: Array) -> Array:
    """Integrates ``exp(log_f)`` from ``start`` to infinity, for integrands in rows.

    ``log_f`` maps ``[rows, points]`` to the same shape; it is concave, with a second derivative of
    -1 or below, and its maximum lies between ``low`` and ``high``.
    """

    def at(s: Array) -> Array:
        return log_f(s[:, None])[:, 0]

    golden = (math.sqrt(5) - 1) / 2
    for _ in range(60):
        step = golden * (high - low)
        left, right = high - step, low + step
        rises = at(left) <= at(right)
        low, high = np.where(rises, left, low), np.where(rises, high, right)
    mode = (low + high) / 2
    top = at(mode)
    # A second derivative of -1 loses _DROP within sqrt(2 _DROP) on either side.
    reach = math.sqrt(2 * _DROP)
    ends = []
    for far in (np.maximum(start, mode - reach), mode + reach):
        near, outer = mode, far
        for _ in range(30):
            middle = (near + outer) / 2
            above = at(middle) > top - _DROP
            near, outer = np.where(above, middle, near), np.where(above, outer, middle)
        ends.append(outer)
    begin, end = ends
    half = (end - begin) / 2
    nodes = begin[:, None] + half[:, None] * (1 + _NODES)
    return half * (np.exp(log_f(nodes)) @ _WEIGHTS)
