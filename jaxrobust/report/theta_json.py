"""The theta section as JSON; see :mod:`jaxrobust.report.schema` for what each field means."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrobust import intervals
from jaxrobust.fits.gompertz import GompertzStatus
from jaxrobust.report import theta
from jaxrobust.report.formats import Estimate, estimate, plain, plain_list

_STATUS = {
    GompertzStatus.OK: "the data support all parameters",
    GompertzStatus.INVALID: "not fitted: some points are not finite numbers",
    GompertzStatus.TOO_FEW: "not fitted: fewer than five noise levels",
    GompertzStatus.FLAT: (
        "not fitted: no rise stands out from a constant; the curve is flat, or its noise levels are"
        " few"
    ),
    GompertzStatus.DECREASING: "not fitted: the curve falls",
    GompertzStatus.UNSATURATED: (
        "the measured range shows no plateau: the curve fits within it, but a, b, c and what is"
        " computed from them are extrapolations"
    ),
    GompertzStatus.UNDETERMINED: "some parameters are hardly determined by the points",
    GompertzStatus.STALLED: "the solver ran out of steps",
}
_RESAMPLES_FAILED = "too many of the resampled curves could not be fitted"
_NO_RESAMPLES = "no bootstrap resamples were asked for"
_ZERO = "the loss without noise is zero, so ratios are undefined"


def theta_data(report: theta.ThetaReport) -> dict[str, Any]:
    """The theta section of report.json, strictly JSON: no NaN, no infinity."""
    config = report.config
    return {
        "config": {
            "scales": list(config.scales),
            "probabilities": list(config.probabilities or ()),
            "num_replicates": config.num_replicates,
            "alpha": config.alpha,
            "confidence": config.confidence,
            "loss": loss_name(config),
            "outputs": config.outputs,
            "chunk_size": config.chunk_size,
            "num_resamples": config.num_resamples,
            "noise_unit": config.noise_unit,
        },
        "baseline": estimate(
            report.curve.baseline[0], reason="the loss on clean inputs is not finite"
        )["value"],
        "normalised": bool(report.curve.normalised[0]),
        "level": theta.LEVEL,
        "curves": [_curve(report, i) for i in range(len(report.probability))],
    }


def loss_name(config: theta.ThetaConfig) -> str:
    """The name of the loss, also of a callable."""
    if callable(config.loss):
        return getattr(config.loss, "__name__", type(config.loss).__name__)
    return config.loss or "mse"


def _curve(report: theta.ThetaReport, i: int) -> dict[str, Any]:
    points, nulls = _points(report, i)
    fit = _row(report.fit, i)
    code = GompertzStatus(int(fit.status))
    explanation = _STATUS[code]
    num_invalid = np.asarray(report.curve.num_invalid[i])
    if num_invalid.any():
        explanation = (
            f"not fitted: at {int((num_invalid > 0).sum())} of {num_invalid.size} noise levels the"
            f" loss of some replicates is not finite"
        )
    resampled = _row(report.resampled, i)

    def fitted(value: Any, samples: Any) -> Estimate:
        ends, reason = _percentiles(samples, report.config.confidence)
        return estimate(value, ends, explanation if plain(value) is None else reason)

    landmarks = {
        name: fitted(value, getattr(report.resampled_landmarks, name)[i])
        for name, value in _row(report.landmarks, i)._asdict().items()
    }
    if not report.curve.normalised[i]:
        for name in ("threshold", "threshold_value"):
            landmarks[name]["reason"] = _ZERO
    return {
        "probability": plain(report.probability[i]),
        "points": points,
        "nulls": nulls,
        "fit": {
            "of": "ratio" if report.curve.normalised[i] else "theta",
            "status": code.name,
            "converged": bool(fit.converged),
            "explanation": explanation,
            "r_squared": plain(fit.r_squared),
            **{name: fitted(getattr(fit, name), getattr(resampled, name)) for name in "abcd"},
            "at_zero": fitted(report.ends[i, 0], report.resampled_ends[i, :, 0]),
            "at_one": fitted(report.ends[i, 1], report.resampled_ends[i, :, 1]),
            "at_one_extrapolated": report.config.scales[-1] < 1,
            "covariance": [plain_list(row) for row in fit.covariance]
            if np.isfinite(np.asarray(fit.covariance)).all()
            else None,
        },
        "landmarks": landmarks,
        "resamples": {name: plain_list(getattr(resampled, name)) for name in "abcd"},
    }


def _points(report: theta.ThetaReport, i: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The measured points by column, and why some of them are null."""
    curve, config = _row(report.curve, i), report.config
    divisor = np.where(curve.normalised, curve.baseline, np.nan).astype(curve.interval.dtype)
    ratio_interval = np.asarray(curve.interval) / divisor
    columns = {
        "theta": curve.theta,
        "theta_low": curve.interval[:, 0],
        "theta_high": curve.interval[:, 1],
        "ratio": curve.ratio,
        "ratio_low": ratio_interval[:, 0],
        "ratio_high": ratio_interval[:, 1],
    }
    points: dict[str, Any] = {"scale": plain_list(curve.scale)}
    points |= {name: plain_list(column) for name, column in columns.items()}
    points["num_invalid"] = [int(count) for count in curve.num_invalid]
    ranks = intervals.quantile_ranks(
        config.num_replicates, 1 - intervals.exact_fraction(config.alpha), config.confidence
    )
    open_ends = {"low": ranks.lower < 1, "high": ranks.upper > config.num_replicates}
    nulls = []
    for name in columns:
        missing = [k for k, value in enumerate(points[name]) if value is None]
        if not missing:
            continue
        invalid = [k for k in missing if points["num_invalid"][k] > 0]
        if invalid:
            reason = "the loss of some replicates is not finite"
            nulls.append({"field": name, "index": invalid, "reason": reason})
        rest = [k for k in missing if points["num_invalid"][k] == 0]
        if not rest:
            continue
        if name.startswith("ratio") and not curve.normalised:
            reason = _ZERO
        elif open_ends.get(name.rpartition("_")[2]):
            reason = (
                f"{config.num_replicates} replicates are too few for this end at a confidence of"
                f" {config.confidence:g}"
            )
        else:
            reason = "not a finite number"
        nulls.append({"field": name, "index": rest, "reason": reason})
    return points, nulls


def _percentiles(samples: Any, confidence: float) -> tuple[Any, str | None]:
    """The bootstrap's percentile interval, or why there is none."""
    samples = np.asarray(samples, np.float64)
    if samples.size == 0:
        return None, _NO_RESAMPLES
    finite = samples[np.isfinite(samples)]
    if len(finite) < (1 - theta.MAX_FAILED) * len(samples):
        return None, _RESAMPLES_FAILED
    tail = (1 - confidence) / 2
    return np.quantile(finite, [tail, 1 - tail]), None


def _row(fields: Any, i: int) -> Any:
    """Row i of every array of a NamedTuple."""
    return type(fields)(*(np.asarray(value)[i] for value in fields))
