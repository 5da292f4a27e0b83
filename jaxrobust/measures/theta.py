"""theta-robustness: a bound, with high probability, on the loss under random input noise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrobust import _checks, intervals, models, montecarlo
from jaxrobust.perturbations.base import Perturbation, check_perturbation
from jaxrobust.perturbations.sweep import Sweep, single, sweep

Array = jax.Array
Loss = str | Callable[[Array, Array], Array]

LOSSES = ("mse", "brier")

# How far from the simplex a row of probabilities may be.
_SIMPLEX_TOLERANCE = 1e-3


class ThetaRobustness(NamedTuple):
    """What :func:`theta_robustness` found.

    Attributes:
        theta: scalar; the loss stays at or below it with probability ``1 - alpha``. NaN when any
            replicate's loss is not finite (see ``num_invalid``).
        interval: ``[2]``; confidence interval of theta. An end is ``-inf`` or ``inf`` where there
            are too few replicates for it; NaN together with theta.
        losses: ``[m]``; loss of each replicate, in the order of the replicates.
        baseline: scalar; loss on the clean inputs.
        shift: ``[m]``; mean squared distance between clean and noisy predictions (equation 4).
        shift_at_theta: scalar; that shift in the replicate that attained theta.
        shift_mean: scalar; mean of ``shift`` over replicates.
        shift_quantile: scalar; its (1 - alpha) order statistic.
        num_invalid: scalar int; replicates whose loss is NaN or infinite.
    """

    theta: Array
    interval: Array
    losses: Array
    baseline: Array
    shift: Array
    shift_at_theta: Array
    shift_mean: Array
    shift_quantile: Array
    num_invalid: Array


class RobustnessCurve(NamedTuple):
    """What :func:`robustness_curve` found, at S scales.

    Attributes:
        scale: ``[S]``; the noise levels.
        theta: ``[S]``; as in :class:`ThetaRobustness`, not normalised.
        interval: ``[S, 2]``; confidence interval of each theta.
        baseline: scalar; loss on the clean inputs.
        ratio: ``[S]``; ``theta / baseline``. NaN when the baseline is zero: see ``normalised``.
        normalised: scalar bool; whether ``ratio`` is defined (the baseline is above zero).
        num_invalid: ``[S]`` int; replicates whose loss is NaN or infinite at each scale.
        losses: ``[S, m]``; loss of each replicate, the same draws at every scale.
    """

    scale: Array
    theta: Array
    interval: Array
    baseline: Array
    ratio: Array
    normalised: Array
    num_invalid: Array
    losses: Array


def theta_robustness(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    y: Array,
    *,
    perturbation: Perturbation,
    loss: Loss = "mse",
    outputs: str = "logits",
    alpha: Any = 0.05,
    num_replicates: int = 1000,
    confidence: Any = 0.95,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> ThetaRobustness:
    """Estimates what the loss of a model stays at or below under noise, with high probability.

    Draws ``m = num_replicates`` noisy copies of the data set and takes the
    ``ceil((1 - alpha) m)``-th smallest of their losses. It costs ``(m + 1) n`` model inputs.

    Args:
        apply_fn: ``apply_fn(params, x [B, ...]) -> outputs [B, K]`` (or ``[B]`` for regression).
        params: the model's parameters, any pytree.
        key: typed PRNG key. Replicate j of example i draws from
            ``fold_in(fold_in(key, j), i)``, whatever the chunk size or the devices.
        x: inputs ``[n, ...]``, floating, in the units that the noise is meant in.
        y: targets ``[n]`` or ``[n, K]`` for ``"mse"``; integer class labels ``[n]`` for
            ``"brier"``; whatever the callable wants, with a leading axis n.
        perturbation: from :mod:`jaxrobust.perturbations`, usually ``gaussian``.
        loss: ``"mse"``: mean over examples of the squared error summed over outputs; ``"brier"``:
            the multi-class Brier score, in [0, 1]; or ``fn(outputs [B, K], y [B]) -> [B]``.
        outputs: for ``"brier"``, whether the model gives ``"logits"`` or ``"probabilities"``; one
            of ``models.from_sklearn`` says so itself.
        alpha: in (0, 1]; the probability that the loss may exceed theta. ``(1 - alpha) m`` is
            computed exactly, as the decimal number that was written.
        num_replicates: m.
        confidence: of the interval of theta, from order statistics.
        chunk_size: inputs for one call of the model; bounds the memory. None picks one.
        mesh: devices to share the work, with the axes "replicates" and/or "examples".
        progress: show a progress bar (needs tqdm).

    Returns:
        A :class:`ThetaRobustness`.

    Raises:
        TypeError: for an untyped key, inputs that are not floating, labels that are not integers.
        ValueError: for arguments that do not fit each other, values out of range, or outputs that
            are not what ``outputs`` says.

    Source: Levene & Harris 2026, "Robustness of neural networks to random noise perturbations of
    their inputs", arXiv 2606.31581, algorithm 1.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: x @ w
        >>> x, w = jnp.ones((50, 3)), jnp.array([1.0, 2.0, 2.0])
        >>> result = jr.theta_robustness(
        ...     apply_fn, w, jax.random.key(0), x, x @ w,
        ...     perturbation=jr.perturbations.gaussian(0.1), num_replicates=200,
        ... )
        >>> bool(result.theta > 0.09), float(result.baseline)  # the mean loss is 0.1^2 * |w|^2
        (True, 0.0)
    """
    check_perturbation(perturbation)
    measured = _measure(
        apply_fn,
        params,
        key,
        x,
        y,
        single(perturbation),
        loss=loss,
        outputs=outputs,
        alpha=alpha,
        num_replicates=num_replicates,
        confidence=confidence,
        chunk_size=chunk_size,
        mesh=mesh,
        progress=progress,
    )
    return ThetaRobustness(
        theta=measured.theta[0],
        interval=measured.interval[0],
        losses=measured.losses[0],
        baseline=measured.baseline,
        shift=measured.shift[0],
        shift_at_theta=measured.shift_at_theta[0],
        shift_mean=measured.shift_mean[0],
        shift_quantile=measured.shift_quantile[0],
        num_invalid=measured.num_invalid[0],
    )


def robustness_curve(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    y: Array,
    *,
    perturbation: Callable[[Array], Perturbation],
    scales: Array,
    loss: Loss = "mse",
    outputs: str = "logits",
    alpha: Any = 0.05,
    num_replicates: int = 1000,
    confidence: Any = 0.95,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> RobustnessCurve:
    """Theta over a sweep of noise levels, with the same draws at every level.

    Common random numbers make the curve smooth, and they are drawn once for the whole sweep: it
    costs ``(S m + 1) n`` model inputs and ``m n`` draws. Neighbouring points are therefore strongly
    correlated: the interval is of each point by itself.

    Args:
        apply_fn: as in :func:`theta_robustness`, like all arguments not listed here.
        params: the model's parameters.
        key: typed PRNG key.
        x: inputs ``[n, ...]``.
        y: targets or labels.
        perturbation: a function ``scale -> Perturbation``, traced once for all scales, such as
            ``lambda sigma: jr.perturbations.gaussian(sigma)``. Arrays that it makes are data, so
            other values of them do not retrace.
        scales: noise levels ``[S]``.
        loss: ``"mse"``, ``"brier"`` or a callable.
        outputs: ``"logits"`` or ``"probabilities"``.
        alpha: in (0, 1].
        num_replicates: m.
        confidence: of each interval.
        chunk_size: inputs for one call of the model.
        mesh: devices to share the work.
        progress: show a progress bar.

    Returns:
        A :class:`RobustnessCurve`.

    Raises:
        TypeError: as :func:`theta_robustness`, and for a perturbation that is no function.
        ValueError: as :func:`theta_robustness`, and for scales that are not ``[S]`` with S > 0.

    Source: Levene & Harris 2026, arXiv 2606.31581, section on robustness curves.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: x @ w
        >>> x, w = jnp.ones((20, 2)), jnp.array([1.0, 2.0])
        >>> curve = jr.robustness_curve(
        ...     apply_fn, w, jax.random.key(0), x, x @ w + 1.0,
        ...     perturbation=jr.perturbations.gaussian, scales=jnp.linspace(0.0, 1.0, 5),
        ...     num_replicates=100,
        ... )
        >>> float(curve.ratio[0]), bool((curve.theta[1:] > curve.theta[:-1]).all())
        (1.0, True)
    """
    if isinstance(perturbation, Perturbation) or not callable(perturbation):
        raise TypeError(
            "perturbation must be a function scale -> Perturbation, such as"
            " lambda sigma: jaxrobust.perturbations.gaussian(sigma);"
            f" got {_checks.describe(perturbation)}."
        )
    scales = _checks.real_array("scales", scales)
    if scales.ndim != 1 or scales.shape[0] == 0:
        raise ValueError(f"scales must have shape [S] with S > 0; got {_checks.describe(scales)}.")
    measured = _measure(
        apply_fn,
        params,
        key,
        x,
        y,
        sweep(perturbation, scales),
        loss=loss,
        outputs=outputs,
        alpha=alpha,
        num_replicates=num_replicates,
        confidence=confidence,
        chunk_size=chunk_size,
        mesh=mesh,
        progress=progress,
    )
    normalised = measured.baseline > 0
    ratio = measured.theta / jnp.where(normalised, measured.baseline, jnp.nan)
    return RobustnessCurve(
        scale=scales,
        theta=measured.theta,
        interval=measured.interval,
        baseline=measured.baseline,
        ratio=ratio,
        normalised=normalised,
        num_invalid=measured.num_invalid,
        losses=measured.losses,
    )


def _measure(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    y: Array,
    points: Sweep,
    *,
    loss: Loss,
    outputs: str,
    alpha: Any,
    num_replicates: int,
    confidence: Any,
    chunk_size: int | None,
    mesh: Mesh | None,
    progress: bool,
) -> ThetaRobustness:
    """Checks the arguments and measures theta at every point of a sweep (leading axis S)."""
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    points.template().check_shapes(x.shape)
    outputs = models.outputs_of(apply_fn, outputs)
    y = _check_targets(apply_fn, params, x, y, loss)
    num_replicates = _checks.count("num_replicates", num_replicates)
    mesh = montecarlo.as_mesh(mesh)
    ranks = intervals.quantile_ranks(num_replicates, _one_minus(alpha), confidence)
    clean = montecarlo.predict(params, x, apply_fn=apply_fn, chunk_size=chunk_size, mesh=mesh)
    if _checks.is_concrete(clean):
        _check_outputs(clean, loss, outputs)
    with montecarlo.progress_bar(progress, "theta") as bar:
        return _theta(
            params,
            key,
            x,
            y,
            clean,
            points,
            ranks,
            bar,
            apply_fn=apply_fn,
            loss=loss,
            outputs=outputs,
            num_replicates=num_replicates,
            chunk_size=chunk_size,
            mesh=mesh,
        )


def _one_minus(alpha: Any) -> Any:
    """``1 - alpha`` exactly, for an alpha that is a known number in (0, 1]."""
    if not _checks.is_concrete(alpha):
        raise TypeError(
            "alpha must be a known number (it decides which order statistic is taken, exactly);"
            f" got {_checks.describe(alpha)}, which is traced."
        )
    _checks.values("alpha", alpha, lambda v: (v > 0) & (v <= 1), "above 0 and at most 1")
    return 1 - intervals.exact_fraction(alpha)


def _check_targets(apply_fn: models.ApplyFn, params: Any, x: Array, y: Array, loss: Loss) -> Array:
    """Checks ``y`` against the loss and the shape of the model's outputs."""
    num_examples = x.shape[0]
    if not callable(loss):
        _checks.choice("loss", loss, LOSSES)
    if loss == "brier":
        return _checks.labels("y", y, num_examples, models.num_classes(apply_fn, params, x))
    out = models.output_struct(apply_fn, params, x)
    if callable(loss):
        y = jnp.asarray(y)
        if y.ndim == 0 or y.shape[0] != num_examples:
            raise ValueError(
                f"y must have a leading axis of the {num_examples} examples of x;"
                f" got {_checks.describe(y)}."
            )
        return y
    y = _checks.real_array("y", y)
    one_column = ((num_examples,), (num_examples, 1))
    if y.shape != out.shape and not (y.shape in one_column and out.shape in one_column):
        labels = y.shape == (num_examples,) and jnp.issubdtype(y.dtype, jnp.integer)
        raise ValueError(
            f"y must have the shape of the model's outputs, {out.shape}, for the mse of"
            f" {num_examples} examples; got {_checks.describe(y)}."
            + (' For class labels say loss="brier".' if labels else "")
        )
    _checks.finite("y", y)
    return y


