"""Which cells of an input are perturbed: a fixed mask, and a Bernoulli draw for each cell."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from jaxrobust import _checks

Array = jax.Array
Shape = tuple[int, ...]


def chosen_cells(
    where: Array | None, probability: Array | None, z: Array, shape: Shape
) -> Array | None:
    """Which cells are perturbed: those allowed by ``where``, each with its own Bernoulli draw.

    ``z < ndtri(p)`` has probability p exactly, and the same z serves every p of a sweep.
    """
    cells = None if where is None else jnp.broadcast_to(where, shape)
    if probability is not None:
        drawn = z.reshape(shape) < ndtri(probability.astype(z.dtype))
        cells = drawn if cells is None else cells & drawn
    return cells


def as_mask(name: str, value: Any) -> Array | None:
    """Checks a bool mask; ``None`` stands for everywhere."""
    if value is None:
        return None
    array = jnp.asarray(value)
    if array.dtype != bool:
        raise TypeError(
            f"{name} must be a bool mask (True where it applies); got {_checks.describe(array)}."
        )
    return array


def as_probability(value: Any) -> Array | None:
    """Checks a probability; the plain number 1 becomes ``None``, for which no mask is drawn."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == 1:
        return None
    return _checks.real_array("probability", value)


def check_probability(probability: Array | None) -> None:
    """Checks the values of a probability."""
    if probability is not None:
        _checks.values("probability", probability, lambda v: (v >= 0) & (v <= 1), "from 0 to 1")
