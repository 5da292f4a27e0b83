"""The least-squares Gompertz curve through points scaled to [0, 1], found globally.

In these units the curve is ``base + amplitude exp(-exp(-b (t - c)))`` with amplitude >= 0 and
base >= floor. Both are linear given (b, c), so the search is over two variables (variable
projection). Weights ``w`` sum to 1, and every SSE is weighted by them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from jax.typing import ArrayLike

Array = jax.Array

_NUM_STARTS = 4
_MAX_STEPS = 60

# The starts: rates b, and where u = exp(-b (t - c)) has a given value. First inflections before
# the points, then among them, then beyond.
_RATES = np.geomspace(0.1, 300.0, 24)
_PLACES = np.array(
    [(0.0, -math.log(u)) for u in (0.05, 0.2, 0.5)]
    + [(place, 0.0) for place in np.linspace(0.0, 1.0, 25)]
    + [(1.0, -math.log(u)) for u in (2.0, 4.0, 8.0, 20.0, 60.0)]
)


# A step that would gain less than this share of the SSE leads nowhere: 1% of a standard error for
# 100 points.
_ARRIVED = 1e-6


class Optimum(NamedTuple):
    """The best curve: its parameters, the share of its amplitude at each point, and its SSE."""

    amplitude: Array
    b: Array
    c: Array
    base: Array
    at_floor: Array
    share: Array
    sse: Array
    converged: Array


def search(t: Array, v: Array, w: Array, floor: Array, rounding: Array) -> Optimum:
    """Refines the best local minima of a grid of starts, and returns the best of what comes out.

    Args:
        t: ``[S]`` abscissae in [0, 1].
        v: ``[S]`` ordinates.
        w: ``[S]`` weights >= 0 of sum 1.
        floor: the least value allowed for base.
        rounding: the mean squared residual that rounding alone leaves.

    Returns:
        The optimum; ``converged`` is False if the refinement ran out of steps.
    """
    places = np.repeat(_PLACES, len(_RATES), axis=0)
    log_rates = np.tile(np.log(_RATES), len(_PLACES))
    anchors = jnp.asarray(places[:, 0], v.dtype)
    starts = jnp.asarray(np.stack([places[:, 1], log_rates], axis=1), v.dtype)

    bases = jax.vmap(_shape, in_axes=(0, 0, None))(starts, anchors, t)
    grid = _sse_of_many(bases, v, w, floor).reshape(len(_PLACES), len(_RATES))
    around = jax.lax.reduce_window(grid, jnp.inf, jax.lax.min, (3, 3), (1, 1), "SAME")
    depth, best = jax.lax.top_k(jnp.where(grid <= around, -grid, -jnp.inf).ravel(), _NUM_STARTS)
    best = jnp.where(jnp.isfinite(depth), best, best[0])  # there may be fewer minima

    # From each start once with base free and once with base at its floor: either is smooth,
    # whereas a descent over both would zigzag where they meet.
    best = jnp.tile(best, 2)
    at_floor = jnp.arange(best.size) >= _NUM_STARTS
    anchors = anchors[best]
    refined, converged = jax.vmap(
        lambda z, anchor, at_floor: _descend(z, anchor, at_floor, t, v, w, floor, rounding)
    )(starts[best], anchors, at_floor)

    def curve(z: Array, anchor: Array, converged: Array) -> Optimum:
        basis = _shape(z, anchor, t)
        rise, base, is_at_floor = _project(basis, v, w, floor)
        b, to_plateau = jnp.exp(z[1]), jnp.exp(jnp.exp(-z[0]))
        return Optimum(
            amplitude=rise * to_plateau,
            b=b,
            c=anchor - z[0] / b,
            base=base,
            at_floor=is_at_floor,
            share=basis / to_plateau,
            sse=jnp.sum(w * (v - base - rise * basis) ** 2),
            converged=converged,
        )

    optima = jax.vmap(curve)(refined, anchors, converged)
    # Where a free base ended below its floor, the optimum is that of a base at its floor.
    sse = jnp.where(optima.at_floor & ~at_floor, jnp.inf, optima.sse)
    # Of descents into one minimum those that arrived come first, whatever rounding says.
    winner = jnp.nanargmin(jnp.where(converged, sse, sse + _noise_of(sse)))
    return jax.tree.map(lambda leaf: leaf[winner], optima)


def _sse_of_many(bases: Array, v: Array, w: Array, floor: Array) -> Array:
    """``projected_sse`` of bases ``[G, S]`` to a part in 1e6, by products of matrices.

    Many curves share the bases, and only one product depends on the curve.
    """
    v_mean = jnp.sum(w * v)
    means = bases @ w
    centred = bases - means[:, None]
    squares = centred**2 @ w
    cross = jnp.maximum(centred @ (w * (v - v_mean)), 0.0)
    rise = _quotient(cross, squares)
    # Lifting base to its floor costs its distance, squared, times a Schur complement.
    lift = jnp.maximum(floor - (v_mean - rise * means), 0.0)
    cost = lift**2 * _quotient(squares, squares + means**2)
    return jnp.sum(w * (v - v_mean) ** 2) - rise * cross + cost


def projected_sse(basis: Array, v: Array, w: Array, floor: ArrayLike) -> Array:
    """The SSE of ``base + rise * basis``, rise >= 0 and base >= floor, at its best."""
    rise, base, _ = _project(basis, v, w, floor)
    return jnp.sum(w * (v - base - rise * basis) ** 2)


def _project(basis: Array, v: Array, w: Array, floor: ArrayLike) -> tuple[Array, Array, Array]:
    """The best (rise, base) of ``base + rise * basis``, and whether base is at its floor.

    Exact with two variables: the free optimum if it is allowed, else that on the bound it breaks.
    """
    basis_mean, v_mean = jnp.sum(w * basis), jnp.sum(w * v)
    centred = basis - basis_mean
    free = _quotient(jnp.sum(w * centred * (v - v_mean)), jnp.sum(w * centred**2))
    bound = _quotient(jnp.sum(w * basis * (v - floor)), jnp.sum(w * basis**2))
    at_floor = (v_mean - free * basis_mean < floor) | (v_mean < floor)
    rise = jnp.maximum(jnp.where(at_floor, bound, free), 0.0)
    return rise, jnp.where(at_floor, floor, v_mean - rise * basis_mean), at_floor


def _noise_of(sse: Array) -> Array:
    """What rounding may add to an SSE or take from it: the ordinates, rounded, are of order 1."""
    return float(jnp.finfo(sse.dtype).eps) * jnp.sqrt(sse)


def _quotient(numerator: Array, denominator: Array) -> Array:
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), 0.0)


def _shape(z: Array, anchor: Array, t: Array) -> Array:
    """The curve's rise over its rise at the anchor, exp(u(anchor) - u(t)): ``[S]``.

    Here u = exp(-b (t - c)) and z is (-log u(anchor), log b). With the anchor near the inflection
    or, for one outside the points, at their end, the two are of order 1 and nearly independent,
    and the shape stays exact where exp(-u) itself would underflow: the limit b -> 0 is an
    exponential.
    """
    # Beyond these bounds the shape is zero, and its derivative would overflow.
    growth = jnp.expm1(jnp.minimum(jnp.exp(z[1]) * (anchor - t), 50.0))
    return jnp.exp(-jnp.exp(jnp.minimum(-z[0], 20.0)) * growth)


def _descend(
    z: Array,
    anchor: Array,
    at_floor: Array,
    t: Array,
    v: Array,
    w: Array,
    floor: Array,
    rounding: Array,
) -> tuple[Array, Array]:
    """Dogleg Gauss--Newton in the two variables of z; returns (z, whether it converged).

    The residual has base and rise projected out. Whether the end is an optimum is told from the
    residual there, by what an undamped step would gain: less than rounding, or than a small share
    of the SSE. The solver's own tests on the size of steps never pass
    in single precision where the SSE of neighbouring points is noise.
    """
    info, root = jnp.finfo(v.dtype), jnp.sqrt(w)

    def residual(z: Array, args: tuple[Array, ...]) -> Array:
        anchor, at_floor, t, v, w, root, floor = args
        basis = _shape(z, anchor, t)
        basis = root * (basis - jnp.where(at_floor, 0.0, jnp.sum(w * basis)))
        target = root * (v - jnp.where(at_floor, floor, jnp.sum(w * v)))
        rise = jnp.maximum(_quotient(jnp.dot(basis, target), jnp.sum(basis**2)), 0.0)
        return target - rise * basis

    args = (anchor, at_floor, t, v, w, root, floor)
    tolerance = float(info.eps) ** 0.5
    z = optimistix.least_squares(
        residual,
        optimistix.Dogleg(rtol=tolerance, atol=tolerance),
        z,
        args,
        max_steps=_MAX_STEPS,
        throw=False,
    ).value

    def undamped(z: Array) -> tuple[Array, Array, Array]:
        """The SSE at z, what an undamped step would gain to first order, and where it leads."""
        left = residual(z, args)
        directions, factor = jnp.linalg.qr(jax.jacfwd(residual)(z, args))
        along = directions.T @ left
        step = jax.scipy.linalg.solve_triangular(factor, along)
        return jnp.sum(left**2), jnp.sum(along**2), z - step

    # In single precision the solver may stop a little early: one more step, where it helps.
    sse, _, polished = undamped(z)
    better = jnp.sum(residual(polished, args) ** 2) <= sse + _noise_of(sse)
    z = jnp.where(better, polished, z)
    sse, gain, _ = undamped(z)
    return z, gain <= _ARRIVED * sse + rounding
