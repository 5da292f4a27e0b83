"""Checks of arguments: every message names the argument, what was expected and what came.

What can be known while tracing (types, shapes, static choices) is always checked. Values are
looked at only where they are concrete, so a plain call is checked and a traced one costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


def is_concrete(value: Any) -> bool:
    """Whether the values of every array in the pytree can be read now, on this host.

    They cannot be where something is traced, or split over several hosts.
    """
    return all(_is_readable(leaf) for leaf in jax.tree.leaves(value))


def _is_readable(leaf: Any) -> bool:
    if isinstance(leaf, jax.core.Tracer):
        return False
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated


def describe(value: Any) -> str:
    """A short description of what came, for error messages."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)} and dtype {value.dtype}"
    return f"{value!r} of type {type(value).__name__}"


def choice(name: str, value: Any, options: Sequence[str]) -> None:
    """Checks that a static option is one of the known ones."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}; got {value!r}.")


def count(name: str, value: Any, minimum: int = 1) -> int:
    """Checks a static whole number and returns it as an int."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number (an int); got {describe(value)}.")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}; got {value}.")
    return int(value)


def values(name: str, value: Any, test: Callable[[np.ndarray], Any], expected: str) -> None:
    """Checks the values of an array where they are concrete: all of them must pass ``test``."""
    if not is_concrete(value):
        return
    host = np.asarray(value)
    bad = ~np.asarray(test(host))
    if bad.any():
        where = ""
        if bad.ndim:
            position = tuple(int(i) for i in np.argwhere(bad)[0])
            where = f" at index {position if len(position) > 1 else position[0]}"
            host = host[position]
        raise ValueError(f"{name} must be {expected}; got {host}{where}.")


def finite(name: str, value: Any) -> None:
    """Checks that concrete values are neither NaN nor infinite."""
    values(name, value, np.isfinite, "finite")


def non_negative(name: str, value: Any) -> None:
    """Checks that concrete values are finite and not below zero."""
    values(name, value, lambda v: np.isfinite(v) & (v >= 0), "finite and not negative")


def real_array(name: str, value: Any) -> Array:
    """Converts real numbers to a floating array; refuses what is not numeric."""
    array = value if hasattr(value, "dtype") else np.asarray(value)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise TypeError(f"{name} must be real numbers; got {describe(value)}.")
    array = jnp.asarray(array)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def prng_key(key: Any) -> None:
    """Checks that ``key`` is one typed PRNG key."""
    if not hasattr(key, "dtype") or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise TypeError(
            "key must be a typed PRNG key, made with jax.random.key(seed)"
            f" (an old uint32 key becomes one with jax.random.wrap_key_data); got {describe(key)}."
        )
    if key.shape != ():
        raise ValueError(f"key must be one key of shape (); got shape {key.shape}.")


def examples(name: str, value: Any) -> Array:
    """Checks a batch of inputs ``[n, ...]``: floating, at least one example, finite."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        value = np.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"{name} must be floating-point inputs (noise is added to them); got {describe(value)}."
            f" Convert with {name}.astype('float32')."
        )
    if value.ndim < 2:
        raise ValueError(
            f"{name} must have a leading axis of examples, shape [n, ...]; got {describe(value)}."
        )
    if 0 in value.shape:
        raise ValueError(f"{name} must hold at least one example; got {describe(value)}.")
    finite(name, value)
    return jnp.asarray(value)


def labels(name: str, value: Any, num_examples: int, num_classes: int | None = None) -> Array:
    """Checks class labels ``[n]``: integers in ``0 .. num_classes - 1``."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        value = np.asarray(value)
    if not jnp.issubdtype(value.dtype, jnp.integer):
        raise TypeError(
            f"{name} must be integer class labels, shape ({num_examples},); got {describe(value)}."
        )
    if value.shape != (num_examples,):
        raise ValueError(
            f"{name} must have one label for each of the {num_examples} examples of x,"
            f" shape ({num_examples},); got {describe(value)}."
        )
    if num_classes is not None:
        values(
            name,
            value,
            lambda v: (v >= 0) & (v < num_classes),
            f"labels from 0 to {num_classes - 1} (the model has {num_classes} classes)",
        )
    return jnp.asarray(value)


def box(bounds: Any, x: Array) -> tuple[Array, Array]:
    """Checks a pair ``(lower, upper)``: each a number, one example or an array of x's shape."""
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ValueError(f"bounds must be None or a pair (lower, upper); got {describe(bounds)}.")
    lower, upper = (real_array(f"bounds[{i}]", bound) for i, bound in enumerate(bounds))
    for i, bound in enumerate((lower, upper)):
        fits = bound.shape == x.shape or (
            bound.ndim < x.ndim
            and all(
                own in (1, size)
                for own, size in zip(bound.shape[::-1], x.shape[:0:-1], strict=False)
            )
        )
        if not fits:
            raise ValueError(
                f"bounds[{i}] must be a number, an array that broadcasts to one example"
                f" {x.shape[1:]}, or one of the shape of x {x.shape}; got {describe(bound)}."
            )
    if is_concrete((lower, upper)) and not (np.asarray(lower) <= np.asarray(upper)).all():
        raise ValueError(f"bounds must have lower <= upper everywhere; got {bounds!r}.")
    return lower, upper


def inside(lower: Array, upper: Array, x: Array) -> None:
    """Checks that a box holds every ``x``, where all three can be read."""
    if not is_concrete((lower, upper, x)):
        return
    host = np.asarray(x)
    outside = ~((host >= np.asarray(lower)) & (host <= np.asarray(upper)))
    if outside.any():
        position = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ValueError(
            "x must lie within bounds (give the data's own bounds, or bounds=None);"
            f" got {host[position]} at index {position}."
        )
