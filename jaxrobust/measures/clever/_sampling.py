"""What is measured at each sampled point, and the batches it is measured in."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxrobust import _checks, models, montecarlo
from jaxrobust._keys import threefry
from jaxrobust.measures.clever import _margins, _race
from jaxrobust.measures.clever._margins import Margins
from jaxrobust.perturbations import clipped, uniform_ball
from jaxrobust.perturbations.base import Perturbation
from jaxrobust.perturbations.norms import NORMS, lp_norm
from jaxrobust.perturbations.sweep import single

Array = jax.Array
Bounds = tuple[Any, Any] | None

DUAL = {"l1": "linf", "l2": "l2", "linf": "l1"}
TARGETS = ("all", "top2", "random", "least")


class Probe:
    """A hashable ``score_fn`` of the engine: what to measure at points around each example."""

    combine: ClassVar[dict[str, montecarlo.Combination]]

    def __call__(self, params: Any, x_hat: Array, x: Array, at: Margins) -> dict[str, Array]:
        """Measures each margin at ``x_hat [B, ...]`` near ``x [B, ...]``: values ``[B, T]``."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class GradientNorm(Probe):
    """Dual norms of the gradients of all margins that are live, from one forward pass.

    ``norm`` is that of the gradient. ``slope`` is how fast each margin changed on the way from x,
    less the rounding of its terms; ``crossing`` the length of the way where the margin is lost.
    """

    apply_fn: models.ApplyFn
    norm: str
    combine: ClassVar[dict[str, montecarlo.Combination]] = {
        "norm": "max",
        "zeros": "sum",
        "slope": "max",
        "crossing": "min",
    }

    def __call__(self, params: Any, x_hat: Array, x: Array, at: Margins) -> dict[str, Array]:
        logits, norms = _gradient_norms(self.apply_fn, params, x_hat, at, DUAL[self.norm])
        change, distance = _travelled(logits, x_hat, x, at, self.norm)
        return {
            "norm": norms,
            "zeros": ((norms == 0) & at.live).astype(jnp.int32),
            "slope": jnp.where(distance > 0, change / jnp.where(distance > 0, distance, 1), 0),
            "crossing": _crossing(logits, distance, at),
        }


@dataclasses.dataclass(frozen=True)
class Curvature(Probe):
    """How sharply all margins bend down, in l2: ``max(0, -lambda_min(Hessian))``.

    By ``num_steps`` steps of the Lanczos method (Lanczos 1950), each one Hessian-vector product.
    Its smallest eigenvalue lies above the true one, and meets it at as many steps as features.
    """

    apply_fn: models.ApplyFn
    num_steps: int
    combine: ClassVar[dict[str, montecarlo.Combination]] = {"norm": "max", "crossing": "min"}

    def __call__(self, params: Any, x_hat: Array, x: Array, at: Margins) -> dict[str, Array]:
        delta = (x_hat - x).reshape(x.shape[0], -1)
        moved = jnp.any(delta != 0, axis=-1, keepdims=True)
        start = jnp.where(moved, delta, 1)  # its direction is random, and new for each point

        def curvature(column: tuple[Array, Array]) -> Array:
            target, masked = column

            def total(v: Array) -> Array:
                logits = self.apply_fn(params, v)
                margin, _ = _margins.differences(logits, at.label, target[:, None])
                return jnp.sum(jnp.where(masked, 0, margin[:, 0]))

            _, hessian = jax.linearize(jax.grad(total), x_hat)
            smallest = _smallest_eigenvalue(
                lambda v: hessian(v.reshape(x.shape).astype(x.dtype)).reshape(v.shape),
                start,
                self.num_steps,
            )
            return jnp.maximum(-smallest, 0)

        values = jax.lax.map(curvature, (at.targets.T, at.masked.T)).T
        distance = _lengths(x_hat - x, "l2")[:, None]
        return {
            "norm": jnp.where(at.masked, 0, values),
            "crossing": _crossing(self.apply_fn(params, x_hat), distance, at),
        }


@dataclasses.dataclass(frozen=True)
class PairSlope(Probe):
    """How fast all margins change between the two points of a pair ``x_hat [B, 2, ...]``."""

    apply_fn: models.ApplyFn
    norm: str
    combine: ClassVar[dict[str, montecarlo.Combination]] = {"norm": "max"}

    def __call__(self, params: Any, x_hat: Array, x: Array, at: Margins) -> dict[str, Array]:
        logits = self.apply_fn(params, x_hat.reshape(-1, *x_hat.shape[2:]))
        label, targets = (jnp.repeat(v, 2, axis=0) for v in (at.label, at.targets))
        margin, _ = _margins.differences(logits, label, targets)
        margin = margin.reshape(-1, 2, margin.shape[-1])
        change = jnp.abs(margin[:, 0] - margin[:, 1])
        distance = _lengths(x_hat[:, 0] - x_hat[:, 1], self.norm)[:, None]
        slope = jnp.where(distance > 0, change / jnp.where(distance > 0, distance, 1), 0)
        return {"norm": jnp.where(at.masked, 0, slope)}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pair(Perturbation):
    """Two independent copies of a perturbation, for examples ``[2, ...]`` that hold x twice."""

    perturbation: Perturbation

    def core_ndims(self, event_ndim: int) -> dict[str, int]:
        return {}

    def per_example(self, event_ndim: int) -> Pair:
        return Pair(self.perturbation.per_example(event_ndim - 1))

    def latent_size(self, event_shape: tuple[int, ...]) -> int:
        return 2 * self.perturbation.latent_size(event_shape[1:])

    def transform(self, z: Array, x: Array) -> Array:
        return jax.vmap(self.perturbation.transform)(z.reshape(2, -1), x)


