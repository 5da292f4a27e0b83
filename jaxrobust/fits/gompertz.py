r"""The Gompertz curve of robustness against noise, and its fit.

Levene & Harris 2026 (arXiv 2606.31581) sum up how the loss grows with the noise level ``x`` by

.. math:: f(x) = d + (a - d)\exp(-\exp(-b(x - c))), \qquad a \ge d \ge 0,\ b > 0,

a rise from ``d`` to a plateau ``a`` whose slope is largest at ``c``. This module knows numbers
only: any ``x`` and ``y`` will do.
"""

from __future__ import annotations

import enum
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from jaxrobust import _checks
from jaxrobust.fits._gompertz_search import Optimum, projected_sse, search

Array = jax.Array

_MIN_POINTS = 5  # four parameters and one degree of freedom for their error
_MIN_INSIDE = 2  # of them within the rise: a single one cannot tell its place from its rate
# A parameter known no better than this (relative to a - d, b, the range of x, the range of y) is
# not supported by the data.
_LOOSE = 0.25
# Log-likelihood ratios. A rise must stand out from a constant (3 more parameters, and the place
# of the rise is searched for), and a plateau from the limits that lack one.
_RATIO_RISE = 25.0
_RATIO_PLATEAU = 12.0


class GompertzStatus(enum.IntEnum):
    """What became of a fit: the codes in ``GompertzFit.status``.

    Attributes:
        OK: The parameters are supported by the data.
        INVALID: A point that counts has a NaN or infinite ``x`` or ``y``, or a weight is not a
            finite number >= 0. Parameters are NaN.
        TOO_FEW: Fewer than 5 distinct ``x`` have a positive weight. Parameters are NaN.
        FLAT: No rise stands out from a constant. Parameters are NaN.
        DECREASING: No rise stands out, and a falling straight line does. Parameters are NaN.
        UNSATURATED: A rise whose plateau the data do not show. The parameters draw the curve
            within the data, but ``a``, ``b`` and ``c`` are extrapolations (NaN if they overflow).
        UNDETERMINED: A rise with a plateau, but ``b``, ``c`` or ``d`` stays loose: a jump between
            neighbouring points, or a curve that had taken off before the first point.
        STALLED: The solver ran out of steps.
    """

    OK = 0
    INVALID = 1
    TOO_FEW = 2
    FLAT = 3
    DECREASING = 4
    UNSATURATED = 5
    UNDETERMINED = 6
    STALLED = 7


class GompertzFit(NamedTuple):
    """A fitted Gompertz curve; ``...`` are the leading axes of ``y``.

    Attributes:
        a: ``[...]`` upper plateau, in the units of ``y``.
        b: ``[...]`` rate, in the inverse units of ``x``.
        c: ``[...]`` inflection, in the units of ``x``.
        d: ``[...]`` lower plateau, in the units of ``y``.
        covariance: ``[..., 4, 4]`` covariance of the estimates of (a, b, c, d).
        r_squared: ``[...]`` 1 - SSE / SST, weighted; NaN where no rise was found.
        converged: ``[...]`` bool, ``status == GompertzStatus.OK``.
        status: ``[...]`` int32 code, see ``GompertzStatus``.
    """

    a: Array
    b: Array
    c: Array
    d: Array
    covariance: Array
    r_squared: Array
    converged: Array
    status: Array


def gompertz(x: ArrayLike, a: ArrayLike, b: ArrayLike, c: ArrayLike, d: ArrayLike) -> Array:
    """The Gompertz curve ``d + (a - d) exp(-exp(-b (x - c)))``.

    Levene & Harris 2026, arXiv 2606.31581. Arguments broadcast together; gradients are finite
    everywhere.

    Args:
        x: noise level.
        a: upper plateau.
        b: rate.
        c: inflection, in the units of ``x``.
        d: lower plateau.

    Returns:
        The curve's value, of the arguments' common shape.

    Raises:
        TypeError: if an argument is not real numbers.

    >>> print(f"{gompertz(1.0, a=31.3285, b=4.5410, c=0.3991, d=0.5594):.4f}")
    29.3833
    """
    x, a, b, c, d = (
        _checks.real_array(name, value)
        for name, value in zip("xabcd", (x, a, b, c, d), strict=True)
    )
    # exp(-exp(10)) is already zero in double precision; more would overflow in the gradient.
    return d + (a - d) * jnp.exp(-jnp.exp(jnp.minimum(-b * (x - c), 10.0)))


