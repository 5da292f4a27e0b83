"""How sure: confidence intervals for counts, quantiles and means, whatever the model."""

from jaxrobust.intervals._common import check_confidence, student_quantile
from jaxrobust.intervals.binomial import binomial_sequence, clopper_pearson, decision_limits
from jaxrobust.intervals.means import bounded_mean
from jaxrobust.intervals.quantiles import (
    QuantileRanks,
    exact_fraction,
    order_statistics,
    quantile,
    quantile_ranks,
)

__all__ = [
    "QuantileRanks",
    "binomial_sequence",
    "bounded_mean",
    "check_confidence",
    "clopper_pearson",
    "decision_limits",
    "exact_fraction",
    "order_statistics",
    "quantile",
    "quantile_ranks",
    "student_quantile",
]
