"""Monte Carlo error search: does any of T random perturbations find an error?"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrobust import _checks, intervals, models, montecarlo
from jaxrobust.measures.directional import means
from jaxrobust.measures.directional.risk import judge
from jaxrobust.perturbations.base import Perturbation, check_perturbation
from jaxrobust.perturbations.sweep import Sweep, single

Array = jax.Array


class ErrorSearch(NamedTuple):
    """What :func:`error_search` found for n examples and N draws.

    Attributes:
        found: ``[n]`` bool; whether any of the N draws has a label that is not the truth. True for
            an initially wrong example only if a draw shows it.
        errors: ``[n]`` int; how many draws have.
        num_samples: scalar int; N.
        rate: scalar; share of the initially correct examples for which an error was found. NaN if
            there are none.
        rate_interval: ``[2]``; Clopper-Pearson interval of that share.
        num_draws: ``[P]`` int; T = 1, 2, 4, ... and N.
        curve: ``[P]``; expected share found with T draws, over all ways to choose T of the N: it
            rises smoothly, and ends at ``rate``.
        curve_interval: ``[P, 2]``; interval of each share over the population that the examples
            were drawn from.
        correct: ``[n]`` bool; whether the model labels the clean input rightly; the others are left
            out of ``rate`` and ``curve``.
        num_invalid: ``[n]`` int; draws whose outputs are NaN or have no finite maximum; no errors.
    """

    found: Array
    errors: Array
    num_samples: Array
    rate: Array
    rate_interval: Array
    num_draws: Array
    curve: Array
    curve_interval: Array
    correct: Array
    num_invalid: Array


def error_search(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    labels: Array,
    *,
    perturbation: Perturbation,
    num_samples: int,
    confidence: Any = 0.95,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> ErrorSearch:
    """Looks for an error among N random perturbations of each example.

    The baseline that an attack must beat: how many errors does plain noise find, and how does that
    grow with the number of draws? With c errors in N draws, T of them find one with probability
    ``1 - C(N - c, T) / C(N, T)``, whose mean over examples is the curve. It costs ``(N + 1) n``
    model inputs.

    Args:
        apply_fn: classifier ``apply_fn(params, x [B, ...]) -> outputs [B, C]``.
        params: the model's parameters, any pytree.
        key: typed PRNG key.
        x: clean inputs ``[n, ...]``, floating.
        labels: the true classes ``[n]``, integers.
        perturbation: from :mod:`jaxrobust.perturbations`, such as ``uniform_sphere`` or
            ``uniform_ball``.
        num_samples: N, draws of each example.
        confidence: of every interval.
        chunk_size: inputs for one call of the model; bounds the memory. None picks one.
        mesh: devices to share the work, with the axes "replicates" and/or "examples".
        progress: show a progress bar (needs tqdm).

    Returns:
        An :class:`ErrorSearch`.

    Raises:
        TypeError: for an untyped key, inputs that are not floating, labels that are not integers.
        ValueError: for arguments that do not fit each other, or values out of range.

    Source: the curve is the unbiased estimator of Chen et al. 2021, arXiv 2107.03374, equation 1.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = lambda w, x: jnp.stack([0 * x[:, 0], x[:, 0] - 0.9], axis=1)
        >>> result = jr.error_search(
        ...     apply_fn, None, jax.random.key(0), jnp.zeros((5, 2)), jnp.zeros(5, int),
        ...     perturbation=jr.perturbations.uniform_sphere(1.0, norm="l2"), num_samples=64,
        ... )
        >>> float(result.rate), result.num_draws.tolist()
        (1.0, [1, 2, 4, 8, 16, 32, 64])
    """
    check_perturbation(perturbation)
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    perturbation.check_shapes(x.shape)
    num_classes = models.num_classes(apply_fn, params, x)
    labels = _checks.labels("labels", labels, x.shape[0], num_classes)
    num_samples = _checks.count("num_samples", num_samples)
    intervals.check_confidence(confidence)
    mesh = montecarlo.as_mesh(mesh)
    with montecarlo.progress_bar(progress, "error search") as bar:
        found = _search(
            params,
            key,
            x,
            labels,
            single(perturbation),
            confidence,
            bar,
            apply_fn=apply_fn,
            num_samples=num_samples,
            chunk_size=chunk_size,
            mesh=mesh,
        )
    hits = (found["found"] & found["correct"]).sum()
    rate_interval = intervals.clopper_pearson(hits, found["correct"].sum(), confidence)
    return ErrorSearch(**found, rate_interval=rate_interval, num_samples=jnp.int32(num_samples))


@functools.partial(jax.jit, static_argnames=("apply_fn", "num_samples", "chunk_size", "mesh"))
def _search(
    params: Any,
    key: Array,
    x: Array,
    labels: Array,
    point: Sweep,
    confidence: Any,
    bar: Array | None,
    *,
    apply_fn: models.ApplyFn,
    num_samples: int,
    chunk_size: int | None,
    mesh: Mesh | None,
) -> dict[str, Array]:
    def score(params: Any, x: Array, labels: Array) -> tuple[Array, Array]:
        wrong, invalid = judge(apply_fn(params, x), labels)
        return wrong.astype(jnp.int32), invalid.astype(jnp.int32)

    wrong, invalid = montecarlo.map_examples(
        score, params, x, labels, chunk_size=chunk_size, mesh=mesh
    )
    correct = (wrong == 0) & (invalid == 0)
    errors, num_invalid = (
        total[0]
        for total in montecarlo.reduce_draws(
            score,
            point,
            params,
            key,
            x,
            (labels,),
            num_replicates=num_samples,
            over="replicates",
            chunk_size=chunk_size,
            mesh=mesh,
            bar=bar,
        )
    )
    num_draws, table = _chance_table(num_samples)
    chances = jnp.asarray(table, x.dtype)[:, errors]  # [P, n]
    return {
        "found": errors > 0,
        "errors": errors,
        "rate": ((errors > 0) & correct).sum() / correct.sum(),
        "num_draws": jnp.asarray(num_draws, jnp.int32),
        "curve": means.masked_mean(chances, correct),
        "curve_interval": means.mean_intervals(chances, correct, confidence),
        "correct": correct,
        "num_invalid": num_invalid,
    }


def _chance_table(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """T ``[P]``, and the chance ``[P, N + 1]`` that T of N draws hold one of c errors."""
    powers = 2 ** np.arange(max(1, int(np.ceil(np.log2(num_samples)))))
    num_draws = np.unique(np.append(powers[powers < num_samples], num_samples))
    # C(N - c, T) / C(N, T) is the product over i < c of (N - T - i) / (N - i).
    left = num_samples - np.arange(num_samples)
    none = np.cumprod(np.maximum(1 - num_draws[:, None] / left, 0), axis=1)
    return num_draws, 1 - np.concatenate([np.ones((len(num_draws), 1)), none], axis=1)
