"""Deciding whether a flip probability is below a threshold, with as few draws as it takes."""

from __future__ import annotations

import enum
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrobust import _checks, intervals, models, montecarlo
from jaxrobust._keys import threefry
from jaxrobust.measures.flip.probability import flip_scores, reference_labels
from jaxrobust.perturbations.base import (
    Perturbation,
    check_perturbation,
    split_leaves,
)

Array = jax.Array

# Looks so far, flips, invalid draws, verdict.
_State = tuple[Array, Array, Array, Array]

# Draws between two looks: the batch of one model call.
_BLOCK = 256


class FlipVerdict(enum.IntEnum):
    """What :func:`decide_flip` says of an example."""

    UNDECIDED = 0
    BELOW = 1
    ABOVE = 2


class FlipDecision(NamedTuple):
    """What :func:`decide_flip` found for n examples.

    Attributes:
        verdict: ``[n]`` int; a :class:`FlipVerdict`: the flip probability is BELOW the threshold,
            ABOVE it, or UNDECIDED after ``max_samples`` draws (or for invalid outputs).
        num_samples: ``[n]`` int; draws it took.
        interval: ``[n, 2]``; confidence interval when it stopped, valid although stopping depended
            on the draws. Invalid draws count as no flip in its lower and as flips in its upper end.
        flips: ``[n]`` int; draws that flipped.
        num_invalid: ``[n]`` int; draws without a label (see ``flip_probability``).
        reference: ``[n]`` int; the labels compared with; -1 where the clean input has none.
    """

    verdict: Array
    num_samples: Array
    interval: Array
    flips: Array
    num_invalid: Array
    reference: Array


