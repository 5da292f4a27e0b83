"""The robustness card, computed section by section, and what an interruption leaves of it."""

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

from jaxrobust import _checks, models, montecarlo
from jaxrobust.report import document, theta
from jaxrobust.report.card import costs, saved, sections
from jaxrobust.report.card.config import SECTIONS, CardConfig, preset

Array = jax.Array


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
        resume: go on with the sections that an interrupted run left there. Without it they are an
            error: nothing that took hours is dropped by mistake.
        mesh: devices to share the work, with the axis "replicates" and/or "examples".
        progress: say what is being done, with a progress bar for each section (needs tqdm).

    Returns:
        A :class:`RobustnessCard`. ``print(card)`` shows its summary, ``card.write(folder)`` makes
        the page.

    Raises:
        TypeError: for arguments of the wrong type; for a model that JAX cannot trace.
        ValueError: for arguments that do not fit each other; on resuming in a folder that holds
            another run.
        FileExistsError: without resuming, for a folder that holds an interrupted run.

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
    host = y if hasattr(y, "dtype") else np.asarray(y)
    if host.dtype.kind not in "iufV":  # V: bfloat16
        raise TypeError(
            "y must be integer class labels, shape [n], or the targets of a regression; got"
            f" {_checks.describe(y)}."
        )
    y = y if hasattr(y, "dtype") else jnp.asarray(host)
    theta_config = config.theta
    if theta_config.noise_unit is None:
        unit = "standard deviation" if feature_scale is None else "feature_scale"
        theta_config = dataclasses.replace(theta_config, noise_unit=unit)
        config = dataclasses.replace(config, theta=theta_config)
    if feature_scale is None:
        feature_scale = theta.deviation(x)
    scale = np.broadcast_to(np.asarray(feature_scale, np.float32), x.shape[1:])
    context = context or document.Context()
    outputs = models.output_struct(apply_fn, params, x)
    kind = models.outputs_of(apply_fn, config.theta.outputs)
    config = dataclasses.replace(config, theta=dataclasses.replace(config.theta, outputs=kind))
    _check_kind(y, outputs.shape[1] if outputs.ndim == 2 else 1)
    classes = costs.num_classes(outputs, y)
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
    model = sections.Model(
        apply_fn, params, key, x, jnp.asarray(y), config, scale, where, integer,
        montecarlo.as_mesh(mesh), progress, classes, _spread(x, config),
    )  # fmt: skip

    done: dict[str, Any] = {}
    parts = {"preflight": sections.preflight}
    parts |= {name: sections.SECTIONS[name] for name in SECTIONS if name in config.sections}
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
    compute: Callable[[sections.Model, dict[str, Any]], dict[str, Any]],
    model: sections.Model,
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


def _assemble(
    model: sections.Model, done: dict[str, Any], context: document.Context
) -> dict[str, Any]:
    about = done["preflight"]["data"].pop("model")
    return document.assemble(
        {name: part["data"] for name, part in done.items()},
        {**about, "source": context.source, "notes": list(context.notes)},
        context,
        model_inputs=sum(part["model_inputs"] for part in done.values()),
        gradients=sum(part["gradients"] for part in done.values()),
        seconds={name: part["seconds"] for name, part in done.items()},
    )


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
