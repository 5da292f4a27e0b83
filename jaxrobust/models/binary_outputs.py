"""Models with one output column for two classes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrobust import _checks
from jaxrobust.models.checks import OUTPUTS, ApplyFn, check_apply_fn

Array = jax.Array


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