def _check_outputs(clean: Array, loss: Loss, outputs: str) -> None:
    """Looks at the outputs on clean inputs: are they what ``outputs`` says?"""
    if loss != "brier":
        return
    host = np.asarray(clean, np.float64)
    in_range = ((host >= -_SIMPLEX_TOLERANCE) & (host <= 1 + _SIMPLEX_TOLERANCE)).all()
    on_simplex = in_range and (np.abs(host.sum(axis=1) - 1) <= _SIMPLEX_TOLERANCE).all()
    if outputs == "logits" and on_simplex:
        raise ValueError(
            "outputs of apply_fn look like probabilities (each row is in [0, 1] and sums to 1);"
            ' say outputs="probabilities", or return logits.'
        )
    if outputs == "probabilities" and np.isfinite(host).all() and not on_simplex:
        sums = host.sum(axis=1)
        worst = sums[np.abs(sums - 1).argmax()]
        raise ValueError(
            'outputs="probabilities" expects rows in [0, 1] that sum to 1; apply_fn gave values'
            f" from {host.min():.4g} to {host.max():.4g} and a row that sums to {worst:.4g}."
            ' For logits say outputs="logits".'
        )


def _predict(apply_fn: models.ApplyFn, loss: Loss, outputs: str, params: Any, x: Array) -> Array:
    """Predictions that the loss compares: probabilities for the Brier score, else outputs."""
    out = apply_fn(params, x)
    return jax.nn.softmax(out, axis=-1) if loss == "brier" and outputs == "logits" else out


