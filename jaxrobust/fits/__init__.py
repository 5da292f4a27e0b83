"""Curves through numbers: how a loss grows with noise. They know no model."""

from jaxrobust.fits.gompertz import GompertzFit, GompertzStatus, fit_gompertz, gompertz
from jaxrobust.fits.landmarks import Landmarks, RobustnessIndex, landmarks, robustness_index

__all__ = [
    "GompertzFit",
    "GompertzStatus",
    "Landmarks",
    "RobustnessIndex",
    "fit_gompertz",
    "gompertz",
    "landmarks",
    "robustness_index",
]
