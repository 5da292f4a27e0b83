"""CLEVER beside what it should agree with: attacks, and itself at other radii."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import _checks, models
from jaxrobust.measures.clever.score import CleverScore, clever_score
from jaxrobust.measures.clever.status import CleverStatus

Array = jax.Array


class Bracket(NamedTuple):
    """What :func:`bracket` found for n examples.

    Attributes:
        lower: ``[n]``; the CLEVER score, an estimate of how far the prediction lasts at least.
        upper: ``[n]``; the distance of the nearest adversarial input found, inf where none was.
        violated: ``[n]`` bool; the attack came closer than the score, which is thereby refuted.
        comparable: ``[n]`` bool; the score is a number, and the input was not misclassified to
            begin with (an attack's distance is 0 there, and says nothing about the prediction).
        num_violations: scalar int.
        num_comparable: scalar int.
        status: ``[n]`` int; bits of :class:`CleverStatus`: those that ``clever`` has for its
            target (none where plain scores were given), and ``REFUTED`` where violated.
    """

    lower: Array
    upper: Array
    violated: Array
    comparable: Array
    num_violations: Array
    num_comparable: Array
    status: Array


def bracket(clever: Any, *attack_results: Any) -> Bracket:
    """CLEVER below, the nearest attack above: between them lies the distance to the boundary.

    An attack's distance is a true upper bound; CLEVER is an estimate of a lower one, refuted where
    the attack comes closer. Both must be in the same norm, and of the same kind: an untargeted
    score with any attacks, a targeted one with attacks that reach the same target.

    Args:
        clever: a :class:`CleverScore` (or another result with a ``score``), or scores ``[n]``.
        *attack_results: one or more ``attacks.AttackResult``, or distances ``[n]`` that are inf
            where nothing was found and 0 where the input was misclassified to begin with.

    Returns:
        A :class:`Bracket`.

    Raises:
        TypeError: for distances that are not numbers, or no attack at all.
        ValueError: for shapes that do not fit, or a distance that is negative or NaN.

    Source: Goodfellow 2018, "Gradient Masking Causes CLEVER to Overestimate Adversarial
    Perturbation Size", arXiv 1804.07870.

    Example:
        >>> import jax.numpy as jnp, jaxrobust as jr
        >>> scores, attack = jnp.array([0.2, 0.5]), jnp.array([0.3, 0.4])
        >>> jr.bracket(scores, attack).violated.tolist()
        [False, True]
    """
    lower = _checks.real_array("clever", getattr(clever, "score", clever))
    if lower.ndim != 1:
        raise ValueError(f"clever must hold scores [n]; got {_checks.describe(lower)}.")
    if not attack_results:
        raise TypeError("attack_results must hold at least one attack's result; got none.")
    distances = []
    for i, result in enumerate(attack_results):
        name = f"attack_results[{i}]"
        distance = _checks.real_array(name, getattr(result, "distance", result))
        if distance.shape != lower.shape:
            raise ValueError(
                f"{name} must hold one distance for each of the {lower.shape[0]} scores; got"
                f" {_checks.describe(distance)}."
            )
        _checks.values(name, distance, lambda v: v >= 0, "distances, not negative and not NaN")
        distances.append(distance)
    status = jnp.zeros(lower.shape, jnp.int32)
    if hasattr(clever, "status"):
        status = _of_target(clever.status, clever.target)
    return _bracket(lower, jnp.stack(distances), status)


def _of_target(status: Array, target: Array) -> Array:
    """The bits of the class that the score belongs to: ``[..., n]`` of ``[..., n, K]``."""
    bits = jnp.take_along_axis(status, jnp.maximum(target, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(target < 0, int(CleverStatus.MASKED), bits)


@jax.jit
def _bracket(lower: Array, distances: Array, status: Array) -> Bracket:
    upper = distances.min(axis=0)
    comparable = ~jnp.isnan(lower) & (upper > 0)
    # Both are rounded: a score that equals the distance in a linear model is no violation.
    slack = 16 * jnp.finfo(upper.dtype).eps
    violated = comparable & (lower > upper * (1 + slack))
    status = status | jnp.where(violated, int(CleverStatus.REFUTED), 0)
    return Bracket(lower, upper, violated, comparable, violated.sum(), comparable.sum(), status)


class RadiusSweep(NamedTuple):
    """What :func:`radius_sweep` found at S radii for n examples.

    Attributes:
        radius: ``[S]``.
        score: ``[S, n]``.
        interval: ``[S, n, 2]``.
        target: ``[S, n]`` int.
        status: ``[S, n]`` int; bits of :class:`CleverStatus`, of the target (``MASKED`` where
            every class is).
        censored: ``[S, n]`` bool; the score is the radius, which says only that it is not smaller.
        stable: ``[n]`` bool; at least two scores are neither NaN nor censored, and those differ by
            no more than the tolerance.
    """

    radius: Array
    score: Array
    interval: Array
    target: Array
    status: Array
    censored: Array
    stable: Array


def radius_sweep(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    *,
    radii: Any,
    tolerance: Any = 0.25,
    **options: Any,
) -> RadiusSweep:
    """CLEVER at several radii: does the score depend on how far one looks?

    The gradient is searched in a ball that the user chose. A score that changes much with it rests
    on that choice: the gradient grows away from x, or the sample misses where it is large. The same
    draws are scaled to every radius, which is data: the sweep compiles once.

    Args:
        apply_fn: as in :func:`clever_score`.
        params: as in :func:`clever_score`.
        key: as in :func:`clever_score`.
        x: inputs ``[n, ...]``, floating.
        radii: ``[S]``, positive.
        tolerance: by what share of the smallest the largest score may exceed it.
        **options: the other options of :func:`clever_score`.

    Returns:
        A :class:`RadiusSweep`.

    Raises:
        TypeError: as in :func:`clever_score`.
        ValueError: as in :func:`clever_score`; for radii that are not positive numbers ``[S]``, or
            a negative tolerance.

    Source: Weng et al. 2018, arXiv 1801.10578, section 5.1 (the choice of the radius).

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: jnp.stack([2 + x @ w, 0 * x[:, 0]], axis=1)
        >>> result = jr.radius_sweep(
        ...     apply_fn, jnp.array([3.0, -4.0]), jax.random.key(0), jnp.zeros((1, 2)),
        ...     radii=[0.3, 0.6, 1.2], num_batches=10, batch_size=8,
        ... )
        >>> [round(float(s), 3) for s in result.score[:, 0]], bool(result.stable[0])
        ([0.3, 0.4, 0.4], True)
    """
    radii = _checks.real_array("radii", radii)
    if radii.ndim != 1 or radii.size == 0:
        raise ValueError(f"radii must have shape [S], S >= 1; got {_checks.describe(radii)}.")
    _checks.values("radii", radii, lambda v: np.isfinite(v) & (v > 0), "positive and finite")
    tolerance = _checks.real_array("tolerance", tolerance)
    if tolerance.ndim:
        raise ValueError(f"tolerance must be one number; got {_checks.describe(tolerance)}.")
    _checks.non_negative("tolerance", tolerance)
    results = [clever_score(apply_fn, params, key, x, radius=r, **options) for r in radii]
    return _sweep(results, tolerance)


@jax.jit
def _sweep(results: list[CleverScore], tolerance: Array) -> RadiusSweep:
    of = jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)
    status = _of_target(of.status, of.target)
    censored = of.score >= of.radius
    usable = ~censored & ~jnp.isnan(of.score)
    largest = jnp.where(usable, of.score, -jnp.inf).max(axis=0)
    smallest = jnp.where(usable, of.score, jnp.inf).min(axis=0)
    stable = (usable.sum(axis=0) >= 2) & (largest <= (1 + tolerance) * smallest)
    return RadiusSweep(
        radius=of.radius[:, 0],
        score=of.score,
        interval=of.interval,
        target=of.target,
        status=status,
        censored=censored,
        stable=stable,
    )