def _scores(loss: Loss, prediction: Array, y: Array) -> Array:
    """Loss of each example ``[B]``."""
    if callable(loss):
        scores = jnp.asarray(loss(prediction, y))
        if scores.shape != prediction.shape[:1]:
            raise ValueError(
                f"loss must return one value for each of {prediction.shape[0]} examples, shape"
                f" {prediction.shape[:1]}; got {_checks.describe(scores)}."
            )
        return scores
    if loss == "brier":
        onehot = jax.nn.one_hot(y, prediction.shape[1], dtype=prediction.dtype)
        return _squared_distance(prediction, onehot) / 2
    return _squared_distance(prediction, y)


def _squared_distance(a: Array, b: Array) -> Array:
    """Squared Euclidean distance of each row, ``[B]``; columns ``[B]`` and ``[B, 1]`` are alike."""
    difference = a.reshape(a.shape[0], -1) - b.reshape(b.shape[0], -1).astype(a.dtype)
    return jnp.square(difference).sum(axis=1)


@functools.partial(
    jax.jit,
    static_argnames=("apply_fn", "loss", "outputs", "num_replicates", "chunk_size", "mesh"),
)
def _theta(
    params: Any,
    key: Array,
    x: Array,
    y: Array,
    clean: Array,
    points: Sweep,
    ranks: intervals.QuantileRanks,
    bar: Array | None,
    *,
    apply_fn: models.ApplyFn,
    loss: Loss,
    outputs: str,
    num_replicates: int,
    chunk_size: int | None,
    mesh: Mesh | None,
) -> ThetaRobustness:
    if loss == "brier" and outputs == "logits":
        clean = jax.nn.softmax(clean, axis=-1)

    def score(params: Any, x_hat: Array, y: Array, clean: Array) -> tuple[Array, Array]:
        prediction = _predict(apply_fn, loss, outputs, params, x_hat)
        return _scores(loss, prediction, y), _squared_distance(prediction, clean)

    totals = montecarlo.reduce_draws(
        score,
        points,
        params,
        key,
        x,
        (y, clean),
        num_replicates=num_replicates,
        over="examples",
        chunk_size=chunk_size,
        mesh=mesh,
        bar=bar,
    )
    losses, shift = jax.tree.map(lambda total: total / x.shape[0], totals)
    num_invalid = (~jnp.isfinite(losses)).sum(axis=1)
    bounds = intervals.order_statistics(losses, ranks)
    # A bound from the finite replicates alone would look better than the model is.
    bounds = jnp.where(num_invalid[:, None] > 0, jnp.nan, bounds)
    attained = jnp.argsort(losses, axis=1)[:, ranks.estimate - 1]
    shift_at_theta = jnp.take_along_axis(shift, attained[:, None], axis=1)[:, 0]
    return ThetaRobustness(
        theta=bounds[:, 0],
        interval=bounds[:, 1:],
        losses=losses,
        baseline=_scores(loss, clean, y).mean(),
        shift=shift,
        shift_at_theta=jnp.where(num_invalid > 0, jnp.nan, shift_at_theta),
        shift_mean=shift.mean(axis=1),
        shift_quantile=intervals.order_statistics(shift, ranks)[:, 0],
        num_invalid=num_invalid,
    )
