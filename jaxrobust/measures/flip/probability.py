"""Real-world robustness: the probability that a single prediction flips."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrobust import _checks, intervals, models, montecarlo
from jaxrobust.measures.flip import sobol
from jaxrobust.perturbations.base import Perturbation, check_perturbation
from jaxrobust.perturbations.sweep import Sweep, single

Array = jax.Array

NO_LABEL = -1
SAMPLINGS = ("random", "sobol")


class FlipProbability(NamedTuple):
    """What :func:`flip_probability` found for n examples.

    Attributes:
        probability: ``[n]``; share of the valid draws whose label differs from ``reference``. NaN
            where no draw was valid.
        interval: ``[n, 2]``; confidence interval of each probability. Invalid draws count as no
            flip in its lower end and as flips in its upper end.
        robustness: ``[n]``; ``1 - probability``.
        flips: ``[n]`` int; draws that flipped.
        num_samples: scalar int; draws of each example.
        reference: ``[n]`` int; the labels compared with; -1 where the clean input's outputs are NaN
            or have no finite maximum, so that there is no prediction to flip.
        num_invalid: ``[n]`` int; draws whose outputs are NaN or have no finite maximum; all draws
            where there is no reference.
        mean: scalar; mean probability of these n examples.
        mean_interval: ``[2]``; interval of the mean over the population that the examples were
            drawn from: it holds both the sampling of examples and the Monte Carlo error.
        mean_monte_carlo_interval: ``[2]``; interval of the mean over these very examples: the Monte
            Carlo error alone.
    """

    probability: Array
    interval: Array
    robustness: Array
    flips: Array
    num_samples: Array
    reference: Array
    num_invalid: Array
    mean: Array
    mean_interval: Array
    mean_monte_carlo_interval: Array


def flip_probability(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    *,
    perturbation: Perturbation,
    labels: Array | None = None,
    num_samples: int = 10_000,
    confidence: Any = 0.95,
    sampling: str = "random",
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> FlipProbability:
    """The probability that each prediction changes under the perturbations that can happen to it.

    It concerns the prediction, not the truth: by default the label of a perturbed input is compared
    with that of the clean one. It costs ``(num_samples + 1) n`` model inputs (``num_samples n``
    with ``labels``). No flips in N draws is not no risk: see the interval.

    Args:
        apply_fn: classifier ``apply_fn(params, x [B, ...]) -> outputs [B, K]``; the label is the
            class of the largest output (the first one among ties), so logits and probabilities
            serve alike.
        params: the model's parameters, any pytree.
        key: typed PRNG key.
        x: inputs ``[n, ...]``, floating.
        perturbation: from :mod:`jaxrobust.perturbations`; shared, or each example's own.
        labels: integer labels ``[n]`` to compare with, instead of the clean predictions.
        num_samples: N, draws of each example. For ``"sobol"`` it is rounded up to 16 independent
            scrambles of equal size.
        confidence: of every interval.
        sampling: ``"random"``: independent draws with Clopper-Pearson intervals; ``"sobol"``:
            randomised quasi-Monte Carlo, more accurate for few, smooth features, with intervals
            from the spread of its 16 scrambles.
        chunk_size: inputs for one call of the model; bounds the memory. None picks one.
        mesh: devices to share the work, with the axes "replicates" and/or "examples".
        progress: show a progress bar (needs tqdm).

    Returns:
        A :class:`FlipProbability`.

    Raises:
        TypeError: for an untyped key, inputs that are not floating, labels that are not integers.
        ValueError: for arguments that do not fit each other or values out of range; for
            ``"sobol"`` with a perturbation that has no latent.

    Source: Scher & Truegler, "Testing robustness of predictions of trained classifiers against
    naturally occurring perturbations", arXiv 2204.10046.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: jnp.stack([0 * x[:, 0], x @ w], axis=1)
        >>> result = jr.flip_probability(
        ...     apply_fn, jnp.array([1.0, 2.0]), jax.random.key(0), jnp.array([[1.0, 1.0]]),
        ...     perturbation=jr.perturbations.gaussian(1.0), num_samples=1000,
        ... )
        >>> exact = 0.0899  # Phi(-3 / sqrt(5))
        >>> bool((result.interval[0, 0] < exact) & (exact < result.interval[0, 1]))
        True
    """
    check_perturbation(perturbation)
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    perturbation.check_shapes(x.shape)
    num_classes = models.num_classes(apply_fn, params, x)
    num_samples = _checks.count("num_samples", num_samples)
    _checks.choice("sampling", sampling, SAMPLINGS)
    intervals.check_confidence(confidence)
    mesh = montecarlo.as_mesh(mesh)
    if labels is not None:
        labels = _checks.labels("labels", labels, x.shape[0], num_classes)
    directions = None
    if sampling == "sobol":
        num_samples = sobol.SCRAMBLES * -(-num_samples // sobol.SCRAMBLES)
        directions = sobol.direction_numbers(perturbation.latent_size(x.shape[1:]), num_samples)
    with montecarlo.progress_bar(progress, "flips") as bar:
        flips, invalid, reference = _count(
            params,
            key,
            x,
            labels,
            single(perturbation),
            directions,
            bar,
            apply_fn=apply_fn,
            num_samples=num_samples,
            chunk_size=chunk_size,
            mesh=mesh,
        )
    return _summarise(flips, invalid, reference, num_samples, confidence)


def reference_labels(
    apply_fn: models.ApplyFn, params: Any, x: Array, chunk_size: int | None, mesh: Mesh | None
) -> Array:
    """Labels of the clean predictions ``[n]``; -1 where there is none."""

    def label(params: Any, x: Array) -> Array:
        outputs = apply_fn(params, x)
        return jnp.where(is_valid(outputs), outputs.argmax(axis=-1), NO_LABEL)

    return montecarlo.map_examples(label, params, x, chunk_size=chunk_size, mesh=mesh)


def is_valid(outputs: Array) -> Array:
    """Whether each row ``[B, K]`` has a label: no NaN, and a finite maximum.

    A single ``-inf`` is a class that is ruled out, which is no failure.
    """
    return jnp.isfinite(outputs.max(axis=-1)) & ~jnp.isnan(outputs).any(axis=-1)


def flip_scores(apply_fn: models.ApplyFn, params: Any, x_hat: Array, reference: Array) -> Any:
    """``(flipped, invalid)`` ``[B]`` int32 for a batch of perturbed inputs."""
    outputs = apply_fn(params, x_hat)
    valid = is_valid(outputs) & (reference != NO_LABEL)
    flipped = valid & (outputs.argmax(axis=-1) != reference)
    return flipped.astype(jnp.int32), (~valid).astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("apply_fn", "num_samples", "chunk_size", "mesh"))
def _count(
    params: Any,
    key: Array,
    x: Array,
    labels: Array | None,
    points: Sweep,
    directions: Array | None,
    bar: Array | None,
    *,
    apply_fn: models.ApplyFn,
    num_samples: int,
    chunk_size: int | None,
    mesh: Mesh | None,
) -> tuple[Array, Array, Array]:
    """Flips and invalid draws ``[G, n]`` (G scrambles, or one group), and the labels ``[n]``."""
    reference = labels
    if reference is None:
        reference = reference_labels(apply_fn, params, x, chunk_size, mesh)
    draw_fn = montecarlo.keyed_draw
    if directions is not None:
        draw_fn = functools.partial(sobol.draw, directions, num_samples // sobol.SCRAMBLES)
    flips, invalid = montecarlo.reduce_draws(
        functools.partial(flip_scores, apply_fn),
        points,
        params,
        key,
        x,
        (reference,),
        num_replicates=num_samples,
        num_groups=1 if directions is None else sobol.SCRAMBLES,
        draw_fn=draw_fn,
        over="replicates",
        chunk_size=chunk_size,
        mesh=mesh,
        bar=bar,
    )
    return flips[0], invalid[0], reference


def _summarise(
    flips: Array, invalid: Array, reference: Array, num_samples: int, confidence: Any
) -> FlipProbability:
    """Probabilities and intervals from counts of flips and of invalid draws ``[G, n]``."""
    groups = flips.shape[0]
    sums = _sums(flips, invalid, num_samples=num_samples)
    interval = _ends_of(intervals.clopper_pearson(sums.possible, num_samples, confidence))
    pooled = intervals.clopper_pearson(sums.pooled, num_samples * flips.shape[1], confidence)
    mean_error = _ends_of(pooled)
    if groups > 1:
        size = num_samples // groups
        interval = _scramble_interval(flips, invalid, size, interval, confidence)
        mean_error = _scramble_mean(flips, invalid, size, mean_error, confidence)
    return FlipProbability(
        probability=sums.probability,
        interval=interval,
        robustness=sums.robustness,
        flips=sums.flips,
        num_samples=sums.num_samples,
        reference=reference,
        num_invalid=sums.invalid,
        mean=sums.mean,
        mean_interval=intervals.bounded_mean(sums.probability, confidence),
        mean_monte_carlo_interval=mean_error,
    )


class _Sums(NamedTuple):
    """What follows from the counts without any interval."""

    probability: Array
    robustness: Array
    mean: Array
    flips: Array
    invalid: Array
    num_samples: Array
    possible: Array  # [2, n]: flips, if no invalid draw was one and if all were
    pooled: Array  # [2]: the same of all examples together


@functools.partial(jax.jit, static_argnames="num_samples")
def _sums(flips: Array, invalid: Array, *, num_samples: int) -> _Sums:
    """Sums of counts of flips and of invalid draws ``[G, n]``.

    The flips of all examples together are a sum of independent draws of different probabilities,
    which spreads less than a binomial of their mean (Hoeffding 1956): Clopper-Pearson covers it.
    Their number may pass 2^31, so it is kept as a float, rounded outwards.
    """
    all_flips, all_invalid = flips.sum(axis=0), invalid.sum(axis=0)
    total = float(num_samples) * flips.shape[1]
    share = all_flips.astype(float).mean() / num_samples
    wrong = all_invalid.astype(float).mean() / num_samples
    probability = all_flips / (num_samples - all_invalid)
    pooled = [jnp.floor(share * total), jnp.ceil(jnp.minimum((share + wrong) * total, total))]
    return _Sums(
        probability=probability,
        robustness=1 - probability,
        mean=probability.mean(),
        flips=all_flips,
        invalid=all_invalid,
        num_samples=jnp.int32(num_samples),
        possible=jnp.stack([all_flips, all_flips + all_invalid]),
        pooled=jnp.stack(pooled),
    )


@jax.jit
def _ends_of(both: Array) -> Array:
    """From intervals ``[2, ..., 2]`` the lower end of the first and the upper end of the second.

    What an invalid draw would have been is unknown: the interval allows for either.
    """
    return jnp.stack([both[0, ..., 0], both[1, ..., 1]], axis=-1)


def _scramble_interval(
    flips: Array, invalid: Array, size: int, independent: Array, confidence: Any
) -> Array:
    """Student interval from independent scrambles; where they all agree, that of plain draws.

    Without any spread between scrambles (no flips at all, mostly) there is nothing to estimate an
    error from, and the interval of as many independent draws is the cautious answer.
    """
    groups = flips.shape[0]
    share = flips / size
    error = share.std(axis=0, ddof=1) / np.sqrt(groups)
    t = intervals.student_quantile(confidence, groups - 1)
    centre = share.mean(axis=0)
    worst = invalid.sum(axis=0) / (size * groups)
    ends = jnp.stack([centre - t * error, centre + worst + t * error], axis=-1)
    return jnp.where((error > 0)[:, None], jnp.clip(ends, 0, 1), independent)


def _scramble_mean(
    flips: Array, invalid: Array, size: int, independent: Array, confidence: Any
) -> Array:
    """Interval of the mean probability of these examples, from the spread of scrambles' means."""
    flips, invalid = flips.mean(axis=1)[:, None], invalid.mean(axis=1)[:, None]
    return _scramble_interval(flips, invalid, size, independent[None], confidence)[0]
