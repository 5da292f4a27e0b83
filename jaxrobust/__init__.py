"""How robust is a trained network, really? Four measures of robustness in JAX."""

from jaxrobust import attacks, exact, fits, intervals, measures, models, perturbations
from jaxrobust.measures.theta import (
    RobustnessCurve,
    ThetaRobustness,
    robustness_curve,
    theta_robustness,
)
from jaxrobust.perturbations.base import perturb
from jaxrobust.version import __version__

__all__ = [
    "RobustnessCurve",
    "ThetaRobustness",
    "__version__",
    "attacks",
    "exact",
    "fits",
    "intervals",
    "measures",
    "models",
    "perturb",
    "perturbations",
    "robustness_curve",
    "theta_robustness",
]
