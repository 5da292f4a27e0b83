"""Adversarial attacks: the worst direction, and how far it is to the nearest other class."""

from jaxrobust.attacks._carlini_wagner import carlini_wagner
from jaxrobust.attacks._deepfool import deepfool
from jaxrobust.attacks._gradient import dn, fgsm, mi_fgsm, pgd, pgn
from jaxrobust.attacks._problem import AttackResult

__all__ = [
    "AttackResult",
    "carlini_wagner",
    "deepfool",
    "dn",
    "fgsm",
    "mi_fgsm",
    "pgd",
    "pgn",
]
