"""The theta section, computed: curves of several probabilities, their fits, and how sure."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxrobust import _checks, intervals, models, montecarlo, perturbations
from jaxrobust.fits.gompertz import GompertzFit, fit_gompertz, gompertz
from jaxrobust.fits.landmarks import Landmarks, landmarks
from jaxrobust.measures.theta import RobustnessCurve, robustness_curve
from jaxrobust.report.config import PAPER_PROBABILITIES, ThetaConfig

Array = jax.Array

# The draws of replicate j use fold_in(key, j); no run has this many replicates.
_RESAMPLE_STREAM = 2**32 - 1
# A fitted number's interval is withheld when more resamples than this share cannot be fitted.
MAX_FAILED = 0.05
# The paper's threshold: where the loss has doubled.
LEVEL = 2.0


class Clean(NamedTuple):
    """The model without noise.

    Attributes:
        num_examples: n.
        input_shape: shape of one example.
        num_outputs: K, or 1 for outputs ``[B]``.
        num_perturbed: features that get noise (allowed, and not constant).
        num_features: features of one example.
        num_correct: examples classified correctly; None for a regression.
        accuracy_interval: Clopper-Pearson interval of the accuracy; None for a regression.
    """

    num_examples: int
    input_shape: tuple[int, ...]
    num_outputs: int
    num_perturbed: int
    num_features: int
    num_correct: int | None
    accuracy_interval: tuple[float, float] | None


class ThetaReport(NamedTuple):
    """What :func:`theta_report` found, for P probabilities, S scales and B bootstrap resamples.

    All arrays are NumPy's.

    Attributes:
        config: the settings, with ``loss`` and ``probabilities`` decided.
        clean: the model without noise.
        probability: ``[P]``.
        curve: a :class:`jaxrobust.RobustnessCurve` whose fields have a leading axis P.
        fit: Gompertz fits of the ratios (of theta itself where the clean loss is zero), ``[P]``.
        landmarks: of the fits, ``[P]``; thresholds are NaN where the clean loss is zero.
        ends: ``[P, 2]``; the fitted curve at 0 and at 1.
        resampled: the fits ``[P, B]`` of curves from resampled replicates: the Monte Carlo error
            of everything fitted. NaN rows where a curve could not be fitted.
        resampled_landmarks: their landmarks ``[P, B]``.
        resampled_ends: ``[P, B, 2]``.
        num_inputs: model inputs evaluated.
        seconds: wall-clock time of the parts: ``{"measure": ..., "fit": ...}``.
    """

    config: ThetaConfig
    clean: Clean
    probability: np.ndarray
    curve: RobustnessCurve
    fit: GompertzFit
    landmarks: Landmarks
    ends: Array
    resampled: GompertzFit
    resampled_landmarks: Landmarks
    resampled_ends: Array
    num_inputs: int
    seconds: dict[str, float]


def theta_report(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    y: Array,
    *,
    config: ThetaConfig | None = None,
    feature_scale: Array | None = None,
    where: Array | None = None,
    integer: Array | None = None,
    mesh: Mesh | None = None,
    progress: bool = False,
) -> ThetaReport:
    """Measures theta-robustness curves, fits them, and bounds what was fitted.

    Each curve is that of :func:`jaxrobust.robustness_curve` for the same key, so all of them see
    the same draws. The model is compiled once for all of them. Intervals of theta come from order
    statistics; those of the fit and its landmarks from refitting curves of resampled replicates
    (replicates are resampled whole: their losses at neighbouring scales are correlated).

    Args:
        apply_fn: ``apply_fn(params, x [B, ...]) -> outputs [B, K]``.
        params: the model's parameters.
        key: typed PRNG key.
        x: inputs ``[n, ...]`` in their own units.
        y: integer labels ``[n]``, or targets ``[n]`` or ``[n, K]``.
        config: a :class:`ThetaConfig`; None means the paper's settings.
        feature_scale: units of the noise, broadcastable to one example; None means the population
            standard deviation of each column of ``x``.
        where: bool, which cells may be perturbed; None means all.
        integer: bool, which cells hold whole numbers and are rounded; None means none.
        mesh: devices to share the work, with the axes "replicates" and/or "examples".
        progress: show progress bars on standard error (needs tqdm).

    Returns:
        A :class:`ThetaReport`. Curves that cannot be fitted have NaN parameters and say why in
        ``fit.status``.

    Raises:
        TypeError: as :func:`jaxrobust.theta_robustness`.
        ValueError: as :func:`jaxrobust.theta_robustness`.

    Source: Levene & Harris 2026, "Robustness of neural networks to random noise perturbations of
    their inputs", arXiv 2606.31581, algorithm 1 and the section on the Gompertz model.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxrobust.report import ThetaConfig, theta_report
        >>> x = jax.random.normal(jax.random.key(0), (50, 3))
        >>> w = jnp.array([1.0, -2.0, 2.0])
        >>> config = ThetaConfig(
        ...     probabilities=(1.0,), scales=(0.0, 0.5, 1.0), num_replicates=100, num_resamples=0
        ... )
        >>> found = theta_report(
        ...     lambda w, x: x @ w, w, jax.random.key(1), x, x @ w + 1.0, config=config
        ... )
        >>> found.curve.ratio.shape, found.fit.status.tolist()  # three points are too few to fit
        ((1, 3), [2])
    """
    config = ThetaConfig() if config is None else config
    x = _checks.examples("x", x)
    y = y if hasattr(y, "dtype") else jnp.asarray(y)
    if config.noise_unit is None:
        unit = "standard deviation" if feature_scale is None else "feature_scale"
        config = dataclasses.replace(config, noise_unit=unit)
    if feature_scale is None:
        feature_scale = deviation(x)
    scale = jnp.asarray(feature_scale, x.dtype)
    config, clean = settle(config, apply_fn, params, x, y, scale, where)
    probabilities = config.probabilities or ()

    def perturbation(probability: float) -> Any:
        return lambda sigma: perturbations.gaussian(
            sigma,
            feature_scale=scale,
            where=where,
            # An array also for p = 1, so that every curve has the same structure: one trace.
            probability=jnp.asarray(probability, x.dtype),
            integer=integer,
        )

    start = time.perf_counter()
    curves = []
    with _steps(progress, len(probabilities) + 1) as step:
        for probability in probabilities:
            step(f"curve, p = {probability:g}")
            curve = _curve(
                apply_fn, params, key, x, y, perturbation(probability), config, mesh, progress
            )
            curves.append(curve)
        curve = jax.tree.map(lambda *parts: np.stack(parts), *curves)
        measured = time.perf_counter()
        step("fits")
        fits = _fit(key, curve, config)
    return ThetaReport(
        config=config,
        clean=clean,
        probability=np.asarray(probabilities),
        curve=curve,
        **fits,
        num_inputs=len(curves) * (len(config.scales) * config.num_replicates + 1) * len(x),
        seconds={"measure": measured - start, "fit": time.perf_counter() - measured},
    )


def deviation(x: Array) -> Array:
    """Population standard deviation of each column; exactly 0 for constant ones."""
    host = np.asarray(x, np.float64)
    # Rounding in the mean would give constant columns a tiny deviation, and noise with it.
    return jnp.asarray(np.where(np.ptp(host, axis=0) > 0, host.std(axis=0), 0.0), x.dtype)


def settle(
    config: ThetaConfig,
    apply_fn: models.ApplyFn,
    params: Any,
    x: Array,
    y: Any,
    feature_scale: Array,
    where: Array | None,
) -> tuple[ThetaConfig, Clean]:
    """Decides what the config leaves open, and looks at the model without noise."""
    classification = jnp.issubdtype(y.dtype, jnp.integer)
    allowed = np.broadcast_to(True if where is None else np.asarray(where), x.shape[1:])
    perturbed = allowed & (np.broadcast_to(np.asarray(feature_scale), x.shape[1:]) > 0)
    if config.loss is None:
        config = dataclasses.replace(config, loss="brier" if classification else "mse")
    if config.probabilities is None:
        # With one numeric feature a curve for p < 1 would only mix noisy and clean rows.
        alone = int(allowed.sum()) == 1
        config = dataclasses.replace(config, probabilities=(1.0,) if alone else PAPER_PROBABILITIES)
    out = models.output_struct(apply_fn, params, x)
    num_outputs = out.shape[1] if out.ndim == 2 else 1
    num_correct, interval = None, None
    if classification and num_outputs > 1 and y.shape == x.shape[:1]:
        guess = montecarlo.predict(params, x, apply_fn=apply_fn, chunk_size=config.chunk_size)
        guess = np.asarray(guess)
        labelled = ~np.isnan(guess).any(axis=1) & np.isfinite(guess.max(axis=1))
        num_correct = int((labelled & (guess.argmax(axis=1) == np.asarray(y))).sum())
        ends = intervals.clopper_pearson(num_correct, len(x), config.confidence)
        interval = (float(ends[0]), float(ends[1]))
    return config, Clean(
        num_examples=len(x),
        input_shape=tuple(x.shape[1:]),
        num_outputs=num_outputs,
        num_perturbed=int(perturbed.sum()),
        num_features=int(perturbed.size),
        num_correct=num_correct,
        accuracy_interval=interval,
    )


@contextlib.contextmanager
def _steps(progress: bool, total: int) -> Iterator[Callable[[str], None]]:
    """Yields ``step(label)``, which says on a progress bar what is being done now."""
    if not progress:
        yield lambda label: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, bar_format="{desc} {bar} {n}/{total} [{elapsed}]") as bar:
        labels: list[str] = []

        def step(label: str) -> None:
            bar.update(int(bool(labels)))
            labels.append(label)
            bar.set_description_str(f"{label:16}")

        yield step
        bar.update(total - bar.n)


def _curve(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    y: Any,
    perturbation: Callable[[Array], perturbations.base.Perturbation],
    config: ThetaConfig,
    mesh: Mesh | None,
    progress: bool,
) -> RobustnessCurve:
    """One curve, in NumPy: each operation that JAX meets for the first time costs a compilation."""
    curve = robustness_curve(
        apply_fn,
        params,
        key,
        x,
        y,
        perturbation=perturbation,
        scales=jnp.asarray(config.scales, x.dtype),
        loss=config.loss or "mse",
        outputs=config.outputs,
        alpha=config.alpha,
        num_replicates=config.num_replicates,
        confidence=config.confidence,
        chunk_size=config.chunk_size,
        mesh=mesh,
        progress=progress,
    )
    return jax.tree.map(np.asarray, curve)


_gompertz = jax.jit(gompertz)


def _fit(key: Array, curve: RobustnessCurve, config: ThetaConfig) -> dict[str, Any]:
    """Fits every curve and its resamples in one batch, so that the fit is compiled once."""
    rng = np.random.default_rng(
        np.asarray(jax.random.key_data(jax.random.fold_in(key, _RESAMPLE_STREAM)))
    )
    resampled = np.stack([_resample(rng, each, config) for each in curve.losses])  # [P, B, S]
    thetas = np.concatenate([curve.theta[:, None], resampled], axis=1)
    divisor = np.where(curve.normalised, curve.baseline, 1.0).astype(thetas.dtype)
    fits = jax.tree.map(np.asarray, fit_gompertz(curve.scale[0], thetas / divisor[:, None, None]))
    parameters = (fits.a, fits.b, fits.c, fits.d)
    # A threshold is a multiple of the clean loss, which must not be zero.
    level = np.broadcast_to(np.where(curve.normalised, LEVEL, np.nan)[:, None], fits.a.shape)
    upper = np.full_like(fits.a, curve.scale[0, -1])
    marks = jax.tree.map(
        np.asarray, landmarks(*parameters, level=level.astype(fits.a.dtype), upper=upper)
    )
    ends = np.stack(
        [_gompertz(np.full_like(fits.a, end), *parameters) for end in (0.0, 1.0)], axis=-1
    )

    def first(tree: Any) -> Any:
        return jax.tree.map(lambda a: a[:, 0], tree)

    def others(tree: Any) -> Any:
        return jax.tree.map(lambda a: a[:, 1:], tree)

    return {
        "fit": first(fits),
        "landmarks": first(marks),
        "ends": first(ends),
        "resampled": others(fits),
        "resampled_landmarks": others(marks),
        "resampled_ends": others(ends),
    }


def _resample(rng: np.random.Generator, losses: np.ndarray, config: ThetaConfig) -> np.ndarray:
    """Thetas ``[B, S]`` of bootstrap resamples of the replicates, from losses ``[S, m]``.

    A replicate is drawn with its losses at all scales, since common random numbers correlate them.
    """
    num_scales, num_replicates = losses.shape
    out = np.empty((config.num_resamples, num_scales), losses.dtype)
    order = np.argsort(losses, axis=1)
    ordered = np.take_along_axis(losses, order, axis=1)
    for row in out:
        counts = rng.multinomial(num_replicates, np.full(num_replicates, 1 / num_replicates))
        position = (np.cumsum(counts[order], axis=1) < config.rank).sum(axis=1)
        row[:] = ordered[np.arange(num_scales), position]
    out[:, ~np.isfinite(losses).all(axis=1)] = np.nan
    return out
