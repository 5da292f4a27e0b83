"""Very small flip probabilities, by multilevel splitting in the latent normal space."""

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
from jaxrobust.measures.flip.probability import is_valid, reference_labels
from jaxrobust.perturbations.base import Perturbation, check_perturbation, split_leaves

Array = jax.Array

# The share of particles that survives a level: about even between few levels and little variance.
_SURVIVORS = 0.2
# A move's share of fresh noise is tuned towards this acceptance.
_ACCEPTANCE = 0.35
_MAX_LEVELS = 60  # 0.2^60 is about 1e-42, below the smallest float32


class RareStatus(enum.IntEnum):
    """How far :func:`rare_flip_probability` got with an example."""

    OK = 0
    STUCK = 1  # some run found no way up: the margin is flat, or levels ran out
    INVALID = 2  # some outputs were NaN or infinite


class RareFlip(NamedTuple):
    """What :func:`rare_flip_probability` found for n examples.

    Attributes:
        probability: ``[n]``; mean of the independent runs. Runs that got stuck count as zero.
        interval: ``[n, 2]``; confidence interval, from the spread of the runs on a log scale. Where
            a run got stuck: from zero to the largest level probability that any run reached.
        num_levels: ``[n]`` int; most levels that a run climbed.
        num_evaluations: ``[n]`` int; model inputs it took.
        status: ``[n]`` int; a :class:`RareStatus`.
        reference: ``[n]`` int; the labels compared with.
    """

    probability: Array
    interval: Array
    num_levels: Array
    num_evaluations: Array
    status: Array
    reference: Array


