"""CLEVER: how far a prediction lasts, estimated from the largest gradients of its margins."""

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


class CleverScore(NamedTuple):
    """What :func:`clever_score` found for n examples and K classes.

    Entries of classes that were not targets are NaN. A score is an estimate of how far the nearest
    other class is, in the norm of the search, and no proof: read ``status``.

    Attributes:
        score: ``[n]``; the smallest score of the targets. NaN where one of them has none.
        target: ``[n]`` int; the class it belongs to (-1 where every class is masked); where several
            scores are the radius, the one of the smallest ``margin / lipschitz``.
        per_class: ``[n, K]``; ``min(margin / lipschitz, radius)``.
        lipschitz: ``[n, K]``; the estimated maximum of the gradient's dual norm in the ball.
        maxima: ``[n, K, num_batches]``; the largest dual norm in each batch; NaN in the batches
            after a class was dropped from the race.
        fit: the reverse Weibull distribution of the maxima, fields ``[n, K]``.
        ks_statistic: ``[n, K]``; Kolmogorov-Smirnov distance of the maxima from the fit.
        ks_pvalue: ``[n, K]``; its p-value for parameters known beforehand, as in the paper. They
            are not: ``fits.ks_pvalue_bootstrap(key, maxima)`` allows for that.
        status: ``[n, K]`` int; bits of :class:`CleverStatus`.
        interval: ``[n, 2]``; interval of the score: what the maxima allow (profile likelihood of
            their upper end), and where the scores of other keys lie. Its lower end is 0 where they
            do not tell their upper end from infinity, as is common in high dimension.
        per_class_interval: ``[n, K, 2]``.
        label: ``[n]`` int; the predicted class, for which the score holds.
        margin: ``[n, K]``; logit of the label less that of the class, at the clean input.
        slope: ``[n, K]``; the fastest change of the margin from x to a sampled point.
        zero_share: ``[n, K]``; share of the sampled gradients that are exactly 0.
        crossing: ``[n, K]``; distance of the nearest sampled point that loses the margin, else inf.
        radius: ``[n]``; of the ball that was searched.
    """

    score: Array
    target: Array
    per_class: Array
    lipschitz: Array
    maxima: Array
    fit: ReverseWeibullFit
    ks_statistic: Array
    ks_pvalue: Array
    status: Array
    interval: Array
    per_class_interval: Array
    label: Array
    margin: Array
    slope: Array
    zero_share: Array
    crossing: Array
    radius: Array