def _gradient_norms(
    apply_fn: models.ApplyFn, params: Any, x: Array, at: Margins, norm: str
) -> tuple[Array, Array]:
    """Logits ``[B, K]`` and norms of the gradients of margins ``[B, T]``; 0 where not live."""
    logits, pull_back = jax.vjp(lambda v: apply_fn(params, v), x)
    unit = functools.partial(jax.nn.one_hot, num_classes=logits.shape[-1], dtype=logits.dtype)
    own = unit(at.label)

    def add(t: Array, norms: Array) -> Array:
        (gradient,) = pull_back(own - unit(at.targets[:, t]))
        return norms.at[t].set(_lengths(gradient, norm))

    # One class after the other: the gradients of all of them need not be kept, and those after the
    # last one that is live cost nothing.
    places = jnp.arange(1, at.targets.shape[-1] + 1)
    count = jnp.max(jnp.where(at.live, places[None], 0))
    norms = jnp.zeros(at.targets.T.shape, jnp.promote_types(x.dtype, jnp.float32))
    norms = jax.lax.fori_loop(0, count, add, norms).T
    return logits, jnp.where(at.live, norms, 0)


@functools.partial(jax.jit, static_argnames=("apply_fn", "norm", "chunk_size"))
def gradient_norms(
    apply_fn: models.ApplyFn, params: Any, x: Array, at: Margins, norm: str, chunk_size: int | None
) -> Array:
    """Norms of the gradients of all margins at the clean inputs, ``[n, T]``."""
    return montecarlo.map_examples(
        lambda params, x, at: _gradient_norms(apply_fn, params, x, at, norm)[1],
        params,
        x,
        at,
        chunk_size=chunk_size,
    )


def _lengths(v: Array, norm: str) -> Array:
    """The norm of each example ``[B]``, in float32 at least."""
    v = v.astype(jnp.promote_types(v.dtype, jnp.float32))
    return jax.vmap(functools.partial(lp_norm, norm=norm))(v)


def _travelled(
    logits: Array, x_hat: Array, x: Array, at: Margins, norm: str
) -> tuple[Array, Array]:
    """How much each margin changed beyond rounding ``[B, T]``, over which distance ``[B, 1]``."""
    margin, size = _margins.differences(logits, at.label, at.targets)
    rounding = 16 * jnp.finfo(margin.dtype).eps * jnp.maximum(size, at.size)
    change = jnp.maximum(jnp.abs(margin - at.margin) - rounding, 0)
    return jnp.where(at.masked, 0, change), _lengths(x_hat - x, norm)[:, None]


def _crossing(logits: Array, distance: Array, at: Margins) -> Array:
    """The distance where a margin is lost, else infinity: ``[B, T]``."""
    margin, _ = _margins.differences(logits, at.label, at.targets)
    return jnp.where(margin < 0, distance, jnp.inf)


def _smallest_eigenvalue(product: Callable[[Array], Array], start: Array, steps: int) -> Array:
    """The smallest Ritz value ``[B]`` of B symmetric matrices, from vectors ``start [B, D]``.

    Where the method has seen all it can, it goes on with zero vectors, which add eigenvalues 0.
    """
    steps = min(steps, start.shape[-1])
    start = start.astype(jnp.promote_types(start.dtype, jnp.float32))
    tolerance = 100 * jnp.finfo(start.dtype).eps

    def unit(v: Array, length: Array) -> Array:
        return jnp.where(length > 0, v / jnp.where(length > 0, length, 1), 0)

    def step(i: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, ...]:
        basis, v, diagonal, beside = state
        basis = basis.at[i].set(v)
        w = product(v).astype(v.dtype)
        along = jnp.sum(v * w, axis=-1)
        reached = jnp.linalg.norm(w, axis=-1)
        for _ in range(2):  # twice is enough to stay orthogonal to all earlier vectors
            w = w - jnp.einsum("kb,kbd->bd", jnp.einsum("kbd,bd->kb", basis, w), basis)
        length = jnp.linalg.norm(w, axis=-1)
        length = jnp.where(length > tolerance * reached, length, 0)
        diagonal, beside = diagonal.at[i].set(along), beside.at[i].set(length)
        return basis, unit(w, length[:, None]), diagonal, beside

    first = unit(start, jnp.linalg.norm(start, axis=-1, keepdims=True))
    numbers = jnp.zeros((steps, start.shape[0]), start.dtype)
    basis = jnp.zeros((steps, *start.shape), start.dtype)
    _, _, diagonal, beside = jax.lax.fori_loop(0, steps, step, (basis, first, numbers, numbers))
    tridiagonal = jax.vmap(
        lambda d, b: jnp.diag(d) + jnp.diag(b[:-1], 1) + jnp.diag(b[:-1], -1), 1
    )(diagonal, beside)
    finite = jnp.all(jnp.isfinite(tridiagonal), axis=(-2, -1))
    safe = jnp.where(finite[:, None, None], tridiagonal, 0)
    return jnp.where(finite, jnp.linalg.eigvalsh(safe)[:, 0], jnp.nan)


