"""Margins of a classifier: how far the predicted class is ahead of each class it may lose to."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array

# The index of a draw that no run reaches: the key of random targets is like no other.
_TARGET_DRAW = 2**32 - 1


class Margins(NamedTuple):
    """What is scored: T margins ``logit[label] - logit[target]`` of each of n examples.

    Attributes:
        label: ``[n]``, the predicted class (the first one among ties).
        targets: ``[n, T]``, classes other than the label, unless the caller chose it.
        margin: ``[n, T]``, at the clean input.
        masked: ``[n, T]`` bool, targets ruled out by a logit of ``-inf``.
        size: ``[n, T]``, the larger magnitude of the two logits: what rounding is relative to.
        live: ``[n, T]`` bool, targets that may still be the nearest; of others no gradient is
            taken.
    """

    label: Array
    targets: Array
    margin: Array
    masked: Array
    size: Array
    live: Array


def differences(logits: Array, label: Array, targets: Array) -> tuple[Array, Array]:
    """Margins ``[B, T]`` and the magnitude of their terms, in float32 at least."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    own = jnp.take_along_axis(logits, label[:, None], axis=-1)
    others = jnp.take_along_axis(logits, targets, axis=-1)
    return own - others, jnp.maximum(jnp.abs(own), jnp.abs(others))


def choose(key: Array, logits: Array, which: str | Array) -> Margins:
    """Picks the targets of each example from its logits ``[n, K]``."""
    num_examples, num_classes = logits.shape
    label = jnp.argmax(logits, axis=-1)
    possible = jnp.arange(num_classes)[None] != label[:, None]
    possible &= logits != -jnp.inf
    if not isinstance(which, str):
        targets = which[:, None]
    elif which == "all":
        # All classes but the label: those from the label on are moved up by one.
        others = jnp.arange(num_classes - 1)[None]
        targets = others + (others >= label[:, None])
    elif which == "random":
        keys = jax.vmap(jax.random.fold_in, (None, 0))(
            jax.random.fold_in(key, _TARGET_DRAW), jnp.arange(num_examples)
        )
        targets = jax.vmap(_random_class)(keys, possible)[:, None]
    elif which == "top2":
        targets = jnp.argmax(jnp.where(possible, logits, -jnp.inf), axis=-1)[:, None]
    else:
        targets = jnp.argmin(jnp.where(possible, logits, jnp.inf), axis=-1)[:, None]
    if isinstance(which, str) and which != "all":
        # Where every other class is masked, any of them stands for them all.
        another = jnp.where(label == 0, 1, 0)[:, None]
        targets = jnp.where(possible.any(axis=-1, keepdims=True), targets, another)
    targets = targets.astype(jnp.int32)
    margin, size = differences(logits, label, targets)
    masked = jnp.take_along_axis(logits, targets, axis=-1) == -jnp.inf
    return Margins(label.astype(jnp.int32), targets, margin, masked, size, ~masked)


def _random_class(key: Array, possible: Array) -> Array:
    return jax.random.categorical(key, jnp.where(possible, 0.0, -jnp.inf))


def smallest(score: Array, at: Margins, uncapped: Array | None = None) -> tuple[Array, Array]:
    """The smallest of the scores ``[n, T]`` and its target; NaN and -1 where all are masked.

    Masked targets are left out; any other score that is NaN makes the smallest one NaN. Of equal
    scores, as at the radius, the one with the smallest uncapped score is taken.
    """
    score = jnp.where(at.masked, jnp.inf, score)
    least = jnp.min(score, axis=-1)  # NaN where one is
    first = (score == least[:, None]) | (jnp.isnan(score) & jnp.isnan(least)[:, None])
    rank = jnp.zeros_like(score) if uncapped is None else jnp.nan_to_num(uncapped)
    which = jnp.argmin(jnp.where(first, rank, jnp.inf), axis=-1)[:, None]
    target = jnp.take_along_axis(at.targets, which, axis=-1)[:, 0]
    none = at.masked.all(axis=-1)
    return jnp.where(none, jnp.nan, least), jnp.where(none, -1, target)


def by_class(values: Array, targets: Array, num_classes: int, fill: float | int) -> Array:
    """Puts values ``[n, T, ...]`` at their classes: ``[n, K, ...]``, the rest filled."""
    shape = (targets.shape[0], num_classes, *values.shape[2:])
    rows = jnp.arange(targets.shape[0])[:, None]
    return jnp.full(shape, fill, values.dtype).at[rows, targets].set(values)
