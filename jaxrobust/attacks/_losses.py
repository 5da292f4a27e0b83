"""What an attack climbs: functions of logits ``[B, K]`` and labels ``[B]``, one value a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxrobust import _checks

Loss = str | Callable[[Array, Array], Array]

# The slope that a saturated cross-entropy keeps, relative to an unsaturated one.
_FLOOR = 1e-12


def check(loss: Any) -> None:
    """Checks that ``loss`` names a loss or is a function."""
    if not callable(loss):
        _checks.choice("loss", loss, tuple(_LOSSES))


def objective(loss: Loss, targeted: bool) -> Callable[[Array, Array], Array]:
    """The function an attack maximises: the loss, or minus the loss for a targeted attack."""
    fn = _LOSSES[loss] if isinstance(loss, str) else loss
    return (lambda logits, labels: -fn(logits, labels)) if targeted else fn


def best_other(logits: Array, labels: Array) -> Array:
    """The logits ``[B, K]`` with that of the label at the lowest finite value."""
    classes = jnp.arange(logits.shape[-1]).reshape(1, -1)
    return jnp.where(classes == labels.reshape(-1, 1), jnp.finfo(logits.dtype).min, logits)


def own(logits: Array, labels: Array) -> Array:
    """The logit of each label (gathered: a one-hot product would make NaN of -inf * 0)."""
    return jnp.take_along_axis(logits, labels.reshape(-1, 1), axis=-1)[:, 0]


def _finite(logits: Array) -> Array:
    # A class ruled out by -inf stays far behind, and differences of logits stay finite.
    limit = float(jnp.finfo(logits.dtype).max) / 8
    return jnp.clip(logits, -limit, limit)


def margin(logits: Array, labels: Array) -> Array:
    """How far the best other class is ahead of the label; positive where it has won."""
    logits = _finite(logits)
    return best_other(logits, labels).max(-1) - own(logits, labels)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy, with a slope that never dies.

    With o the log-odds of an error, log((1 - p)/p), cross-entropy is softplus(o), whose slope
    underflows to zero for a confident network, and the attack with it. The direction of the
    gradient is that of o throughout, so a trace of o keeps it.
    """
    logits = _finite(logits)
    odds = jax.nn.logsumexp(best_other(logits, labels), axis=-1) - own(logits, labels)
    return jax.nn.softplus(odds) + _FLOOR * odds


def dlr(logits: Array, labels: Array) -> Array:
    """Difference of logits ratio (Croce & Hein 2020, arXiv 2003.01690, eq. 6)."""
    if logits.shape[-1] < 3:
        raise ValueError(
            f"loss 'dlr' needs a model of at least 3 classes; got {logits.shape[-1]}. Use 'margin'."
        )
    top = jax.lax.top_k(_finite(logits), 3)[0]
    return margin(logits, labels) / (top[:, 0] - top[:, 2] + _FLOOR)


_LOSSES: dict[str, Callable[[Array, Array], Array]] = {
    "cross_entropy": cross_entropy,
    "margin": margin,
    "dlr": dlr,
}
