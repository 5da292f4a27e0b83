"""Gaussian noise: independent by feature, with a full covariance, or from an ensemble."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import _checks
from jaxrobust.perturbations.base import Perturbation, Shape, static
from jaxrobust.perturbations.cells import (
    as_mask,
    as_probability,
    check_probability,
    chosen_cells,
)

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gaussian(Perturbation):
    """Independent Gaussian noise; see :func:`gaussian`."""

    sigma: Array
    feature_scale: Array
    where: Array | None
    probability: Array | None
    integer: Array | None

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {
            "sigma": 0,
            "feature_scale": event_ndim,
            "where": event_ndim,
            "probability": 0,
            "integer": event_ndim,
        }

    def check_values(self) -> None:  # noqa: D102
        _checks.non_negative("sigma", self.sigma)
        _checks.non_negative("feature_scale", self.feature_scale)
        check_probability(self.probability)

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        return math.prod(event_shape) * (1 if self.probability is None else 2)

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        size = math.prod(x.shape)
        scale = jnp.broadcast_to(self.sigma * self.feature_scale, x.shape)
        x_hat = x + scale.astype(x.dtype) * z[:size].reshape(x.shape).astype(x.dtype)
        if self.integer is not None:
            integer = jnp.broadcast_to(self.integer, x.shape)
            x_hat = jnp.where(integer, jnp.round(x_hat), x_hat)
        cells = chosen_cells(self.where, self.probability, z[size:], x.shape)
        return x_hat if cells is None else jnp.where(cells, x_hat, x)


def gaussian(
    sigma: Any,
    *,
    feature_scale: Any = 1.0,
    where: Any = None,
    probability: Any = 1.0,
    integer: Any = None,
) -> Perturbation:
    """Independent Gaussian noise, scaled by feature: ``x + N(0, (sigma * feature_scale)^2)``.

    The noise of Levene & Harris 2026 (arXiv 2606.31581, algorithm 1): ``feature_scale`` is then the
    standard deviation of each column of a reference set, and constant columns get no noise. Nothing
    is clipped; see :func:`clipped`.

    Args:
        sigma: noise level, not negative: a scalar, or one for each example ``[n]``.
        feature_scale: units of each feature: broadcastable to one example, or ``[n, ...]`` for each
            example its own (measured standard errors, say). Zero means no noise.
        where: bool, broadcastable to one example (or ``[n, ...]``): which cells may be perturbed.
            Categorical columns are False. ``None`` means all.
        probability: each allowed cell is perturbed with this probability, independently, else left
            as it is: a scalar or ``[n]``. The number 1 (the default) draws no mask; an array is
            always drawn for, so that a sweep over it keeps one structure.
        integer: bool, like ``where``: cells that hold whole numbers; these become
            ``round(x + noise)``.

    Returns:
        A perturbation of latent size D, or 2 D with a probability (D = features of one example).

    Raises:
        TypeError: for values that are not numbers, or masks that are not bool.
        ValueError: for a negative or non-finite sigma or scale, or a probability outside [0, 1].

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> noise = jr.perturbations.gaussian(0.5, feature_scale=jnp.array([1.0, 0.0]))
        >>> jr.perturb(noise, jax.random.key(1), jnp.zeros((1, 2)))[0, 1]
        Array(0., dtype=float32)
    """
    sigma = _checks.real_array("sigma", sigma)
    feature_scale = _checks.real_array("feature_scale", feature_scale)
    made = Gaussian(
        sigma=sigma,
        feature_scale=feature_scale,
        where=as_mask("where", where),
        probability=as_probability(probability),
        integer=as_mask("integer", integer),
    )
    made.check_values()
    return made


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearNormal(Perturbation):
    """Adds ``mean + factor @ z``; see :func:`multivariate_normal` and :func:`ensemble`."""

    factor: Array
    mean: Array | None
    source: str = static()  # the argument that the factor came from, for messages

    def core_ndims(self, event_ndim: int) -> dict[str, int]:  # noqa: D102
        return {"factor": 2, "mean": event_ndim}

    def check_values(self) -> None:  # noqa: D102
        _checks.values(
            self.source,
            self.factor,
            np.isfinite,
            "finite" + ", symmetric and positive semi-definite" * (self.source == "cov"),
        )
        if self.mean is not None:
            _checks.finite("mean", self.mean)

    def latent_size(self, event_shape: Shape) -> int:  # noqa: D102
        return self.factor.shape[-1]

    def transform(self, z: Array, x: Array) -> Array:  # noqa: D102
        # In full precision: some accelerators otherwise round a float32 product to 11 bits, and by
        # different amounts for different batch shapes.
        noise = jnp.matmul(self.factor, z.astype(self.factor.dtype), precision="highest")
        noise = noise.reshape(x.shape)
        if self.mean is not None:
            noise = noise + jnp.broadcast_to(self.mean, x.shape)
        return x + noise.astype(x.dtype)

    def _check_core(self, field: str, shape: Shape, event_shape: Shape) -> None:
        size = math.prod(event_shape)
        if field == "factor":
            if len(shape) == 2 and shape[0] != size:
                raise ValueError(
                    f"{self.source} must be of {size} features, those of one example of x, of shape"
                    f" {event_shape}; got {shape[0]} features."
                )
        else:
            super()._check_core(field, shape, event_shape)


def multivariate_normal(cov: Any, *, mean: Any = None) -> Perturbation:
    """Gaussian noise with a full covariance, shared or each example's own.

    The noise is the symmetric square root of ``cov`` times the normal draw. It is continuous and
    differentiable in ``cov``, so common random numbers stay common along a sweep over covariances,
    and a diagonal ``cov`` gives the noise of :func:`gaussian`. The draw is bit-identical for any
    chunk size; its product with the root agrees to rounding.

    Args:
        cov: covariance ``[d, d]``, or ``[n, d, d]`` for each example its own; symmetric and
            positive SEMI-definite (a singular one is fine). ``d`` counts the features of one
            example, flattened.
        mean: mean of the noise, broadcastable to one example, or ``[n, ...]``; zero if ``None``.

    Returns:
        A perturbation of latent size ``d``.

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for a covariance that is not square, not symmetric, not finite, or has an
            eigenvalue below zero by more than rounding. (Where its values are traced, the last
            three give NaN noise instead.)

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> noise = jr.perturbations.multivariate_normal(jnp.array([[1.0, 1.0], [1.0, 1.0]]))
        >>> x_hat = jr.perturb(noise, jax.random.key(0), jnp.zeros((4, 2)))
        >>> bool(jnp.allclose(x_hat[:, 0], x_hat[:, 1], atol=1e-5))  # rank one: they move together
        True
    """
    if not _checks.is_concrete(cov):
        cov = _checks.real_array("cov", cov)
    else:
        cov = np.asarray(cov)
        _checks.real_array("cov", cov)
    if cov.ndim not in (2, 3) or cov.shape[-1] != cov.shape[-2] or cov.shape[-1] == 0:
        raise ValueError(
            f"cov must be square, shape [d, d] or [n, d, d]; got {_checks.describe(cov)}."
        )
    _checks.finite("cov", cov)
    dtype = jnp.result_type(float)
    # On the host in double precision where the values are known; it is done once.
    xp: Any = np if isinstance(cov, np.ndarray) else jnp
    cov = cov.astype(np.float64 if xp is np else dtype)
    largest = xp.abs(cov).max(axis=(-2, -1))
    if xp is np:
        skew = np.abs(cov - np.swapaxes(cov, -1, -2)).max(axis=(-2, -1))
        if (skew > 1e-4 * largest).any():
            raise ValueError(
                f"cov must be symmetric; got entries that differ from their mirror by {skew.max()}."
            )
    given, cov = cov, (cov + xp.swapaxes(cov, -1, -2)) / 2
    if xp is np:
        values, vectors = np.linalg.eigh(cov)
        if (values < -1e-5 * largest[..., None] * math.sqrt(cov.shape[-1])).any():
            raise ValueError(
                "cov must be positive semi-definite (no eigenvalue below zero);"
                f" got an eigenvalue of {values.min()}."
            )
        factor = (vectors * np.sqrt(np.maximum(values, 0))[..., None, :]) @ np.swapaxes(
            vectors, -1, -2
        )
    else:
        factor = _symmetric_root(cov)
        # Where nothing can be raised, noise that is NaN is better than noise of another covariance.
        error = jnp.abs(_product(factor, factor) - given).max(axis=(-2, -1))
        wrong = error > 1e-4 * math.sqrt(cov.shape[-1]) * largest
        factor = jnp.where(wrong[..., None, None], jnp.nan, factor)
    if mean is not None:
        mean = _checks.real_array("mean", mean)
    made = LinearNormal(factor=jnp.asarray(factor, dtype), mean=mean, source="cov")
    made.check_values()
    return made


@jax.custom_jvp
def _symmetric_root(cov: Array) -> Array:
    """The positive semi-definite square root of symmetric matrices ``[..., d, d]``."""
    return _root_and_eigen(cov)[0]


def _root_and_eigen(cov: Array) -> tuple[Array, Array, Array]:
    values, vectors = jnp.linalg.eigh(cov)
    roots = jnp.sqrt(jnp.maximum(values, 0))
    scaled = vectors * roots[..., None, :]
    return _product(scaled, jnp.swapaxes(vectors, -1, -2)), roots, vectors


@_symmetric_root.defjvp
def _symmetric_root_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The derivative of eigenvectors is infinite where eigenvalues are equal; that of the root is
    # not: root d(root) + d(root) root = d(cov), which the eigenvectors make diagonal.
    root, roots, vectors = _root_and_eigen(primals[0])
    transposed = jnp.swapaxes(vectors, -1, -2)
    turned = _product(transposed, tangents[0], vectors)
    total = roots[..., :, None] + roots[..., None, :]
    solved = jnp.where(total > 0, turned / jnp.where(total > 0, total, 1), 0)
    return root, _product(vectors, solved, transposed)


def _product(*matrices: Array) -> Array:
    return functools.reduce(functools.partial(jnp.matmul, precision="highest"), matrices)


def ensemble(members: Any, *, ddof: int = 1) -> Perturbation:
    """Each example's own covariance, from an ensemble of E members (forecasts, re-measurements).

    ``x + sum_e z_e (m_e - mean) / sqrt(E - ddof)`` has exactly the members' sample covariance, of
    rank E - 1 at most, without ever forming or factoring it.

    Args:
        members: ``[n, E, ...]``: E members for each of the n examples, each of the shape of one
            example. Only their spread is used; the noise is added to ``x``.
        ddof: delta degrees of freedom of the covariance, below E.

    Returns:
        A perturbation of latent size E.

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for fewer members than ``ddof + 1`` or 2, or values that are not finite.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> members = jnp.array([[[0.0, 5.0], [2.0, 5.0]]])  # one example, two members
        >>> x_hat = jr.perturb(jr.perturbations.ensemble(members), jax.random.key(0), members[:, 0])
        >>> float(x_hat[0, 1])  # the members agree on the second feature
        5.0
    """
    members = _checks.real_array("members", members)
    ddof = _checks.count("ddof", ddof, minimum=0)
    if members.ndim < 3:
        raise ValueError(
            f"members must have shape [n, E, ...] (examples, members, features);"
            f" got {_checks.describe(members)}."
        )
    num_members = members.shape[1]
    if num_members < max(2, ddof + 1):
        raise ValueError(
            f"members must hold at least {max(2, ddof + 1)} members for each example (their spread"
            f" is the noise; ddof is {ddof}); got {num_members}."
        )
    _checks.finite("members", members)
    spread = (members - members.mean(axis=1, keepdims=True)) / math.sqrt(num_members - ddof)
    factor = jnp.swapaxes(spread.reshape(*spread.shape[:2], -1), 1, 2)
    return LinearNormal(factor=factor, mean=None, source="members")
