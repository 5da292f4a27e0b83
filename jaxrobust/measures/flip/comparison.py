"""Do the examples that an attack finds far from a boundary also flip seldom?"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from jaxrobust import _checks, intervals

Array = jax.Array


class DistanceCorrelation(NamedTuple):
    """What :func:`distance_correlation` found.

    Attributes:
        correlation: scalar; Spearman's rank correlation, NaN where all values of either are equal.
        interval: ``[2]``; its confidence interval, ``[-1, 1]`` for fewer than four examples.
        rescaled: ``[n]``; distance divided by the largest one; NaN where the attack failed.
        num_failed: scalar int; failed attacks, left out of everything else.
    """

    correlation: Array
    interval: Array
    rescaled: Array
    num_failed: Array


def distance_correlation(
    robustness: Any, distance: Any, *, confidence: Any = 0.95
) -> DistanceCorrelation:
    """Spearman correlation of real-world robustness with adversarial distance over examples.

    The two are different things: equal distances go with unequal robustness wherever the noise has
    a direction of its own or the boundary is not a plane.

    Args:
        robustness: ``[n]``, such as ``flip_probability(...).robustness``.
        distance: ``[n]``, the distance of each example to the nearest adversarial one found, such
            as ``attacks.deepfool(...).distance``; infinite or NaN where the attack failed.
        confidence: of the interval.

    Returns:
        A :class:`DistanceCorrelation`.

    Raises:
        TypeError: for what is not numbers.
        ValueError: for shapes that do not fit, a negative distance, or a confidence outside (0, 1).

    Source: Scher & Truegler 2022, arXiv 2204.10046; Bonett & Wright 2000, Psychometrika 65, 23-28,
    for the interval.

    Example:
        >>> import jax.numpy as jnp, jaxrobust as jr
        >>> found = jr.measures.distance_correlation(
        ...     jnp.array([0.6, 0.9, 0.8, 0.7]), jnp.array([0.5, 2.0, jnp.inf, 1.0])
        ... )
        >>> round(float(found.correlation), 3), int(found.num_failed), found.rescaled.tolist()
        (1.0, 1, [0.25, 1.0, nan, 0.5])
    """
    robustness = _checks.real_array("robustness", robustness)
    distance = _checks.real_array("distance", distance)
    if robustness.ndim != 1:
        raise ValueError(
            f"robustness must have one value for each example, shape [n]; got {robustness.shape}."
        )
    if distance.shape != robustness.shape:
        raise ValueError(
            "distance must have one value for each example of robustness, shape"
            f" {robustness.shape}; got {distance.shape}."
        )
    _checks.values("distance", distance, lambda v: ~(v < 0), "not negative")
    intervals.check_confidence(confidence)
    succeeded = jnp.isfinite(distance)
    used = succeeded & jnp.isfinite(robustness)
    correlation = _spearman(robustness, distance, used)
    num = used.sum()
    # r itself may be 1, where the transform has no end.
    centre = jnp.arctanh(jnp.clip(correlation, -1 + 1e-6, 1 - 1e-6))
    error = jnp.sqrt((1 + jnp.square(correlation) / 2) / jnp.maximum(num - 3, 1))
    reach = ndtri(0.5 + jnp.asarray(confidence, float) / 2) * error
    ends = jnp.tanh(jnp.stack([centre - reach, centre + reach]))
    farthest = jnp.max(distance, where=succeeded, initial=0)
    scaled = distance / jnp.where(farthest > 0, farthest, 1)
    return DistanceCorrelation(
        correlation=correlation,
        interval=jnp.where(num > 3, ends, jnp.array([-1.0, 1.0])),
        rescaled=jnp.where(succeeded, scaled, jnp.nan),
        num_failed=(~succeeded).sum(),
    )


def _spearman(a: Array, b: Array, used: Array) -> Array:
    """Correlation of the ranks (ties share theirs) of the entries that are used."""

    def centred_ranks(values: Array) -> Array:
        ordered = jnp.sort(jnp.where(used, values, jnp.inf))
        below = jnp.searchsorted(ordered, values, side="left")
        ranks = (below + jnp.searchsorted(ordered, values, side="right")) / 2
        return jnp.where(used, ranks - ranks.mean(where=used), 0)

    a, b = centred_ranks(a), centred_ranks(b)
    return (a * b).sum() / jnp.sqrt(jnp.square(a).sum() * jnp.square(b).sum())
