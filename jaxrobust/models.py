"""Models as this library calls them: ``apply_fn(params, x [B, ...]) -> outputs [B, K]``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrobust import _checks

Array = jax.Array
ApplyFn = Callable[[Any, Array], Array]

OUTPUTS = ("logits", "probabilities")


def binary(apply_fn: ApplyFn, *, outputs: str = "logits") -> ApplyFn:
    """Adapts a binary model with ONE output column to two classes.

    A model with a single sigmoid output has one logit ``z``; two classes with logits ``(0, z)``
    give the same probabilities under softmax, so every measure and attack here can take it.

    Args:
        apply_fn: model whose outputs have shape ``[B]`` or ``[B, 1]``.
        outputs: ``"logits"`` if these are logits (before the sigmoid), ``"probabilities"`` if they
            are probabilities of class 1 (after it).

    Returns:
        An ``apply_fn`` with logits ``[B, 2]``. Two adapters of the same model are equal, so making
        one again does not retrace.

    Raises:
        TypeError: if ``apply_fn`` is not callable.
        ValueError: for an unknown ``outputs``, or (when called) a model with more than one column.

    Example:
        >>> import jax.numpy as jnp, jaxrobust as jr
        >>> one_column = lambda params, x: x @ params
        >>> two_class = jr.models.binary(one_column)
        >>> two_class(jnp.ones((3, 1)), jnp.ones((4, 3)))[0].tolist()
        [0.0, 3.0]
    """
    check_apply_fn(apply_fn)
    _checks.choice("outputs", outputs, OUTPUTS)
    return _Binary(apply_fn, outputs)


class _Binary:
    """A hashable adapter, equal to another of the same model."""

    def __init__(self, apply_fn: ApplyFn, outputs: str) -> None:
        self._identity = (apply_fn, outputs)
        functools.update_wrapper(self, apply_fn, updated=())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Binary) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __call__(self, params: Any, x: Array) -> Array:
        apply_fn, outputs = self._identity
        out = jnp.asarray(apply_fn(params, x))
        if out.shape not in ((x.shape[0],), (x.shape[0], 1)):
            raise ValueError(
                f"apply_fn given to binary must return one column, shape ({x.shape[0]},) or"
                f" ({x.shape[0]}, 1); got shape {out.shape}."
            )
        out = out.reshape(-1)
        if outputs == "probabilities":
            tiny = jnp.finfo(out.dtype).tiny
            return jnp.log(jnp.maximum(jnp.stack([1 - out, out], axis=-1), tiny))
        return jnp.stack([jnp.zeros_like(out), out], axis=-1)


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
    out = jax.eval_shape(apply_fn, params, jax.ShapeDtypeStruct(x.shape, x.dtype))
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
