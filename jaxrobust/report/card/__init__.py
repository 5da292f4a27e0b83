"""The robustness card: all four measures on one model, with shared draws, and how they agree."""

from jaxrobust.report.card.config import CardConfig, preset
from jaxrobust.report.card.costs import Plan, plan
from jaxrobust.report.card.measure import RobustnessCard, robustness_card

__all__ = ["CardConfig", "Plan", "RobustnessCard", "plan", "preset", "robustness_card"]
