"""What a directional risk says in few numbers: kappa at a level, rank correlations, bins."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrobust import _checks, intervals
from jaxrobust.measures.directional.risk import DirectionalRisk

Array = jax.Array

AGAINST = ("uniform", "certainty")


class KappaAt(NamedTuple):
    """What :func:`kappa_at` found; ``float(...)`` of it is ``kappa``.

    Attributes:
        kappa: scalar; the smallest kappa with a mean risk of the level or more; ``inf`` if the
            sweep never reaches it, NaN if a mean is not defined.
        interval: ``[2]``; bootstrap interval; an end is ``inf`` where the resampled curves do not
            reach the level.
    """

    kappa: Array
    interval: Array

    def __float__(self) -> float:
        return float(self.kappa)


def kappa_at(
    directional_risk: DirectionalRisk,
    level: Any = 0.25,
    *,
    confidence: Any = 0.95,
    interpolate: bool = True,
) -> KappaAt:
    """The smallest kappa at which the mean risk reaches a level.

    The smaller it is, the less the noise must lean towards the attack to be as bad: 0 (or the
    smallest kappa of the sweep) when noise that does not lean already is.

    The interval is the percentile bootstrap over the correct examples: each of the resampled mean
    curves in ``directional_risk.resampled`` is read in the same way. It holds the Monte Carlo error
    of each example too, and is exact only for many examples.

    Args:
        directional_risk: from :func:`directional_risk`.
        level: of the mean risk, in (0, 1]; the paper's kappa_.25 by default.
        confidence: of the interval.
        interpolate: read the curve as straight between the points of the sweep; False gives the
            first point of the sweep that reaches the level.

    Returns:
        A :class:`KappaAt`.

    Raises:
        TypeError: for what is not a :class:`DirectionalRisk`.
        ValueError: for a level outside (0, 1] or a confidence outside (0, 1).

    Source: "How Worst-Case Are Adversarial Attacks? Linking Adversarial and Statistical
    Robustness" 2026: kappa_.25.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> x = jnp.tile(jnp.array([[0.9, 0.1]]), (20, 1))
        >>> result = jr.directional_risk(
        ...     jnp.add, jnp.zeros((1, 2)), jax.random.key(0), x, jnp.zeros(20, int), 1 - x,
        ...     norm="l2", kappas=jnp.array([0.0, 1.0]),
        ... )
        >>> found = jr.kappa_at(result, level=0.5)  # between a risk of .333 and one of .696
        >>> bool(0.35 < found.kappa < 0.55), bool(found.interval[0] < found.interval[1])
        (True, True)
    """
    _check_result(directional_risk)
    _checks.values("level", level, lambda v: (v > 0) & (v <= 1), "above 0 and at most 1")
    intervals.check_confidence(confidence)
    return _kappa_at(
        directional_risk.kappa,
        directional_risk.mean,
        directional_risk.resampled,
        level,
        confidence,
        interpolate=bool(interpolate),
    )


@functools.partial(jax.jit, static_argnames="interpolate")
def _kappa_at(
    kappa: Array, mean: Array, resampled: Array, level: Any, confidence: Any, *, interpolate: bool
) -> KappaAt:
    cross = functools.partial(_first_crossing, kappa, level, interpolate)
    found = jnp.sort(jax.vmap(cross)(resampled))
    # Order statistics, not interpolated quantiles: some of them may be infinite.
    last = found.shape[0] - 1
    tail = (1 - confidence) / 2
    ends = [jnp.floor(tail * last), jnp.ceil((1 - tail) * last)]
    interval = found[jnp.stack(ends).astype(jnp.int32)]
    undefined = jnp.isnan(mean).any()
    return KappaAt(
        jnp.where(undefined, jnp.nan, cross(mean)), jnp.where(undefined, jnp.nan, interval)
    )


def _first_crossing(kappa: Array, level: Any, interpolate: bool, curve: Array) -> Array:
    """The first kappa ``[K]`` at which a curve ``[K]`` is at the level or above; inf if none."""
    reached = curve >= level
    first = reached.argmax()
    before = jnp.maximum(first - 1, 0)
    rise = curve[first] - curve[before]
    share = jnp.where(rise > 0, (level - curve[before]) / jnp.where(rise > 0, rise, 1), 1)
    between = kappa[before] + share * (kappa[first] - kappa[before])
    at = between if interpolate else kappa[first]
    return jnp.where(reached.any(), jnp.where(first == 0, kappa[0], at), jnp.inf)


class RiskCorrelation(NamedTuple):
    """What :func:`risk_correlation` found.

    Attributes:
        kappa: ``[K]``; as in the directional risk.
        correlation: ``[K]``; Spearman's rank correlation over the correct examples; NaN where
            either quantity is the same for all of them.
        interval: ``[K, 2]``; approximate interval (Bonett & Wright); ``[-1, 1]`` for fewer than
            four examples, NaN together with the correlation.
        num_examples: scalar int; how many examples.
    """

    kappa: Array
    correlation: Array
    interval: Array
    num_examples: Array


def risk_correlation(
    directional_risk: DirectionalRisk, *, against: str = "uniform", confidence: Any = 0.95
) -> RiskCorrelation:
    """Are the examples at risk near the attack those at risk under plain noise, or unsure ones?

    Args:
        directional_risk: from :func:`directional_risk`.
        against: ``"uniform"``: the risk at kappa 0, which must be in the sweep; ``"certainty"``:
            the probability that the model gives to its own label of the clean input (a negative
            correlation: examples that it is unsure of are at more risk).
        confidence: of each interval.

    Returns:
        A :class:`RiskCorrelation`.

    Raises:
        TypeError: for what is not a :class:`DirectionalRisk`.
        ValueError: for an unknown ``against``, ``"uniform"`` without kappa 0 in the sweep, or a
            confidence outside (0, 1).

    Source: Bonett & Wright 2000, Psychometrika 65, 23-28, for the interval.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> margin = jnp.linspace(0.1, 0.7, 20)
        >>> x = jnp.stack([margin, 0 * margin], axis=1)
        >>> result = jr.directional_risk(
        ...     jnp.add, jnp.zeros((1, 2)), jax.random.key(0), x, jnp.zeros(20, int),
        ...     x + jnp.array([[-0.5, 0.5]]), norm="l2", kappas=jnp.array([0.0, 1.0]),
        ... )
        >>> found = jr.measures.risk_correlation(result)
        >>> bool((found.correlation > 0.5).all())
        True
    """
    _check_result(directional_risk)
    _checks.choice("against", against, AGAINST)
    intervals.check_confidence(confidence)
    other = directional_risk.certainty
    if against == "uniform":
        _checks.values(
            "directional_risk.kappa[0]",
            directional_risk.kappa[0],
            lambda v: v == 0,
            'zero to correlate with the risk of uniform noise (put 0 into kappas, or against="'
            'certainty")',
        )
        other = directional_risk.risk[0]
    return _risk_correlation(
        directional_risk.kappa, directional_risk.risk, other, directional_risk.correct, confidence
    )


@jax.jit
def _risk_correlation(
    kappa: Array, risk: Array, other: Array, correct: Array, confidence: Any
) -> RiskCorrelation:
    total = correct.sum()
    other_rank = _ranks(other, correct)

    def spearman(row: Array) -> Array:
        a, b = _ranks(row, correct), other_rank
        spread = jnp.sqrt((a * a).sum() * (b * b).sum())
        value = (a * b).sum() / jnp.where(spread > 0, spread, 1)
        undefined = (spread == 0) | (correct & (jnp.isnan(row) | jnp.isnan(other))).any()
        return jnp.where(undefined, jnp.nan, jnp.clip(value, -1, 1))

    r = jax.vmap(spearman)(risk)
    inside = jnp.clip(r, -1 + 1e-6, 1 - 1e-6)
    error = jnp.sqrt((1 + r * r / 2) / jnp.maximum(total - 3, 1))
    reach = jax.scipy.special.ndtri(0.5 + jnp.asarray(confidence, r.dtype) / 2) * error
    ends = jnp.tanh(jnp.stack([jnp.arctanh(inside) - reach, jnp.arctanh(inside) + reach], axis=-1))
    few = jnp.where(jnp.isnan(r), jnp.nan, 1)
    ends = jnp.where(total > 3, ends, jnp.stack([-few, few], axis=-1))
    return RiskCorrelation(kappa, r, ends, total)


def _ranks(values: Array, where: Array) -> Array:
    """Ranks less their mean (ties share theirs) of the chosen values; 0 for the others."""
    ordered = jnp.sort(jnp.where(where, values, jnp.inf))
    left = jnp.searchsorted(ordered, values, side="left")
    right = jnp.searchsorted(ordered, values, side="right")
    # Twice the rank is a whole number; so is its sum, exact in float32 up to thousands of examples.
    rank = (left + right + 1).astype(values.dtype) / 2
    return jnp.where(where, rank - (where.sum() + 1) / 2, 0)


class RiskBins(NamedTuple):
    """What :func:`risk_by_certainty` found, in G groups from the least to the most certain.

    Attributes:
        kappa: ``[K]``; as in the directional risk.
        certainty: ``[G]``; mean certainty of each group.
        risk: ``[K, G]``; mean risk of each group.
        interval: ``[K, G, 2]``; interval of each mean.
        num_examples: ``[G]`` int; correct examples in each group.
    """

    kappa: Array
    certainty: Array
    risk: Array
    interval: Array
    num_examples: Array


def risk_by_certainty(
    directional_risk: DirectionalRisk, *, num_groups: int = 4, confidence: Any = 0.95
) -> RiskBins:
    """Mean risk of the correct examples in groups of equal size, by how sure the model is of them.

    Args:
        directional_risk: from :func:`directional_risk`.
        num_groups: G; equal certainties are parted in the order of the examples.
        confidence: of each interval.

    Returns:
        A :class:`RiskBins`; NaN in a group without examples.

    Raises:
        TypeError: for what is not a :class:`DirectionalRisk`, or ``num_groups`` that is no int.
        ValueError: for ``num_groups`` below 1 or a confidence outside (0, 1).

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> margin = jnp.linspace(0.1, 0.7, 20)
        >>> x = jnp.stack([margin, 0 * margin], axis=1)
        >>> result = jr.directional_risk(
        ...     jnp.add, jnp.zeros((1, 2)), jax.random.key(0), x, jnp.zeros(20, int),
        ...     x + jnp.array([[-0.5, 0.5]]), norm="l2", kappas=jnp.array([0.0, 1.0]),
        ... )
        >>> groups = jr.measures.risk_by_certainty(result, num_groups=2)
        >>> groups.num_examples.tolist(), bool((groups.risk[:, 0] > groups.risk[:, 1]).all())
        ([10, 10], True)
    """
    _check_result(directional_risk)
    num_groups = _checks.count("num_groups", num_groups)
    intervals.check_confidence(confidence)
    return _risk_by_certainty(
        directional_risk.kappa,
        directional_risk.risk,
        directional_risk.certainty,
        directional_risk.correct,
        confidence,
        num_groups=num_groups,
    )


@functools.partial(jax.jit, static_argnames="num_groups")
def _risk_by_certainty(
    kappa: Array, risk: Array, certainty: Array, correct: Array, confidence: Any, *, num_groups: int
) -> RiskBins:
    order = jnp.argsort(jnp.where(correct, certainty, jnp.inf), stable=True)
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0]))
    group = place * num_groups // jnp.maximum(correct.sum(), 1)

    def one(number: Array) -> tuple[Array, ...]:
        mine = correct & (group == number)

        def mean(row: Array) -> Array:
            return jnp.where(mine, row, 0).sum() / mine.sum()

        def interval(row: Array) -> Array:
            return intervals.bounded_mean(row, confidence, where=mine)

        return mean(certainty), jax.vmap(mean)(risk), jax.vmap(interval)(risk), mine.sum()

    means, risks, ends, counts = jax.vmap(one, out_axes=(0, 1, 1, 0))(jnp.arange(num_groups))
    return RiskBins(kappa, means, risks, ends, counts)


def _check_result(value: Any) -> None:
    if not isinstance(value, DirectionalRisk):
        raise TypeError(
            "directional_risk must be a DirectionalRisk, what jaxrobust.directional_risk returns;"
            f" got {_checks.describe(value)}."
        )
