"""The searches behind ``reverse_weibull``: one sample on the unit interval in, parameters out.

A sample here is ``z = (max - y) / range``: ascending, from 0 to 1, so that ``x = z + excess`` has
the Weibull distribution with the given scale and shape, and ``excess`` is how far the location
lies above the largest maximum, in ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import optimistix as optx

Array = jax.Array

MIN_SHAPE = 1.0
MAX_SHAPE = 100.0
LARGEST_EXCESS = 1e6  # in ranges; told from INFINITY by nothing that could be measured
INFINITY = 1e9  # an excess at which the likelihood is that of its limit, the Gumbel distribution

_GRID = 24  # points of a search in log(excess), 1 to 1.5 apart
_NEWTON_STEPS = 5  # full precision on every sample tried; 3 are enough to choose on the grid
_ROOT_STEPS = 10
_EDGE_STEPS = 16
_LM_STEPS = 64
_WIDE_INVERSE_SHAPES = (-2.0, 4.0)  # far beyond any sample's best, to keep powers finite


class Parameters(NamedTuple):
    """A reverse Weibull distribution on the scale of ``z``."""

    excess: Array
    scale: Array
    shape: Array


def log_power(z: Array, fit: Parameters) -> Array:
    """``log((x / scale)^shape)``; through logarithms, which cost far less than powers."""
    ratio = (z + fit.excess) / fit.scale
    # Two selections, for a gradient without 0 * inf where the excess and z are 0.
    positive = ratio > 0
    return jnp.where(positive, fit.shape * jnp.log(jnp.where(positive, ratio, 1)), -jnp.inf)


def log_likelihood(z: Array, fit: Parameters) -> Array:
    """The log-likelihood of the sample ``z``."""
    power = log_power(z, fit)
    # At shape 1 the factor x^(c - 1) of the density is 1 even at x = 0.
    factor = jnp.where(fit.shape > 1, (1 - 1 / fit.shape) * power, 0)
    return jnp.sum(jnp.log(fit.shape / fit.scale) + factor - jnp.exp(power))


def _with_best_scale(z: Array, excess: Array, shape: Array) -> Parameters:
    """Adds the likeliest scale, ``mean(x^c)^(1/c)``, computed on ``x / max(x)``."""
    largest = 1 + excess
    power = jnp.exp(log_power(z, Parameters(excess, largest, shape)))
    return Parameters(excess, largest * jnp.mean(power) ** (1 / shape), shape)


class Profile(NamedTuple):
    """The likelihood at one location, maximised over scale and shape."""

    value: Array  # log-likelihood of z, per maximum
    slope: Array  # its derivative in log(excess)
    shape: Array


def profile(log_excess: Array, z: Array, steps: int = _NEWTON_STEPS) -> Profile:
    """Maximises over the scale and over all shapes ``c >= MIN_SHAPE`` at a given location.

    With ``d = log x - mean(log x)``, the best shape solves ``c A(c) = 1``, where ``A(c)``, the mean
    of ``d`` under weights ``exp(c d)``, increases. In logarithms the left side has a slope of at
    least 1: right for Newton's method, which a bracket protects.
    """
    excess = jnp.exp(log_excess)
    log_x = jnp.log1p(z / excess)  # of x / excess: keeps its digits however large the excess is
    mean = jnp.mean(log_x)
    deviation = log_x - mean
    largest = jnp.max(deviation)

    def tilted(shape: Array) -> tuple[Array, Array]:
        weights = jnp.exp(shape * (deviation - largest))
        return weights, jnp.sum(weights)

    def newton(_: int, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, log_shape = state
        shape = jnp.exp(log_shape)
        weights, total = tilted(shape)
        first = jnp.sum(weights * deviation) / total
        second = jnp.sum(weights * deviation**2) / total - first**2
        error = log_shape + jnp.log(first)
        low, high = jnp.where(error > 0, low, log_shape), jnp.where(error > 0, log_shape, high)
        proposal = log_shape - error / (1 + shape * second / first)
        inside = (proposal >= low) & (proposal <= high)
        return low, high, jnp.where(inside, proposal, (low + high) / 2)

    # A(c) <= largest bounds the root from below. From above: K(c) = log(mean(exp(c d))) is convex
    # with K(0) = 0 and derivative A, so c A(c) >= K(c) >= c largest - log(M).
    low = -jnp.log(largest)
    high = low + jnp.log1p(jnp.log(1.0 * z.size))
    # Where the model holds, the standard deviation of log x is pi / sqrt(6) / c.
    start = jnp.log(jnp.pi / 6**0.5) - jnp.log(jnp.mean(deviation**2)) / 2
    start = jnp.clip(start, low, high)
    _, _, log_shape = jax.lax.fori_loop(0, steps, newton, (low, high, start))

    shape = jnp.maximum(jnp.exp(log_shape), MIN_SHAPE)
    weights, total = tilted(shape)
    value = jnp.log(shape) - log_excess - shape * largest - jnp.log(total / z.size) - mean - 1
    part = z / (z + excess)
    tilt = jnp.sum(weights * part) / total - jnp.mean(part)
    return Profile(value, shape * tilt + jnp.mean(part) - 1, shape)


def log_grid(z: Array, largest: float) -> Array:
    """Points of a search in ``log(excess)``, up to ``log(largest)``.

    Near shape 1 the best excess is about ``(c - 1) mean(z) / M`` and gains about ``M (c - 1)^2`` on
    excess 0, so below the first point of the grid there is less than 1e-5 to gain.
    """
    low = jnp.log(1e-3 * jnp.mean(z) / z.size**1.5)
    return low + (jnp.log(largest) - low) * jnp.linspace(0, 1, _GRID, dtype=z.dtype)


def scan(z: Array, grid: Array, steps: int = _NEWTON_STEPS) -> Profile:
    """The profile at every point of a grid."""
    return jax.lax.map(lambda v: profile(v, z, steps), grid)


def climb(
    z: Array, grid: Array, at: Profile, allowed: Array | bool = True
) -> tuple[Array, Profile]:
    """The maximum of the profile next to the best allowed point of the grid: where, and what."""
    best = jnp.argmax(jnp.where(allowed, at.value, -jnp.inf))
    uphill = jnp.clip(best + jnp.where(at.slope[best] > 0, 1, -1), 0, grid.size - 1)

    def slope(log_excess: Array) -> tuple[Array, Profile]:
        there = profile(log_excess, z)
        return there.slope, there

    there = jax.tree.map(lambda leaf: leaf[uphill], at)
    first, second = (grid[best], at.slope[best]), (grid[uphill], there.slope)
    return root(slope, first, second, there)


def root(
    fn: Callable[[Array], tuple[Array, Any]],
    first: tuple[Array, Array],
    second: tuple[Array, Array],
    aux: Any = None,
    steps: int = _ROOT_STEPS,
) -> tuple[Array, Any]:
    """A root of ``fn`` between two points of opposite sign, by the Illinois method.

    Without a change of sign it ends somewhere between the two: the caller compares what it gets.

    Args:
        fn: ``point -> (value, aux)``.
        first: A point and its value.
        second: Another.
        aux: What ``fn`` gives beside the value of ``second``.
        steps: How many times ``fn`` is called.

    Returns:
        The last point and its aux.
    """

    def step(_: int, state: tuple[Any, ...]) -> tuple[Any, ...]:
        older, f_older, latest, f_latest, _ = state
        opposite = jnp.sign(f_older) != jnp.sign(f_latest)
        difference = jnp.where(opposite, f_latest - f_older, 1)
        secant = latest - f_latest * (latest - older) / difference
        point = jnp.where(opposite, secant, (older + latest) / 2)
        f_point, aux = fn(point)
        same = jnp.sign(f_point) == jnp.sign(f_latest)
        # An end that is kept twice has its value halved: the secant then crosses to its side.
        older, f_older = (
            jnp.where(same, older, latest),
            jnp.where(same, f_older / 2, f_latest),
        )
        return older, f_older, point, f_point, aux

    *_, point, _, aux = jax.lax.fori_loop(0, steps, step, (*first, *second, aux))
    return point, aux


def maximum_likelihood(z: Array) -> Parameters:
    """The likeliest parameters with a shape in ``[MIN_SHAPE, MAX_SHAPE]``.

    The best of three: excess 0 at shape 1 (no other shape has a density there), the best interior
    point, and the best location at ``MAX_SHAPE``.
    """
    grid = log_grid(z, MAX_SHAPE - 1)
    at = scan(z, grid, steps=3)
    inner, there = climb(z, grid, at, at.shape <= MAX_SHAPE)
    inner_shape = jnp.minimum(there.shape, MAX_SHAPE)
    # Shape 1 at an excess above 0 is no optimum: the first candidate is better.
    inner = jnp.where(inner_shape > MIN_SHAPE, inner, -jnp.inf)

    def edge_score(log_excess: Array) -> tuple[Array, None]:
        # The score in the location at MAX_SHAPE: its two terms, compared in logarithms.
        x = z + jnp.exp(log_excess)
        weights = jnp.exp(MAX_SHAPE * jnp.log(x / jnp.max(x)))
        tilted = jnp.sum(weights / x) / jnp.sum(weights)
        return jnp.log((1 - 1 / MAX_SHAPE) * jnp.mean(1 / x) / tilted), None

    # One root, for the density is log-concave. Lower end: mean(1/x) >= 1 / (M min(x)), and the
    # weighted mean is at most M^(1/(c - 1)) / max(x). Upper end: see reverse_weibull.
    low = jnp.log1p(-1 / MAX_SHAPE) - MAX_SHAPE / (MAX_SHAPE - 1) * jnp.log(1.0 * z.size)
    ends = jnp.stack([low, jnp.log(MAX_SHAPE - 1)]).astype(z.dtype)
    scores, _ = jax.lax.map(edge_score, ends)
    edge, _ = root(edge_score, (ends[0], scores[0]), (ends[1], scores[1]), steps=_EDGE_STEPS)

    fits = jax.vmap(_with_best_scale, (None, 0, 0))(
        z,
        jnp.exp(jnp.stack([jnp.full_like(inner, -jnp.inf), inner, edge])),
        jnp.stack([jnp.full_like(inner, MIN_SHAPE), inner_shape, jnp.full_like(inner, MAX_SHAPE)]),
    )
    best = jnp.argmax(jax.vmap(log_likelihood, (None, 0))(z, fits))
    return jax.tree.map(lambda leaf: leaf[best], fits)


def least_squares(z: Array) -> Parameters:
    """The least-squares fit of the quantile function, shape in ``[MIN_SHAPE, MAX_SHAPE]``.

    Under the model ``z = -excess + scale * t^k`` with ``k = 1 / shape`` and ``t`` the exponential
    quantile at the plotting position. It is linear but for ``k``, so only ``k`` is searched.
    """
    dtype, z = z.dtype, z.astype(float)  # Optimistix's solver state has the default precision
    log_t = jnp.log(-jnp.log1p(-(jnp.arange(z.size, dtype=z.dtype) + 0.5) / z.size))
    spread = z - jnp.mean(z)

    def line(k: Array) -> tuple[Array, Array, Array]:
        basis = jnp.expm1(k * log_t) / k  # log t in the limit k = 0, Gumbel's
        centred = basis - jnp.mean(basis)
        slope = jnp.sum(centred * spread) / jnp.sum(centred**2)
        excess = slope * (1 / k + jnp.mean(basis)) - jnp.mean(z)
        # Where the free line puts the location below the largest maximum, it is held there.
        power = 1 + k * basis  # t^k
        scale = jnp.sum(power * z) / jnp.sum(power**2)
        free = (excess > 0) | (k <= 0)
        residual = jnp.where(free, slope * centred - spread, scale * power - z)
        return jnp.where(free, excess, 0), jnp.where(free, slope / k, scale), residual

    # The search may leave the allowed shapes (the model goes on smoothly through k = 0, to tails
    # heavier than Gumbel's), which spares it from creeping towards a bound.
    def residual(k: Array, _: None) -> Array:
        return line(jnp.clip(k, *_WIDE_INVERSE_SHAPES))[2]

    starts = 1 / jnp.geomspace(MIN_SHAPE, MAX_SHAPE, 16, dtype=z.dtype)
    start = starts[jnp.argmin(jax.lax.map(lambda k: jnp.sum(line(k)[2] ** 2), starts))]
    tolerance = float(jnp.finfo(z.dtype).eps) ** 0.5
    solver: Any = optx.LevenbergMarquardt(
        rtol=tolerance, atol=tolerance, linear_solver=lx.Normal(lx.Cholesky())
    )
    solution: Any = optx.least_squares(residual, solver, start, max_steps=_LM_STEPS, throw=False)
    found = jnp.clip(solution.value, 1 / MAX_SHAPE, 1 / MIN_SHAPE)
    ends = jnp.stack([start, jnp.where(jnp.isnan(found), start, found)])
    excess, scale, residuals = jax.vmap(line)(ends)
    best = jnp.argmin(jnp.sum(residuals**2, axis=-1))
    fit = Parameters(excess[best], scale[best], 1 / ends[best])
    return jax.tree.map(lambda leaf: leaf.astype(dtype), fit)
