"""The measures of robustness, one file each; they do not know each other."""

from jaxrobust.measures.theta import (
    RobustnessCurve,
    ThetaRobustness,
    robustness_curve,
    theta_robustness,
)

__all__ = ["RobustnessCurve", "ThetaRobustness", "robustness_curve", "theta_robustness"]
