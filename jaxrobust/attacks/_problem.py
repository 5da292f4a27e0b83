"""What every attack shares: its arguments checked, its model, chunks, devices, and its result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxrobust import _checks, models
from jaxrobust._convolutions import loop_friendly
from jaxrobust._keys import threefry
from jaxrobust.attacks import _geometry, _losses

Bounds = tuple[Any, Any] | None
ApplyFn = models.ApplyFn

# Numbers in one model input, unless the caller sets chunk_size: about 340 CIFAR-10 images.
_NUMBERS_PER_CHUNK = 2**20


class AttackResult(NamedTuple):
    """What an attack found, for n examples.

    Attributes:
      x_adv: The attacked inputs ``[n, ...]``: inside the box, and inside the ball where the attack
        has one, exactly. The clean input where that is already adversarial.
      success: ``[n]`` bool, whether the model's class at ``x_adv`` is what the attack wants (not
        the label; the target, if targeted).
      distance: ``[n]``, length of ``x_adv - x`` in the attack's norm; 0 where the clean input is
        already adversarial, inf where nothing was found.
      label: ``[n]`` int32, the model's class at ``x_adv`` (the first of equals); -1 where its
        output holds NaN, which is never a success.
    """

    x_adv: Array
    success: Array
    distance: Array
    label: Array


class Problem(NamedTuple):
    """The data of an attack on B examples; leading axes are B, or 1 where the examples share."""

    x: Array
    labels: Array
    which: Array  # global index of each example, from which its draws come
    lower: Array
    upper: Array
    mask: Array  # 1 for a feature that may move, else 0
    numbers: dict[str, Array]  # columns: eps, step_size, ...


class Verdict(NamedTuple):
    """What the model says of inputs ``[B, ...]``, each ``[B]``."""

    label: Array
    success: Array
    gap: Array  # by how much the attack has won; positive when it has
    rounding: Array  # a gap smaller than this may be gone when the model is run another way


class Model:
    """The model as an attack's loops see it."""

    def __init__(self, apply_fn: ApplyFn, params: Any, targeted: bool):
        """Binds the parameters; ``targeted`` tells whether labels are to be reached or left."""
        self.apply_fn = apply_fn
        self.params = params
        self.targeted = targeted

    def gap(self, logits: Array, labels: Array) -> Array:
        """By how much the attack has won; differentiable."""
        gap = _losses.margin(logits, labels)
        return -gap if self.targeted else gap

    def judge(self, logits: Array, labels: Array) -> Verdict:
        """Judges logits ``[B, K]``."""
        valid = ~jnp.isnan(logits).any(-1)
        label = jnp.where(valid, logits.argmax(-1), -1).astype(jnp.int32)
        hit = (label == labels) if self.targeted else (label != labels)
        own = _losses.own(logits, labels)
        other = _losses.best_other(logits, labels).max(-1)
        size = jnp.maximum(jnp.abs(own), jnp.abs(other))
        rounding = 16 * float(jnp.finfo(logits.dtype).eps) * jnp.where(jnp.isfinite(size), size, 0)
        return Verdict(label, valid & hit, self.gap(logits, labels), rounding)

    def evaluate(self, problem: Problem, x: Array) -> Verdict:
        """Runs the model on inputs ``[B, ...]`` and judges what it says."""
        logits = loop_friendly(self.apply_fn)(self.params, x)
        return self.judge(logits, problem.labels)

    def gradient(self, objective: Callable[[Array, Array], Array], problem: Problem, x: Array):
        """Gradient ``[B, ...]`` of ``objective(logits, labels) -> [B]`` at ``x``."""

        def total(x, params, labels):
            return objective(self.apply_fn(params, x), labels).sum()

        g = loop_friendly(jax.grad(total))(x, self.params, problem.labels)
        return clean(g) * problem.mask


def clean(g: Array) -> Array:
    """A gradient without NaN and infinities: where it is undefined, nothing moves."""
    return jnp.where(jnp.isfinite(g), g, 0)


def finish(model: Model, problem: Problem, x_adv: Array, norm: str, verdict: Verdict) -> Any:
    """The result for attacked inputs, with the model's verdict on them."""
    del model
    distance = _geometry.length(x_adv - problem.x, norm).reshape(-1)
    distance = jnp.where(verdict.success, distance, jnp.inf)
    return AttackResult(x_adv, verdict.success, distance, verdict.label)


def column(name: str, value: Any, x: Array) -> Array:
    """A non-negative number, or one for each example, shaped to broadcast against ``x``."""
    array = _checks.real_array(name, value)
    _checks.non_negative(name, array)
    array = array.astype(x.dtype)
    if array.shape not in ((), (x.shape[0],)):
        raise ValueError(
            f"{name} must be one number or one for each of the {x.shape[0]} examples of x;"
            f" got {_checks.describe(array)}."
        )
    return array.reshape(-1, *(1,) * (x.ndim - 1))


