"""From maxima of batches to scores: the fit, the score it gives, and what speaks against it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrobust import fits
from jaxrobust.fits import ReverseWeibullFit, ReverseWeibullStatus
from jaxrobust.measures.clever import _margins
from jaxrobust.measures.clever._margins import Margins
from jaxrobust.measures.clever.status import CleverStatus

Array = jax.Array

# (margin, upper end of what was sampled, value at the clean input) -> uncapped score
ScoreFn = Callable[[Array, Array, Array], Array]

_SIGNIFICANCE = 0.05
_MANY_ZEROS = 0.1
_MIN_MAXIMA = 3  # as many as the distribution has parameters
_SIMPLEX_TOLERANCE = 1e-3


class Estimate(NamedTuple):
    """Scores of T targets of each example; the fields are ``[n, T]`` unless said."""

    score: Array
    interval: Array  # [n, T, 2]
    end: Array
    maxima: Array  # [n, T, G]
    fit: ReverseWeibullFit
    status: Array


def estimate(
    maxima: Array,
    at: Margins,
    logits: Array,
    clean: Array,
    radius: Array,
    found: dict[str, Array],
    labels: Array | None,
    confidence: Any,
    score_fn: ScoreFn,
) -> Estimate:
    """Scores of all targets.

    Args:
        maxima: ``[n, T, G]``, of each batch.
        at: The margins.
        logits: ``[n, K]``, at the clean inputs.
        clean: What ``score_fn`` wants to know of the clean inputs, ``[n, T]``.
        radius: Scalar or ``[n]``.
        found: Over all batches, ``[n, T]``: ``crossing``; maybe ``slope``, and ``zero_share``.
        labels: True classes, or None.
        confidence: Of the interval, which holds the ends that the maxima allow, and those that
            other runs would find.
        score_fn: From the margin and the upper end of what was sampled to the score.
    """
    # Values that are not finite are kept from the fit, whose INVALID would not tell them apart
    # from too few maxima.
    fit = fits.fit_reverse_weibull(maxima)
    confidence = jnp.asarray(confidence, float)
    ends = fits.location_interval(maxima, confidence=confidence)
    return _estimate(
        fit, ends, maxima, at, logits, clean, radius, found, labels, confidence, score_fn=score_fn
    )


@functools.partial(jax.jit, static_argnames="score_fn")
def _estimate(
    fit: ReverseWeibullFit,
    ends: Array,
    maxima: Array,
    at: Margins,
    logits: Array,
    clean: Array,
    radius: Array,
    found: dict[str, Array],
    labels: Array | None,
    confidence: Array,
    *,
    score_fn: ScoreFn,
) -> Estimate:
    dropped = ~at.live & ~at.masked
    largest = jnp.where(dropped, jnp.nanmax(maxima, axis=-1), maxima.max(axis=-1))
    no_fit = jnp.isnan(fit.location) & (jnp.isfinite(maxima).all(axis=-1) | dropped)
    end = jnp.where(no_fit, largest, fit.location)
    ends = ends.at[..., 0].min(_end_of_other_runs(fit, ends[..., 0], maxima.shape[-1], confidence))
    # Without a fit the end may be anything from the largest maximum on.
    unknown = jnp.stack([largest, jnp.full_like(largest, jnp.inf)], axis=-1)
    ends = jnp.where(no_fit[..., None], unknown, ends)
    radius = jnp.broadcast_to(radius, maxima.shape[:1])[:, None]

    def capped(end: Array) -> Array:
        score = jnp.where(at.margin > 0, score_fn(at.margin, end, clean), 0)
        score = jnp.where(~jnp.isfinite(at.margin) | jnp.isnan(end), jnp.nan, score)
        return jnp.minimum(score, radius.astype(score.dtype))

    slope = found.get("slope", jnp.zeros_like(end))
    steeper = (slope > (1 + 1e-3) * end) & ~dropped
    all_zero = (largest == 0) & (at.margin > 0)
    undefined = at.masked | (all_zero & steeper)
    score = jnp.where(undefined, jnp.nan, capped(end))
    interval = jnp.stack([capped(ends[..., 1]), capped(ends[..., 0])], axis=-1)
    # The end is the likeliest one, if not always inside the interval of the likelier ones.
    interval = jnp.stack(
        [jnp.minimum(interval[..., 0], score), jnp.maximum(interval[..., 1], score)], axis=-1
    )

    num_maxima = maxima.shape[-1]
    distinct = 1 + jnp.sum(jnp.diff(jnp.sort(maxima, axis=-1)) > 0, axis=-1)
    constant = fit.status == ReverseWeibullStatus.DEGENERATE
    zero = found["zero_share"] > _MANY_ZEROS if "zero_share" in found else all_zero
    misclassified = jnp.zeros(at.label.shape, bool) if labels is None else labels != at.label
    verdicts = {
        CleverStatus.CENSORED: score >= radius,
        CleverStatus.ZERO_GRADIENTS: zero,
        CleverStatus.STEEPER: steeper & (at.margin > 0),
        CleverStatus.REFUTED: found["crossing"] < score,
        CleverStatus.TIES: ~constant & ~dropped & (distinct < num_maxima / 2),
        CleverStatus.POOR_FIT: fit.ks_pvalue < _SIGNIFICANCE,
        CleverStatus.CONSTANT: constant,
        CleverStatus.DIVERGED: fit.status == ReverseWeibullStatus.DIVERGED,
        CleverStatus.NO_FIT: no_fit & ~dropped,
        CleverStatus.PROBABILITIES: jnp.broadcast_to(_on_simplex(logits), score.shape),
        CleverStatus.MISCLASSIFIED: jnp.broadcast_to(misclassified[:, None], score.shape),
        CleverStatus.TIED_CLASSES: at.margin <= 0,
        CleverStatus.DROPPED: dropped,
    }
    invalid = jnp.isnan(capped(end))
    bits = [jnp.where(true, int(flag), 0) for flag, true in verdicts.items()]
    status = functools.reduce(jnp.bitwise_or, bits)
    status = jnp.where(invalid, status | int(CleverStatus.INVALID), status)
    status = jnp.where(at.masked, int(CleverStatus.MASKED), status)
    return Estimate(score, interval, end, maxima, fit, status.astype(jnp.int32))


def _end_of_other_runs(
    fit: ReverseWeibullFit, otherwise: Array, num_maxima: int, confidence: Array
) -> Array:
    """What the largest maximum of another run exceeds with this probability, by the fit.

    The end is no smaller than the largest maximum seen, but its estimate, from other draws, often
    is, and its mean as well: at shapes near 1 the estimate is hardly more than that maximum.
    """
    share = -jnp.log1p(-confidence.astype(fit.scale.dtype)) / num_maxima
    below = fit.location - fit.scale * share ** (1 / fit.shape)
    return jnp.where(jnp.isnan(below), otherwise, jnp.maximum(below, 0))


def _on_simplex(outputs: Array) -> Array:
    """Whether all rows of the outputs ``[n, K]`` look like probabilities."""
    inside = jnp.all((outputs >= 0) & (outputs <= 1))
    return inside & jnp.all(jnp.abs(outputs.sum(axis=-1) - 1) < _SIMPLEX_TOLERANCE)


def smallest_interval(estimate: Estimate, at: Margins) -> Array:
    """The interval ``[n, 2]`` of the smallest score: the smallest of both ends."""
    ends = jnp.where(at.live[..., None], estimate.interval, jnp.inf).min(axis=1)
    return jnp.where(at.masked.all(axis=-1)[:, None], jnp.nan, ends)


def over_classes(estimate: Estimate, at: Margins, num_classes: int) -> Estimate:
    """The estimate with its T targets at their classes, ``[n, K]``, and nothing at the others."""

    def put(values: Array, fill: float | int) -> Array:
        return _margins.by_class(values, at.targets, num_classes, fill)

    fit = jax.tree.map(lambda v: put(v, jnp.nan), estimate.fit._replace(status=estimate.end))
    status = put(estimate.fit.status, int(ReverseWeibullStatus.INVALID))
    return Estimate(
        score=put(estimate.score, jnp.nan),
        interval=put(estimate.interval, jnp.nan),
        end=put(estimate.end, jnp.nan),
        maxima=put(estimate.maxima, jnp.nan),
        fit=fit._replace(status=status),
        status=put(estimate.status, int(CleverStatus.NOT_SCORED)),
    )
