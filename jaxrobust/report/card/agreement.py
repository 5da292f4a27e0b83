"""Whether measures order examples alike: Spearman's rank correlation, with bootstrap intervals."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from scipy import stats

_FEWEST = 4


class RankCorrelation(NamedTuple):
    """Of two measures.

    Attributes:
        rho: Spearman's correlation; NaN for fewer than four pairs, or where a measure is constant.
        interval: percentile bootstrap; NaN where a twentieth of the resamples have no correlation.
        num_pairs: examples that have both.
    """

    rho: float
    interval: tuple[float, float]
    num_pairs: int


def rank_correlations(
    columns: dict[str, np.ndarray], rng: np.random.Generator, num_resamples: int, confidence: float
) -> list[list[RankCorrelation]]:
    """The matrix of rank correlations; NaN is left out pair by pair, infinity ties at the top."""
    values = list(columns.values())
    found = {}
    for i, j in itertools.combinations_with_replacement(range(len(values)), 2):
        used = ~(np.isnan(values[i]) | np.isnan(values[j]))
        pair = (values[i][used], values[j][used])
        found[i, j] = found[j, i] = _of_pair(*pair, rng, num_resamples, confidence)
    return [[found[i, j] for j in range(len(values))] for i in range(len(values))]


def _of_pair(
    a: np.ndarray, b: np.ndarray, rng: np.random.Generator, num_resamples: int, confidence: float
) -> RankCorrelation:
    nan = float("nan")
    if len(a) < _FEWEST:
        return RankCorrelation(nan, (nan, nan), len(a))
    rho = float(spearman(a, b))
    drawn = rng.integers(0, len(a), (num_resamples, len(a)))
    resampled = spearman(a[drawn], b[drawn])
    defined = resampled[~np.isnan(resampled)]
    if np.isnan(rho) or len(defined) < 0.95 * num_resamples:
        return RankCorrelation(rho, (nan, nan), len(a))
    tail = (1 - confidence) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return RankCorrelation(rho, (float(low), float(high)), len(a))


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Correlation of ranks along the last axis, ties sharing theirs; NaN where one is constant."""
    a, b = (stats.rankdata(values, axis=-1) for values in (a, b))
    a, b = (ranks - ranks.mean(axis=-1, keepdims=True) for ranks in (a, b))
    size = np.sqrt(np.sum(a * a, axis=-1) * np.sum(b * b, axis=-1))
    return np.where(size > 0, np.sum(a * b, axis=-1) / np.where(size > 0, size, 1.0), np.nan)
