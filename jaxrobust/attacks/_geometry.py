"""Lengths, steps, projections and draws in the norms l1, l2 and linf.

Everything works on a batch ``[B, ...]``; a "column" is a number for each example, of shape
``[B, 1, ..., 1]``, or ``[1, 1, ..., 1]`` where all examples share it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import Array

NORMS = ("l1", "l2", "linf")
DUAL = {"l1": "linf", "l2": "l2", "linf": "l1"}


def _axes(v: Array) -> tuple[int, ...]:
    return tuple(range(1, v.ndim))


def divide(a: Array, b: Array) -> Array:
    """``a / b``, and 0 where ``b`` is 0: a zero gradient points nowhere, it is not NaN."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


def length(v: Array, norm: str) -> Array:
    """The length of each row of ``v [B, ...]``, as a column."""
    magnitude = jnp.abs(v)
    largest = magnitude.max(_axes(v), keepdims=True)
    if norm == "linf":
        return largest
    if norm == "l1":
        return magnitude.sum(_axes(v), keepdims=True)
    # Scaled, so that the squares of a tiny gradient do not underflow.
    scaled = divide(v, largest)
    return largest * jnp.sqrt(jnp.square(scaled).sum(_axes(v), keepdims=True))


def unit(v: Array, norm: str) -> Array:
    """Each row at length 1; a row of zeros stays one."""
    v = divide(v, length(v, "linf"))
    return divide(v, length(v, norm))


def steepest(g: Array, norm: str, size: Array, x: Array, lower: Array, upper: Array) -> Array:
    """The step of length ``size`` that climbs most along the gradient ``g``.

    In l1 that is one feature, the one of the largest gradient, until it meets the box ``[lower,
    upper]``; the rest of the length then goes to the next, and so on.
    """
    if norm == "linf":
        return size * jnp.sign(g)
    if norm == "l2":
        return size * unit(g, "l2")
    shape = (g.shape[0], -1)
    size = jnp.broadcast_to(size.reshape(-1, 1), (g.shape[0], 1))
    room = jnp.where(g > 0, upper - x, x - lower)
    room = jnp.where(g == 0, 0, room).reshape(shape)
    room = jnp.clip(room, 0, size)  # also makes an infinite room finite
    order = jnp.argsort(-jnp.abs(g).reshape(shape), axis=1)
    sorted_room = jnp.take_along_axis(room, order, axis=1)
    taken_before = jnp.cumsum(sorted_room, axis=1) - sorted_room
    taken = jnp.clip(size - taken_before, 0, sorted_room)
    taken = jnp.take_along_axis(taken, jnp.argsort(order, axis=1), axis=1)
    return taken.reshape(g.shape) * jnp.sign(g)


def project(x: Array, x_adv: Array, norm: str, eps: Array, lower: Array, upper: Array) -> Array:
    """The Euclidean projection of ``x_adv`` onto the ball of radius ``eps`` at x, then the box."""
    delta = x_adv - x
    if norm == "linf":
        delta = jnp.clip(delta, -eps, eps)
    elif norm == "l2":
        delta = delta * jnp.minimum(1, divide(eps, length(delta, "l2")))
    else:
        radius = jnp.broadcast_to(eps.reshape(-1), (x.shape[0],))
        radius = jnp.where(radius > 0, radius, 1)
        # Optax does not project half precision.
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        flat = delta.reshape(x.shape[0], -1).astype(dtype)
        inside = jax.vmap(optax.projections.projection_l1_ball)(flat, radius.astype(dtype))
        inside = inside.reshape(x.shape).astype(x.dtype)
        delta = jnp.where(eps > 0, inside, 0)
    return jnp.clip(x + delta, lower, upper)


def settle(x: Array, x_adv: Array, norm: str, eps: Array, lower: Array, upper: Array) -> Array:
    """Moves ``x_adv`` by a few roundings, so that it lies in the ball and the box exactly.

    Plain arithmetic leaves it an ulp outside: ``x + eps`` is rounded, often away from ``x``, and
    so is the length that a projection divides by. Here sums are rounded towards ``x`` and a length
    is given room for the worst error of its sum.
    """
    if norm == "linf":
        lower = jnp.maximum(lower, _add_towards(x, -eps))
        upper = jnp.minimum(upper, _add_towards(x, eps))
        return jnp.clip(x_adv, lower, upper)
    delta = x_adv - x
    flat = jnp.abs(delta).reshape(x.shape[0], -1)
    terms = flat if norm == "l1" else jnp.square(flat)
    total = _tree_sum(terms)
    size = (total if norm == "l1" else jnp.sqrt(total)).reshape(_column(x))
    rounding = (flat.shape[1].bit_length() + 8) * jnp.finfo(x.dtype).eps
    limit = eps * (1 - rounding)
    delta = delta * jnp.where(size > limit, divide(limit, size), 1)
    return jnp.clip(_add_towards(x, delta), lower, upper)


def _column(x: Array) -> tuple[int, ...]:
    return (x.shape[0],) + (1,) * (x.ndim - 1)


def _add_towards(x: Array, d: Array) -> Array:
    """``x + d``, rounded towards ``x``."""
    total = x + d
    large = jnp.abs(x) >= jnp.abs(d)
    error = jnp.where(large, d - (total - x), x - (total - d))  # exact (Dekker's fast two-sum)
    return jnp.where(error * d < 0, jnp.nextafter(total, x), total)


def _tree_sum(terms: Array) -> Array:
    """Sums of non-negative rows with a relative error of at most log2(D) roundings."""
    width = 1 << (terms.shape[1] - 1).bit_length()
    terms = jnp.pad(terms, ((0, 0), (0, width - terms.shape[1])))
    while terms.shape[1] > 1:
        half = terms.shape[1] // 2
        terms = terms[:, :half] + terms[:, half:]
    return terms[:, 0]


def draw_ball(keys: Array, x: Array, norm: str, mask: Array) -> Array:
    """Draws ``[B, ...]`` uniform in the unit ball of the features that may move.

    Args:
      keys: One key for each example, ``[B]``.
      x: The examples, for their shape and dtype.
      norm: The norm of the ball.
      mask: 1 for a feature that may move, else 0; ``[B or 1, ...]``.
    """
    pairs = jax.vmap(jax.random.split)(keys)
    shape, dtype = x.shape[1:], x.dtype

    def draw(sampler, which, shape):
        return jax.vmap(lambda key: sampler(key, shape, dtype))(pairs[:, which])

    if norm == "linf":
        return mask * (2 * draw(jax.random.uniform, 0, shape) - 1)
    column = (1,) * len(shape)
    if norm == "l2":
        z = mask * draw(jax.random.normal, 0, shape)
        free = jnp.broadcast_to(mask, x.shape).sum(_axes(x), keepdims=True)
        radius = draw(jax.random.uniform, 1, column) ** (1 / jnp.maximum(free, 1))
        return unit(z, "l2") * radius
    # Uniform in the l1 ball: D of D + 1 exponentials over the sum of all, with random signs.
    signed = mask * draw(jax.random.laplace, 0, shape)
    rest = draw(jax.random.exponential, 1, column)
    return divide(signed, length(signed, "l1") + rest)


def draw_normal(keys: Array, x: Array, mask: Array) -> Array:
    """Standard normal draws ``[B, ...]`` of the features that may move."""
    return mask * jax.vmap(lambda key: jax.random.normal(key, x.shape[1:], x.dtype))(keys)
