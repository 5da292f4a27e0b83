"""A model whose inputs are measured in units of their features' scale."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import models

Array = jax.Array


class InUnits:
    """``apply_fn`` of inputs in units: ``(params, base, scale), u -> apply_fn(params, x)``.

    ``active`` names the (flattened) features that ``u`` has; the others stay at ``base``.
    """

    def __init__(self, apply_fn: models.ApplyFn, active: tuple[int, ...] | None) -> None:
        self._identity = (apply_fn, active)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InUnits) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __call__(self, params: Any, u: Array) -> Array:
        """Outputs of inputs in units."""
        apply_fn, active = self._identity
        inner, base, scale = params
        moved = (u * scale[None]).astype(base.dtype)
        if active is None:
            return apply_fn(inner, moved)
        flat = jnp.broadcast_to(base.reshape(1, -1), (u.shape[0], base.size))
        flat = flat.at[:, np.asarray(active)].set(moved)
        return apply_fn(inner, flat.reshape(u.shape[0], *base.shape))


class Scaled(NamedTuple):
    """A model and its inputs in units.

    Attributes:
        apply_fn: of inputs in units.
        params: of it.
        u: ``[n, ...]``; the inputs in units.
        bounds: in units, or None.
        unit: what a unit is, in words.
    """

    apply_fn: InUnits
    params: Any
    u: Array
    bounds: tuple[Array, Array] | None
    unit: str


def in_units(
    apply_fn: models.ApplyFn,
    params: Any,
    x: Array,
    scale: np.ndarray,
    allowed: np.ndarray,
    bounds: Any,
    image: bool,
) -> Scaled | str:
    """Scales a model's inputs, or says why distances between its inputs mean nothing.

    Args:
        apply_fn: the model.
        params: its parameters.
        x: inputs ``[n, ...]``.
        scale: of each feature, ``[...]``.
        allowed: which features may be perturbed, ``[...]``.
        bounds: ``(lower, upper)`` of the inputs, broadcasting to one example, or None.
        image: whether all features share one unit.
    """
    shape = x.shape[1:]
    ends = None
    if bounds is not None:
        ends = tuple(np.broadcast_to(np.asarray(end, np.float32), shape) for end in bounds)
    if image:
        unit = float(np.sqrt(np.mean(np.square(scale[scale > 0]))))
        scale, active = np.full(shape, unit, np.float32), None
        words = "the root mean square of the pixels' scales"
    else:
        moves = allowed & (scale > 0)
        frozen = ~moves & (np.ptp(np.asarray(x), axis=0) > 0)
        if frozen.any():
            return (
                f"{int(frozen.sum())} of {frozen.size} features must not move (categories, or a"
                " scale of zero) and differ between examples, so balls around an example mix what"
                " can happen with what cannot"
            )
        if not moves.any():
            return "no feature may move (all are masked, or have a scale of zero)"
        active = None if moves.all() else tuple(np.flatnonzero(moves).tolist())
        words = "each feature's scale"
    base = x[0]
    # Attacks take steps that half precision would lose; the model gets the precision it expects.
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if active is not None:
        scale = scale.reshape(-1)[list(active)]
        x = x.reshape(len(x), -1)[:, np.asarray(active)]
        if ends is not None:
            ends = tuple(end.reshape(-1)[list(active)] for end in ends)
    sizes = jnp.asarray(scale, x.dtype)
    u, box = x / sizes[None], None
    if ends is not None:
        low, high = (jnp.asarray(end, x.dtype) / sizes for end in ends)
        u, box = jnp.clip(u, low[None], high[None]), (low, high)  # division may round past them
    return Scaled(InUnits(apply_fn, active), (params, base, sizes), u, box, words)
