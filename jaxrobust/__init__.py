"""How robust is a trained network, really? Measures of robustness in JAX, with intervals."""

from jaxrobust import attacks, exact, fits, intervals, measures, models, perturbations
from jaxrobust.measures import (
    DirectionalRisk,
    ErrorSearch,
    FlipDecision,
    FlipProbability,
    FlipVerdict,
    KappaAt,
    RobustnessCurve,
    ThetaRobustness,
    decide_flip,
    directional_risk,
    error_search,
    flip_probability,
    kappa_at,
    robustness_curve,
    theta_robustness,
)
from jaxrobust.perturbations.base import perturb
from jaxrobust.version import __version__

__all__ = [
    "DirectionalRisk",
    "ErrorSearch",
    "FlipDecision",
    "FlipProbability",
    "FlipVerdict",
    "KappaAt",
    "RobustnessCurve",
    "ThetaRobustness",
    "__version__",
    "attacks",
    "decide_flip",
    "directional_risk",
    "error_search",
    "exact",
    "fits",
    "flip_probability",
    "intervals",
    "kappa_at",
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
