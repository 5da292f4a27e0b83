"""The measures of robustness, one file or folder each; they do not know each other."""

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
    "FlipDecision",
    "FlipProbability",
    "FlipVerdict",
    "RobustnessCurve",
    "ThetaRobustness",
    "decide_flip",
    "flip_probability",
    "robustness_curve",
    "theta_robustness",
]
