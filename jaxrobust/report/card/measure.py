"""The robustness card, computed: each section by itself, from the same draws."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrobust import _checks, attacks, measures, models, montecarlo, perturbations
from jaxrobust.measures.clever import CleverStatus
from jaxrobust.report import document, theta, theta_json
from jaxrobust.report.card import agreement, costs, pictures, saved, units
from jaxrobust.report.card.config import SECTIONS, CardConfig, preset
from jaxrobust.report.formats import estimate, plain, plain_list

Array = jax.Array

# Keys of attacks are folded from the card's key with numbers that no replicate has.
_ATTACK_STREAM = 2**32 - 2


@dataclasses.dataclass(frozen=True)
class RobustnessCard:
    """A robustness card; pictures and words are made from its JSON when they are asked for.

    Attributes:
        data: the JSON of the schema in :mod:`jaxrobust.report.schema`.
    """

    data: dict[str, Any]

    @property
    def summary(self) -> list[str]:
        """Plain sentences: what was found, and no more."""
        return document.summary_of(self.data)

    def section(self, name: str) -> dict[str, Any]:
        """The JSON of one section: ``"theta"``, ``"flip"``, ``"directional"``, ..."""
        return self.data["sections"][name]

    def write(self, folder: str | os.PathLike[str]) -> Any:
        """Writes report.json, report.html and plots into a folder; returns the page's path."""
        return document.write_data(self.data, folder)

    def __str__(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.summary)


