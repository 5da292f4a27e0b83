"""The measures of robustness, one file or folder each; they do not know each other."""

from jaxrobust.measures.directional import (
    DirectionalRisk,
    ErrorSearch,
    KappaAt,
    RiskBins,
    RiskCorrelation,
    TableRow,
    directional_risk,
    directional_table,
    error_search,
    format_table,
    kappa_at,
    risk_by_certainty,
    risk_correlation,
)
from jaxrobust.measures.flip import (
    FlipDecision,
    FlipProbability,
    FlipVerdict,
    decide_flip,
    flip_probability,
)
from jaxrobust.measures.theta import (
    RobustnessCurve,
    ThetaRobustness,
    robustness_curve,
    theta_robustness,
)

__all__ = [
    "DirectionalRisk",
    "ErrorSearch",
    "FlipDecision",
    "FlipProbability",
    "FlipVerdict",
    "KappaAt",
    "RiskBins",
    "RiskCorrelation",
    "RobustnessCurve",
    "TableRow",
    "ThetaRobustness",
    "decide_flip",
    "directional_risk",
    "directional_table",
    "error_search",
    "flip_probability",
    "format_table",
    "kappa_at",
    "risk_by_certainty",
    "risk_correlation",
    "robustness_curve",
    "theta_robustness",
]
