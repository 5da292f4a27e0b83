"""Real-world robustness: will this one prediction flip?"""

from jaxrobust.measures.flip.decision import FlipDecision, FlipVerdict, decide_flip
from jaxrobust.measures.flip.probability import FlipProbability, flip_probability

__all__ = [
    "FlipDecision",
    "FlipProbability",
    "FlipVerdict",
    "decide_flip",
    "flip_probability",
]
