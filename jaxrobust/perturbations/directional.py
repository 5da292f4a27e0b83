"""Noise on an lp sphere that leans along a direction, such as that of an attack."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from jaxrobust import _checks
from jaxrobust.perturbations.base import Perturbation, Shape, static
from jaxrobust.perturbations.norms import NORMS, _divide, _onto_sphere, lp_norm

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Directional(Perturbation):
    """A shifted Gaussian put on an lp sphere; see :func:`directional`."""

    direction: Array
    kappa: Array
    radius: Array
    norm: str = static()

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {"direction": event_ndim, "kappa": 0, "radius": 0}

    def check_values(self) -> None:  # noqa: D102
        _checks.finite("direction", self.direction)
        _checks.non_negative("kappa", self.kappa)
        _checks.non_negative("radius", self.radius)

    def _check_core(self, field: str, shape: Shape, event_shape: Shape) -> None:
        if field == "direction" and shape != event_shape:
            raise ValueError(
                f"direction must have the shape of one example of x, {event_shape};"
                f" got shape {shape} for one example."
            )
        super()._check_core(field, shape, event_shape)

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        return math.prod(event_shape)

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        direction = self.direction.reshape(-1).astype(z.dtype)
        lean = self.kappa.astype(z.dtype) * _divide(direction, lp_norm(direction, "l2"))
        unit = _onto_sphere(lean + z, self.norm)
        return x + (self.radius * unit).reshape(x.shape).astype(x.dtype)


def directional(direction: Any, kappa: Any, radius: Any, *, norm: str) -> Perturbation:
    """Noise on the lp sphere of a radius that leans along a direction.

    ``eta = radius * xi / |xi|_p`` with ``xi ~ N(kappa v, I)`` and ``v = direction / |direction|_2``
    (the l2 norm, whatever ``norm`` is). At ``kappa = 0`` this is :func:`gaussian_sphere`; as kappa
    grows, the noise tends to ``radius * v / |v|_p``. At ``kappa = D ** (1 / 2)`` half of the
    squared length of xi lies along the direction; at ``D ** (1 / 4)`` the lean adds to that squared
    length about as much as it varies from draw to draw.

    Args:
        direction: one for each example ``[n, ...]``, of the shape of ``x``, or one for all of them;
            its length does not matter. Where it is zero there is nothing to lean along: kappa is
            ignored.
        kappa: how strongly the noise leans; not negative; a scalar, or ``[n]``.
        radius: not negative; a scalar, or ``[n]``. At 0 the input stays as it is, exactly.
        norm: of the sphere: ``"l1"``, ``"l2"`` or ``"linf"``.

    Returns:
        A perturbation of latent size D.

    Raises:
        TypeError: for what is not a number.
        ValueError: for a direction that is not finite, a kappa or radius that is negative or not
            finite, or an unknown norm.

    Source: "How Worst-Case Are Adversarial Attacks? Linking Adversarial and Statistical
    Robustness" 2026: its directional noise.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> noise = jr.perturbations.directional(jnp.array([[3.0, 4.0]]), 1e6, 10.0, norm="l2")
        >>> x_hat = jr.perturb(noise, jax.random.key(0), jnp.zeros((1, 2)))
        >>> [round(float(v), 3) for v in x_hat[0]]
        [6.0, 8.0]
    """
    _checks.choice("norm", norm, NORMS)
    made = Directional(
        direction=_checks.real_array("direction", direction),
        kappa=_checks.real_array("kappa", kappa),
        radius=_checks.real_array("radius", radius),
        norm=norm,
    )
    made.check_values()
    return made
