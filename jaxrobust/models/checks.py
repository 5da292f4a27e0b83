"""What a model must be: ``apply_fn(params, x [B, ...]) -> outputs [B, K]``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import _checks

Array = jax.Array
ApplyFn = Callable[[Any, Array], Array]

OUTPUTS = ("logits", "probabilities")


def check_apply_fn(apply_fn: Any) -> None:
    """Raises a TypeError unless ``apply_fn`` is a hashable callable."""
    if not callable(apply_fn):
        raise TypeError(
            "apply_fn must be a callable apply_fn(params, x) -> outputs, such as model.apply;"
            f" got {_checks.describe(apply_fn)}."
        )
    try:
        hash(apply_fn)
    except TypeError as error:
        raise TypeError(
            "apply_fn must be hashable (it is compiled once and looked up again): pass a function"
            f" or a bound method; got {_checks.describe(apply_fn)}."
        ) from error


def output_struct(apply_fn: ApplyFn, params: Any, x: Array) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the outputs for a batch of inputs, without running the model."""
    check_apply_fn(apply_fn)
    try:
        out = _eval_shape(apply_fn, params, jax.ShapeDtypeStruct(x.shape, x.dtype))
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        raise TypeError(
            "apply_fn must be traceable by JAX, but it asks for the values of its inputs (does it"
            " call NumPy or branch on them?). Wrap a model that is not written in JAX:"
            " jaxrobust.models.from_numpy(predict)."
        ) from error
    except Exception as error:
        error.add_note(
            "jaxrobust called apply_fn(params, x) with x of shape"
            f" {x.shape} and params of type {type(params).__name__}. For a Flax module params is"
            " what init returned, the collection 'params' and all others; whatever else the module"
            " needs is bound by a function, such as"
            " lambda params, x: module.apply(params, x, train=False)."
        )
        raise
    if not hasattr(out, "shape") or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(
            "apply_fn must return one floating-point array of outputs, shape [B, K];"
            f" got {out if not hasattr(out, 'shape') else _checks.describe(out)}."
        )
    if out.ndim not in (1, 2) or out.shape[0] != x.shape[0]:
        raise ValueError(
            f"apply_fn must return outputs of shape [B, K] (or [B] for regression) for inputs"
            f" [B, ...]; got shape {out.shape} for inputs of shape {x.shape}."
        )
    return out


def _eval_shape(apply_fn: ApplyFn, params: Any, x: jax.ShapeDtypeStruct) -> Any:
    """``jax.eval_shape``, remembered for each structure: a call of a measure asks every time."""
    leaves, tree = jax.tree.flatten(params)
    if not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
        return jax.eval_shape(apply_fn, params, x)
    shapes = tuple(
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf, "weak_type", False))
        for leaf in leaves
    )
    try:
        hash(tree)
    except TypeError:  # what a node of the tree keeps beside its leaves need not be hashable
        return jax.eval_shape(apply_fn, params, x)
    return _remembered(apply_fn, tree, shapes, x, jax.config.read("jax_enable_x64"))


@functools.lru_cache(maxsize=64)
def _remembered(
    apply_fn: ApplyFn,
    tree: Any,
    shapes: tuple[jax.ShapeDtypeStruct, ...],
    x: jax.ShapeDtypeStruct,
    x64: bool,
) -> Any:
    return jax.eval_shape(apply_fn, tree.unflatten(shapes), x)


def num_classes(apply_fn: ApplyFn, params: Any, x: Array) -> int:
    """The number of classes K of a classifier; refuses a model with a single output column."""
    out = output_struct(apply_fn, params, x)
    if out.ndim != 2 or out.shape[1] < 2:
        raise ValueError(
            "apply_fn must return one column for each class, shape [B, K] with K >= 2;"
            f" got shape {out.shape}. A binary model with one sigmoid output goes through"
            " jaxrobust.models.binary(apply_fn)."
        )
    return out.shape[1]
