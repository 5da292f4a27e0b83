"""Categories taken for one another: what a table of confusions says can happen to a feature."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from jaxrobust import _checks
from jaxrobust.perturbations.base import Perturbation, Shape, static

Array = jax.Array

# Rows of float32 probabilities sum to one this nearly.
_SUM_TOLERANCE = 1e-4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Confusion(Perturbation):
    """One categorical feature, confused; see :func:`confusion`."""

    table: Array
    columns: tuple[int, ...] = static()

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {"table": 2}

    def check_values(self) -> None:  # noqa: D102
        _checks.values(
            "table", self.table, lambda v: (v >= 0) & (v <= 1), "probabilities, from 0 to 1"
        )
        _checks.values(
            "table",
            self.table if not _checks.is_concrete(self.table) else np.sum(self.table, axis=-1),
            lambda v: np.abs(v - 1) <= _SUM_TOLERANCE,
            "rows of probabilities that sum to one",
        )

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        return 1

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        flat, last = x.reshape(-1), self.table.shape[-1] - 1
        columns = np.asarray(self.columns)
        cells = flat[columns]
        one_hot = len(self.columns) > 1
        now = cells.argmax() if one_hot else jnp.round(cells[0]).astype(jnp.int32)
        known = cells.max() > 0 if one_hot else (now >= 0) & (now <= last)
        upto = jnp.cumsum(self.table[jnp.clip(now, 0, last)])[:-1]
        # The table's own rounding must not reach a category of probability zero.
        drawn = jnp.sum(ndtr(z[0]).astype(upto.dtype) >= upto)
        new = jax.nn.one_hot(drawn, last + 1, dtype=x.dtype) if one_hot else drawn[None]
        new = jnp.where(known, new.astype(x.dtype), cells)
        return flat.at[columns].set(new).reshape(x.shape)

    def _check_core(self, field: str, shape: Shape, event_shape: Shape) -> None:
        size = int(np.prod(event_shape))
        if max(self.columns) >= size:
            raise ValueError(
                f"columns must be features of one example, from 0 to {size - 1};"
                f" got {max(self.columns)}."
            )


def confusion(table: Any, *, columns: int | Sequence[int]) -> Perturbation:
    """Replaces a category by another one with the probabilities of a confusion table.

    For several categorical features, :func:`chain` several of these; each draws by itself.

    Args:
        table: ``[C, C]``, or ``[n, C, C]`` for each example its own: ``table[a, b]`` is the
            probability that category a is recorded as b. Rows sum to one.
        columns: the C columns of a one-hot coded feature, in the order of the table; or one column
            that holds codes 0 .. C - 1. Flattened indices.

    Returns:
        A perturbation of latent size 1. An example of no known category (no column is hot, a code
        out of range) is left as it is.

    Raises:
        TypeError: for a table that is not numbers, or columns that are not whole numbers.
        ValueError: for a table that is not square or whose rows are no probabilities, for columns
            that are negative, repeated, or not as many as categories.

    Source: Scher & Truegler, "Testing robustness of predictions of trained classifiers against
    naturally occurring perturbations", arXiv 2204.10046, where inputs may be categories.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> table = jnp.array([[0.9, 0.1], [0.0, 1.0]])
        >>> noise = jr.perturbations.confusion(table, columns=(0, 1))
        >>> x = jnp.tile(jnp.array([[1.0, 0.0, 5.0]]), (1000, 1))  # one-hot, and a number
        >>> x_hat = jr.perturb(noise, jax.random.key(0), x)
        >>> bool(abs(x_hat[:, 1].mean() - 0.1) < 0.03), bool((x_hat[:, 2] == 5).all())
        (True, True)
    """
    table = _checks.real_array("table", table)
    if table.ndim not in (2, 3) or table.shape[-1] != table.shape[-2] or table.shape[-1] < 2:
        raise ValueError(
            "table must be square, shape [C, C] or [n, C, C] with C >= 2; got"
            f" {_checks.describe(table)}."
        )
    try:
        given = columns if isinstance(columns, (Sequence, np.ndarray)) else (columns,)
        indices = tuple(operator.index(column) for column in given)
    except TypeError as error:
        raise TypeError(
            f"columns must be one whole number or several; got {_checks.describe(columns)}."
        ) from error
    num = table.shape[-1]
    if len(indices) not in (1, num) or len(set(indices)) < len(indices) or min(indices) < 0:
        raise ValueError(
            f"columns must be one column of codes, or {num} different ones, as many as categories,"
            f" none negative; got {columns!r}."
        )
    made = Confusion(table=table, columns=indices)
    made.check_values()
    return made
