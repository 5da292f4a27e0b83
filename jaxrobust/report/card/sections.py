"""The sections of a card, each computed by itself from the same draws.

A section is a function ``(model, sections done before) -> JSON``; those that make no sense for a
model say why under ``left_out``.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from scipy import special

from jaxrobust import attacks, intervals, measures, models, montecarlo, perturbations
from jaxrobust.measures.clever import CleverStatus
from jaxrobust.report import document, theta, theta_json
from jaxrobust.report.card import agreement, costs, pictures, units
from jaxrobust.report.card.config import CardConfig
from jaxrobust.report.formats import Estimate, estimate, plain, plain_list

Array = jax.Array

# Keys of attacks are folded from the card's key with numbers that no replicate has.
_ATTACK_STREAM = 2**32 - 2


@dataclasses.dataclass(frozen=True)
class Model:
    """What all sections look at."""

    apply_fn: models.ApplyFn
    params: Any
    key: Array
    x: Array
    y: Array
    config: CardConfig
    scale: np.ndarray  # of each feature
    where: Any
    integer: Any
    mesh: Mesh | None
    progress: bool
    classes: int  # 0 for a regression
    chosen: np.ndarray  # which examples all sections but theta look at

    @property
    def labels(self) -> Array:
        """Of the chosen examples."""
        return self.y[self.chosen]

    @property
    def common(self) -> dict[str, Any]:
        """Options that every measure takes."""
        return {"chunk_size": self.config.theta.chunk_size, "mesh": self.mesh}

    @property
    def allowed(self) -> np.ndarray:
        """Which features may be perturbed, ``[...]``."""
        mask = True if self.where is None else np.asarray(self.where)
        return np.broadcast_to(mask, self.x.shape[1:])

    @functools.cached_property
    def outputs(self) -> np.ndarray:
        """Of the model without noise, of the chosen examples."""
        return np.asarray(
            montecarlo.predict(
                self.params,
                self.x[self.chosen],
                apply_fn=self.apply_fn,
                chunk_size=self.config.theta.chunk_size,
            )
        )

    @functools.cached_property
    def scaled(self) -> units.Scaled | str:
        """The model in units, of the chosen examples; or why there is none."""
        config = self.config
        shape = self.x.shape[1:]
        logits = self.apply_fn if config.theta.outputs == "logits" else _Logarithm(self.apply_fn)
        image = config.image_shape is not None or len(shape) > 1
        return units.in_units(
            logits, self.params, self.x[self.chosen], self.scale, self.allowed, config.bounds, image
        )


class _Logarithm:
    """Logits of a model that gives probabilities."""

    def __init__(self, apply_fn: models.ApplyFn) -> None:
        self._apply_fn = apply_fn

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Logarithm) and self._apply_fn == other._apply_fn

    def __hash__(self) -> int:
        return hash((_Logarithm, self._apply_fn))

    def __call__(self, params: Any, x: Array) -> Array:
        out = self._apply_fn(params, x)
        return jnp.log(jnp.maximum(out, jnp.finfo(out.dtype).tiny))


def preflight(model: Model, done: dict[str, Any]) -> dict[str, Any]:
    """What the model looks like before measuring."""
    labels = model.y if model.classes else None
    found = models.check_model(
        model.apply_fn, model.params, model.x, labels=labels, bounds=model.config.bounds
    )
    _, clean = theta.settle(
        model.config.theta, model.apply_fn, model.params, model.x, model.y,
        jnp.asarray(model.scale), model.where,
    )  # fmt: skip
    expected = model.config.theta.outputs == "probabilities" and found.outputs == "probabilities"
    findings = [f for f in found.findings if not (expected and f.code == "probabilities")]
    data = {
        "num_examples": found.num_examples,
        "outputs": found.outputs,
        "zero_gradient": plain(found.zero_gradient),
        "findings": [finding._asdict() for finding in findings],
        "model": document.model_json(clean, model.config.theta.confidence),
    }
    return data


def _theta(model: Model, done: dict[str, Any]) -> dict[str, Any]:
    found = theta.theta_report(
        model.apply_fn, model.params, model.key, model.x, model.y,
        config=model.config.theta, feature_scale=jnp.asarray(model.scale), where=model.where,
        integer=model.integer, mesh=model.mesh, progress=model.progress,
    )  # fmt: skip
    data = theta_json.theta_data(found)
    data["pictures"] = pictures.perturbed(
        model.key, model.x, model.config, model.scale, model.where, model.integer
    )
    return data


def _flip(model: Model, done: dict[str, Any]) -> dict[str, Any]:
    config = model.config
    if not model.classes:
        return _left_out("a regression has no label that could flip")
    perturbation = perturbations.gaussian(
        config.sigma,
        feature_scale=jnp.asarray(model.scale),
        where=model.where,
        integer=model.integer,
    )
    x = model.x[model.chosen]
    found = jax.tree.map(
        np.asarray,
        measures.flip_probability(
            model.apply_fn, model.params, model.key, x, perturbation=perturbation,
            num_samples=config.num_flips, confidence=config.theta.confidence,
            progress=model.progress, **model.common,
        ),
    )  # fmt: skip
    out = model.outputs
    probabilities = out if config.theta.outputs == "probabilities" else jax.nn.softmax(out)
    reason = "some examples have no valid draw"
    data = {
        "config": {
            "sigma": plain(config.sigma),
            "num_samples": int(found.num_samples),
            "confidence": config.theta.confidence,
            "noise_unit": config.theta.noise_unit,
        },
        "unmoved": plain(_unmoved(model)),
        "mean": estimate(found.mean, found.mean_interval, reason),
        "mean_monte_carlo": estimate(found.mean, found.mean_monte_carlo_interval, reason),
        "examples": {
            "index": [int(i) for i in model.chosen],
            "label": [int(i) for i in model.labels],
            "predicted": [int(i) for i in found.reference],
            "certainty": plain_list(np.asarray(probabilities).max(axis=1)),
            "probability": plain_list(found.probability),
            "low": plain_list(found.interval[:, 0]),
            "high": plain_list(found.interval[:, 1]),
            "num_invalid": [int(i) for i in found.num_invalid],
        },
    }
    return data


def _unmoved(model: Model) -> float:
    """How probable it is that the noise of a draw is rounded away in every feature."""
    whole = False if model.integer is None else np.asarray(model.integer)
    deviation = model.config.sigma * np.asarray(model.scale, np.float64)
    moves = model.allowed & (deviation > 0)
    if (moves & ~np.broadcast_to(whole, moves.shape)).any():
        return 0.0
    return float(np.prod(special.erf(0.5 / (deviation[moves] * np.sqrt(2)))))


def _distance(model: Model, done: dict[str, Any]) -> dict[str, Any]:
    reason = _no_gradients(model, done)
    if reason:
        return _left_out(reason)
    scaled: Any = model.scaled
    norm = model.config.norm
    if norm == "l1":
        return _left_out("DeepFool here knows the norms l2 and linf")
    found = attacks.deepfool(
        scaled.apply_fn, scaled.params, scaled.u, model.labels,
        norm=norm, bounds=scaled.bounds, chunk_size=model.config.theta.chunk_size,
    )  # fmt: skip
    labelled = ~np.isnan(model.outputs).any(axis=1) & np.isfinite(model.outputs.max(axis=1))
    # Where none was found the distance is larger than any that was.
    distance = np.where(labelled, np.nan_to_num(found.distance, nan=np.inf, posinf=np.inf), np.nan)
    correct = distance[distance > 0]
    reached = correct[np.isfinite(correct)]
    confidence = model.config.theta.confidence
    data = {
        "config": {
            "norm": norm,
            "unit": scaled.unit,
            "attack": "deepfool",
            "confidence": confidence,
        },
        "median": _quantile(correct, 0.5, confidence),
        "quantile_90": _quantile(correct, 0.9, confidence),
        "median_found": plain(_inverted_cdf(reached, 0.5)),
        "quantile_90_found": plain(_inverted_cdf(reached, 0.9)),
        "num_invalid": int((~labelled).sum()),
        "num_already_wrong": int((distance == 0).sum()),
        "num_not_found": int(np.isinf(distance).sum()),
        "examples": {"index": [int(i) for i in model.chosen], "distance": plain_list(distance)},
    }
    return data


def _directional(model: Model, done: dict[str, Any]) -> dict[str, Any]:
    reason = _no_gradients(model, done)
    if reason:
        return _left_out(reason)
    config = model.config
    scaled: Any = model.scaled
    median = _of(done, "distance").get("median_found")
    eps = config.eps or (1.25 * median if median else 1.0)
    rows = []
    for number, name in enumerate(config.attacks):
        attack = config.attack(name)
        own = jax.random.fold_in(jax.random.fold_in(model.key, _ATTACK_STREAM), number)
        keys = () if name in ("fgsm", "mi_fgsm") else (own,)
        found = attack(
            scaled.apply_fn, scaled.params, *keys, scaled.u, model.labels,
            eps=eps, norm=config.norm, bounds=scaled.bounds,
            chunk_size=config.theta.chunk_size,
        )  # fmt: skip
        risk = measures.directional_risk(
            scaled.apply_fn, scaled.params, model.key, scaled.u, model.labels, found.x_adv,
            norm=config.norm, kappas=jnp.asarray(config.kappas), num_samples=config.num_noise,
            confidence=config.theta.confidence, num_resamples=config.num_resamples,
            progress=model.progress, **model.common,
        )  # fmt: skip
        rows.append(_attack_row(name, risk, config.theta.confidence))
    data = {
        "config": {
            "norm": config.norm,
            "unit": scaled.unit,
            "eps": plain(eps),
            "eps_from": "given" if config.eps else ("distance" if median else "default"),
            "num_samples": config.num_noise,
            "confidence": config.theta.confidence,
            "level": 0.25,
        },
        "kappa_star": rows[0]["kappa_star"],
        "num_correct": rows[0]["num_correct"],
        "num_examples": len(scaled.u),
        "attacks": rows,
    }
    return data


def _attack_row(name: str, risk: Any, confidence: float) -> dict[str, Any]:
    at = int(np.argmin(np.abs(np.asarray(risk.kappa) - float(risk.kappa_star))))
    crossing = measures.kappa_at(risk, 0.25, confidence=confidence)
    none = "no example was classified correctly"
    return {
        "name": name,
        "kappa": plain_list(risk.kappa),
        "mean": plain_list(risk.mean),
        "low": plain_list(risk.mean_interval[:, 0]),
        "high": plain_list(risk.mean_interval[:, 1]),
        "kappa_star": plain(risk.kappa_star),
        "num_correct": int(risk.num_correct),
        "risk_at_kappa_star": estimate(risk.risk_at_kappa_star, risk.mean_interval[at], none),
        "kappa_at_level": estimate(
            crossing.kappa, crossing.interval, "the sweep never reaches the level"
        ),
        "success_rate": estimate(risk.attack_success_rate, risk.attack_success_interval, none),
        "num_zero_direction": int(np.sum(np.asarray(risk.zero_direction & risk.correct))),
        "examples": plain_list(np.where(risk.correct, risk.risk[at], np.nan)),
    }


def _clever(model: Model, done: dict[str, Any]) -> dict[str, Any]:
    reason = _no_gradients(model, done)
    if reason:
        return _left_out(reason)
    config = model.config
    scaled: Any = model.scaled
    distances = _of(done, "distance")
    far = distances.get("quantile_90_found")
    radius = config.radius or (1.25 * far if far else 1.0)
    targets = costs.clever_targets(config, model.classes)
    found = jax.tree.map(
        np.asarray,
        measures.clever_score(
            scaled.apply_fn, scaled.params, model.key, scaled.u, radius=radius, norm=config.norm,
            targets=targets, num_batches=config.num_batches, batch_size=config.batch_size,
            bounds=scaled.bounds, labels=model.labels, confidence=config.theta.confidence,
            progress=model.progress, **model.common,
        ),
    )  # fmt: skip
    rows = np.arange(len(scaled.u))
    status = found.status[rows, np.maximum(found.target, 0)]
    nearest = np.array(
        [np.inf if d is None else d for d in distances["examples"]["distance"]]
        if "examples" in distances
        else [np.inf] * len(rows)
    )
    beside = measures.bracket(jnp.asarray(found.score), jnp.asarray(nearest, jnp.float32))
    flags = [[flag.name for flag in CleverStatus if flag & int(code)] for code in status]
    data = {
        "config": {
            "norm": config.norm,
            "unit": scaled.unit,
            "radius": plain(radius),
            "radius_from": "given" if config.radius else ("distance" if far else "default"),
            "targets": targets,
            "num_batches": config.num_batches,
            "batch_size": config.batch_size,
            "confidence": config.theta.confidence,
        },
        "median": _quantile(found.score[~np.isnan(found.score)], 0.5, config.theta.confidence),
        "num_refuted": int(beside.num_violations),
        "num_comparable": int(beside.num_comparable) if "examples" in distances else 0,
        "examples": {
            "index": [int(i) for i in model.chosen],
            "score": plain_list(found.score),
            "low": plain_list(found.interval[:, 0]),
            "high": plain_list(found.interval[:, 1]),
            "target": [int(i) for i in found.target],
            "flags": flags,
            "refuted": [bool(v) for v in np.asarray(beside.violated)],
        },
    }
    return data


def _agreement(model: Model, done: dict[str, Any]) -> dict[str, Any]:
    """Everything is turned so that larger is more robust."""
    flip, far, risk, clever = (
        _of(done, name) for name in ("flip", "distance", "directional", "clever")
    )
    if "left_out" in flip:
        return _left_out(flip["left_out"])
    columns = {
        "certainty": _numbers(flip["examples"]["certainty"]),
        "flip": 1 - _numbers(flip["examples"]["probability"]),
    }
    if "left_out" not in risk:
        columns["directional"] = 1 - _numbers(risk["attacks"][0]["examples"])
    if "left_out" not in clever:
        columns["clever"] = _numbers(clever["examples"]["score"])
    if "left_out" not in far:
        distance = _numbers(far["examples"]["distance"])
        columns["distance"] = np.where(np.isnan(distance), np.inf, distance)  # none was found
    # An example without a label is predicted as -1, which is no label.
    correct = np.array(flip["examples"]["predicted"]) == np.array(flip["examples"]["label"])
    columns = {name: values[correct] for name, values in columns.items()}
    if correct.sum() < 4:
        return _left_out("fewer than four examples are classified correctly")
    rng = np.random.default_rng(np.asarray(jax.random.key_data(model.key)))
    confidence = model.config.theta.confidence
    found = agreement.rank_correlations(columns, rng, model.config.num_resamples, confidence)
    none = "one of the two does not vary, or too few examples have both"
    data = {
        "config": {"num_resamples": model.config.num_resamples, "confidence": confidence},
        "num_examples": int(correct.sum()),
        "names": list(columns),
        "columns": {name: plain_list(values) for name, values in columns.items()},
        "spearman": [
            [{**estimate(c.rho, c.interval, none), "num_pairs": c.num_pairs} for c in row]
            for row in found
        ],
    }
    return data


SECTIONS = {
    "theta": _theta,
    "flip": _flip,
    "distance": _distance,
    "directional": _directional,
    "clever": _clever,
    "agreement": _agreement,
}


def _of(done: dict[str, Any], name: str) -> dict[str, Any]:
    """The JSON of an earlier section, also of one that was not asked for."""
    return done[name]["data"] if name in done else _left_out(f"the section {name} was not made")


def _left_out(reason: str) -> dict[str, Any]:
    return {"left_out": reason}


def _no_gradients(model: Model, done: dict[str, Any]) -> str | None:
    """Why attacks and gradients make no sense for this model, if they do not."""
    if not model.classes:
        return "a regression has no labels to attack"
    if done["preflight"]["data"]["zero_gradient"] is None:
        return "the model has no gradient with respect to its inputs"
    return model.scaled if isinstance(model.scaled, str) else None


def _quantile(values: np.ndarray, q: float, confidence: float) -> Estimate:
    """A quantile of what is never negative, with an interval over the choice of examples."""
    if not values.size:
        return estimate(np.nan, reason="there is no example to look at")
    low, high = np.asarray(intervals.quantile(values, q, confidence))
    return estimate(
        _inverted_cdf(values, q),
        (max(low, 0), high),
        "more of them lie out of reach than the quantile leaves room for, or the examples are few",
    )


def _inverted_cdf(values: np.ndarray, q: float) -> Any:
    """The smallest value with a share of at least q at or below it; NaN for no values."""
    return np.quantile(values, q, method="inverted_cdf") if values.size else np.nan


def _numbers(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values])
