"""Arguments of the closed forms, as checked NumPy arrays in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrobust import _checks

Array = np.ndarray

# How far from symmetric, or below zero an eigenvalue may be, relative to the largest entry: the
# rounding of a covariance that was computed in single precision.
_ROUNDING = 1e-5


def numbers(name: str, value: Any, ndim: int | tuple[int, ...] | None = None) -> Array:
    """Converts finite real numbers to float64, and checks the number of axes."""
    array = real(name, value, ndim)
    _checks.finite(name, array)
    return array


def real(name: str, value: Any, ndim: int | tuple[int, ...] | None = None) -> Array:
    """Like :func:`numbers`, with infinite values allowed."""
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be real numbers; got {_checks.describe(value)}.") from error
    allowed = (ndim,) if isinstance(ndim, int) else ndim
    if allowed is not None and array.ndim not in allowed:
        axes = " or ".join(map(str, allowed))
        raise ValueError(f"{name} must have {axes} axes; got {_checks.describe(array)}.")
    _checks.values(name, array, lambda v: ~np.isnan(v), "numbers, not NaN")
    return array


def features(name: str, value: Array, size: int, like: str) -> None:
    """Checks that the last axis has ``size`` features, as ``like`` has."""
    if value.shape[-1] != size:
        raise ValueError(
            f"{name} must have {size} features along its last axis, like {like};"
            f" got shape {value.shape}."
        )


def broadcast(*named: tuple[str, Array]) -> tuple[int, ...]:
    """The common shape of several arguments."""
    try:
        return np.broadcast_shapes(*(array.shape for _, array in named))
    except ValueError as error:
        names = ", ".join(name for name, _ in named)
        shapes = ", ".join(str(array.shape) for _, array in named)
        raise ValueError(f"{names} must broadcast together; got shapes {shapes}.") from error


def covariance(value: Any, x: Array) -> Array:
    """Checks ``cov [d, d]`` or, for inputs ``x [n, d]``, ``[n, d, d]``; returns it exactly so."""
    cov = numbers("cov", value, (2, 3))
    size = x.shape[-1]
    shapes = [(size, size), *([(x.shape[0], size, size)] if x.ndim == 2 else [])]
    if cov.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ValueError(
            f"cov must have shape {expected} for x of shape {x.shape}; got {cov.shape}."
        )
    mirror = np.swapaxes(cov, -1, -2)
    allowed = _ROUNDING * np.abs(cov).max(axis=(-2, -1), keepdims=True)
    if (np.abs(cov - mirror) > allowed).any():
        raise ValueError(
            "cov must be symmetric; got entries that differ from their mirror by"
            f" {np.abs(cov - mirror).max()}."
        )
    cov = (cov + mirror) / 2
    values, vectors = np.linalg.eigh(cov)
    if (values.min(axis=-1) < -size * allowed[..., 0, 0]).any():
        raise ValueError(
            "cov must be positive semi-definite (no eigenvalue below zero);"
            f" got an eigenvalue of {values.min()}."
        )
    # What rounding left below zero is zero; a covariance without it stays as it came, bit by bit.
    clean = (vectors * np.maximum(values, 0)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    return np.where((values.min(axis=-1) < 0)[..., None, None], clean, cov)