def _mask(value: Any, x: Array) -> Array:
    """Which features may move: for one example, or a row for each, with the rank of ``x``."""
    mask = jnp.asarray(value)
    try:
        fits = mask.shape == x.shape or np.broadcast_shapes(mask.shape, x.shape[1:]) == x.shape[1:]
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"mask must be a number, an array that broadcasts to one example {x.shape[1:]}, or"
            f" one of the shape of x {x.shape}; got {_checks.describe(mask)}."
        )
    if mask.dtype != bool:
        raise TypeError(
            "mask must be boolean, True for the features that may move;"
            f" got {_checks.describe(mask)}."
        )
    return _of_rank(mask, x)


def _of_rank(array: Array, x: Array) -> Array:
    """An array for one example, or with a row for each, with the rank of ``x``."""
    return array.reshape((1,) * (x.ndim - array.ndim) + array.shape)


def prepare(
    apply_fn: ApplyFn,
    params: Any,
    x: Any,
    labels: Any,
    *,
    bounds: Bounds,
    mask: Any,
    **numbers: Any,
) -> Problem:
    """Checks the arguments that all attacks share and gathers them."""
    x = _checks.examples("x", x)
    num_classes = models.num_classes(apply_fn, params, x)
    labels = _checks.labels("labels", labels, x.shape[0], num_classes).astype(jnp.int32)
    box = _checks.box((-jnp.inf, jnp.inf) if bounds is None else bounds, x)
    lower, upper = (_of_rank(bound.astype(x.dtype), x) for bound in box)
    _checks.inside(lower, upper, x)
    allowed = _mask(True if mask is None else mask, x)
    columns = {name: column(name, value, x) for name, value in numbers.items()}
    return Problem(
        x=x,
        labels=labels,
        which=jnp.arange(x.shape[0], dtype=jnp.uint32),
        lower=lower,
        upper=upper,
        mask=allowed.astype(x.dtype),
        numbers=columns,
    )


def check_choices(*, norm: str, norms: tuple[str, ...] = _geometry.NORMS, targeted: Any) -> None:
    """Checks the static options that all attacks share."""
    _checks.choice("norm", norm, norms)
    if not isinstance(targeted, bool):
        raise TypeError(f"targeted must be True or False; got {_checks.describe(targeted)}.")


def run(
    solver: Callable[[Model, Array | None, Problem], AttackResult],
    apply_fn: ApplyFn,
    params: Any,
    key: Array | None,
    problem: Problem,
    *,
    targeted: bool,
    chunk_size: int | None,
    mesh: Mesh | None,
) -> AttackResult:
    """Runs a hashable ``solver(model, key, problem)`` in chunks and on the devices of a mesh."""
    if chunk_size is not None:
        chunk_size = _checks.count("chunk_size", chunk_size)
    if mesh is not None and (not isinstance(mesh, Mesh) or "examples" not in mesh.axis_names):
        raise ValueError(
            f"mesh must be None or a jax.sharding.Mesh with an axis named 'examples'; got {mesh!r}."
        )
    return _run(solver, apply_fn, params, key, problem, targeted, chunk_size, mesh)


@functools.partial(
    jax.jit, static_argnames=("solver", "apply_fn", "targeted", "chunk_size", "mesh")
)
def _run(solver, apply_fn, params, key, problem, targeted, chunk_size, mesh):
    n = problem.x.shape[0]
    num_shards = 1 if mesh is None else mesh.shape["examples"]
    per_shard = -(-n // num_shards)
    if chunk_size is None:
        chunk_size = max(1, _NUMBERS_PER_CHUNK // (problem.x.size // n))
    num_chunks = -(-per_shard // chunk_size)
    chunk_size = -(-per_shard // num_chunks)  # as even as can be
    padding = num_shards * num_chunks * chunk_size - n

    # x, labels and which have a row for each example; the others may (of one example, 1 is both).
    leaves, structure = jax.tree.flatten(problem)
    own_leaves = [i < 3 or v.shape[0] == n > 1 for i, v in enumerate(leaves)]
    leaves = [
        jnp.pad(v, [(0, padding)] + [(0, 0)] * (v.ndim - 1), mode="edge") if mine else v
        for v, mine in zip(leaves, own_leaves, strict=True)
    ]

    def local(params, key, *leaves):
        model = Model(apply_fn, params, targeted)

        def chunk(mine):
            mine = iter(mine)
            filled = [next(mine) if m else v for v, m in zip(leaves, own_leaves, strict=True)]
            return solver(model, key, jax.tree.unflatten(structure, filled))

        mine = [v for v, m in zip(leaves, own_leaves, strict=True) if m]
        if num_chunks == 1:
            return chunk(mine)
        split = [v.reshape(num_chunks, chunk_size, *v.shape[1:]) for v in mine]
        result = jax.lax.map(chunk, split)
        return jax.tree.map(lambda v: v.reshape(-1, *v.shape[2:]), result)

    if mesh is not None:
        specs = [P("examples") if mine else P() for mine in own_leaves]
        # The loops carry values that begin equal on all devices and then differ, which the check
        # of varying axes would refuse; nothing here communicates.
        local = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(), P(), *specs),
            out_specs=P("examples"),
            check_vma=False,
        )
    if key is not None:
        key = threefry(key)
    result = local(params, key, *leaves)
    return jax.tree.map(lambda v: v[:n], result)
