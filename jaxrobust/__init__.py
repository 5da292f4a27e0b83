"""How robust is a trained network, really? Measures of robustness in JAX, with intervals."""

from jaxrobust import attacks, exact, fits, intervals, measures, models, perturbations
from jaxrobust.measures import (
    FlipDecision,
    FlipProbability,
    FlipVerdict,
    RobustnessCurve,
    ThetaRobustness,
    decide_flip,
    flip_probability,
    robustness_curve,
    theta_robustness,
)
from jaxrobust.perturbations.base import perturb
from jaxrobust.version import __version__

__all__ = [
    "FlipDecision",
    "FlipProbability",
    "FlipVerdict",
    "RobustnessCurve",
    "ThetaRobustness",
    "__version__",
    "attacks",
    "decide_flip",
    "exact",
    "fits",
    "flip_probability",
    "intervals",
    "measures",
    "models",
    "perturb",
    "perturbations",
    "robustness_curve",
    "theta_robustness",
]


def __getattr__(name: str) -> object:
    """Imports ``report`` and ``zoo`` when they are first asked for: they need optional packages."""
    if name in ("report", "zoo"):
        import importlib

        return importlib.import_module(f"jaxrobust.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
