"""Perturbations made of others, of observed data, or of a user's sampler."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from jaxrobust import _checks
from jaxrobust._keys import standard
from jaxrobust.perturbations.base import Perturbation, Shape, check_perturbation
from jaxrobust.perturbations.cells import (
    as_mask,
    as_probability,
    check_probability,
    chosen_cells,
)

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Clipped(Perturbation):
    """A perturbation kept inside bounds; see :func:`clipped`."""

    perturbation: Perturbation
    lower: Array
    upper: Array

    @property
    def has_latent(self) -> bool:  # noqa: D102
        return self.perturbation.has_latent

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {"lower": event_ndim, "upper": event_ndim}

    def per_example(self, event_ndim: int) -> Self:  # noqa: D102
        bounds = super().per_example(event_ndim)
        return dataclasses.replace(
            self,
            perturbation=self.perturbation.per_example(event_ndim),
            lower=bounds.lower,
            upper=bounds.upper,
        )

    def check_shapes(self, batch_shape: Shape) -> None:  # noqa: D102
        super().check_shapes(batch_shape)
        self.perturbation.check_shapes(batch_shape)

    def check_values(self) -> None:  # noqa: D102
        self.perturbation.check_values()
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            _checks.values(name, bound, lambda v: ~np.isnan(v), "a number, not NaN")
        if not _checks.is_concrete((self.lower, self.upper)):
            return
        lower, upper = np.asarray(self.lower), np.asarray(self.upper)
        try:
            crossed = (lower > upper).any()
        except ValueError as error:
            raise ValueError(
                f"lower and upper must fit each other; got shapes {lower.shape} and {upper.shape}."
            ) from error
        if crossed:
            raise ValueError(f"lower must not exceed upper; got lower={lower}, upper={upper}.")

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        return self.perturbation.latent_size(event_shape)

    def draw(self, key: Array, event_shape: Shape, dtype: Any = jnp.float32) -> Array:  # noqa: D102
        return self.perturbation.draw(key, event_shape, dtype)

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        x_hat = self.perturbation.transform(z, x)
        lower, upper = (jnp.broadcast_to(b, x.shape) for b in (self.lower, self.upper))
        return jnp.clip(x_hat, lower.astype(x.dtype), upper.astype(x.dtype))


def clipped(perturbation: Perturbation, lower: Any, upper: Any) -> Perturbation:
    """The same perturbation with its result clipped into ``[lower, upper]``.

    Args:
        perturbation: the perturbation to clip.
        lower: lower bound, broadcastable to one example, or ``[n, ...]``; ``-inf`` for none.
        upper: upper bound, likewise.

    Returns:
        A perturbation of the same latent size.

    Raises:
        TypeError: for what is not a perturbation or not a number.
        ValueError: for a NaN bound, or a lower bound above the upper one.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> noise = jr.perturbations.clipped(jr.perturbations.gaussian(9.0), 0.0, 1.0)
        >>> x_hat = jr.perturb(noise, jax.random.key(0), jnp.full((5, 2), 0.5))
        >>> bool(((x_hat >= 0) & (x_hat <= 1)).all())
        True
    """
    check_perturbation(perturbation)
    lower = _checks.real_array("lower", lower)
    upper = _checks.real_array("upper", upper)
    made = Clipped(perturbation=perturbation, lower=lower, upper=upper)
    made.check_values()
    return made


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Chain(Perturbation):
    """Perturbations one after the other; see :func:`chain`."""

    perturbations: tuple[Perturbation, ...]

    @property
    def has_latent(self) -> bool:  # noqa: D102
        return all(p.has_latent for p in self.perturbations)

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {}

    def per_example(self, event_ndim: int) -> Self:  # noqa: D102
        inner = tuple(p.per_example(event_ndim) for p in self.perturbations)
        return dataclasses.replace(self, perturbations=inner)

    def check_shapes(self, batch_shape: Shape) -> None:  # noqa: D102
        for p in self.perturbations:
            p.check_shapes(batch_shape)

    def check_values(self) -> None:  # noqa: D102
        for p in self.perturbations:
            p.check_values()

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        return sum(p.latent_size(event_shape) for p in self.perturbations)

    def draw(self, key: Array, event_shape: Shape, dtype: Any = jnp.float32) -> Array:  # noqa: D102
        # With a sampler among the links there is no latent: the key itself is what is passed on.
        return super().draw(key, event_shape, dtype) if self.has_latent else key

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        start = 0
        for number, p in enumerate(self.perturbations):
            if self.has_latent:
                size = p.latent_size(x.shape)
                x = p.transform(z[start : start + size], x)
                start += size
            else:
                x = p.sample(jax.random.fold_in(z, number), x)
        return x


def chain(*perturbations: Perturbation) -> Perturbation:
    """Applies perturbations one after the other, each with noise of its own.

    Args:
        *perturbations: at least one; the first is applied first.

    Returns:
        A perturbation whose latent size is the sum of theirs.

    Raises:
        TypeError: for what is not a perturbation.
        ValueError: when there is none.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> p = jr.perturbations
        >>> both = p.chain(p.gaussian(0.1), p.uniform_ball(0.5, norm="l2"))
        >>> both.latent_size((3,))
        8
    """
    if not perturbations:
        raise ValueError("chain needs at least one perturbation; got none.")
    for p in perturbations:
        check_perturbation(p)
    return Chain(tuple(perturbations))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Resample(Perturbation):
    """Cells replaced by those of a table; see :func:`resample`."""

    table: Array
    where: Array | None
    probability: Array | None

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {"table": event_ndim + 1, "where": event_ndim, "probability": 0}

    def check_values(self) -> None:  # noqa: D102
        _checks.finite("table", self.table)
        check_probability(self.probability)

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        return math.prod(event_shape) * (1 if self.probability is None else 2)

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        size = math.prod(x.shape)
        rows = self.table.shape[0]
        row = jnp.minimum((ndtr(z[:size]) * rows).astype(jnp.int32), rows - 1)
        picked = jnp.take_along_axis(self.table.reshape(rows, size), row[None, :], axis=0)
        x_hat = picked.reshape(x.shape).astype(x.dtype)
        cells = chosen_cells(self.where, self.probability, z[size:], x.shape)
        return x_hat if cells is None else jnp.where(cells, x_hat, x)

    def _check_core(self, field: str, shape: Shape, event_shape: Shape) -> None:
        if field != "table":
            super()._check_core(field, shape, event_shape)
        elif shape[1:] != event_shape:
            raise ValueError(
                f"table must have shape [rows, ...] with rows like one example of x, of shape"
                f" {event_shape}; got shape {shape}."
            )


def resample(table: Any, *, where: Any = None, probability: Any = 1.0) -> Perturbation:
    """Replaces cells by the same cell of a random row of a table of observed examples.

    Each chosen cell draws its own row, uniformly: noise for categorical columns and for marginals
    of any shape. Cells are replaced independently, so one-hot groups need a table and a model that
    allow for it.

    Args:
        table: observed examples ``[rows, ...]``, each of the shape of one example; or
            ``[n, rows, ...]`` for each example its own.
        where: bool, broadcastable to one example (or ``[n, ...]``): cells that may be replaced.
        probability: each allowed cell is replaced with this probability; a scalar or ``[n]``.

    Returns:
        A perturbation of latent size D, or 2 D with a probability.

    Raises:
        TypeError: for values that are not numbers, or a mask that is not bool.
        ValueError: for an empty or non-finite table, or a probability outside [0, 1].

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> table = jnp.array([[1.0, 7.0], [2.0, 8.0]])
        >>> noise = jr.perturbations.resample(table, where=jnp.array([True, False]))
        >>> x_hat = jr.perturb(noise, jax.random.key(0), jnp.zeros((20, 2)))
        >>> sorted(set(x_hat[:, 0].tolist())), float(jnp.abs(x_hat[:, 1]).max())
        ([1.0, 2.0], 0.0)
    """
    table = _checks.real_array("table", table)
    if table.ndim < 2 or 0 in table.shape:
        raise ValueError(
            f"table must hold at least one row, shape [rows, ...]; got {_checks.describe(table)}."
        )
    made = Resample(
        table=table,
        where=as_mask("where", where),
        probability=as_probability(probability),
    )
    made.check_values()
    return made


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FromSampler(Perturbation):
    """A user's sampler; see :func:`from_sampler`."""

    fn: Callable[[Array, Array], Array] = dataclasses.field(metadata={"static": True})

    @property
    def has_latent(self) -> bool:  # noqa: D102
        return False

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {}

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        raise ValueError(
            "perturbation must be a push-forward of a normal draw here (quasi-Monte Carlo and"
            " rare-event splitting choose that draw); got one made by from_sampler, which only"
            " takes a key."
        )

    def draw(self, key: Array, event_shape: Shape, dtype: Any = jnp.float32) -> Array:  # noqa: D102
        return key

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        x_hat = self.fn(standard(z), x)
        if getattr(x_hat, "shape", None) != x.shape or x_hat.dtype != x.dtype:
            raise ValueError(
                "fn (the sampler) must return one perturbed example of shape"
                f" {x.shape} and dtype {x.dtype}; got {_checks.describe(x_hat)}."
            )
        return jnp.asarray(x_hat)


def from_sampler(fn: Callable[[Array, Array], Array]) -> Perturbation:
    """Any sampler ``fn(key, x_i) -> x_hat_i`` as a perturbation.

    It works with every plain Monte Carlo measure; where the normal draw itself is chosen
    (``sampling="sobol"``, rare events), it is refused with a clear message. In a sweep the same key
    is used at every point.

    Args:
        fn: takes a typed key and ONE example, returns one of the same shape and dtype. Traced, so
            written with JAX; hashable, and the same object from call to call (or it retraces).

    Returns:
        A perturbation without a latent.

    Raises:
        TypeError: for what is not callable.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> flip_sign = lambda key, x: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), -x, x)
        >>> x_hat = jr.perturb(
        ...     jr.perturbations.from_sampler(flip_sign), jax.random.key(0), jnp.ones((2, 3))
        ... )
        >>> bool((jnp.abs(x_hat) == 1).all())
        True
    """
    if not callable(fn):
        raise TypeError(
            f"fn must be a callable fn(key, x_i) -> x_hat_i; got {_checks.describe(fn)}."
        )
    return FromSampler(fn=fn)
