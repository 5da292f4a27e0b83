"""Directional noisy risk: how much of the neighbourhood of an attack's direction also fails."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrobust import _checks, intervals, models, montecarlo
from jaxrobust.measures.directional import means
from jaxrobust.perturbations.directional import Directional
from jaxrobust.perturbations.norms import NORMS, lp_norm
from jaxrobust.perturbations.sweep import Sweep

Array = jax.Array
Bounds = tuple[Any, Any] | None

# A kappa this close to kappa* (relatively) is kappa*.
_SAME = 1e-6


class DirectionalRisk(NamedTuple):
    """What :func:`directional_risk` found at K values of kappa, for n examples and N draws.

    Means are over the initially correct examples only (``correct``); those that the attack failed
    on stay in.

    Attributes:
        kappa: ``[K]``; increasing, with ``kappa_star`` among them.
        risk: ``[K, n]``; share of the valid draws whose label is not the truth. NaN where no draw
            was valid.
        mean: ``[K]``; mean risk over the correct examples. NaN where ``num_correct`` is 0, or such
            an example has no valid draw.
        mean_interval: ``[K, 2]``; interval of the mean over the population that the examples were
            drawn from, each by itself; it holds the Monte Carlo error too. ``[0, 1]`` where
            ``num_correct`` is 0.
        kappa_star: scalar; ``D ** (1 / 4)``.
        risk_at_kappa_star: scalar; the mean there.
        attack_success_rate: scalar; share of the correct examples that the attack turned wrong. NaN
            where ``num_correct`` is 0.
        radius: ``[n]``; lp norm of the noise: of ``x_adv - x``, unless given.
        correct: ``[n]`` bool; whether the model labels the clean input rightly.
        interval: ``[K, n, 2]``; Clopper-Pearson interval of each risk. Invalid draws count as right
            in its lower end and as wrong in its upper end.
        attack_success_interval: ``[2]``; Clopper-Pearson interval of that rate.
        num_correct: scalar int; how many examples the means are over.
        num_samples: scalar int; N.
        errors: ``[K, n]`` int; draws whose label is not the truth.
        num_invalid: ``[K, n]`` int; draws whose outputs are NaN or have no finite maximum.
        succeeded: ``[n]`` bool; whether the label of ``x_adv`` is not the truth.
        zero_direction: ``[n]`` bool; the attack did not move the input (``x_adv == x``), so there
            is nothing to lean along: the noise has radius 0, or is uniform if a radius was given.
        realised_norm: ``[K, n]``; mean lp norm of the noise after clipping to ``bounds``.
        clipped_fraction: ``[K, n]``; mean share of the features that ``bounds`` changed.
        certainty: ``[n]``; probability that the model gives to its own label of the clean input.
        resampled: ``[B, K]``; the mean curve of B bootstrap samples of the correct examples.
    """

    kappa: Array
    risk: Array
    mean: Array
    mean_interval: Array
    kappa_star: Array
    risk_at_kappa_star: Array
    attack_success_rate: Array
    radius: Array
    correct: Array
    interval: Array
    attack_success_interval: Array
    num_correct: Array
    num_samples: Array
    errors: Array
    num_invalid: Array
    succeeded: Array
    zero_direction: Array
    realised_norm: Array
    clipped_fraction: Array
    certainty: Array
    resampled: Array


def directional_risk(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    labels: Array,
    x_adv: Array,
    *,
    norm: str,
    kappas: Array,
    num_samples: int = 256,
    bounds: Bounds = None,
    radius: Any = None,
    outputs: str = "logits",
    confidence: Any = 0.95,
    num_resamples: int = 1000,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> DirectionalRisk:
    """The probability of error under noise that leans towards an attack, from noise to worst case.

    For each example, noise is drawn on the lp sphere that the attacked input lies on, leaning along
    ``x_adv - x`` with strength kappa (see :func:`jaxrobust.perturbations.directional`). At kappa 0
    it is plain noise of that size; as kappa grows it becomes the attack. The noise is drawn once
    for the whole sweep, so neighbouring points are strongly correlated. The sweep costs ``K N n``
    model inputs, and the clean and the attacked inputs ``2 n`` more.

    Args:
        apply_fn: classifier ``apply_fn(params, x [B, ...]) -> outputs [B, C]``; the label is the
            class of the largest output.
        params: the model's parameters, any pytree.
        key: typed PRNG key. Draw j of example i comes from ``fold_in(fold_in(key, j), i)``,
            whatever the chunk size or the devices.
        x: clean inputs ``[n, ...]``, floating.
        labels: the true classes ``[n]``, integers.
        x_adv: attacked inputs, of the shape of ``x``, from any attack in any norm; or the
            ``AttackResult`` that holds them.
        norm: of the noise: ``"l1"``, ``"l2"`` or ``"linf"``. It need not be the attack's.
        kappas: ``[K]``, not negative; data, so other values do not retrace. They are sorted, and
            ``D ** (1 / 4)`` is added unless it is among them (within a trace: always).
        num_samples: N, draws of each example.
        bounds: ``(lower, upper)``: clips the noisy inputs into a box. By default they are not
            clipped, as in the paper.
        radius: of the noise, a scalar or ``[n]``; by default the norm of ``x_adv - x``.
        outputs: whether the model gives ``"logits"`` or ``"probabilities"``; for ``certainty``.
        confidence: of every interval.
        num_resamples: B, bootstrap samples of the examples, for :func:`kappa_at`.
        chunk_size: inputs for one call of the model; bounds the memory. None picks one.
        mesh: devices to share the work, with the axes "replicates" and/or "examples".
        progress: show a progress bar (needs tqdm).

    Returns:
        A :class:`DirectionalRisk`.

    Raises:
        TypeError: for an untyped key, inputs that are not floating, labels that are not integers.
        ValueError: for arguments that do not fit each other or values out of range, such as a
            negative or NaN kappa.

    Source: "How Worst-Case Are Adversarial Attacks? Linking Adversarial and Statistical
    Robustness" 2026: its directional noisy risk R(kappa), kappa* and kappa_.25.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> apply_fn = jnp.add  # two inputs, two classes: the logits are x + params
        >>> x = jnp.tile(jnp.array([[0.9, 0.1]]), (20, 1))
        >>> x_adv = x + jnp.array([[-0.8, 0.8]])  # the boundary is half way
        >>> result = jr.directional_risk(
        ...     apply_fn, jnp.zeros((1, 2)), jax.random.key(0), x, jnp.zeros(20, int), x_adv,
        ...     norm="l2", kappas=jnp.array([0.0, 1.0]),
        ... )
        >>> exact = jr.exact.linear_directional(2, 0.5, result.kappa)
        >>> exact.round(3).tolist(), bool(abs(result.mean - exact).max() < 0.03)
        ([0.333, 0.696, 0.755], True)
    """
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    num_classes = models.num_classes(apply_fn, params, x)
    labels = _checks.labels("labels", labels, x.shape[0], num_classes)
    x_adv = _checks.examples("x_adv", getattr(x_adv, "x_adv", x_adv))
    if x_adv.shape != x.shape:
        raise ValueError(f"x_adv must have the shape of x, {x.shape}; got shape {x_adv.shape}.")
    _checks.choice("norm", norm, NORMS)
    _checks.choice("outputs", outputs, models.OUTPUTS)
    kappas = _with_kappa_star(kappas, kappa_star(x.shape[1:]), x.dtype)
    num_samples = _checks.count("num_samples", num_samples)
    num_resamples = _checks.count("num_resamples", num_resamples)
    intervals.check_confidence(confidence)
    mesh = montecarlo.as_mesh(mesh)
    radius = _check_radius(radius, x)
    box = None if bounds is None else _checks.box(bounds, x)
    with montecarlo.progress_bar(progress, "directional risk") as bar:
        found = _measure(
            params,
            key,
            x,
            labels,
            x_adv.astype(x.dtype),
            kappas,
            radius,
            box,
            bar,
            apply_fn=apply_fn,
            norm=norm,
            outputs=outputs,
            num_samples=num_samples,
            chunk_size=chunk_size,
            mesh=mesh,
        )
    errors, invalid = found["errors"], found["num_invalid"]
    risk = errors / (num_samples - invalid)
    averages = means.summarise(key, risk, found["correct"], confidence, num_resamples=num_resamples)
    hits, num_correct = (found["succeeded"] & found["correct"]).sum(), found["correct"].sum()
    # What an invalid draw would have been is unknown: the interval allows for either.
    ends = [
        intervals.clopper_pearson(errors, num_samples, confidence)[..., 0],
        intervals.clopper_pearson(errors + invalid, num_samples, confidence)[..., 1],
    ]
    star = kappa_star(x.shape[1:])
    return DirectionalRisk(
        **found,
        kappa=kappas,
        risk=risk,
        mean=averages.mean,
        mean_interval=averages.interval,
        kappa_star=jnp.asarray(star, kappas.dtype),
        risk_at_kappa_star=averages.mean[jnp.abs(kappas - star).argmin()],
        attack_success_rate=hits / num_correct,
        interval=jnp.stack(ends, axis=-1),
        attack_success_interval=intervals.clopper_pearson(hits, num_correct, confidence),
        num_correct=num_correct,
        num_samples=jnp.int32(num_samples),
        resampled=averages.resampled,
    )


def kappa_star(event_shape: tuple[int, ...]) -> float:
    """``D ** (1 / 4)`` for inputs of a shape."""
    return math.prod(event_shape) ** 0.25


def _with_kappa_star(kappas: Any, star: float, dtype: Any) -> Array:
    """Sorted kappas ``[K]``, kappa* among them."""
    kappas = _checks.real_array("kappas", kappas)
    if kappas.ndim != 1:
        raise ValueError(f"kappas must have shape [K]; got {_checks.describe(kappas)}.")
    _checks.non_negative("kappas", kappas)
    kappas = kappas.astype(dtype)
    if _checks.is_concrete(kappas) and np.isclose(kappas, star, rtol=_SAME, atol=0).any():
        return jnp.sort(kappas)
    return jnp.sort(jnp.append(kappas, jnp.asarray(star, dtype)))


def _check_radius(radius: Any, x: Array) -> Array | None:
    if radius is None:
        return None
    radius = _checks.real_array("radius", radius)
    _checks.non_negative("radius", radius)
    if radius.shape not in ((), x.shape[:1]):
        raise ValueError(
            f"radius must be one number or one for each of the {x.shape[0]} examples of x;"
            f" got {_checks.describe(radius)}."
        )
    return jnp.broadcast_to(radius.astype(x.dtype), x.shape[:1])


def _like(bound: Array, x: Array) -> Array:
    """A bound for each example, of the shape and dtype of x."""
    own = bound if bound.shape == x.shape else jnp.broadcast_to(bound, x.shape[1:])[None]
    return jnp.broadcast_to(own, x.shape).astype(x.dtype)


class _Scores(NamedTuple):
    """Of one noisy input each ``[B]``, or summed over draws ``[K, n]``."""

    errors: Array
    invalid: Array
    realised_norm: Array | None = None
    clipped: Array | None = None


def judge(outputs: Array, labels: Array) -> tuple[Array, Array]:
    """``(wrong, invalid)`` ``[B]`` bool: the label is not the truth; there is no label.

    A row of outputs ``[B, C]`` has no label if it holds NaN or has no finite maximum.
    """
    valid = jnp.isfinite(outputs.max(axis=-1)) & ~jnp.isnan(outputs).any(axis=-1)
    return valid & (outputs.argmax(axis=-1) != labels), ~valid


def _score(
    apply_fn: models.ApplyFn, norm: str, params: Any, x_hat: Array, labels: Array, box: Any
) -> _Scores:
    """Scores a batch of noisy inputs; with a box ``(x, lower, upper)``, clips them first."""
    noisy = x_hat if box is None else jnp.clip(x_hat, box[1], box[2])
    wrong, invalid = judge(apply_fn(params, noisy), labels)
    scores = _Scores(wrong.astype(jnp.int32), invalid.astype(jnp.int32))
    if box is None:
        return scores
    changed = (noisy != x_hat).reshape(x_hat.shape[0], -1)
    return scores._replace(
        realised_norm=jax.vmap(lambda noise: lp_norm(noise, norm))(noisy - box[0]),
        clipped=changed.mean(axis=1, dtype=x_hat.dtype),
    )


def _look(
    apply_fn: models.ApplyFn, outputs: str, params: Any, x: Array, labels: Array
) -> tuple[Array, Array, Array]:
    """``(correct, wrong, certainty)`` ``[B]`` of inputs as they are."""
    out = apply_fn(params, x)
    wrong, invalid = judge(out, labels)
    shares = jax.nn.softmax(out, axis=-1) if outputs == "logits" else out
    return ~wrong & ~invalid, wrong, shares.max(axis=-1)


@functools.partial(
    jax.jit,
    static_argnames=(
        "apply_fn",
        "norm",
        "outputs",
        "num_samples",
        "chunk_size",
        "mesh",
    ),
)
def _measure(
    params: Any,
    key: Array,
    x: Array,
    labels: Array,
    x_adv: Array,
    kappas: Array,
    radius: Array | None,
    box: tuple[Array, Array] | None,
    bar: Array | None,
    *,
    apply_fn: models.ApplyFn,
    norm: str,
    outputs: str,
    num_samples: int,
    chunk_size: int | None,
    mesh: Mesh | None,
) -> dict[str, Array]:
    """What is known of each example."""
    num_examples = x.shape[0]
    # Each input next to its attack, so that a device that holds the one holds the other.
    correct, wrong, certainty = montecarlo.map_examples(
        functools.partial(_look, apply_fn, outputs),
        params,
        jnp.stack([x, x_adv], axis=1).reshape(-1, *x.shape[1:]),
        jnp.repeat(labels, 2),
        chunk_size=chunk_size,
        mesh=mesh,
    )
    direction = x_adv - x
    if radius is None:
        radius = jax.vmap(lambda d: lp_norm(d, norm))(direction)
    if box is not None:
        box = (x, *(_like(b, x) for b in box))  # type: ignore[assignment]
    total = montecarlo.reduce_draws(
        functools.partial(_score, apply_fn, norm),
        _sweep(direction, kappas, radius, norm),
        params,
        key,
        x,
        (labels, box),
        num_replicates=num_samples,
        over="replicates",
        chunk_size=chunk_size,
        mesh=mesh,
        bar=bar,
    )
    shape = total.errors.shape
    return {
        "radius": radius,
        "correct": correct[::2],
        "errors": total.errors,
        "num_invalid": total.invalid,
        "succeeded": wrong[1::2],
        "zero_direction": (direction == 0).reshape(num_examples, -1).all(axis=1),
        "realised_norm": (
            jnp.broadcast_to(radius, shape) if box is None else total.realised_norm / num_samples
        ),
        "clipped_fraction": (
            jnp.zeros(shape, x.dtype) if box is None else total.clipped / num_samples
        ),
        "certainty": certainty[::2],
    }


def _sweep(direction: Array, kappas: Array, radius: Array, norm: str) -> Sweep:
    """The noise at every kappa; direction and radius are kept once, also within a trace."""
    leaves, treedef = jax.tree.flatten(Directional(direction, kappas, radius, norm))
    is_kappa = jax.tree.leaves(Directional(False, True, False, norm))  # type: ignore[arg-type]
    shared = tuple(leaf for leaf, own in zip(leaves, is_kappa, strict=True) if not own)
    return Sweep((kappas,), shared, kappas.shape[0], tuple(is_kappa), treedef)
