"""The last inch: pulls an adversarial input back along the ray to the boundary."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from jaxrobust.attacks._problem import Model, Problem, Verdict

_NUM_BISECTIONS = 16


def won(verdict: Verdict) -> Array:
    """Whether the attack has won by more than rounding can undo."""
    return verdict.success & (verdict.gap > verdict.rounding)


def pull_back(model: Model, problem: Problem, x_adv: Array, gap: Array | float = 0.0) -> Array:
    """Bisects the segment from x to ``x_adv`` for the nearest input where the attack has won.

    Rows where it has not won at ``x_adv`` come back as they are. ``gap`` is the lead it must keep.
    """
    x = problem.x
    column = (-1,) + (1,) * (x.ndim - 1)

    def at(t: Array) -> Array:
        inner = jnp.clip(x + t.reshape(column) * (x_adv - x), problem.lower, problem.upper)
        return jnp.where(t.reshape(column) == 1, x_adv, inner)

    def halve(interval: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        low, high = interval
        middle = (low + high) / 2
        verdict = model.evaluate(problem, at(middle))
        inside = won(verdict) & (verdict.gap >= gap)
        return (jnp.where(inside, low, middle), jnp.where(inside, middle, high)), None

    ones = jnp.ones(x.shape[0], x.dtype)
    (_, high), _ = lax.scan(halve, (0 * ones, ones), None, length=_NUM_BISECTIONS)
    return at(high)