def rare_flip_probability(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    *,
    perturbation: Perturbation,
    labels: Array | None = None,
    num_particles: int = 1000,
    num_runs: int = 16,
    num_moves: int = 10,
    confidence: Any = 0.95,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> RareFlip:
    """Flip probabilities too small for plain Monte Carlo, down to about 1e-12.

    Particles climb through levels of the margin towards a flip: at each level the worst four fifths
    are replaced by copies of the rest, which then move by steps that leave the normal distribution
    of the latent invariant (so dimension does not matter) and are refused when they fall below the
    level. The probability is the product of the shares that survived. Independent runs give the
    interval.

    The margin must lead somewhere: give logits, not saturated probabilities or labels. Where it
    does not, ``status`` says so. Several separate regions of failure may be missed by some runs;
    the interval shows their spread, not what all of them missed.

    Args:
        apply_fn: classifier, as in :func:`flip_probability`, like all arguments not listed here.
        params: the model's parameters.
        key: typed PRNG key.
        x: inputs ``[n, ...]``.
        perturbation: what can happen to each example; one with a latent.
        labels: integer labels ``[n]`` to compare with, instead of the clean predictions.
        num_particles: in each run, at least 20.
        num_runs: independent runs, at least 2.
        num_moves: moves of every particle at each level.
        confidence: of the interval.
        chunk_size: inputs for one call of the model on clean inputs (a run needs
            ``num_particles`` at once).
        mesh: devices to share the examples, with the axis "examples".

    Returns:
        A :class:`RareFlip`.

    Raises:
        TypeError: as :func:`flip_probability`.
        ValueError: as :func:`flip_probability`, and for a perturbation without a latent.

    Source: Au & Beck 2001, Probabilistic Engineering Mechanics 16, 263-277 (subset simulation);
    the moves of Papaioannou et al. 2015, ibid. 41, 89-103.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: jnp.stack([0 * x[:, 0], x @ w], axis=1)
        >>> rare = jr.rare_flip_probability(
        ...     apply_fn, jnp.array([1.0, 0.0]), jax.random.key(0), jnp.array([[6.0, 0.0]]),
        ...     perturbation=jr.perturbations.gaussian(1.0),
        ... )
        >>> bool(0.7 < rare.probability[0] / 9.87e-10 < 1.4)  # Phi(-6)
        True
    """
    check_perturbation(perturbation)
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    perturbation.check_shapes(x.shape)
    perturbation.latent_size(x.shape[1:])
    num_classes = models.num_classes(apply_fn, params, x)
    num_particles = _checks.count("num_particles", num_particles, minimum=20)
    num_runs = _checks.count("num_runs", num_runs, minimum=2)
    num_moves = _checks.count("num_moves", num_moves)
    intervals.check_confidence(confidence)
    mesh = montecarlo.as_mesh(mesh)
    if labels is not None:
        labels = _checks.labels("labels", labels, x.shape[0], num_classes)
    runs, reference = _climb_all(
        params,
        key,
        x,
        labels,
        perturbation,
        apply_fn=apply_fn,
        sizes=(num_particles, num_runs, num_moves),
        chunk_size=chunk_size,
        mesh=mesh,
    )
    stuck, invalid = ~runs.finished.all(axis=1), (runs.num_invalid > 0).any(axis=1)
    estimates = jnp.where(runs.finished, jnp.exp(runs.log_probability), 0)
    probability = estimates.mean(axis=1)
    # On a log scale, where the product of many shares is close to normal.
    spread = estimates.std(axis=1, ddof=1) / np.sqrt(num_runs)
    relative = spread / jnp.where(probability > 0, probability, 1)
    reach = jnp.exp(intervals.student_quantile(confidence, num_runs - 1) * relative)
    interval = jnp.stack([probability / reach, jnp.minimum(probability * reach, 1)], axis=1)
    ceiling = jnp.exp(runs.log_probability).max(axis=1)
    open_interval = jnp.stack([jnp.zeros_like(ceiling), ceiling], axis=1)
    status = jnp.where(stuck, RareStatus.STUCK, RareStatus.OK)
    levels = runs.num_levels
    return RareFlip(
        probability=probability,
        interval=jnp.where(stuck[:, None], open_interval, interval),
        num_levels=levels.max(axis=1),
        num_evaluations=(num_particles * (1 + levels * num_moves)).sum(axis=1),
        status=jnp.where(invalid, RareStatus.INVALID, status),
        reference=reference,
    )


class _Run(NamedTuple):
    """One run's particles on their way up."""

    z: Array  # [N, latent]
    level: Array  # [N] how far towards a flip: best other output minus own
    flipped: Array  # [N] bool
    log_probability: Array
    num_levels: Array
    finished: Array
    stuck: Array
    num_invalid: Array
    step: Array


class _Outcome(NamedTuple):
    log_probability: Array
    num_levels: Array
    finished: Array
    num_invalid: Array


@functools.partial(jax.jit, static_argnames=("apply_fn", "sizes", "chunk_size", "mesh"))
def _climb_all(
    params: Any,
    key: Array,
    x: Array,
    labels: Array | None,
    perturbation: Perturbation,
    *,
    apply_fn: models.ApplyFn,
    sizes: tuple[int, int, int],
    chunk_size: int | None,
    mesh: Mesh | None,
) -> tuple[_Outcome, Array]:
    """Outcomes ``[n, runs]`` and reference labels ``[n]``."""
    reference = labels
    if reference is None:
        reference = reference_labels(apply_fn, params, x, chunk_size, mesh)
    num_particles, num_runs, num_moves = sizes
    key = threefry(key)
    own, merge = split_leaves(perturbation, x.ndim - 1)

    def one(params: Any, i: Array, x_i: Array, reference_i: Array, own_i: Any) -> _Outcome:
        mine = merge(own_i)

        def evaluate(z: Array) -> tuple[Array, Array, Array]:
            x_hat = jax.vmap(lambda z: mine.transform(z, x_i))(z).astype(x_i.dtype)
            return _level(apply_fn(params, x_hat), reference_i)

        def run(r: Array) -> _Outcome:
            run_key = jax.random.fold_in(jax.random.fold_in(key, r), i)
            size = (num_particles, mine.latent_size(x_i.shape))
            return _climb(evaluate, run_key, size, num_moves, jnp.promote_types(x.dtype, "float32"))

        return jax.lax.map(run, jnp.arange(num_runs))

    def each(params: Any, x: Array, i: Array, reference: Array, own: Any) -> Any:
        return jax.lax.map(lambda args: one(params, *args), (i, x, reference, own))

    args = (jnp.arange(x.shape[0]), reference, own)
    outcomes = montecarlo.map_examples(each, params, x, *args, chunk_size=x.shape[0], mesh=mesh)
    return outcomes, reference


def _level(outputs: Array, label: Array) -> tuple[Array, Array, Array]:
    """How far each row is towards a flip, whether it flipped, and whether it is invalid."""
    own = outputs[:, label]
    others = jnp.where(jnp.arange(outputs.shape[1])[None, :] == label, -jnp.inf, outputs)
    valid = is_valid(outputs)
    level = jnp.where(valid, others.max(axis=1) - own, -jnp.inf)
    return level, valid & (outputs.argmax(axis=1) != label), ~valid


def _climb(
    evaluate: Any, key: Array, size: tuple[int, int], num_moves: int, dtype: Any
) -> _Outcome:
    """One run of adaptive multilevel splitting."""
    num = size[0]
    survivors = max(1, int(_SURVIVORS * num))
    z = jax.random.normal(jax.random.fold_in(key, 0), size, dtype)
    level, flipped, invalid = evaluate(z)
    start = _Run(
        z=z,
        level=level,
        flipped=flipped,
        log_probability=jnp.zeros((), dtype),
        num_levels=jnp.int32(0),
        finished=flipped.mean() >= _SURVIVORS,
        stuck=jnp.bool_(False),
        num_invalid=invalid.sum(),
        step=jnp.asarray(0.5, dtype),
    )

    def climb(state: _Run) -> _Run:
        order = jnp.argsort(-state.level)
        threshold = state.level[order[survivors - 1]]
        # With ties more than a fifth may be at the threshold: the true share is what counts.
        alive = (state.level >= threshold).sum()
        stuck = (alive == num) | jnp.isneginf(threshold)
        parents = order[jnp.arange(num) % alive]
        key_level = jax.random.fold_in(key, state.num_levels + 1)

        def move(carry: tuple, number: Array) -> tuple[tuple, None]:
            z, level, flipped, bad, step = carry
            fresh = jax.random.normal(jax.random.fold_in(key_level, number), size, dtype)
            proposal = jnp.sqrt(1 - step**2) * z + step * fresh
            new_level, new_flipped, invalid = evaluate(proposal)
            accept = new_level >= threshold
            z = jnp.where(accept[:, None], proposal, z)
            level = jnp.where(accept, new_level, level)
            flipped = jnp.where(accept, new_flipped, flipped)
            step = jnp.clip(step * jnp.exp(accept.mean() - _ACCEPTANCE), 1e-3, 1.0)
            return (z, level, flipped, bad + invalid.sum(), step), None

        particles = (state.z[parents], state.level[parents], state.flipped[parents])
        (z, level, flipped, bad, step), _ = jax.lax.scan(
            move, (*particles, state.num_invalid, state.step), jnp.arange(num_moves)
        )
        log_share = jnp.log(alive.astype(dtype) / num)
        return _Run(
            z=z,
            level=level,
            flipped=flipped,
            log_probability=state.log_probability + jnp.where(stuck, 0, log_share),
            num_levels=state.num_levels + 1,
            finished=~stuck & (flipped.mean() >= _SURVIVORS),
            stuck=stuck,
            num_invalid=bad,
            step=step,
        )

    def goes_on(state: _Run) -> Array:
        return ~state.finished & ~state.stuck & (state.num_levels < _MAX_LEVELS)

    end = jax.lax.while_loop(goes_on, climb, start)
    share = jnp.where(end.finished, end.flipped.mean(), 1)
    return _Outcome(
        log_probability=end.log_probability + jnp.log(share).astype(dtype),
        num_levels=end.num_levels,
        finished=end.finished,
        num_invalid=end.num_invalid,
    )
