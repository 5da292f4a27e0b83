"""One image under the noise of the theta section, as the paper shows a digit."""

from __future__ import annotations

import base64
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import perturbations
from jaxrobust.perturbations.base import perturb
from jaxrobust.report.card.config import CardConfig

_PROBABILITIES = (0.25, 0.5, 1.0)
_LEVELS = (0.0, 0.25, 0.5, 1.0)  # shares of the largest noise level


def image_shape(x: Any, config: CardConfig) -> tuple[int, ...] | None:
    """The shape of one image; None where inputs are no images.

    Raises:
        ValueError: for an ``image_shape`` that does not hold the features of an input.
    """
    shape = config.image_shape or (tuple(x.shape[1:]) if x.ndim in (3, 4) else None)
    if shape is None:
        return None
    if int(np.prod(shape)) != int(np.prod(x.shape[1:])) or len(shape) not in (2, 3):
        raise ValueError(
            f"image_shape must be (H, W) or (H, W, C) and hold the features of one input, shape"
            f" {tuple(x.shape[1:])}; got {shape}."
        )
    return shape if len(shape) == 2 or shape[2] in (1, 3) else None


def perturbed(
    key: jax.Array, x: jax.Array, config: CardConfig, scale: np.ndarray, where: Any, integer: Any
) -> dict[str, Any] | None:
    """The first input under several p and sigma (rows and columns), as bytes; None if no image."""
    shape = image_shape(x, config)
    if shape is None:
        return None
    levels = [share * config.theta.scales[-1] for share in _LEVELS]
    first = x[:1]
    images = []
    for probability in _PROBABILITIES:
        for sigma in levels:
            noise = perturbations.gaussian(
                sigma,
                feature_scale=jnp.asarray(scale),
                where=where,
                probability=jnp.asarray(probability, x.dtype),
                integer=integer,
            )
            images.append(np.asarray(perturb(noise, key, first))[0])
    low, high = (
        (float(np.min(x)), float(np.max(x)))
        if config.bounds is None
        else (float(np.min(config.bounds[0])), float(np.max(config.bounds[1])))
    )
    shown = np.clip((np.stack(images) - low) / (high - low or 1.0), 0, 1)
    pixels = (255 * shown).round().astype(np.uint8)
    return {
        "index": 0,
        "shape": list(shape),
        "probabilities": list(_PROBABILITIES),
        "scales": levels,
        "pixels": base64.b64encode(pixels.tobytes()).decode(),
    }