def decide_flip(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    *,
    perturbation: Perturbation,
    threshold: Any,
    confidence: Any = 0.95,
    max_samples: int = 100_000,
    labels: Array | None = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> FlipDecision:
    """Decides for each example whether its flip probability is below a threshold.

    After every block of draws a confidence sequence is looked at, which is valid at all times
    together: each verdict is wrong with probability at most ``1 - confidence``, however soon it
    stopped. Examples far from any boundary stop after a few blocks. The draws are the first ones
    of :func:`flip_probability` with the same key.

    Args:
        apply_fn: classifier, as in :func:`flip_probability`, like all arguments not listed here.
        params: the model's parameters.
        key: typed PRNG key.
        x: inputs ``[n, ...]``.
        perturbation: what can happen to each example.
        threshold: the probability to compare with, in (0, 1).
        confidence: of each verdict and interval.
        max_samples: draws after which an example stays undecided.
        labels: integer labels ``[n]`` to compare with, instead of the clean predictions.
        chunk_size: inputs for one call of the model: the draws between two looks, at most 256.
        mesh: devices to share the work, with the axis "examples".

    Returns:
        A :class:`FlipDecision`.

    Raises:
        TypeError: as :func:`flip_probability`.
        ValueError: as :func:`flip_probability`, and for a threshold outside (0, 1), several of
            them, or a mesh with the axis "replicates".

    Source: Robbins 1970, Annals of Mathematical Statistics 41, 1397-1409 (mixture sequences).

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: jnp.stack([0 * x[:, 0], x @ w], axis=1)
        >>> decision = jr.decide_flip(
        ...     apply_fn, jnp.array([1.0, 2.0]), jax.random.key(0),
        ...     jnp.array([[9.0, 1.0], [0.1, 0.0]]), threshold=0.01,
        ...     perturbation=jr.perturbations.gaussian(1.0),
        ... )
        >>> [jr.FlipVerdict(v).name for v in decision.verdict], decision.num_samples.tolist()
        (['BELOW', 'ABOVE'], [512, 256])
    """
    check_perturbation(perturbation)
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    perturbation.check_shapes(x.shape)
    num_classes = models.num_classes(apply_fn, params, x)
    max_samples = _checks.count("max_samples", max_samples)
    _check_threshold(threshold)
    intervals.check_confidence(confidence)
    mesh = montecarlo.as_mesh(mesh)
    if mesh is not None and "replicates" in mesh.axis_names:
        raise ValueError(
            "mesh must have the axis 'examples' only: the draws of one example are looked at one"
            f" block after the other; got axes {mesh.axis_names}."
        )
    if labels is not None:
        labels = _checks.labels("labels", labels, x.shape[0], num_classes)
    block = min(_BLOCK, montecarlo.chunk_examples(chunk_size, x.shape[1:]), max_samples)
    looks = block * np.arange(1, max_samples // block + 1)
    limits = intervals.decision_limits(looks, threshold, confidence)
    flips, invalid, drawn, verdict, reference = _decide(
        params,
        key,
        x,
        labels,
        perturbation,
        limits,
        apply_fn=apply_fn,
        block=block,
        chunk_size=chunk_size,
        mesh=mesh,
    )
    lower = intervals.binomial_sequence(flips, drawn, confidence, around=threshold)[..., 0]
    upper = intervals.binomial_sequence(flips + invalid, drawn, confidence, around=threshold)
    return FlipDecision(
        verdict=verdict,
        num_samples=drawn,
        interval=jnp.stack([lower, upper[..., 1]], axis=-1),
        flips=flips,
        num_invalid=invalid,
        reference=reference,
    )


def _check_threshold(threshold: Any) -> None:
    if _checks.real_array("threshold", threshold).ndim:
        raise ValueError(
            f"threshold must be one number for all examples; got {_checks.describe(threshold)}."
        )
    _checks.values("threshold", threshold, lambda v: (v > 0) & (v < 1), "between 0 and 1")


@functools.partial(jax.jit, static_argnames=("apply_fn", "block", "chunk_size", "mesh"))
def _decide(
    params: Any,
    key: Array,
    x: Array,
    labels: Array | None,
    perturbation: Perturbation,
    limits: Array,
    *,
    apply_fn: models.ApplyFn,
    block: int,
    chunk_size: int | None,
    mesh: Mesh | None,
) -> tuple[Array, Array, Array, Array, Array]:
    """Counts, draws and verdicts ``[n]``.

    ``limits [looks, 2]``: at most, or at least, so many flips decide for BELOW, or ABOVE.
    """
    reference = labels
    if reference is None:
        reference = reference_labels(apply_fn, params, x, chunk_size, mesh)
    key = threefry(key)
    own, merge = split_leaves(perturbation, x.ndim - 1)

    def one(params: Any, i: Array, x_i: Array, reference_i: Array, own_i: Any) -> Any:
        mine = merge(own_i)
        x_block = jnp.broadcast_to(x_i, (block, *x_i.shape))
        labels_block = jnp.broadcast_to(reference_i, (block,))

        def look(state: _State) -> _State:
            number, flips, invalid, _ = state
            draw = functools.partial(montecarlo.keyed_draw, mine, key)
            replicates = number * block + jnp.arange(block)
            noise = jax.vmap(lambda j: draw(j, i, x_i))(replicates)
            # One example's own parameters are shared by all draws of its block.
            x_hat = jax.vmap(lambda z: mine.transform(z, x_i))(noise)
            new = flip_scores(apply_fn, params, x_hat.astype(x_block.dtype), labels_block)
            flips, invalid = flips + new[0].sum(), invalid + new[1].sum()
            below = flips + invalid <= limits[number, 0]
            above = flips >= limits[number, 1]
            verdict = jnp.where(below, FlipVerdict.BELOW, FlipVerdict.UNDECIDED)
            verdict = jnp.where(above, FlipVerdict.ABOVE, verdict)
            return number + 1, flips, invalid, verdict

        def goes_on(state: _State) -> Array:
            return (state[0] < limits.shape[0]) & (state[3] == FlipVerdict.UNDECIDED)

        zero = jnp.int32(0)
        number, flips, invalid, verdict = jax.lax.while_loop(
            goes_on, look, (zero, zero, zero, zero)
        )
        return flips, invalid, number * block, verdict

    def each(params: Any, x: Array, i: Array, reference: Array, own: Any) -> Any:
        return jax.lax.map(lambda args: one(params, *args), (i, x, reference, own))

    out = montecarlo.map_examples(
        each, params, x, jnp.arange(x.shape[0]), reference, own, chunk_size=x.shape[0], mesh=mesh
    )
    return (*out, reference)