def fit_gompertz(x: ArrayLike, y: ArrayLike, *, weights: ArrayLike | None = None) -> GompertzFit:
    r"""Fits Gompertz curves by weighted least squares, subject to ``a >= d >= 0`` and ``b > 0``.

    Levene & Harris 2026 (arXiv 2606.31581). Given (b, c) the curve is linear in (a, d), whose
    constrained optimum is exact and closed; what remains is a search over two numbers (variable
    projection). It starts from the best local minima of a grid that covers the shapes
    the points can tell apart, and is refined by Optimistix's dogleg, so the optimum
    is global in practice.

    **When a fit counts.** ``converged`` says that the data support the parameters, not only that
    an optimum was found. All of the following must hold, else ``status`` says what failed:

    - the rise beats a constant: ``(n - 4) log(SSE_rival / SSE) > 25``;
    - the curve beats those that rise without a plateau, a straight line and exponentials ``p + q
      exp(kx)``, by 12 on that scale, and is not beaten by as much by a power ``p + q x^r``, r >= 1;
    - the data reach the inflection: ``c`` minus its standard error is at most the largest ``x``;
    - standard errors stay within 25%: of a - d for ``a``, of ``b`` for ``b``, of the range of
      ``x`` for ``c`` and of the range of ``y`` for ``d``.

    **Covariance.** ``s^2 (J^T W J)^{-1}``, with J the Jacobian in (a, b, c, d) at the optimum, W
    the weights and ``s^2 = SSE / (n - 4)``, no smaller than what rounding ``y`` leaves. It
    ignores the constraint ``d >= 0``, so it is an upper bound where that holds ``d`` at 0. It is
    calibrated if the variance of ``y`` is proportional to ``1 / weights``: noise of 1% of ``y``
    wants ``weights=1 / y**2``. Errors that are alike in neighbouring points make it too small.

    Traceable under ``jit`` and ``vmap``; not differentiable. Memory is about 50 numbers per point
    and 800 per curve.

    Args:
        x: ``[S]`` noise levels, in any order and units.
        y: ``[..., S]`` losses at ``x``, one curve or any batch of them.
        weights: ``[S]`` weights >= 0, shared by the curves; all 1 by default. A point of weight 0
            is ignored, whatever its values. For weights of each curve's own, ``vmap``.

    Returns:
        The fits; their leading axes are those of ``y``.

    Raises:
        TypeError: if an argument is not real numbers.
        ValueError: if shapes do not agree, or a weight is negative or not finite.

    >>> import jax.numpy as jnp
    >>> x = jnp.linspace(0.0, 1.0, 101)
    >>> fit = fit_gompertz(x, gompertz(x, a=10.1129, b=1.2998, c=0.7045, d=0.1536))
    >>> print(bool(fit.converged), f"{fit.a:.3f} {fit.b:.3f} {fit.c:.3f} {fit.d:.3f}")
    True 10.113 1.300 0.705 0.154
    >>> print(GompertzStatus(int(fit_gompertz(x, jnp.exp(2 * x)).status)).name)
    UNSATURATED
    """
    x = _checks.real_array("x", x)
    y = _checks.real_array("y", y)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"x must be noise levels of shape [S], S >= 1; got shape {x.shape}.")
    if y.ndim == 0 or y.shape[-1] != x.size:
        raise ValueError(
            f"y must have shape [..., S] with S = {x.size}, the length of x; got shape {y.shape}."
        )
    weights = jnp.ones_like(x) if weights is None else _checks.real_array("weights", weights)
    if weights.shape != x.shape:
        raise ValueError(f"weights must have the shape of x, {x.shape}; got shape {weights.shape}.")
    _checks.non_negative("weights", weights)
    dtype = jnp.result_type(x, y, weights, jnp.float32)
    batch = y.shape[:-1]
    # Optimistix wants JAX's default precision: with x64 on, single precision is fitted in double.
    wide = jnp.promote_types(dtype, jnp.result_type(float))
    fit = _fit_batch(
        x.astype(wide), y.astype(wide).reshape(math.prod(batch), x.size), weights.astype(wide)
    )

    def as_given(leaf: Array) -> Array:
        leaf = leaf.reshape(batch + leaf.shape[1:])
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(as_given, fit)


