"""SLOPE: a margin's steepest change between pairs of points, without gradients."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxrobust import _checks, models
from jaxrobust.measures.clever import _margins, _sampling

Array = jax.Array


class SlopeScore(NamedTuple):
    """What :func:`slope_score` found for n examples and K classes.

    Entries of classes that were not targets, or whose logit is ``-inf``, are NaN.

    Attributes:
        score: ``[n]``; the smallest score of the targets (NaN where all of them are masked).
        target: ``[n]`` int; the class it belongs to (-1 where all are masked).
        per_class: ``[n, K]``; ``min(margin / lipschitz, radius)``.
        lipschitz: ``[n, K]``; the steepest change between two points of a pair.
        label: ``[n]`` int; the predicted class.
        margin: ``[n, K]``; at the clean input.
    """

    score: Array
    target: Array
    per_class: Array
    lipschitz: Array
    label: Array
    margin: Array


def slope_score(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    *,
    radius: Any,
    norm: str = "l2",
    targets: str | Array = "all",
    num_pairs: int = 256_000,
    bounds: _sampling.Bounds = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> SlopeScore:
    """SLOPE, the baseline of CLEVER: the Lipschitz constant from slopes between pairs of points.

    ``max |g(a) - g(b)| / |a - b|_p`` over disjoint pairs uniform in the ball. It is no more than
    the Lipschitz constant, and far less in high dimension, where the line between two random points
    is hardly ever steep: the score is too large. It needs no gradients, two model inputs a pair.

    Args:
        apply_fn: as in :func:`clever_score`.
        params: as in :func:`clever_score`.
        key: typed PRNG key; pair j of example i draws from ``fold_in(fold_in(key, j), i)``.
        x: inputs ``[n, ...]``, floating.
        radius: as in :func:`clever_score`.
        norm: as in :func:`clever_score`.
        targets: as in :func:`clever_score`.
        num_pairs: pairs of points for each example; the default uses as many points as CLEVER's.
        bounds: as in :func:`clever_score`.
        chunk_size: pairs for one call of the model; bounds the memory. None picks a number.
        mesh: as in :func:`clever_score`.
        progress: show a progress bar (needs tqdm).

    Returns:
        A :class:`SlopeScore`.

    Raises:
        TypeError: as in :func:`clever_score`.
        ValueError: as in :func:`clever_score`.

    Source: Wood & Zhang 1996, "Estimation of the Lipschitz constant of a function", J. Global
    Optim. 8, as used in Weng et al. 2018, arXiv 1801.10578, section 5.2.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: jnp.stack([2 + x @ w, 0 * x[:, 0]], axis=1)
        >>> result = jr.slope_score(
        ...     apply_fn, jnp.array([3.0, -4.0]), jax.random.key(0), jnp.zeros((1, 2)),
        ...     radius=1.0, num_pairs=1000,
        ... )
        >>> bool((0.4 <= result.score[0]) & (result.score[0] < 0.401))
        True
    """
    request = _sampling.check(
        apply_fn, params, key, x,
        radius=radius, norm=norm, targets=targets, bounds=bounds, mesh=mesh,
    )  # fmt: skip
    num_pairs = _checks.count("num_pairs", num_pairs)
    drawn = _sampling.sample(
        _sampling.PairSlope(apply_fn, norm), apply_fn, params, key, request,
        num_batches=1, batch_size=num_pairs, chunk_size=chunk_size, progress=progress,
    )  # fmt: skip
    return _result(drawn, request.radius, num_classes=request.num_classes)


@functools.partial(jax.jit, static_argnames="num_classes")
def _result(drawn: _sampling.Sample, radius: Array, *, num_classes: int) -> SlopeScore:
    at, steepest = drawn.at, drawn.found["norm"][0]
    lasts = jnp.where(steepest > 0, at.margin / jnp.where(steepest > 0, steepest, 1), jnp.inf)
    lasts = jnp.where(at.margin > 0, lasts, jnp.where(jnp.isnan(at.margin), jnp.nan, 0))
    lasts = jnp.where(jnp.isnan(steepest), jnp.nan, lasts)
    score = jnp.minimum(lasts, jnp.broadcast_to(radius, at.label.shape)[:, None])
    least, target = _margins.smallest(score, at)

    def put(values: Array) -> Array:
        values = jnp.where(at.masked, jnp.nan, values)
        return _margins.by_class(values, at.targets, num_classes, jnp.nan)

    return SlopeScore(least, target, put(score), put(steepest), at.label, put(at.margin))
