"""CLEVER without sampling: margins whose gradients have a known maximum in the ball."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrobust import _checks
from jaxrobust.exact import _inputs

Array = np.ndarray

# Dual exponents: a step bounded in l1 changes a linear function most along one coordinate.
_DUAL_ORDER = {"l1": np.inf, "l2": 2, "linf": 1}


def linear_clever(gradient: Any, margin: Any, radius: Any, *, norm: str = "l2") -> Array:
    """CLEVER score of a linear margin ``g``: ``min(g(x_0) / |grad g|_q, radius)``.

    The gradient is the same everywhere, so this is the exact distance to the boundary, capped.

    Args:
        gradient: of the margin, ``[..., d]``.
        margin: ``g(x_0)``, not negative, ``[...]``.
        radius: of the ball that is searched, not negative, ``[...]``.
        norm: ``"l1"``, ``"l2"`` or ``"linf"``: the norm of the ball; q is its dual.

    Returns:
        Scores ``[...]``.

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for a negative margin or radius, a non-finite value, an unknown norm, or shapes
            that do not fit.

    Source: Weng et al. 2018, arXiv 1801.10578, theorem 3.2 and algorithm 1.

    Example:
        >>> import jaxrobust as jr
        >>> float(jr.exact.linear_clever([3.0, -4.0], 2.0, 5.0, norm="l2"))
        0.4
    """
    _checks.choice("norm", norm, tuple(_DUAL_ORDER))
    gradient = _inputs.numbers("gradient", gradient)
    if gradient.ndim == 0:
        raise ValueError("gradient must have shape [..., d]; got a single number.")
    slope = np.linalg.norm(gradient, ord=_DUAL_ORDER[norm], axis=-1)
    margin, radius = _not_negative(margin=margin, radius=radius)
    _inputs.broadcast(("gradient", slope), ("margin", margin), ("radius", radius))
    return _capped(margin, slope, radius)


def quadratic_clever(margin: Any, gradient_norm: Any, curvature: Any, radius: Any) -> Array:
    """CLEVER score (l2) of ``g(x_0 + u) = margin + w . u - curvature |u|^2 / 2``.

    The largest gradient in the ball is ``|w| + curvature * radius``, on its surface, so the score
    is ``min(margin / (|w| + curvature * radius), radius)``. It stays below the true distance, which
    :func:`second_order_clever` gives exactly for this margin.

    Args:
        margin: ``g(x_0)``, not negative, ``[...]``.
        gradient_norm: ``|w|_2``, not negative, ``[...]``.
        curvature: not negative, ``[...]``.
        radius: of the ball that is searched, not negative, ``[...]``.

    Returns:
        Scores ``[...]``.

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for a negative or non-finite value, or shapes that do not fit.

    Source: Weng et al. 2018, arXiv 1801.10578, theorem 3.2 and algorithm 1.

    Example:
        >>> import jaxrobust as jr
        >>> float(jr.exact.quadratic_clever(0.5, 0.0, 1.0, 1.0))
        0.5
    """
    margin, slope, curvature, radius = _not_negative(
        margin=margin, gradient_norm=gradient_norm, curvature=curvature, radius=radius
    )
    return _capped(margin, slope + curvature * radius, radius)


def second_order_clever(margin: Any, gradient_norm: Any, curvature: Any, radius: Any) -> Array:
    """Second-order CLEVER score (l2): ``min(2 g_0 / (n + sqrt(n^2 + 2 g_0 M)), radius)``.

    The smaller root of ``g_0 - n r - M r^2 / 2``: how far the margin ``g_0`` lasts when it falls
    with the slope ``n`` and bends down with the curvature ``M`` at most.

    Args:
        margin: ``g_0 = g(x_0)``, not negative, ``[...]``.
        gradient_norm: ``n = |grad g(x_0)|_2``, not negative, ``[...]``.
        curvature: ``M``, the maximum of ``max(0, -lambda_min(Hessian g))`` in the ball, ``[...]``.
        radius: of the ball that is searched, not negative, ``[...]``.

    Returns:
        Scores ``[...]``.

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for a negative or non-finite value, or shapes that do not fit.

    Source: Weng et al. 2018, "On Extensions of CLEVER", arXiv 1810.08640.

    Example:
        >>> import jaxrobust as jr
        >>> round(float(jr.exact.second_order_clever(2.0, 5.0, 4.0, 1.0)), 6)
        0.350781
    """
    margin, slope, curvature, radius = _not_negative(
        margin=margin, gradient_norm=gradient_norm, curvature=curvature, radius=radius
    )
    root = np.sqrt(np.square(slope) + 2 * margin * curvature)
    return _capped(2 * margin, slope + root, radius)


def _not_negative(**named: Any) -> list[Array]:
    """Checked arrays that broadcast together, in the order given."""
    arrays = [_inputs.numbers(name, value) for name, value in named.items()]
    for name, array in zip(named, arrays, strict=True):
        _checks.non_negative(name, array)
    _inputs.broadcast(*zip(named, arrays, strict=True))
    return arrays


def _capped(margin: Array, slope: Array, radius: Array) -> Array:
    """``min(margin / slope, radius)``; a positive margin that never falls is never crossed."""
    margin, slope, radius = np.broadcast_arrays(margin, slope, radius)
    distance = np.where(margin > 0, np.inf, 0.0)
    np.divide(margin, slope, out=distance, where=slope > 0)
    return np.minimum(distance, radius)
