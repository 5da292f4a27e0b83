"""The JSON of a report, version 1: what it holds, and reading it back.

Strict JSON: NaN and infinities are ``null``, and something beside them says why. An *estimate* is
``{"value", "interval": [low, high], "reason"}``; an end of the interval is null where it is open.

``report.json``::

    schema, version   "jaxrobust.report", 1
    created           UTC time, ISO 8601
    title             of the model, for people
    model             source (data set name, module:function, or null), task ("classification" or
                      "regression"), num_examples, input_shape, num_features, num_perturbed
                      (features that get noise), num_outputs, num_correct (or null), accuracy
                      (estimate; its interval is Clopper-Pearson, over the choice of examples),
                      confidence (of that interval), notes (sentences)
    seed              of the command line, or null; training and measuring use the two keys of
                      jax.random.split(jax.random.key(seed))
    environment       python, platform, machine, num_cpus, devices, x64, packages {name: version}
    cost              model_inputs (single inputs that went through the model, at most), gradients
                      (those that went back, at most), seconds {part: s}
    sections          one object for each measure; those of other names are to be ignored
    files             the files that were written beside it

``sections.theta``::

    config            scales, probabilities, num_replicates, alpha, confidence, loss, outputs,
                      chunk_size, num_resamples, noise_unit (what sigma = 1 is: "standard deviation"
                      of each feature, or the "feature_scale" that was given)
    baseline          loss without noise
    normalised        whether ratios (theta / baseline) are defined; baseline is not zero
    level             the ratio whose crossing is the threshold
    curves            one for each probability p:
      probability     p, with which a numeric cell is perturbed
      points          columns of one length: scale, theta, theta_low, theta_high (interval of theta
                      from order statistics), ratio, ratio_low, ratio_high, num_invalid (replicates
                      whose loss is not finite)
      nulls           [{field, index, reason}] for each null in points
      fit             Gompertz curve d + (a - d) exp(-exp(-b (x - c))): of ("ratio" or "theta"),
                      status, converged, explanation, r_squared, a, b, c, d, at_zero, at_one
                      (estimates; intervals from resampled replicates), at_one_extrapolated,
                      covariance (of a, b, c, d under independent errors, or null)
      landmarks       estimates: knee (clipped at 0), knee_signed, knee_value, half_slope,
                      half_slope_published (the paper's formula), inflection, threshold,
                      threshold_value
      resamples       {a, b, c, d}: fits of curves from resampled replicates
    pictures          one image under noise, or null: index, shape, probabilities (rows), scales
                      (columns), pixels (bytes in base64, row by row)

A section below is ``{"left_out": why}`` where it makes no sense for the model. Columns of
``examples`` have one entry for each example looked at; ``index`` says which of the data it is.

``sections.preflight``: num_examples, outputs, zero_gradient (share, or null), findings [{code,
severity, message, advice}].

``sections.flip``: config (sigma, num_samples, confidence, noise_unit), unmoved (the probability
that a draw leaves an input as it is: 1 where no feature gets noise, 0 where one does that is not
rounded, between where rounding to whole numbers takes some noise away), mean (estimate; over the
population of examples), mean_monte_carlo (over these examples), examples (index, label, predicted
(-1: no label), certainty, probability, low, high, num_invalid).

``sections.distance``: config (norm, unit, attack, confidence), median, quantile_90 (estimates over
the correctly classified examples; a distance that was not found counts as infinite), median_found,
quantile_90_found (of the distances found), num_invalid (examples for which the model gives no
label: NaN or no finite maximum; they are in no other number), num_already_wrong, num_not_found,
examples (index, distance; 0 where misclassified, null where none was found or the model gives no
label).

``sections.directional``: config (norm, unit, eps, eps_from, num_samples, confidence, level),
kappa_star, num_correct, num_examples, attacks [{name, kappa, mean, low, high, kappa_star,
num_correct, risk_at_kappa_star, kappa_at_level, success_rate (estimates), num_zero_direction,
examples (the risk of each at kappa*; null if misclassified)}].

``sections.clever``: config (norm, unit, radius, radius_from, targets, num_batches, batch_size,
confidence), median (estimate, of the scores that are numbers), num_refuted, num_comparable,
examples (index, score, low, high, target, flags (names of ``CleverStatus``), refuted).

``sections.agreement``: config (num_resamples, confidence), num_examples (correctly classified),
names, columns {name: values, larger is more robust}, spearman (matrix of estimates, with
num_pairs).

``compare.json`` has the schema "jaxrobust.compare", version 1: probability, confidence, models
(folder, title, loss, baseline, at_one, measured_at_one, b, c, converged, explanation, overall),
pairwise (``pairwise[i][j]`` is the share of noise levels in [0, 1] at which model i's normalised
curve lies below model j's), pairwise_low and pairwise_high, notes (sentences), files.
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

REPORT = "jaxrobust.report"
COMPARE = "jaxrobust.compare"
VERSION = 1

_REQUIRED = ("title", "model", "sections")
_REQUIRED_THETA = ("config", "baseline", "normalised", "curves")
_REQUIRED_CURVE = ("probability", "points", "fit", "resamples")
_REQUIRED_PART = {
    "points": ("scale", *(f"{n}{e}" for n in ("theta", "ratio") for e in ("", "_low", "_high"))),
    "fit": ("a", "b", "c", "d", "at_one", "converged", "explanation"),
    "resamples": ("a", "b", "c", "d"),
}


class ReportError(ValueError):
    """A report on disk that cannot be read; the message says which and why."""


def dumps(data: dict[str, Any]) -> str:
    """Strict JSON, a list of numbers on one line; raises a ValueError on NaN."""
    text = json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False)
    # Only layout is touched: inside a string a line break is written as an escape.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: re.sub(r"\n\s*", " ", match[0]), text)
    return text + "\n"


def read_report(folder: str | pathlib.Path) -> dict[str, Any]:
    """Reads the ``report.json`` of a folder and checks that this version understands it.

    Args:
        folder: a folder that a report was written to.

    Returns:
        The JSON object; see the module's documentation.

    Raises:
        ReportError: if there is none, it is broken, or it is of another schema or version.
    """
    path = pathlib.Path(folder) / "report.json"
    if not pathlib.Path(folder).is_dir():
        raise ReportError(f"{folder} is not a folder; compare takes folders made by report.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReportError(f"{folder} holds no report.json; make one with report.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read: {error}.") from error
    try:
        data = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise ReportError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(data, dict) or data.get("schema") != REPORT:
        raise ReportError(f'{path} is not a report: its "schema" is not "{REPORT}".')
    if data.get("version") != VERSION:
        raise ReportError(
            f"{path} has version {data.get('version')!r} of the schema; this program reads version"
            f" {VERSION}."
        )
    _require(path, data, _REQUIRED)
    if "theta" in data["sections"]:
        section = data["sections"]["theta"]
        _require(path, section, _REQUIRED_THETA)
        for curve in section["curves"]:
            _require(path, curve, _REQUIRED_CURVE)
            for part, names in _REQUIRED_PART.items():
                _require(path, curve[part], names)
    return data


def _require(path: pathlib.Path, part: Any, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not isinstance(part, dict) or name not in part]
    if missing:
        raise ReportError(f"{path} is broken: it lacks {missing[0]!r}.")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not allowed")
