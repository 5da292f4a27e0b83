"""The form every perturbation has, and how it is applied to a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import _checks
from jaxrobust._keys import as_it_is, threefry

Array = jax.Array
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Perturbation:
    """The base of every perturbation; build one with the functions of this module.

    To write your own, derive a frozen dataclass, register it with
    ``jax.tree_util.register_dataclass``, and define ``latent_size``, ``transform`` and
    ``core_ndims``; or wrap a plain sampler with :func:`from_sampler`.
    """

    @property
    def has_latent(self) -> bool:
        """Whether this is a push-forward of a normal draw (all but :func:`from_sampler`)."""
        return True

    def latent_size(self, event_shape: Shape) -> int:
        """The number of standard normal values that one perturbed example needs."""
        raise NotImplementedError

    def transform(self, z: Array, x: Array) -> Array:
        """Pushes ``z [latent_size]`` forward to one perturbed example, of the shape of ``x``."""
        raise NotImplementedError

    def sample(self, key: Array, x: Array) -> Array:
        """Draws one perturbed example from a key."""
        return self.transform(self.draw(key, x.shape, x.dtype), x)

    def draw(self, key: Array, event_shape: Shape, dtype: Any = jnp.float32) -> Array:
        """Draws the latent ``z [latent_size]`` that ``transform`` takes."""
        dtype = jnp.promote_types(dtype, jnp.float32)
        return jax.random.normal(key, (self.latent_size(event_shape),), dtype)

    def core_ndims(self, event_ndim: int) -> dict[str, int]:
        """The number of axes that one example needs, for each array field."""
        raise NotImplementedError

    def check_values(self) -> None:
        """Raises a ValueError for a parameter whose (concrete) values make no sense."""

    def per_example(self, event_ndim: int) -> Self:
        """The same pytree with a bool for each leaf: does it carry a leading axis of examples?"""
        core = self.core_ndims(event_ndim)
        return dataclasses.replace(
            self,
            **{
                field: jax.tree.map(lambda leaf, c=ndim: np.ndim(leaf) > c, getattr(self, field))
                for field, ndim in core.items()
            },
        )

    def check_shapes(self, batch_shape: Shape) -> None:
        """Raises a ValueError when a parameter does not fit inputs ``x`` of ``batch_shape``."""
        event_shape = batch_shape[1:]
        for field, ndim in self.core_ndims(len(event_shape)).items():
            for leaf in jax.tree.leaves(getattr(self, field)):
                shape = np.shape(leaf)
                name = getattr(self, "source", field) if field == "factor" else field
                if len(shape) > ndim + 1:
                    raise ValueError(
                        f"{name} must have at most {ndim} axes, or one more that counts the"
                        f" examples; got shape {shape} for x of shape {batch_shape}."
                    )
                if len(shape) == ndim + 1 and shape[0] != batch_shape[0]:
                    raise ValueError(
                        f"{name} must be shared by all examples, or have a leading axis of the"
                        f" {batch_shape[0]} examples of x; got one of {shape[0]} for x of shape"
                        f" {batch_shape}."
                    )
                core = shape[len(shape) - ndim :] if len(shape) > ndim else shape
                self._check_core(field, core, event_shape)

    def _check_core(self, field: str, shape: Shape, event_shape: Shape) -> None:
        """Checks the one-example part of a field; by default it must broadcast to one example."""
        try:
            fits = np.broadcast_shapes(shape, event_shape) == event_shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(
                f"{field} must fit one example of x, of shape {event_shape};"
                f" got shape {shape} for one example."
            )


def static(**kwargs: Any) -> Any:
    """A dataclass field that is structure: changing it retraces."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


def perturb(perturbation: Perturbation, key: Array, x: Array, *, replicate: int = 0) -> Array:
    """Returns one perturbed copy of a batch.

    Example ``i`` of replicate ``j`` draws from ``fold_in(fold_in(key, j), i)``: the very draws that
    the measures of this library use, so this shows what a model was tested on.

    Args:
        perturbation: what is done to each example.
        key: a typed PRNG key; it is consumed.
        x: inputs ``[n, ...]``, floating.
        replicate: which replicate's draws, a whole number from 0.

    Returns:
        Perturbed inputs, of the shape and dtype of ``x``.

    Raises:
        TypeError: for a key that is not typed, inputs that are not floating, or a replicate that is
            not a whole number.
        ValueError: for parameters that do not fit ``x``, or a negative replicate.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> noise = jr.perturbations.gaussian(0.1, where=jnp.array([True, False]))
        >>> x_hat = jr.perturb(noise, jax.random.key(0), jnp.ones((3, 2)))
        >>> x_hat.shape, bool((x_hat[:, 1] == 1).all())
        ((3, 2), True)
    """
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    check_perturbation(perturbation)
    perturbation.check_shapes(x.shape)
    if _checks.is_concrete(replicate):
        replicate = _checks.count("replicate", np.asarray(replicate)[()], minimum=0)
    return _perturb(perturbation, key, x, replicate)


@jax.jit
def _perturb(perturbation: Perturbation, key: Array, x: Array, replicate: Array) -> Array:
    key = jax.random.fold_in(threefry(key), replicate)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(x.shape[0]))
    noise = jax.vmap(lambda k: perturbation.draw(k, x.shape[1:], x.dtype))(keys)
    return transform_batch(perturbation, as_it_is(noise), x)


def split_leaves(perturbation: Perturbation, event_ndim: int) -> tuple[list, Callable]:
    """Separates the per-example leaves, for slicing along with ``x``, from the shared ones.

    Returns:
        The per-example leaves, and a function that puts them back into a perturbation.
    """
    treedef: Any
    leaves, treedef = jax.tree.flatten(perturbation)
    own = jax.tree.leaves(perturbation.per_example(event_ndim))

    def merge(own_leaves: list) -> Perturbation:
        remaining = iter(own_leaves)
        return treedef.unflatten(
            [next(remaining) if is_own else leaf for leaf, is_own in zip(leaves, own, strict=True)]
        )

    return [leaf for leaf, is_own in zip(leaves, own, strict=True) if is_own], merge


def transform_batch(perturbation: Perturbation, noise: Array, x: Array) -> Array:
    """Applies the push-forward to a batch: ``noise [n, ...]`` and ``x [n, ...]``, one to one.

    Per-example parameters are sliced along with ``x``.
    """
    own, merge = split_leaves(perturbation, x.ndim - 1)

    def one(own_i: list[Array], noise_i: Array, x_i: Array) -> Array:
        x_hat = merge(own_i).transform(noise_i, x_i)
        if x_hat.shape != x_i.shape:
            raise ValueError(
                f"perturbation must return the shape of one example, {x_i.shape};"
                f" got {x_hat.shape}."
            )
        return x_hat.astype(x_i.dtype)

    return jax.vmap(one)(own, noise, x)


def check_perturbation(perturbation: Any) -> None:
    """Raises a TypeError for what is not a perturbation of this module."""
    if not isinstance(perturbation, Perturbation):
        raise TypeError(
            "perturbation must be a jaxrobust perturbation, such as"
            " jaxrobust.perturbations.gaussian(0.1), or a sampler wrapped in from_sampler(fn);"
            f" got {_checks.describe(perturbation)}."
        )