@jax.jit
def _fit_batch(x: Array, y: Array, weights: Array) -> GompertzFit:
    # Accelerators may round products of matrices to half precision unless told otherwise.
    with jax.default_matmul_precision("highest"):
        return jax.vmap(_fit_one, in_axes=(None, 0, None))(x, y, weights)


def _fit_one(x: Array, y: Array, weights: Array) -> GompertzFit:
    """Fits one curve: x, y and weights ``[S]`` of one floating dtype."""
    dtype, tiny = y.dtype, jnp.finfo(y.dtype).tiny
    if x.size < _MIN_POINTS:
        nan = jnp.asarray(jnp.nan, dtype)
        few = jnp.asarray(GompertzStatus.TOO_FEW, jnp.int32)
        return GompertzFit(nan, nan, nan, nan, jnp.full((4, 4), nan), nan, few == 0, few)

    # Points of weight 0 take no part: they are moved onto one that does. A bad y becomes a flat
    # one, so that the search ends soon; x stays apart from y, so that it is shared by all curves.
    used = weights > 0
    valid = jnp.all(jnp.isfinite(weights) & (weights >= 0))
    valid = valid & jnp.all(jnp.isfinite(x) | ~used) & jnp.all(jnp.isfinite(y) | ~used)
    first = jnp.argmax(used)
    x = jnp.where(used, x, x[first])
    y = jnp.where(valid, jnp.where(used, y, y[first]), 0.0)
    weights = jnp.where(used, weights / jnp.maximum(jnp.max(weights), tiny), 0.0)
    weights = weights / jnp.maximum(weights.sum(), tiny)
    num_points = used.sum()
    num_distinct = 1 + jnp.sum(jnp.diff(jnp.sort(x)) > 0)

    # Everything below happens in t and v, both from 0 to 1. d >= 0 becomes base >= floor.
    x_min, y_min = x.min(), y.min()
    x_range = jnp.where(x.max() > x_min, x.max() - x_min, 1.0)
    y_range = jnp.where(y.max() > y_min, y.max() - y_min, 1.0)
    t, v, floor = (x - x_min) / x_range, (y - y_min) / y_range, -y_min / y_range
    # Rounding of y leaves residuals of this variance, however good the curve is.
    rounding = (0.5 * jnp.finfo(dtype).eps * jnp.abs(y).max() / y_range) ** 2
    best = search(t, v, weights, floor, rounding)

    freedom = jnp.maximum(num_points - 4, 1).astype(dtype)
    variance = jnp.maximum(best.sse * num_points / freedom, rounding)
    covariance = variance * _inverse_information(t, weights * num_points, best)
    error = jnp.sqrt(jnp.diagonal(covariance))  # the second is that of log b

    def ratio(rival_sse: Array, sse: Array) -> Array:
        return freedom * jnp.log(jnp.maximum(rival_sse, rounding) / jnp.maximum(sse, rounding))

    sst, fall, exponential, power = _sse_of_rivals(t, v, weights)
    rises = ratio(sst, best.sse) > _RATIO_RISE
    falls = ratio(sst, fall) > _RATIO_RISE
    # Comparisons with NaN, from a singular Jacobian, are False and so count as failed.
    saturated = (
        (ratio(exponential, best.sse) > _RATIO_PLATEAU)
        & (ratio(power, best.sse) > -_RATIO_PLATEAU)
        & (best.c - error[2] <= 1)
        & (error[0] <= _LOOSE * best.amplitude)
    )
    inside = used & (best.share > 0.01) & (best.share < 0.99)
    determined = jnp.all(error[1:] <= _LOOSE) & (inside.sum() >= _MIN_INSIDE)
    failures = [
        (GompertzStatus.INVALID, ~valid),
        (GompertzStatus.TOO_FEW, num_distinct < _MIN_POINTS),
        (GompertzStatus.DECREASING, ~rises & falls),
        (GompertzStatus.FLAT, ~rises),
        (GompertzStatus.UNSATURATED, ~saturated),
        (GompertzStatus.UNDETERMINED, ~determined),
        (GompertzStatus.STALLED, ~best.converged),
    ]
    status = jnp.select(
        [failed for _, failed in failures],
        [jnp.asarray(code, jnp.int32) for code, _ in failures],
        jnp.asarray(GompertzStatus.OK, jnp.int32),
    )

    has_curve = (status == GompertzStatus.OK) | (status >= GompertzStatus.UNSATURATED)
    b, c = best.b / x_range, x_min + x_range * best.c
    d = jnp.where(best.at_floor, 0.0, y_min + y_range * best.base)
    a = d + y_range * best.amplitude
    units = jnp.stack([y_range, b, x_range, y_range])
    shown = has_curve & jnp.isfinite(a) & jnp.isfinite(c)
    return GompertzFit(
        a=jnp.where(shown, a, jnp.nan),
        b=jnp.where(shown, b, jnp.nan),
        c=jnp.where(shown, c, jnp.nan),
        d=jnp.where(shown, d, jnp.nan),
        covariance=jnp.where(shown, covariance * units[:, None] * units[None, :], jnp.nan),
        r_squared=jnp.where(has_curve, 1 - best.sse / jnp.maximum(sst, tiny), jnp.nan),
        converged=status == GompertzStatus.OK,
        status=status,
    )


