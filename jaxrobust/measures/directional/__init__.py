"""Directional noisy risk: from noise to the worst case."""

from jaxrobust.measures.directional.risk import DirectionalRisk, directional_risk
from jaxrobust.measures.directional.search import ErrorSearch, error_search
from jaxrobust.measures.directional.summaries import (
    KappaAt,
    RiskBins,
    RiskCorrelation,
    kappa_at,
    risk_by_certainty,
    risk_correlation,
)
from jaxrobust.measures.directional.table import TableRow, directional_table, format_table

__all__ = [
    "DirectionalRisk",
    "ErrorSearch",
    "KappaAt",
    "RiskBins",
    "RiskCorrelation",
    "TableRow",
    "directional_risk",
    "directional_table",
    "error_search",
    "format_table",
    "kappa_at",
    "risk_by_certainty",
    "risk_correlation",
]