def clever_score(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    *,
    radius: Any,
    norm: str = "l2",
    targets: str | Array = "all",
    num_batches: int = 500,
    batch_size: int = 1024,
    bounds: _sampling.Bounds = None,
    labels: Array | None = None,
    confidence: Any = 0.95,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
    race: bool = True,
) -> CleverScore:
    """CLEVER: an attack-independent estimate of the distance to the nearest other class.

    A margin ``g = logit[label] - logit[target]`` that changes by at most L for each unit of
    distance lasts for ``g(x) / L``. Here L is the maximum in a ball of the dual norm of its
    gradient, estimated by extreme value theory: batches of points uniform in the ball are drawn,
    and the upper end of the reverse Weibull distribution of their maxima is L. It costs one forward
    pass and one backward pass for each target, for each of the ``num_batches * batch_size`` points.

    It is an ESTIMATE, not a bound: masked gradients inflate it (Goodfellow 2018, arXiv 1804.07870),
    and in high dimension the maximum is seldom near a sampled point. ``status`` says what speaks
    against it; :func:`bracket` compares it with attacks, :func:`radius_sweep` with other radii.

    Args:
        apply_fn: classifier ``apply_fn(params, x [B, ...]) -> logits [B, K]``.
        params: the model's parameters, any pytree.
        key: typed PRNG key. Point b of batch g draws from ``fold_in(fold_in(key, g * batch_size +
            b), i)`` for example i.
        x: inputs ``[n, ...]``, floating.
        radius: of the ball that is searched, in units of x; one number or ``[n]``, not negative.
            The score is capped at it. The paper takes 5 for l2 on images.
        norm: ``"l1"``, ``"l2"`` or ``"linf"``: the distance that the score is in.
        targets: the classes the prediction may be lost to: ``"all"`` (untargeted), ``"top2"`` (the
            runner-up), ``"random"``, ``"least"`` (the least likely), or one class for each example
            ``[n]``. A target that is the predicted class has score 0.
        num_batches: N_b, the maxima that are fitted. Below 3 there is no fit.
        batch_size: N_s, points in each batch.
        bounds: ``(lower, upper)`` of the inputs, numbers or arrays that broadcast to one example or
            have the shape of x; points are clipped to them. None: no bounds.
        labels: true classes ``[n]``, only to mark misclassified inputs in ``status``.
        confidence: of the intervals.
        chunk_size: inputs for one call of the model; bounds the memory. None picks one.
        mesh: devices to share the work, with the axes "replicates" (splits every batch) and/or
            "examples".
        progress: show a progress bar (needs tqdm); in a race, one for each round.
        race: with all targets and 30 batches or more, drop classes that cannot be the nearest: of
            them no more gradients are taken, which saves most where one call of the model holds one
            example. The others get the draws and the numbers of the full run, and so does the
            smallest score in more than 99 of 100 cases. Dropped classes are marked ``DROPPED``.
            False scores every class in full.

    Returns:
        A :class:`CleverScore`.

    Raises:
        TypeError: for an untyped key, inputs that are not floating, targets or labels that are not
            integers.
        ValueError: for arguments that do not fit each other or values out of range; for bounds that
            do not hold every x; for a model with one output column.

    Source: Weng et al. 2018, "Evaluating the Robustness of Neural Networks: An Extreme Value Theory
    Approach", arXiv 1801.10578, theorem 3.2 and algorithms 1 and 2.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: jnp.stack([2 + x @ w, 0 * x[:, 0]], axis=1)
        >>> result = jr.clever_score(
        ...     apply_fn, jnp.array([3.0, -4.0]), jax.random.key(0), jnp.zeros((1, 2)),
        ...     radius=1.0, num_batches=10, batch_size=8,
        ... )
        >>> print(f"{result.score[0]:.4f}", repr(jr.CleverStatus(int(result.status[0, 1]))))
        0.4000 <CleverStatus.CONSTANT: 64>
    """
    request = _sampling.check(
        apply_fn, params, key, x,
        radius=radius, norm=norm, targets=targets, bounds=bounds, mesh=mesh,
    )  # fmt: skip
    num_batches = _checks.count("num_batches", num_batches)
    batch_size = _checks.count("batch_size", batch_size)
    intervals.check_confidence(confidence)
    if labels is not None:
        labels = _checks.labels("labels", labels, request.x.shape[0], request.num_classes)
    drawn = _sampling.sample(
        _sampling.GradientNorm(apply_fn, norm), apply_fn, params, key, request,
        num_batches=num_batches, batch_size=batch_size, chunk_size=chunk_size, progress=progress,
        race=race and isinstance(targets, str) and targets == "all",
    )  # fmt: skip
    maxima, found = _gather(drawn.found, drawn.batches * batch_size)
    estimated = _estimate.estimate(
        maxima,
        drawn.at,
        drawn.logits,
        drawn.at.margin,
        request.radius,
        found,
        labels,
        confidence,
        _first_order,
    )
    return _result(estimated, drawn.at, found, request.radius, num_classes=request.num_classes)


def _first_order(margin: Array, lipschitz: Array, clean: Array) -> Array:
    """How long the margin lasts; for ever where it never falls."""
    del clean
    return jnp.where(lipschitz > 0, margin / jnp.where(lipschitz > 0, lipschitz, 1), jnp.inf)


@jax.jit
def _gather(found: dict[str, Array], num_points: Array) -> tuple[Array, dict[str, Array]]:
    """Maxima ``[n, T, G]`` of the batches, and the rest over all of them."""
    return jnp.moveaxis(found["norm"], 0, -1), {
        "slope": found["slope"].max(axis=0),
        "crossing": found["crossing"].min(axis=0),
        "zero_share": found["zeros"].sum(axis=0) / jnp.maximum(num_points, 1),
    }


@functools.partial(jax.jit, static_argnames="num_classes")
def _result(
    estimated: _estimate.Estimate,
    at: _margins.Margins,
    found: dict[str, Array],
    radius: Array,
    *,
    num_classes: int,
) -> CleverScore:
    uncapped = _first_order(at.margin, estimated.end, at.margin)
    score, target = _margins.smallest(estimated.score, at, uncapped)
    every = _estimate.over_classes(estimated, at, num_classes)

    def put(values: Array) -> Array:
        return _margins.by_class(values, at.targets, num_classes, jnp.nan)

    return CleverScore(
        score=score,
        target=target,
        per_class=every.score,
        lipschitz=every.end,
        maxima=every.maxima,
        fit=every.fit,
        ks_statistic=every.fit.ks_statistic,
        ks_pvalue=every.fit.ks_pvalue,
        status=every.status,
        interval=_estimate.smallest_interval(estimated, at),
        per_class_interval=every.interval,
        label=at.label,
        margin=put(at.margin),
        slope=put(found["slope"]),
        zero_share=put(found["zero_share"]),
        crossing=put(found["crossing"]),
        radius=jnp.broadcast_to(radius, score.shape),
    )
