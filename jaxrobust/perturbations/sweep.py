"""One perturbation at many points of a sweep (over sigma, p, kappa), as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrobust import _checks
from jaxrobust.perturbations.base import Perturbation, check_perturbation

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sweep:
    """A perturbation at ``size`` points: leaves that vary are stacked ``[size, ...]``.

    Leaves that do not depend on the point are kept once. The points are data, so a sweep over
    other points of the same number has the same structure and never retraces.
    """

    varying: tuple[Array, ...]
    shared: tuple[Array, ...]
    size: int = dataclasses.field(metadata={"static": True})
    is_varying: tuple[bool, ...] = dataclasses.field(metadata={"static": True})
    treedef: Any = dataclasses.field(metadata={"static": True})

    def at(self, varying: tuple[Any, ...]) -> Perturbation:
        """The perturbation at one point, given that point's slice of the varying leaves."""
        return self.merge(varying, self.shared)

    def merge(self, varying: tuple[Any, ...], shared: tuple[Any, ...]) -> Perturbation:
        """Puts leaves (or anything that stands for them) back into their places."""
        parts = iter(varying), iter(shared)
        return self.treedef.unflatten([next(parts[0 if v else 1]) for v in self.is_varying])

    def template(self) -> Perturbation:
        """The perturbation at one point with shapes for leaves, to ask about its structure."""
        varying = tuple(jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for v in self.varying)
        return self.at(varying)


def single(perturbation: Perturbation) -> Sweep:
    """A sweep of one point."""
    leaves, treedef = jax.tree.flatten(perturbation)
    return Sweep((), tuple(leaves), 1, (False,) * len(leaves), treedef)


def sweep(perturbation: Callable[[Array], Perturbation], scales: Array) -> Sweep:
    """Evaluates ``scale -> Perturbation`` at every scale.

    Args:
        perturbation: a function of one scalar; every point must have the same structure.
        scales: the points ``[S]``.
    """
    treedef = None
    constant: list[Any] = []

    def leaves_at(scale: Array) -> list[Any]:
        nonlocal treedef
        made = perturbation(scale)
        check_perturbation(made)
        leaves, treedef = jax.tree.flatten(made)
        # A leaf that is no tracer here does not depend on the scale (nor on any outer trace).
        varies = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
        constant[:] = [None if v else leaf for leaf, v in zip(leaves, varies, strict=True)]
        return [leaf for leaf, v in zip(leaves, varies, strict=True) if v]

    varying = tuple(jax.vmap(leaves_at)(scales))
    is_varying = tuple(leaf is None for leaf in constant)
    shared = tuple(leaf for leaf in constant if leaf is not None)
    made = Sweep(varying, shared, scales.shape[0], is_varying, treedef)
    if _checks.is_concrete(made):
        # Inside vmap the constructor could not see the values; look at them now, point by point
        # (bounds that vary must be compared with bounds that do not).
        points = [np.asarray(leaf) for leaf in varying]
        for s in range(made.size if varying else 1):
            try:
                made.at(tuple(leaf[s] for leaf in points)).check_values()
            except ValueError as error:
                raise ValueError(f"{error} (perturbation at scales[{s}])") from None
    return made