def _sse_of_rivals(t: Array, v: Array, w: Array) -> tuple[Array, Array, Array, Array]:
    """The SSE of a constant, a falling line, ``p + q exp(kt)`` and ``p + q t^r``, k >= 0, r >= 1.

    A grid of k and r is fine enough: where such a curve is exact, Gompertz's either misfits by
    far more than the grid does, or has run to its exponential limit and has unbounded errors.
    """
    rates = jnp.asarray(np.geomspace(0.05, 50.0, 64), v.dtype)
    powers = jnp.asarray(np.geomspace(1.0, 20.0, 64), v.dtype)
    exponentials = jnp.exp(rates[:, None] * (t - 1)[None, :])
    line = t[None, :]
    curves = [jnp.zeros_like(line), -line, line, exponentials, line ** powers[:, None]]
    sse = jax.vmap(lambda curve: projected_sse(curve, v, w, -jnp.inf))(jnp.concatenate(curves))
    return sse[0], sse[1], sse[2:67].min(), sse[67:].min()


def _inverse_information(t: Array, w: Array, best: Optimum) -> Array:
    """``(J^T W J)^{-1}`` ``[4, 4]`` for (a, log b, c, d); NaN or infinite where it is singular.

    By QR of J with columns of unit length: forming J^T J would square its condition number.
    """
    u = jnp.exp(jnp.minimum(-best.b * (t - best.c), 80.0))
    slope = best.amplitude * u * best.share * best.b
    jacobian = jnp.stack([best.share, slope * (t - best.c), -slope, 1 - best.share], axis=1)
    jacobian = jnp.sqrt(w)[:, None] * jacobian
    length = jnp.linalg.norm(jacobian, axis=0)
    length = jnp.where(length > 0, length, 1.0)
    triangle = jnp.linalg.qr(jacobian / length[None, :], mode="r")
    inverse = solve_triangular(triangle, jnp.eye(4, dtype=t.dtype)) / length[:, None]
    return inverse @ inverse.T
