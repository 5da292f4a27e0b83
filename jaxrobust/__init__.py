"""How robust is a trained network, really? Measures of robustness in JAX, with intervals."""

from jaxrobust import attacks, exact, fits, intervals, measures, models, perturbations
from jaxrobust.costs import CostEstimate, estimate_cost
from jaxrobust.measures import (
    Bracket,
    CleverScore,
    CleverStatus,
    DirectionalRisk,
    ErrorSearch,
    FlipDecision,
    FlipProbability,
    FlipVerdict,
    KappaAt,
    RadiusSweep,
    RareFlip,
    RareStatus,
    RobustnessCurve,
    SecondOrderClever,
    SlopeScore,
    ThetaRobustness,
    bracket,
    clever_score,
    clever_score_second_order,
    decide_flip,
    directional_risk,
    error_search,
    flip_probability,
    kappa_at,
    radius_sweep,
    rare_flip_probability,
    robustness_curve,
    slope_score,
    theta_robustness,
)
from jaxrobust.models import Preflight, check_model
from jaxrobust.perturbations.base import perturb
from jaxrobust.version import __version__

__all__ = [
    "Bracket",
    "CleverScore",
    "CleverStatus",
    "CostEstimate",
    "DirectionalRisk",
    "ErrorSearch",
    "FlipDecision",
    "FlipProbability",
    "FlipVerdict",
    "KappaAt",
    "Preflight",
    "RadiusSweep",
    "RareFlip",
    "RareStatus",
    "RobustnessCurve",
    "SecondOrderClever",
    "SlopeScore",
    "ThetaRobustness",
    "__version__",
    "attacks",
    "bracket",
    "check_model",
    "clever_score",
    "clever_score_second_order",
    "decide_flip",
    "directional_risk",
    "error_search",
    "estimate_cost",
    "exact",
    "fits",
    "flip_probability",
    "intervals",
    "kappa_at",
    "measures",
    "models",
    "perturb",
    "perturbations",
    "radius_sweep",
    "rare_flip_probability",
    "robustness_curve",
    "slope_score",
    "theta_robustness",
]


def __getattr__(name: str) -> object:
    """Imports ``report`` and ``zoo`` when they are first asked for: they need optional packages."""
    if name in ("report", "zoo"):
        import importlib

        return importlib.import_module(f"jaxrobust.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
