"""Very small flip probabilities, by multilevel splitting in the latent normal space."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxrobust import _checks, intervals, models, montecarlo
from jaxrobust._convolutions import loop_friendly
from jaxrobust._keys import threefry
from jaxrobust.measures.flip.probability import NO_LABEL, is_valid, reference_labels
from jaxrobust.perturbations.base import Perturbation, check_perturbation, split_leaves

Array = jax.Array

# For latents [N, latent]: how far each is towards a flip, whether it flips, if it is invalid.
_Evaluate = Callable[[Array], tuple[Array, Array, Array]]

# The share of particles above the next level: about even between few levels and little variance.
_SURVIVORS = 0.2
# A move's share of fresh noise is tuned towards this acceptance.
_ACCEPTANCE = 0.35
_MAX_LEVELS = 60  # 0.2^60 is about 1e-42, below the smallest float32


class RareStatus(enum.IntEnum):
    """How far :func:`rare_flip_probability` got with an example."""

    OK = 0
    STUCK = 1  # some run found no flip: the margin is flat, or leads elsewhere, or levels ran out
    INVALID = 2  # some outputs were NaN or infinite


class RareFlip(NamedTuple):
    """What :func:`rare_flip_probability` found for n examples.

    Attributes:
        probability: ``[n]``; mean of the independent runs, an unbiased estimate. A run that found
            no flip counts as zero.
        interval: ``[n, 2]``; confidence interval, from the spread of the runs on a log scale. Where
            a run found no flip: from zero to the upper end for the last level that all runs
            reached, which lies below every flip.
        num_levels: ``[n]`` int; levels before the flip.
        num_evaluations: ``[n]`` int; model inputs it took.
        status: ``[n]`` int; a :class:`RareStatus`.
        reference: ``[n]`` int; the labels compared with; -1 where the clean input has none.
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
    num_runs: int = 20,
    num_moves: int = 10,
    confidence: Any = 0.95,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> RareFlip:
    """Flip probabilities too small for plain Monte Carlo, down to about 1e-12.

    A pilot run sets levels of the margin, a fifth of its particles above each one, on the way to a
    flip. Then independent runs climb these levels: at each one the particles below are replaced by
    copies of those above, and all move by steps that leave the normal distribution of the latent
    invariant (so dimension does not matter) and are refused when they fall below the level. The
    product of the shares above each level is an unbiased estimate, as the levels do not depend on
    the run, and the spread of the runs gives the interval.

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
        num_runs: independent runs besides the pilot, at least 2.
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
    the moves of Papaioannou et al. 2015, ibid. 41, 89-103; fixed levels as in Cerou et al. 2012,
    Statistics and Computing 22, 795-808, where levels taken from the run itself bias it upwards.

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
    pilot, runs, reference = _climb_all(
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
    stuck = ~pilot.finished | (runs.flips == 0).any(axis=1)
    spoilt = pilot.spoilt | runs.spoilt.any(axis=1)
    status = jnp.where(stuck, RareStatus.STUCK, RareStatus.OK)
    per_run = num_particles * (1 + pilot.num_levels * num_moves)
    return RareFlip(
        probability=jnp.exp(runs.log_probability).mean(axis=1),
        interval=_interval(pilot.num_levels, runs, stuck, spoilt, num_particles, confidence),
        num_levels=pilot.num_levels,
        num_evaluations=per_run * (num_runs + 1),
        status=jnp.where(spoilt, RareStatus.INVALID, status),
        reference=reference,
    )


def _interval(
    num_levels: Array,
    runs: _Run,
    stuck: Array,
    spoilt: Array,
    num_particles: int,
    confidence: Any,
) -> Array:
    """Interval ``[n, 2]`` of each probability: from what all runs of an example know."""
    # Particles above each level [n, runs, levels + 1], the flips being the last one.
    counts = jnp.concatenate([runs.alive, runs.flips[..., None]], axis=-1)
    climbed = _log_interval(counts, num_particles, confidence)
    # A run that died knows nothing of what is above: all of them count up to where one died.
    reached = jnp.cumprod((runs.alive > 0).all(axis=1, keepdims=True), axis=-1) > 0
    below = jnp.where(reached, runs.alive, num_particles)
    ceiling = _log_interval(below, num_particles, confidence).at[:, 0].set(0)
    # Without levels the particles are plain draws: their counts are exact, zero included.
    num_draws = num_particles * runs.flips.shape[1]
    counted = intervals.clopper_pearson(runs.flips.sum(axis=1), num_draws, confidence)
    interval = jnp.where(stuck[:, None], ceiling, climbed)
    interval = jnp.where((num_levels == 0)[:, None], counted, interval)
    # What an invalid output would have been is unknown: it may have been a flip.
    invalid = runs.invalid_draws.sum(axis=1)
    allowance = intervals.clopper_pearson(invalid, num_draws, confidence)[:, 1]
    upper = interval[:, 1] + jnp.where(spoilt, allowance, 0)
    return jnp.stack([interval[:, 0], jnp.minimum(upper, 1)], axis=1)


def _log_interval(counts: Array, num_particles: int, confidence: Any) -> Array:
    """Interval ``[n, 2]`` of a product of shares from runs that spread like log-normal ones.

    A product of many shares is close to log-normal, skewed enough that the plain Student interval
    of the estimates falls short. The mean of a log-normal is ``exp(mean + variance / 2)`` of its
    logarithms, and both parts have known errors (Cox; in Land 1972, Technometrics 14, 145-158).

    Few runs may agree by chance. Particles that are copies of each other know less than independent
    ones, so the variance is at least that of independent ones at every level.

    Args:
        counts: ``[n, runs, levels]``; particles above each level.
        num_particles: of each run; a level that all are above changes nothing.
        confidence: of the interval.
    """
    runs = counts.shape[1]
    share = jnp.maximum(counts, 1) / num_particles
    logs = jnp.log(share).sum(axis=-1)
    least = ((1 - share) / (num_particles * share)).sum(axis=-1).mean(axis=1)
    variance = jnp.maximum(logs.var(axis=1, ddof=1), least)
    centre = logs.mean(axis=1) + variance / 2
    error = jnp.sqrt(variance / runs + jnp.square(variance) / (2 * (runs - 1)))
    reach = intervals.student_quantile(confidence, runs - 1) * error
    return jnp.exp(jnp.stack([centre - reach, centre + reach], axis=1))


class _Pilot(NamedTuple):
    """What the pilot run found: the way up."""

    thresholds: Array  # [_MAX_LEVELS]
    steps: Array  # [_MAX_LEVELS]
    num_levels: Array
    finished: Array  # enough particles flipped above the last level
    spoilt: Array  # some outputs were invalid


class _Run(NamedTuple):
    """What a run found on it."""

    log_probability: Array  # -inf where none flipped
    alive: Array  # [_MAX_LEVELS] int; particles above each level; all of them where there is none
    flips: Array  # int; particles that flipped at the end
    invalid_draws: Array  # int; of the first, independent draws
    spoilt: Array


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
) -> tuple[_Pilot, _Run, Array]:
    """Pilots ``[n]``, runs ``[n, runs]`` and reference labels ``[n]``."""
    reference = labels
    if reference is None:
        reference = reference_labels(apply_fn, params, x, chunk_size, mesh)
    num_particles, num_runs, num_moves = sizes
    key = threefry(key)
    own, merge = split_leaves(perturbation, x.ndim - 1)
    apply_in_loop = loop_friendly(apply_fn)
    dtype = jnp.promote_types(x.dtype, jnp.float32)

    def one(params: Any, i: Array, x_i: Array, reference_i: Array, own_i: Any) -> Any:
        mine = merge(own_i)
        size = (num_particles, mine.latent_size(x_i.shape))

        def evaluate(z: Array) -> tuple[Array, Array, Array]:
            x_hat = jax.vmap(lambda z: mine.transform(z, x_i))(z).astype(x_i.dtype)
            level, flipped, invalid = _level(apply_in_loop(params, x_hat), reference_i)
            return level.astype(dtype), flipped, invalid

        def key_of(r: Array | int) -> Array:
            return jax.random.fold_in(jax.random.fold_in(key, r), i)

        pilot = _explore(evaluate, key_of(0), size, num_moves, dtype)

        def run(r: Array) -> _Run:
            return _climb(evaluate, pilot, key_of(r), size, num_moves, dtype)

        return pilot, jax.lax.map(run, 1 + jnp.arange(num_runs))

    def each(params: Any, x: Array, i: Array, reference: Array, own: Any) -> Any:
        return jax.lax.map(lambda args: one(params, *args), (i, x, reference, own))

    args = (jnp.arange(x.shape[0]), reference, own)
    pilot, runs = montecarlo.map_examples(each, params, x, *args, chunk_size=x.shape[0], mesh=mesh)
    return pilot, runs, reference


def _level(outputs: Array, label: Array) -> tuple[Array, Array, Array]:
    """How far each row is towards a flip, whether it flipped, and whether it is invalid."""
    own = outputs[:, label]
    others = jnp.where(jnp.arange(outputs.shape[1])[None, :] == label, -jnp.inf, outputs)
    valid = is_valid(outputs) & (label != NO_LABEL)
    level = jnp.where(valid, others.max(axis=1) - own, -jnp.inf)
    return level, valid & (outputs.argmax(axis=1) != label), ~valid


class _Particles(NamedTuple):
    z: Array  # [N, latent]
    level: Array  # [N] how far towards a flip: best other output minus own
    flipped: Array  # [N] bool
    spoilt: Array  # was any output invalid so far?


def _first(evaluate: _Evaluate, key: Array, size: tuple[int, int], dtype: Any) -> Any:
    """Independent particles, and which of them are invalid."""
    z = jax.random.normal(jax.random.fold_in(key, 0), size, dtype)
    level, flipped, invalid = evaluate(z)
    return _Particles(z, level, flipped, invalid.any()), invalid


def _move(
    evaluate: _Evaluate, key: Array, particles: _Particles, threshold: Array, step: Array
) -> tuple[_Particles, Array]:
    """One step of every particle that keeps the normal above the threshold; who took it."""
    key_fresh = jax.random.fold_in(key, 0)
    fresh = jax.random.normal(key_fresh, particles.z.shape, particles.z.dtype)
    proposal = jnp.sqrt(1 - jnp.square(step)) * particles.z + step * fresh
    level, flipped, invalid = evaluate(proposal)
    accept = level >= threshold
    moved = _Particles(
        z=jnp.where(accept[:, None], proposal, particles.z),
        level=jnp.where(accept, level, particles.level),
        flipped=jnp.where(accept, flipped, particles.flipped),
        spoilt=particles.spoilt | invalid.any(),
    )
    return moved, accept


def _take(particles: _Particles, parents: Array) -> _Particles:
    return particles._replace(
        z=particles.z[parents],
        level=particles.level[parents],
        flipped=particles.flipped[parents],
    )


class _Search(NamedTuple):
    """The pilot run on its way."""

    particles: _Particles
    thresholds: Array
    steps: Array
    step: Array
    number: Array
    finished: Array
    stuck: Array


def _explore(
    evaluate: _Evaluate, key: Array, size: tuple[int, int], num_moves: int, dtype: Any
) -> _Pilot:
    """Climbs with levels and steps of its own choice, and reports these."""
    num = size[0]
    survivors = max(1, int(_SURVIVORS * num))
    particles, _ = _first(evaluate, key, size, dtype)

    start = _Search(
        particles,
        jnp.zeros(_MAX_LEVELS, dtype),
        jnp.ones(_MAX_LEVELS, dtype),
        jnp.asarray(0.5, dtype),
        jnp.int32(0),
        particles.flipped.mean() >= _SURVIVORS,
        jnp.bool_(False),
    )

    def climb(state: _Search) -> _Search:
        order = jnp.argsort(-state.particles.level)
        threshold = state.particles.level[order[survivors - 1]]
        alive = (state.particles.level >= threshold).sum()  # more than a fifth, with ties
        stuck = (alive == num) | jnp.isneginf(threshold)
        parents = order[jnp.arange(num) % alive]
        key_level = jax.random.fold_in(key, state.number + 1)

        def move(carry: Any, number: Array) -> tuple[Any, None]:
            particles, step = carry
            key_move = jax.random.fold_in(key_level, number)
            particles, accept = _move(evaluate, key_move, particles, threshold, step)
            step = jnp.clip(step * jnp.exp(accept.mean() - _ACCEPTANCE), 1e-3, 1.0)
            return (particles, step), None

        start = (_take(state.particles, parents), state.step)
        (particles, step), _ = jax.lax.scan(move, start, jnp.arange(num_moves))
        return _Search(
            particles,
            state.thresholds.at[state.number].set(threshold),
            state.steps.at[state.number].set(step.astype(dtype)),
            step.astype(dtype),
            state.number + jnp.where(stuck, 0, 1),  # a level that all are above is none
            ~stuck & (particles.flipped.mean() >= _SURVIVORS),
            stuck,
        )

    def goes_on(state: _Search) -> Array:
        return ~state.finished & ~state.stuck & (state.number < _MAX_LEVELS)

    end = jax.lax.while_loop(goes_on, climb, start)
    return _Pilot(end.thresholds, end.steps, end.number, end.finished, end.particles.spoilt)


def _climb(
    evaluate: _Evaluate,
    pilot: _Pilot,
    key: Array,
    size: tuple[int, int],
    num_moves: int,
    dtype: Any,
) -> _Run:
    """One run on the pilot's levels."""
    num = size[0]
    particles, invalid = _first(evaluate, key, size, dtype)

    def climb(number: Array, state: tuple[_Particles, Array]) -> tuple[_Particles, Array]:
        particles, counts = state
        threshold, step = pilot.thresholds[number], pilot.steps[number]
        key_level = jax.random.fold_in(key, number + 1)
        alive = (particles.level >= threshold).sum()
        some = jnp.maximum(alive, 1)
        # Every survivor gets as many copies as the others, or one more: whose turn it is to get
        # one more is random, or the estimate would be biased.
        turn = jax.random.randint(jax.random.fold_in(key_level, num_moves), (), 0, some)
        parents = jnp.argsort(-particles.level)[(jnp.arange(num) + turn) % some]

        def move(particles: _Particles, number: Array) -> tuple[_Particles, None]:
            key_move = jax.random.fold_in(key_level, number)
            return _move(evaluate, key_move, particles, threshold, step)[0], None

        particles, _ = jax.lax.scan(move, _take(particles, parents), jnp.arange(num_moves))
        return particles, counts.at[number].set(alive)

    start = (particles, jnp.full(_MAX_LEVELS, num))
    particles, alive = jax.lax.fori_loop(0, pilot.num_levels, climb, start)
    flips = jnp.where((alive > 0).all(), particles.flipped.sum(), 0)
    log_reach = jnp.log(jnp.maximum(alive, 1).astype(dtype) / num).sum()
    return _Run(
        log_probability=log_reach + jnp.log(flips.astype(dtype) / num),
        alive=alive,
        flips=flips,
        invalid_draws=invalid.sum(),
        spoilt=particles.spoilt,
    )
