"""The settings of a robustness card, and three sets of them that have names."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxrobust import _checks, attacks, intervals
from jaxrobust.perturbations.norms import NORMS
from jaxrobust.report.config import ThetaConfig

SECTIONS = ("theta", "flip", "distance", "directional", "clever", "agreement")
ATTACKS = ("dn", "fgsm", "mi_fgsm", "pgd", "pgn")
PRESETS = ("quick", "standard", "paper")


@dataclasses.dataclass(frozen=True)
class CardConfig:
    """Settings of :func:`jaxrobust.report.robustness_card`.

    Noise of the theta and flip sections is in units of each feature's scale. Distances of the other
    sections are in the same units for tables, and for images in units of one scale for all pixels,
    the root mean square of theirs.

    Attributes:
        theta: settings of the theta section; its ``confidence``, ``outputs`` and ``chunk_size``
            hold for all sections.
        sections: which to make: theta, flip, distance, directional, clever, agreement.
        num_examples: examples for all sections but theta, spread evenly over the data.
        sigma: noise level at which predictions may flip.
        num_flips: draws for each example there.
        norm: of attacks, noise and CLEVER: ``"l1"``, ``"l2"`` or ``"linf"``.
        eps: budget of the attacks; None means 1.25 times the median distance that DeepFool finds.
        attacks: names out of fgsm, mi_fgsm, pgd, pgn and dn; the first one stands for its kind in
            the agreement section.
        kappas: how strongly noise leans along the attack.
        num_noise: draws for each example and kappa.
        targets: of CLEVER: ``"all"`` other classes or ``"top2"``, the runner-up; None means all up
            to a dozen classes.
        num_batches: of CLEVER.
        batch_size: of CLEVER.
        radius: of CLEVER's ball; None means 1.25 times the distance that 90% of DeepFool's results
            stay below.
        num_resamples: bootstrap resamples of the examples.
        bounds: ``(lower, upper)`` of the inputs, in their own units, for attacks and CLEVER.
        image_shape: shape of one image, for inputs that are flattened images; inputs ``[n, H, W]``
            and ``[n, H, W, C]`` are images anyway.

    Raises:
        TypeError: for values of the wrong type.
        ValueError: for values out of range; the message names the setting.

    Example:
        >>> from jaxrobust.report import CardConfig
        >>> CardConfig(sigma=0.1).num_flips
        10000
    """

    theta: ThetaConfig = dataclasses.field(default_factory=ThetaConfig)
    sections: tuple[str, ...] = SECTIONS
    num_examples: int = 200
    sigma: float = 0.25
    num_flips: int = 10_000
    norm: str = "l2"
    eps: float | None = None
    attacks: tuple[str, ...] = ("dn", "pgd", "fgsm")
    kappas: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 50.0)
    num_noise: int = 256
    targets: str | None = None
    num_batches: int = 100
    batch_size: int = 128
    radius: float | None = None
    num_resamples: int = 1000
    bounds: tuple[Any, Any] | None = None
    image_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.theta, ThetaConfig):
            raise TypeError(f"theta must be a ThetaConfig; got {_checks.describe(self.theta)}.")
        for name in ("num_examples", "num_flips", "num_noise", "num_batches", "batch_size"):
            _checks.count(name, getattr(self, name))
        _checks.count("num_resamples", self.num_resamples, minimum=10)
        _checks.non_negative("sigma", self.sigma)
        _checks.choice("norm", self.norm, NORMS)
        if self.targets is not None:
            _checks.choice("targets", self.targets, ("all", "top2"))
        for name in ("eps", "radius"):
            value = getattr(self, name)
            if value is not None:
                _checks.values(name, value, lambda v: np.isfinite(v) & (v > 0), "above 0")
        for name, known in (("attacks", ATTACKS), ("sections", SECTIONS)):
            chosen = getattr(self, name)
            if isinstance(chosen, str) or not chosen:
                raise ValueError(f"{name} must be names, at least one; got {chosen!r}.")
            for choice in chosen:
                _checks.choice(name, choice, known)
            object.__setattr__(self, name, tuple(dict.fromkeys(chosen)))
        _checks.non_negative("kappas", np.asarray(self.kappas, float))
        intervals.check_confidence(self.theta.confidence)

    def attack(self, name: str) -> Any:
        """The attack of a name, from :mod:`jaxrobust.attacks`."""
        return getattr(attacks, name)


def preset(name: str, **changes: Any) -> CardConfig:
    """Settings by name: ``"quick"``, ``"standard"`` or ``"paper"``.

    ``quick`` is for a first look; ``standard`` has the papers' theta curves and smaller settings of
    the rest; ``paper`` has the papers' settings throughout, and may take hours for an image model.

    Args:
        name: which.
        **changes: settings that differ from it; those of :class:`ThetaConfig` too.

    Returns:
        A :class:`CardConfig`.

    Raises:
        TypeError: for a setting that does not exist.
        ValueError: for a name that does not exist, or a value out of range.

    Example:
        >>> from jaxrobust.report import preset
        >>> quick = preset("quick", sigma=0.1, alpha=0.1)
        >>> quick.num_flips, quick.sigma, quick.theta.alpha
        (1000, 0.1, 0.1)
    """
    _checks.choice("preset", name, PRESETS)
    if name == "quick":
        theta = ThetaConfig(
            scales=tuple(i / 10 for i in range(11)),
            probabilities=(1.0,),
            num_replicates=200,
            num_resamples=50,
        )
        config = CardConfig(
            theta=theta,
            num_examples=50,
            num_flips=1000,
            attacks=("dn", "pgd"),
            kappas=(0.0, 1.0, 3.0, 8.0, 20.0),
            num_noise=64,
            targets="top2",
            num_batches=20,
            batch_size=32,
        )
    elif name == "standard":
        config = CardConfig()
    else:
        config = CardConfig(
            num_examples=1000,
            attacks=ATTACKS,
            kappas=(*map(float, range(21)), 30.0, 40.0, 50.0, 70.0, 100.0),
            num_batches=500,
            batch_size=1024,
        )
    of_theta = {field.name for field in dataclasses.fields(ThetaConfig)}
    own = {key: value for key, value in changes.items() if key not in of_theta}
    inner = {key: value for key, value in changes.items() if key in of_theta}
    theta = own.pop("theta", config.theta)
    theta = dataclasses.replace(theta, **inner) if inner else theta
    unknown = set(own) - {field.name for field in dataclasses.fields(CardConfig)}
    if unknown:
        known = of_theta | {field.name for field in dataclasses.fields(CardConfig)}
        raise TypeError(
            f"{min(unknown)} is no setting of a card; known are {', '.join(sorted(known))}."
        )
    return dataclasses.replace(config, theta=theta, **own)
