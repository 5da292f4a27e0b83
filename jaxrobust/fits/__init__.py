"""Curves through numbers: growth of a loss with noise, limits of maxima. They know no model."""

from jaxrobust.fits.gompertz import GompertzFit, GompertzStatus, fit_gompertz, gompertz
from jaxrobust.fits.landmarks import Landmarks, RobustnessIndex, landmarks, robustness_index
from jaxrobust.fits.reverse_weibull import (
    ReverseWeibullFit,
    ReverseWeibullStatus,
    fit_reverse_weibull,
    ks_pvalue_bootstrap,
    location_interval,
)

__all__ = [
    "GompertzFit",
    "GompertzStatus",
    "Landmarks",
    "ReverseWeibullFit",
    "ReverseWeibullStatus",
    "RobustnessIndex",
    "fit_gompertz",
    "fit_reverse_weibull",
    "gompertz",
    "ks_pvalue_bootstrap",
    "landmarks",
    "location_interval",
    "robustness_index",
]
