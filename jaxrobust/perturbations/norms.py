"""Noise in an lp ball or on an lp sphere."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erf, erfc

from jaxrobust import _checks
from jaxrobust.perturbations.base import Perturbation, Shape, static

Array = jax.Array

NORMS = ("l1", "l2", "linf")


def lp_norm(v: Array, norm: str) -> Array:
    """The l1, l2 or linf norm of one array, flattened."""
    v = v.reshape(-1)
    if norm == "l1":
        return jnp.abs(v).sum()
    if norm == "l2":
        # Scaled by the largest entry, so that squares neither overflow nor vanish.
        largest = jnp.abs(v).max()
        safe = jnp.where(largest > 0, largest, 1)
        return largest * jnp.sqrt(jnp.square(v / safe).sum())
    return jnp.abs(v).max()


def _exponential(z: Array) -> Array:
    """Push-forward of a normal to a unit exponential; even in z, so the sign of z stays free."""
    # Where erfc vanishes (beyond 13 standard deviations in float32) the logarithm stays finite.
    return -jnp.log(jnp.maximum(erfc(jnp.abs(z) / math.sqrt(2)), jnp.finfo(z.dtype).tiny))


def _uniform(z: Array) -> Array:
    """Push-forward of a normal to the uniform on (-1, 1); odd in z."""
    return erf(z / math.sqrt(2))


def _divide(v: Array, by: Array) -> Array:
    """``v / by``, and zero where ``by`` is zero."""
    return jnp.where(by > 0, v / jnp.where(by > 0, by, 1), 0)


def _onto_sphere(v: Array, norm: str) -> Array:
    """Scales a vector to the lp norm 1; zero stays zero."""
    length = lp_norm(v, norm)
    unit = _divide(v, length)
    if norm == "linf":
        # Division may be done by a rounded reciprocal; the largest entry is 1 all the same.
        unit = jnp.where(jnp.abs(v) < length, unit, jnp.sign(v))
    return unit


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NormBounded(Perturbation):
    """Noise on an lp sphere or in an lp ball; see the functions that build it."""

    radius: Array
    norm: str = static()
    kind: str = static()

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {"radius": 0}

    def check_values(self) -> None:  # noqa: D102
        _checks.non_negative("radius", self.radius)

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        extra = {"l1": 1, "l2": 2, "linf": 0}[self.norm] if self.kind == "ball" else 0
        return math.prod(event_shape) + extra

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        unit = _SHAPES[self.kind](z, math.prod(x.shape), self.norm)
        return x + (self.radius * unit).reshape(x.shape).astype(x.dtype)


def _unit_ball(z: Array, size: int, norm: str) -> Array:
    if norm == "linf":
        return _uniform(z)
    if norm == "l2":
        # The first D coordinates of a uniform point on the sphere in D + 2 dimensions are uniform
        # in the D-ball (Archimedes' hat-box theorem).
        return _divide(z[:size], lp_norm(z, "l2"))
    e = _exponential(z)
    return _divide(jnp.sign(z[:size]) * e[:size], e.sum())


def _unit_sphere(z: Array, size: int, norm: str) -> Array:
    if norm == "linf":
        # A uniform point of the cube pushed out along its ray is uniform on the faces.
        z = _uniform(z)
    elif norm == "l1":
        z = jnp.sign(z) * _exponential(z)
    return _onto_sphere(z, norm)


def _unit_gaussian_sphere(z: Array, size: int, norm: str) -> Array:
    return _onto_sphere(z, norm)


_SHAPES: dict[str, Callable[[Array, int, str], Array]] = {
    "ball": _unit_ball,
    "sphere": _unit_sphere,
    "gaussian_sphere": _unit_gaussian_sphere,
}


def _norm_bounded(radius: Any, norm: str, kind: str) -> Perturbation:
    _checks.choice("norm", norm, NORMS)
    radius = _checks.real_array("radius", radius)
    made = NormBounded(radius=radius, norm=norm, kind=kind)
    made.check_values()
    return made


def uniform_ball(radius: Any, *, norm: str) -> Perturbation:
    """Noise uniform in the lp ball of a radius, exactly.

    The sampler of CLEVER (Weng et al. 2018, arXiv 1801.10578). The mean lp norm of the noise is
    ``radius * D / (D + 1)`` for every norm.

    Args:
        radius: not negative; a scalar, or one for each example ``[n]``.
        norm: ``"l1"``, ``"l2"`` or ``"linf"``.

    Returns:
        A perturbation of latent size D (linf), D + 1 (l1) or D + 2 (l2).

    Raises:
        TypeError: for a radius that is not a number.
        ValueError: for a negative or non-finite radius, or an unknown norm.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> noise = jr.perturbations.uniform_ball(2.0, norm="linf")
        >>> float(jnp.abs(jr.perturb(noise, jax.random.key(0), jnp.zeros((9, 4)))).max()) <= 2.0
        True
    """
    return _norm_bounded(radius, norm, "ball")


def uniform_sphere(radius: Any, *, norm: str) -> Perturbation:
    """Noise uniform on the lp sphere of a radius, exactly (by surface, for each norm).

    Args:
        radius: not negative; a scalar, or one for each example ``[n]``.
        norm: ``"l1"``, ``"l2"`` or ``"linf"``.

    Returns:
        A perturbation of latent size D.

    Raises:
        TypeError: for a radius that is not a number.
        ValueError: for a negative or non-finite radius, or an unknown norm.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> noise = jr.perturbations.uniform_sphere(2.0, norm="l1")
        >>> x_hat = jr.perturb(noise, jax.random.key(0), jnp.zeros((1, 5)))
        >>> round(float(jnp.abs(x_hat).sum()), 4)
        2.0
    """
    return _norm_bounded(radius, norm, "sphere")


def gaussian_sphere(radius: Any, *, norm: str) -> Perturbation:
    """A Gaussian direction scaled onto the lp sphere: ``radius * z / |z|_p``.

    Uniform on the sphere for l2 only; for linf most of it lies far from the corners (its l2 length
    is about .26 of a corner's at D = 3072). For the uniform one see :func:`uniform_sphere`.

    Args:
        radius: not negative; a scalar, or one for each example ``[n]``.
        norm: ``"l1"``, ``"l2"`` or ``"linf"``.

    Returns:
        A perturbation of latent size D.

    Raises:
        TypeError: for a radius that is not a number.
        ValueError: for a negative or non-finite radius, or an unknown norm.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> noise = jr.perturbations.gaussian_sphere(3.0, norm="linf")
        >>> x_hat = jr.perturb(noise, jax.random.key(0), jnp.zeros((1, 5)))
        >>> round(float(jnp.abs(x_hat).max()), 4)
        3.0
    """
    return _norm_bounded(radius, norm, "gaussian_sphere")
