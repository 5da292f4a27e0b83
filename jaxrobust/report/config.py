"""What to measure: the settings of the theta section of a report."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from jaxrobust import _checks, intervals, models
from jaxrobust.measures.theta import LOSSES, Loss

PAPER_PROBABILITIES = (0.25, 0.5, 0.75, 1.0)
NOISE_UNITS = ("standard deviation", "feature_scale")
PAPER_SCALES = tuple(i / 100 for i in range(101))


@dataclasses.dataclass(frozen=True)
class ThetaConfig:
    """Settings of :func:`jaxrobust.report.theta_report`; the defaults are the paper's.

    Attributes:
        probabilities: one curve for each: the probability that a numeric cell is perturbed. None
            means (.25, .5, .75, 1), or (1,) when there is only one numeric feature.
        scales: noise levels sigma, in units of ``feature_scale``, rising.
        num_replicates: noise draws m for each curve; shared by all its noise levels.
        alpha: the loss may exceed theta with this probability.
        confidence: of every interval.
        loss: ``"mse"``, ``"brier"``, a callable, or None: Brier for integer ``y``, else MSE.
        outputs: ``"logits"`` or ``"probabilities"``.
        chunk_size: inputs for one call of the model; None picks one.
        num_resamples: bootstrap resamples behind the intervals of fits and landmarks.
        noise_unit: what sigma = 1 stands for: ``"standard deviation"`` (of each feature) or
            ``"feature_scale"`` (whatever was given as such); for the reader only. None means the
            former unless a ``feature_scale`` is given.

    Raises:
        TypeError: for values of the wrong type.
        ValueError: for values out of range; the message names the setting.

    Example:
        >>> from jaxrobust.report import ThetaConfig
        >>> ThetaConfig(num_replicates=100).alpha
        0.05
    """

    probabilities: tuple[float, ...] | None = None
    scales: tuple[float, ...] = PAPER_SCALES
    num_replicates: int = 1000
    alpha: float = 0.05
    confidence: float = 0.95
    loss: Loss | None = None
    outputs: str = "logits"
    chunk_size: int | None = None
    num_resamples: int = 200
    noise_unit: str | None = None

    def __post_init__(self) -> None:
        scales = _numbers("scales", self.scales)
        _checks.non_negative("scales", np.asarray(scales))
        if any(b <= a for a, b in itertools.pairwise(scales)):
            raise ValueError("scales must rise, without repeats; got ones that do not.")
        object.__setattr__(self, "scales", scales)
        if self.probabilities is not None:
            probabilities = _numbers("probabilities", self.probabilities)
            _checks.values(
                "probabilities",
                np.asarray(probabilities),
                lambda v: (v > 0) & (v <= 1),
                "above 0 and at most 1",
            )
            if len(set(probabilities)) < len(probabilities):
                raise ValueError(f"probabilities must differ; got {probabilities}.")
            object.__setattr__(self, "probabilities", probabilities)
        _checks.count("num_replicates", self.num_replicates)
        _checks.count("num_resamples", self.num_resamples, minimum=0)
        if self.chunk_size is not None:
            _checks.count("chunk_size", self.chunk_size)
        _checks.values("alpha", self.alpha, lambda v: (v > 0) & (v <= 1), "above 0 and at most 1")
        intervals.check_confidence(self.confidence)
        _checks.choice("outputs", self.outputs, models.OUTPUTS)
        if self.noise_unit is not None:
            _checks.choice("noise_unit", self.noise_unit, NOISE_UNITS)
        if self.loss is not None and not callable(self.loss):
            _checks.choice("loss", self.loss, LOSSES)

    @property
    def rank(self) -> int:
        """Which order statistic of the replicates' losses is theta, 1-based."""
        exact = 1 - intervals.exact_fraction(self.alpha)
        return max(1, math.ceil(exact * self.num_replicates))


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    """A non-empty tuple of floats."""
    try:
        numbers = tuple(float(v) for v in values)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers; got {_checks.describe(values)}.") from error
    if not numbers:
        raise ValueError(f"{name} must hold at least one number; got none.")
    return numbers
