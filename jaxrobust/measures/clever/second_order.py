"""Second-order CLEVER: how far a margin lasts by its slope here and its curvature around."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxrobust import _checks, intervals, models
from jaxrobust.fits import ReverseWeibullFit
from jaxrobust.measures.clever import _estimate, _margins, _sampling

Array = jax.Array


class SecondOrderClever(NamedTuple):
    """What :func:`clever_score_second_order` found for n examples and K classes.

    Entries of classes that were not targets are NaN. See :class:`CleverScore` for what is common.

    Attributes:
        score: ``[n]``; the smallest score of the targets.
        target: ``[n]`` int; the class it belongs to.
        per_class: ``[n, K]``.
        gradient_norm: ``[n, K]``; l2 norm of the margin's gradient at the clean input.
        curvature: ``[n, K]``; the estimated maximum, in the ball, of the downward curvature.
        maxima: ``[n, K, num_batches]``; the largest downward curvature in each batch.
        fit: the reverse Weibull distribution of the maxima, fields ``[n, K]``.
        ks_statistic: ``[n, K]``.
        ks_pvalue: ``[n, K]``.
        status: ``[n, K]`` int; bits of :class:`CleverStatus`. ``ZERO_GRADIENTS`` here says that no
            curvature was seen: a network of pieces (ReLU) has none, and bends all the same.
        interval: ``[n, 2]``; interval of the score, from that of ``curvature``.
        per_class_interval: ``[n, K, 2]``.
        label: ``[n]`` int; the predicted class.
        margin: ``[n, K]``; at the clean input.
        crossing: ``[n, K]``; distance of the nearest sampled point that loses the margin, else inf.
        radius: ``[n]``.
    """

    score: Array
    target: Array
    per_class: Array
    gradient_norm: Array
    curvature: Array
    maxima: Array
    fit: ReverseWeibullFit
    ks_statistic: Array
    ks_pvalue: Array
    status: Array
    interval: Array
    per_class_interval: Array
    label: Array
    margin: Array
    crossing: Array
    radius: Array


def clever_score_second_order(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    *,
    radius: Any,
    targets: str | Array = "top2",
    num_batches: int = 100,
    batch_size: int = 256,
    num_steps: int = 10,
    bounds: _sampling.Bounds = None,
    labels: Array | None = None,
    confidence: Any = 0.95,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> SecondOrderClever:
    """Second-order CLEVER (l2), for models that are twice differentiable.

    A margin ``g0`` that falls from x with the slope ``n = |grad g(x)|`` and bends down by at most
    M anywhere in the ball lasts for ``2 g0 / (n + sqrt(n^2 + 2 g0 M))``. M is the maximum of
    ``max(0, -lambda_min(Hessian))``, estimated from batches as CLEVER estimates its own; the
    eigenvalues come from ``num_steps`` Hessian-vector products at each point (Lanczos). It costs
    about ``3 num_steps`` forward passes for each point and target, and is longer than the
    first-order score where the gradient grows away from x.

    Args:
        apply_fn: as in :func:`clever_score`; smooth (softplus, tanh), not ReLU.
        params: as in :func:`clever_score`.
        key: as in :func:`clever_score`.
        x: inputs ``[n, ...]``, floating.
        radius: as in :func:`clever_score`.
        targets: as in :func:`clever_score`.
        num_batches: as in :func:`clever_score`.
        batch_size: as in :func:`clever_score`.
        num_steps: steps of the Lanczos method; exact when as many as features. Fewer find a
            curvature that is too small, so a score that is too large.
        bounds: as in :func:`clever_score`.
        labels: as in :func:`clever_score`.
        confidence: as in :func:`clever_score`.
        chunk_size: as in :func:`clever_score`; ``num_steps`` arrays of this many inputs are kept.
        mesh: as in :func:`clever_score`.
        progress: show a progress bar (needs tqdm).

    Returns:
        A :class:`SecondOrderClever`.

    Raises:
        TypeError: as in :func:`clever_score`.
        ValueError: as in :func:`clever_score`.

    Source: Weng et al. 2018, "On Extensions of CLEVER: A Neural Network Robustness Evaluation
    Algorithm", arXiv 1810.08640, with the downward curvature in place of the largest of either
    sign.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> def apply_fn(w, x):  # margin 2 + w . x - 2 |x|^2
        ...     return jnp.stack([2 + x @ w - 2 * (x**2).sum(1), 0 * x[:, 0]], axis=1)
        >>> result = jr.clever_score_second_order(
        ...     apply_fn, jnp.array([3.0, 4.0]), jax.random.key(0), jnp.zeros((1, 2)),
        ...     radius=1.0, num_batches=10, batch_size=8,
        ... )
        >>> print(f"{result.score[0]:.4f}")
        0.3508
    """
    request = _sampling.check(
        apply_fn, params, key, x,
        radius=radius, norm="l2", targets=targets, bounds=bounds, mesh=mesh,
    )  # fmt: skip
    num_batches = _checks.count("num_batches", num_batches)
    batch_size = _checks.count("batch_size", batch_size)
    num_steps = _checks.count("num_steps", num_steps)
    intervals.check_confidence(confidence)
    if labels is not None:
        labels = _checks.labels("labels", labels, request.x.shape[0], request.num_classes)
    drawn = _sampling.sample(
        _sampling.Curvature(apply_fn, num_steps), apply_fn, params, key, request,
        num_batches=num_batches, batch_size=batch_size, chunk_size=chunk_size, progress=progress,
    )  # fmt: skip
    slope = _sampling.gradient_norms(apply_fn, params, request.x, drawn.at, "l2", chunk_size)
    found = {"crossing": drawn.found["crossing"].min(axis=0)}
    estimated = _estimate.estimate(
        jnp.moveaxis(drawn.found["norm"], 0, -1),
        drawn.at,
        drawn.logits,
        slope,
        request.radius,
        found,
        labels,
        confidence,
        _second_order,
    )
    return _result(
        estimated,
        drawn.at,
        slope,
        found["crossing"],
        request.radius,
        num_classes=request.num_classes,
    )


def _second_order(margin: Array, curvature: Array, slope: Array) -> Array:
    """The smaller root of ``margin - slope r - curvature r^2 / 2``; infinity where it has none."""
    fall = slope + jnp.sqrt(slope**2 + 2 * margin * curvature)
    return jnp.where(fall > 0, 2 * margin / jnp.where(fall > 0, fall, 1), jnp.inf)


@functools.partial(jax.jit, static_argnames="num_classes")
def _result(
    estimated: _estimate.Estimate,
    at: _margins.Margins,
    slope: Array,
    crossing: Array,
    radius: Array,
    *,
    num_classes: int,
) -> SecondOrderClever:
    score, target = _margins.smallest(estimated.score, at)
    every = _estimate.over_classes(estimated, at, num_classes)

    def put(values: Array) -> Array:
        return _margins.by_class(values, at.targets, num_classes, jnp.nan)

    return SecondOrderClever(
        score=score,
        target=target,
        per_class=every.score,
        gradient_norm=put(slope),
        curvature=every.end,
        maxima=every.maxima,
        fit=every.fit,
        ks_statistic=every.fit.ks_statistic,
        ks_pvalue=every.fit.ks_pvalue,
        status=every.status,
        interval=_estimate.smallest_interval(estimated, at),
        per_class_interval=every.interval,
        label=at.label,
        margin=put(at.margin),
        crossing=put(crossing),
        radius=jnp.broadcast_to(radius, score.shape),
    )