class Request(NamedTuple):
    """The checked arguments that all scores here share."""

    x: Array
    radius: Array
    targets: str | Array
    perturbation: Perturbation
    mesh: Mesh | None
    num_classes: int


def check(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    *,
    radius: Any,
    norm: str,
    targets: str | Array,
    bounds: Bounds,
    mesh: Mesh | None,
) -> Request:
    """Checks the arguments that all scores here share."""
    _checks.prng_key(key)
    x = _checks.examples("x", x)
    num_classes = models.num_classes(apply_fn, params, x)
    _checks.choice("norm", norm, NORMS)
    if isinstance(targets, str):
        _checks.choice("targets", targets, TARGETS)
    else:
        targets = _checks.labels("targets", targets, x.shape[0], num_classes).astype(jnp.int32)
    radius = _checks.real_array("radius", radius)
    _checks.non_negative("radius", radius)
    if radius.shape not in ((), (x.shape[0],)):
        raise ValueError(
            f"radius must be one number or one for each of the {x.shape[0]} examples of x;"
            f" got {_checks.describe(radius)}."
        )
    perturbation = uniform_ball(radius, norm=norm)
    if bounds is not None:
        box = _checks.box(bounds, x)
        _checks.inside(*box, x)  # without x there would be no ball around it in the box
        perturbation = clipped(perturbation, *box)
    return Request(x, radius, targets, perturbation, montecarlo.as_mesh(mesh), num_classes)


class Sample(NamedTuple):
    """Margins at n clean inputs, and what the probe found around them in G batches."""

    at: Margins
    logits: Array  # [n, K]
    found: dict[str, Array]  # [G, n, T] each; after a race all but the norm [1, n, T]
    batches: Array  # [n, T], in how many batches each class was


def sample(
    probe: Probe,
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    request: Request,
    *,
    num_batches: int,
    batch_size: int,
    chunk_size: int | None,
    progress: bool,
    race: bool = False,
) -> Sample:
    """Runs the probe on fresh draws for every batch."""
    text = isinstance(request.targets, str)
    with montecarlo.progress_bar(progress, "batches") as bar:
        return _sample(
            params,
            key,
            request.x,
            None if text else request.targets,
            request.perturbation,
            bar,
            which=request.targets if text else None,
            probe=probe,
            apply_fn=apply_fn,
            num_batches=num_batches,
            batch_size=batch_size,
            chunk_size=chunk_size,
            mesh=request.mesh,
            race=race,
        )


@functools.partial(
    jax.jit,
    static_argnames=(
        "which", "probe", "apply_fn", "num_batches", "batch_size", "chunk_size", "mesh", "race",
    ),
)  # fmt: skip
def _sample(
    params: Any,
    key: Array,
    x: Array,
    targets: Array | None,
    perturbation: Perturbation,
    bar: Array | None,
    *,
    which: str | None,
    probe: Probe,
    apply_fn: models.ApplyFn,
    num_batches: int,
    batch_size: int,
    chunk_size: int | None,
    mesh: Mesh | None,
    race: bool,
) -> Sample:
    key = threefry(key)
    logits = montecarlo.map_examples(apply_fn, params, x, chunk_size=chunk_size, mesh=mesh)
    chosen: Any = targets if which is None else which
    at = _margins.choose(key, logits, chosen)
    around, points = x, perturbation
    if isinstance(probe, PairSlope):
        around, points = jnp.stack([x, x], axis=1), Pair(perturbation)
    draws = functools.partial(
        montecarlo.reduce_draws,
        probe,
        single(points),
        params,
        key,
        around,
        over="replicates",
        combine=probe.combine,
        chunk_size=chunk_size,
        mesh=mesh,
    )

    def run(first: Array | int, batches: int, at: Margins) -> dict[str, Array]:
        def draw(noise: Perturbation, key: Array, j: Array, i: Array, x: Array) -> Array:
            return montecarlo.keyed_draw(noise, key, j + first * batch_size, i, x)

        found = draws(
            (x, at),
            num_replicates=batches * batch_size,
            num_groups=batches,
            draw_fn=draw,
            bar=bar,
        )
        return jax.tree.map(lambda a: a[0], found)

    if race and _race.worth_it(num_batches, at):
        found, live, batches = _race.race(run, at, num_batches)
        return Sample(at._replace(live=live), logits, found, batches)
    everywhere = jnp.full(at.margin.shape, num_batches)
    return Sample(at, logits, run(0, num_batches, at), everywhere)
