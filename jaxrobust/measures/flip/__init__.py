"""Real-world robustness: will this one prediction flip?"""

from jaxrobust.measures.flip.comparison import DistanceCorrelation, distance_correlation
from jaxrobust.measures.flip.decision import FlipDecision, FlipVerdict, decide_flip
from jaxrobust.measures.flip.probability import FlipProbability, flip_probability
from jaxrobust.measures.flip.rare import RareFlip, RareStatus, rare_flip_probability

__all__ = [
    "DistanceCorrelation",
    "FlipDecision",
    "FlipProbability",
    "FlipVerdict",
    "RareFlip",
    "RareStatus",
    "decide_flip",
    "distance_correlation",
    "flip_probability",
    "rare_flip_probability",
]
