"""What the intervals share: checks, and quantiles of SciPy in double precision on the host."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from jaxrobust import _checks

Array = jax.Array
Side = Literal["both", "lower", "upper"]

SIDES = ("both", "lower", "upper")


def check_confidence(confidence: Any) -> None:
    """Raises unless a concrete confidence lies strictly between 0 and 1."""
    _checks.values("confidence", confidence, lambda v: (v > 0) & (v < 1), "between 0 and 1")


def host_call(fn: Any, dtype: Any, *args: Any) -> Array:
    """``fn(*args) -> [..., 2]`` on the host: at once for known values, as a callback for traced."""
    if _checks.is_concrete(args):
        return jnp.asarray(fn(*(np.asarray(a) for a in args)))
    shape = jnp.broadcast_shapes(*(np.shape(a) for a in args))
    # Known values stay on the host as they are: as arrays they would be rounded to float32.
    known = [None if isinstance(a, jax.core.Tracer) else np.asarray(a) for a in args]
    traced = [jnp.broadcast_to(a, shape) for a in args if isinstance(a, jax.core.Tracer)]

    def merged(*arrays: Any) -> np.ndarray:
        rest = iter(arrays)
        return fn(*(next(rest) if a is None else a for a in known))

    result = jax.ShapeDtypeStruct((*shape, 2), dtype)
    return jax.pure_callback(merged, result, *traced, vmap_method="broadcast_all")


def student_quantile(confidence: Any, degrees: int) -> Array:
    """Half-width of a two-sided Student interval in standard errors."""
    dtype = jnp.result_type(float)

    def on_host(confidence: Any) -> np.ndarray:
        level = 0.5 + np.asarray(confidence, np.float64) / 2
        return np.asarray(scipy.stats.t.ppf(level, degrees), dtype)

    if _checks.is_concrete(confidence):
        return jnp.asarray(on_host(confidence))
    shape = jax.ShapeDtypeStruct(jnp.shape(confidence), dtype)
    return jax.pure_callback(on_host, shape, confidence, vmap_method="broadcast_all")
