"""CLEVER: how far a prediction lasts, and when not to believe the answer."""

from jaxrobust.measures.clever.comparison import Bracket, RadiusSweep, bracket, radius_sweep
from jaxrobust.measures.clever.score import CleverScore, clever_score
from jaxrobust.measures.clever.second_order import SecondOrderClever, clever_score_second_order
from jaxrobust.measures.clever.slope import SlopeScore, slope_score
from jaxrobust.measures.clever.status import CleverStatus

__all__ = [
    "Bracket",
    "CleverScore",
    "CleverStatus",
    "RadiusSweep",
    "SecondOrderClever",
    "SlopeScore",
    "bracket",
    "clever_score",
    "clever_score_second_order",
    "radius_sweep",
    "slope_score",
]