@dataclasses.dataclass(frozen=True)
class _Model:
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
        return self.y[self.chosen]

    @property
    def common(self) -> dict[str, Any]:
        return {"chunk_size": self.config.theta.chunk_size, "mesh": self.mesh}

    @functools.cached_property
    def scaled(self) -> units.Scaled | str:
        """The model in units, of the chosen examples; or why there is none."""
        config = self.config
        shape = self.x.shape[1:]
        allowed = np.broadcast_to(True if self.where is None else np.asarray(self.where), shape)
        logits = self.apply_fn if config.theta.outputs == "logits" else _Logarithm(self.apply_fn)
        image = config.image_shape is not None or len(shape) > 1
        return units.in_units(
            logits, self.params, self.x[self.chosen], self.scale, allowed, config.bounds, image
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


def robustness_card(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    y: Array,
    *,
    config: CardConfig | str | None = None,
    feature_scale: Array | None = None,
    where: Array | None = None,
    integer: Array | None = None,
    context: document.Context | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> RobustnessCard:
    """Measures a model in all four ways, from the same draws, and says how far they agree.

    Args:
        apply_fn: ``apply_fn(params, x [B, ...]) -> outputs [B, K]``.
        params: the model's parameters.
        key: typed PRNG key. Replicate j of example i sees the same noise in every section.
        x: inputs ``[n, ...]`` in their own units.
        y: integer labels ``[n]``; or targets, of which only theta can be measured.
        config: a :class:`CardConfig`, or the name of a preset; None means ``"standard"``.
        feature_scale: units of the noise, broadcastable to one example; None means the population
            standard deviation of each column of ``x``.
        where: bool, which features may be perturbed; None means all.
        integer: bool, which features hold whole numbers and are rounded by the noise of theta and
            of flips; None means none.
        context: where the model comes from, for the reader.
        folder: where finished sections are kept while the others are computed. Give the folder that
            the card will be written to.
        resume: go on with the sections that an interrupted run left there.
        mesh: devices to share the work, with the axis "replicates" and/or "examples".
        progress: say what is being done, with a progress bar for each section (needs tqdm).

    Returns:
        A :class:`RobustnessCard`. ``print(card)`` shows its summary, ``card.write(folder)`` makes
        the page.

    Raises:
        TypeError: for arguments of the wrong type; for a model that JAX cannot trace.
        ValueError: for arguments that do not fit each other; for a folder that holds another run.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> x = jax.random.normal(jax.random.key(0), (40, 2))
        >>> y = (x[:, 0] > 0).astype(int)
        >>> apply_fn = lambda w, x: x @ w
        >>> w = jnp.array([[-1.0, 1.0], [0.0, 0.0]])
        >>> config = jr.report.preset("quick", scales=(0.0, 0.5, 1.0), num_resamples=10)
        >>> card = jr.report.robustness_card(apply_fn, w, jax.random.key(1), x, y, config=config)
        >>> sorted(card.data["sections"])  # doctest: +NORMALIZE_WHITESPACE
        ['agreement', 'clever', 'directional', 'distance', 'flip', 'preflight', 'theta']
    """
    config = preset(config or "standard") if config is None or isinstance(config, str) else config
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    y = y if hasattr(y, "dtype") else jnp.asarray(y)
    theta_config = config.theta
    if theta_config.noise_unit is None:
        unit = "standard deviation" if feature_scale is None else "feature_scale"
        theta_config = dataclasses.replace(theta_config, noise_unit=unit)
        config = dataclasses.replace(config, theta=theta_config)
    if feature_scale is None:
        feature_scale = theta.deviation(x)
    scale = np.broadcast_to(np.asarray(feature_scale, np.float32), x.shape[1:])
    context = context or document.Context()
    struct = models.output_struct(apply_fn, params, x)
    _check_kind(y, struct.shape[1] if struct.ndim == 2 else 1)
    classes = _classes(apply_fn, params, x, y)
    if classes:
        y = _checks.labels("y", y, x.shape[0], classes)
    store = saved.SavedSections(
        folder,
        saved.fingerprint(
            config, jax.random.key_data(key), x, y, params, scale, where, integer,
            np.asarray(apply_fn(params, x[:4])),
        ),
        resume,
    )  # fmt: skip
    model = _Model(
        apply_fn, params, key, x, jnp.asarray(y), config, scale, where, integer,
        montecarlo.as_mesh(mesh), progress, classes, _spread(x, config),
    )  # fmt: skip

    done: dict[str, Any] = {}
    parts = {"preflight": _preflight}
    parts |= {name: _SECTIONS[name] for name in SECTIONS if name in config.sections}
    for number, (name, compute) in enumerate(parts.items()):
        if progress:
            state = "kept" if store.has(name) else "..."
            print(f"[{number + 1}/{len(parts)}] {name} {state}", file=sys.stderr, flush=True)
        timed = functools.partial(_timed, name, compute, model, done)
        # The preflight is cheap, and alone not worth a folder.
        done[name] = timed() if name == "preflight" else store.get(name, timed)
    card = RobustnessCard(_assemble(model, done, context))
    if folder is not None:
        card.write(folder)
        store.discard()
    return card


def _timed(
    name: str,
    compute: Callable[[_Model, dict[str, Any]], dict[str, Any]],
    model: _Model,
    done: dict[str, Any],
) -> dict[str, Any]:
    """A section as it is saved: its JSON, and what it cost."""
    start = time.perf_counter()
    data = compute(model, done)
    seconds = round(time.perf_counter() - start, 3)
    nothing = costs.SectionCost(0, 0)
    of_sections = costs.section_costs(model.config, len(model.x), model.classes)
    cost = of_sections.get(name, nothing)
    if "left_out" in data:
        cost = nothing
    return {"data": data, **cost._asdict(), "seconds": seconds}


def _assemble(model: _Model, done: dict[str, Any], context: document.Context) -> dict[str, Any]:
    about = done["preflight"]["data"].pop("model")
    return document.assemble(
        {name: part["data"] for name, part in done.items()},
        {**about, "source": context.source, "notes": list(context.notes)},
        context,
        model_inputs=sum(part["model_inputs"] for part in done.values()),
        gradients=sum(part["gradients"] for part in done.values()),
        seconds={name: part["seconds"] for name, part in done.items()},
    )


def _classes(apply_fn: models.ApplyFn, params: Any, x: Array, y: Any) -> int:
    """The number of classes; 0 for a regression."""
    if not jnp.issubdtype(y.dtype, jnp.integer):
        return 0
    out = models.output_struct(apply_fn, params, x)
    return out.shape[1] if out.ndim == 2 and out.shape[1] > 1 else 0


def _check_kind(y: Any, outputs: int) -> None:
    """Refuses class labels that would pass for the targets of a regression."""
    host = np.asarray(y)
    if outputs < 2 or not np.issubdtype(host.dtype, np.floating):
        return
    if host.ndim == 2 and ((host == 0) | (host == 1)).all() and (host.sum(axis=1) == 1).all():
        raise ValueError(
            f"y must be integer class labels, shape [n]; got one-hot rows of shape {host.shape}."
            " Pass y.argmax(axis=1)."
        )
    if host.ndim == 1:
        raise ValueError(
            f"y must be integer class labels, shape [n], for a model with {outputs} outputs; got"
            f" {_checks.describe(y)}. Pass y.astype('int32')."
        )


def _spread(x: Array, config: CardConfig) -> np.ndarray:
    num = min(config.num_examples, len(x))
    return np.unique(np.linspace(0, len(x) - 1, num).round().astype(int))


# --- the sections ---------------------------------------------------------------------------------
# Each: (model, sections done before) -> JSON.


def _preflight(model: _Model, done: dict[str, Any]) -> dict[str, Any]:
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


def _theta(model: _Model, done: dict[str, Any]) -> dict[str, Any]:
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


def _flip(model: _Model, done: dict[str, Any]) -> dict[str, Any]:
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
    out = montecarlo.predict(
        model.params, x, apply_fn=model.apply_fn, chunk_size=config.theta.chunk_size
    )
    probabilities = out if config.theta.outputs == "probabilities" else jax.nn.softmax(out)
    reason = "some examples have no valid draw"
    data = {
        "config": {
            "sigma": plain(config.sigma),
            "num_samples": int(found.num_samples),
            "confidence": config.theta.confidence,
            "noise_unit": config.theta.noise_unit,
        },
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


def _distance(model: _Model, done: dict[str, Any]) -> dict[str, Any]:
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
    distance = np.asarray(found.distance, np.float64)
    reached = distance[np.isfinite(distance) & (distance > 0)]
    data = {
        "config": {"norm": norm, "unit": scaled.unit, "attack": "deepfool"},
        "median": plain(np.median(reached)) if reached.size else None,
        "quantile_90": plain(np.quantile(reached, 0.9)) if reached.size else None,
        "num_already_wrong": int((distance == 0).sum()),
        "num_not_found": int(np.isinf(distance).sum()),
        "examples": {"index": [int(i) for i in model.chosen], "distance": plain_list(distance)},
    }
    return data


def _directional(model: _Model, done: dict[str, Any]) -> dict[str, Any]:
    reason = _no_gradients(model, done)
    if reason:
        return _left_out(reason)
    config = model.config
    scaled: Any = model.scaled
    median = _of(done, "distance").get("median")
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


def _clever(model: _Model, done: dict[str, Any]) -> dict[str, Any]:
    reason = _no_gradients(model, done)
    if reason:
        return _left_out(reason)
    config = model.config
    scaled: Any = model.scaled
    distances = _of(done, "distance")
    far = distances.get("quantile_90")
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


def _agreement(model: _Model, done: dict[str, Any]) -> dict[str, Any]:
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


_SECTIONS = {
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


def _no_gradients(model: _Model, done: dict[str, Any]) -> str | None:
    """Why attacks and gradients make no sense for this model, if they do not."""
    if not model.classes:
        return "a regression has no labels to attack"
    if done["preflight"]["data"]["zero_gradient"] is None:
        return "the model has no gradient with respect to its inputs"
    return model.scaled if isinstance(model.scaled, str) else None


def _numbers(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values])
