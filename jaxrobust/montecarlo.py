"""How draws are made and reduced: keys, chunks, devices, progress. Knows no measure.

Every Monte Carlo measure scores a grid of draws, replicates x examples, and reduces one of the two
axes. Replicate ``j`` of example ``i`` always draws from ``fold_in(fold_in(key, j), i)`` with global
indices, so the draws are bit-identical for any chunk size and any number of devices. The grid is
walked in tiles of at most ``chunk_size`` model inputs, so memory does not grow with the number of
replicates or examples; a sweep reuses each tile's draws at all of its points.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, PartitionSpec

from jaxrobust import _checks
from jaxrobust._convolutions import loop_friendly
from jaxrobust._keys import as_it_is, fold_pair, threefry
from jaxrobust.perturbations.base import Perturbation, split_leaves, transform_batch
from jaxrobust.perturbations.sweep import Sweep

Array = jax.Array

Axis = Literal["replicates", "examples"]
Combination = Literal["sum", "max", "min"]

AXES: tuple[Axis, Axis] = ("replicates", "examples")

# One chunk of inputs: about a million numbers. On a CPU so few examples that the activations of a
# small network stay in its caches, or eight times as many where few numbers are drawn for one call
# of the model each: its cores share such draws.
_CHUNK_NUMBERS = 2**20
_CHUNK_EXAMPLES_CPU = 2**10
_CHUNK_EXAMPLES_CPU_DRAWS = 2**13
_CHUNK_NUMBERS_CPU_DRAWS = 2**18
_CHUNK_EXAMPLES_ELSEWHERE = 2**15
# So few numbers for one draw do not fill the vector units of a CPU well.
_FEW_FEATURES = 64

_COMBINE: dict[str, tuple[Any, Callable, Callable]] = {
    "sum": (0, jnp.sum, jnp.add),
    "max": (-math.inf, jnp.max, jnp.maximum),
    "min": (math.inf, jnp.min, jnp.minimum),
}
_COLLECTIVE = {"sum": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}


def chunk_examples(
    chunk_size: int | None, event_shape: tuple[int, ...], num_points: int = 1
) -> int:
    """The number of model inputs for one call of the model; ``None`` picks one from their size.

    ``num_points`` is how many calls share the draws of a chunk: the size of a sweep.
    """
    if chunk_size is not None:
        return _checks.count("chunk_size", chunk_size)
    num_features = max(1, math.prod(event_shape))
    most = _CHUNK_EXAMPLES_ELSEWHERE
    if jax.default_backend() == "cpu":
        most = _CHUNK_EXAMPLES_CPU
        if num_points == 1:
            draws = _CHUNK_NUMBERS_CPU_DRAWS // num_features
            most = min(max(most, draws), _CHUNK_EXAMPLES_CPU_DRAWS)
    return max(1, min(most, _CHUNK_NUMBERS // num_features))


def as_mesh(mesh: Any) -> Mesh | None:
    """Checks that ``mesh`` is None or a mesh whose axes are known here.

    A mesh with explicit axes (the default of ``jax.make_mesh``) becomes one with automatic axes:
    what is split how is decided here, not by the types of the arguments.
    """
    if mesh is None:
        return None
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh or None; got {_checks.describe(mesh)}.")
    unknown = [name for name in mesh.axis_names if name not in AXES]
    if unknown:
        raise ValueError(
            f"mesh may have the axes 'replicates' (splits the draws) and 'examples' (splits the"
            f" data set); got {unknown[0]!r}."
        )
    return Mesh(mesh.devices, mesh.axis_names)


def split_evenly(total: int, at_most: int) -> int:
    """A block size of at most ``at_most`` that covers ``total`` in equal blocks with little waste.

    A divisor of ``total`` is preferred (no waste at all) when it is more than half of ``at_most``.
    """
    if at_most >= total:
        return total
    for size in range(at_most, at_most // 2, -1):
        if total % size == 0:
            return size
    return math.ceil(total / math.ceil(total / at_most))


def map_examples(
    fn: Callable[..., Any],
    params: Any,
    x: Array,
    *extras: Any,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> Any:
    """``fn(params, x, *extras)`` over the examples in chunks; its results have a leading axis n."""
    size = chunk_examples(chunk_size, x.shape[1:])
    fn_in_loop = loop_friendly(fn)

    def local(params: Any, args: Any) -> Any:
        num = jax.tree.leaves(args)[0].shape[0]
        block = split_evenly(num, size)
        if block == num:
            return fn(params, *args)
        count = math.ceil(num / block)
        args = jax.tree.map(lambda a: _pad(a, count * block), args)
        blocks = jax.tree.map(lambda a: a.reshape(count, block, *a.shape[1:]), args)
        out = jax.lax.map(lambda args: fn_in_loop(params, *args), blocks)
        return jax.tree.map(lambda a: a.reshape(count * block, *a.shape[2:])[:num], out)

    num_examples = x.shape[0]
    args = (x, *extras)
    if mesh is None or "examples" not in mesh.axis_names:
        return local(params, args)
    devices = mesh.shape["examples"]
    args = jax.tree.map(lambda a: _pad(a, devices * math.ceil(num_examples / devices)), args)

    def on_device(params: Any, args: Any) -> Any:
        return _gather(local(params, args), "examples", axis=0)

    spec = PartitionSpec("examples")
    out = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(PartitionSpec(), spec),
        out_specs=PartitionSpec(),
        check_vma=False,
    )(params, args)
    return jax.tree.map(lambda a: a[:num_examples], out)


@functools.partial(jax.jit, static_argnames=("apply_fn", "chunk_size", "mesh"))
def predict(
    params: Any,
    x: Array,
    *,
    apply_fn: Callable[[Any, Array], Array],
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> Array:
    """The model's outputs on inputs as they are, in chunks."""
    return map_examples(apply_fn, params, x, chunk_size=chunk_size, mesh=mesh)


def keyed_draw(perturbation: Perturbation, key: Array, j: Array, i: Array, x: Array) -> Array:
    """The noise of replicate j of example i (of the shape of ``x``): plain Monte Carlo."""
    return perturbation.draw(fold_pair(key, j, i), x.shape, x.dtype)


def reduce_draws(
    score_fn: Callable[..., Any],
    sweep: Sweep,
    params: Any,
    key: Array,
    x: Array,
    extras: tuple[Any, ...] = (),
    *,
    num_replicates: int,
    over: Axis,
    combine: Combination | dict[str, Combination] = "sum",
    num_groups: int | None = None,
    draw_fn: Callable[..., Array] = keyed_draw,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
    bar: Array | None = None,
) -> Any:
    """Scores every draw of every example and reduces one axis of the grid.

    Args:
        score_fn: ``score_fn(params, x_hat [B, ...], *extras [B, ...])`` -> pytree of ``[B, ...]``:
            the scores of a batch of perturbed inputs. One call of it per tile and sweep point.
        sweep: the perturbation, at one or more points.
        params: whatever ``score_fn`` needs besides examples; replicated on every device.
        key: typed key. Draws depend on it and on global indices only.
        x: inputs ``[n, ...]``.
        extras: pytrees with a leading axis ``n``, sliced along with ``x``.
        num_replicates: m.
        over: the axis to reduce.
        combine: how; integer scores are summed exactly. A dict says it for each entry of the dict
            that ``score_fn`` returns.
        num_groups: G; reduces the replicates in G consecutive groups of ``m / G``. Only over
            replicates.
        draw_fn: ``draw_fn(perturbation, key, j, i, x_i)`` -> the noise of one draw.
        chunk_size: model inputs for one call of ``score_fn`` on one device.
        mesh: devices to share the work.
        bar: the number of a progress bar from :func:`progress_bar`.

    Returns:
        The pytree of ``score_fn`` with arrays ``[S, m, ...]`` (over examples) or ``[S, n, ...]``
        (over replicates; ``[S, G, n, ...]`` in groups), S the size of the sweep.
    """
    num_examples = x.shape[0]
    chunk = chunk_examples(chunk_size, x.shape[1:], sweep.size)
    grid = _Grid.plan(num_replicates, num_examples, over, num_groups or 1, chunk, mesh)
    job = _Job(loop_friendly(score_fn), draw_fn, combine, grid)
    key = threefry(key)
    if mesh is None:
        out = job.on_device(sweep, params, key, x, extras, bar)
    else:
        padded = grid.local["examples"] * grid.shards["examples"]
        event_ndim = x.ndim - 1
        x, extras = jax.tree.map(lambda a: _pad(a, padded), (x, extras))
        sweep, sweep_spec = _shard_sweep(sweep, event_ndim, padded, "examples" in mesh.axis_names)
        by_example = PartitionSpec("examples" if "examples" in mesh.axis_names else None)
        everywhere = PartitionSpec()
        out = jax.shard_map(
            job.on_device,
            mesh=mesh,
            in_specs=(sweep_spec, everywhere, everywhere, by_example, by_example, everywhere),
            out_specs=everywhere,
            check_vma=False,
        )(sweep, params, key, x, extras, bar)
    out = jax.tree.map(lambda a: a[:, :, : grid.total[grid.kept]], out)
    return out if num_groups else jax.tree.map(lambda a: a[:, 0], out)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """How the grid of draws is cut: over devices, and there into tiles of one model call each."""

    over: Axis  # the axis that is reduced
    kept: Axis  # the other one
    groups: int  # consecutive groups of replicates, reduced apart
    total: dict[Axis, int]  # replicates of a group, and examples
    shards: dict[Axis, int]  # devices along each axis
    local: dict[Axis, int]  # a device's share of the total (the last one's may be padded)
    tile: dict[Axis, int]  # a tile's share of that
    blocks: dict[Axis, int]  # tiles along each axis, on one device

    @classmethod
    def plan(
        cls, replicates: int, examples: int, over: Axis, groups: int, chunk: int, mesh: Mesh | None
    ) -> _Grid:
        kept: Axis = "replicates" if over == "examples" else "examples"
        total: dict[Axis, int] = {"replicates": replicates // groups, "examples": examples}
        shards: dict[Axis, int] = {name: mesh.shape.get(name, 1) if mesh else 1 for name in AXES}
        local: dict[Axis, int] = {name: math.ceil(total[name] / shards[name]) for name in AXES}
        # The reduced axis fills a tile first: its partial results then need no carrying around.
        tile: dict[Axis, int] = {over: split_evenly(local[over], chunk)}
        tile[kept] = split_evenly(local[kept], max(1, chunk // tile[over]))
        blocks: dict[Axis, int] = {name: math.ceil(local[name] / tile[name]) for name in AXES}
        return cls(over, kept, groups, total, shards, local, tile, blocks)

    @property
    def num_tiles(self) -> int:
        return self.groups * math.prod(self.blocks.values()) * math.prod(self.shards.values())

    def indices(
        self, block: dict[Axis, Array]
    ) -> tuple[dict[Axis, Array], dict[Axis, Array], Array]:
        """Places within this device's share, global indices, and ``[r, e]``: is it no padding?"""
        within, index, real = {}, {}, {}
        for name in AXES:
            within[name] = block[name] * self.tile[name] + jnp.arange(self.tile[name])
            first = jax.lax.axis_index(name) * self.local[name] if self.shards[name] > 1 else 0
            index[name] = first + within[name]
            real[name] = (within[name] < self.local[name]) & (index[name] < self.total[name])
        return within, index, real["replicates"][:, None] & real["examples"][None, :]


@dataclasses.dataclass(frozen=True)
class _Job:
    """What one device does: walks its share of the grid, tile by tile."""

    score_fn: Callable[..., Any]
    draw_fn: Callable[..., Array]
    combine: Combination | dict[str, Combination]
    grid: _Grid

    def on_device(
        self, sweep: Sweep, params: Any, key: Array, x: Array, extras: Any, bar: Array | None
    ) -> Any:
        """Reduced scores ``[S, G, kept, ...]``, the same on every device."""
        grid = self.grid

        def tile(kept_block: Array, reduced_block: Array, group: Array) -> Any:
            block = {grid.kept: kept_block, grid.over: reduced_block}
            scored = self.score_tile(block, group, sweep, params, key, x, extras)
            _tick(bar, grid.num_tiles)
            return scored

        def reduced(number: Array) -> Any:
            group, kept_block = number // grid.blocks[grid.kept], number % grid.blocks[grid.kept]
            if grid.blocks[grid.over] == 1:
                return tile(kept_block, jnp.int32(0), group)

            def step(so_far: Any, reduced_block: Array) -> tuple[Any, None]:
                new = tile(kept_block, reduced_block, group)
                return self.each(lambda how, a, b: _COMBINE[how][2](a, b), so_far, new), None

            shapes = jax.eval_shape(tile, kept_block, jnp.int32(0), group)
            start = self.each(
                lambda how, s: jnp.full(s.shape, _identity(how, s.dtype), s.dtype), shapes
            )
            return jax.lax.scan(step, start, jnp.arange(grid.blocks[grid.over]))[0]

        out = jax.lax.map(reduced, jnp.arange(grid.groups * grid.blocks[grid.kept]))

        def arrange(a: Array) -> Array:  # [G * blocks, S, tile, ...] -> [S, G, kept, ...]
            a = jnp.moveaxis(a, 0, 1)
            a = a.reshape(sweep.size, grid.groups, -1, *a.shape[3:])
            return a[:, :, : grid.local[grid.kept]]

        out = jax.tree.map(arrange, out)
        if grid.shards[grid.over] > 1:
            out = self.each(lambda how, a: _COLLECTIVE[how](a, grid.over), out)
        return _gather(out, grid.kept, axis=2) if grid.shards[grid.kept] > 1 else out

    def score_tile(
        self,
        block: dict[Axis, Array],
        group: Array,
        sweep: Sweep,
        params: Any,
        key: Array,
        x: Array,
        extras: Any,
    ) -> Any:
        """Draws one tile's noise once and scores it at every point: ``[S, kept, ...]``."""
        grid = self.grid
        within, index, valid = grid.indices(block)

        def take(a: Array) -> Array:
            if grid.blocks["examples"] == 1:
                return a
            return jnp.take(a, within["examples"], axis=0, mode="clip")

        def repeat(a: Array) -> Array:
            repeated = jnp.broadcast_to(a, (grid.tile["replicates"], *a.shape))
            return repeated.reshape(-1, *a.shape[1:])

        x_tile, extras_tile = jax.tree.map(take, (x, extras))
        template = sweep.template()

        def draw(j: Array, i: Array, x_i: Array) -> Array:
            return self.draw_fn(template, key, j, i, x_i)

        replicates = group * grid.total["replicates"] + index["replicates"]
        draw_row = jax.vmap(draw, (None, 0, 0))
        noise = jax.vmap(draw_row, (0, None, None))(replicates, index["examples"], x_tile)
        noise = as_it_is(_feature_by_feature(noise))

        def at_point(varying: tuple[Array, ...]) -> Any:
            perturbation = _take_own(sweep.at(varying), x.ndim - 1, take)
            x_hat = jax.vmap(lambda z: transform_batch(perturbation, z, x_tile))(noise)
            flat = x_hat.reshape(-1, *x.shape[1:])
            scores = self.score_fn(params, flat, *jax.tree.map(repeat, extras_tile))
            return self.each(lambda how, s: self.reduce_tile(how, s, valid), scores)

        if sweep.varying:
            return jax.lax.map(at_point, sweep.varying)
        return jax.tree.map(lambda s: jnp.broadcast_to(s, (sweep.size, *s.shape)), at_point(()))

    def each(self, fn: Callable[..., Any], *trees: Any) -> Any:
        """``fn(how, *leaves)`` for the leaves of scores, ``how`` the way they are combined."""
        return jax.tree.map(
            lambda how, *parts: jax.tree.map(functools.partial(fn, how), *parts),
            self.combine,
            *trees,
        )

    def reduce_tile(self, how: str, scores: Array, valid: Array) -> Array:
        """Reduces one axis of a tile's scores ``[r e, ...]``, leaving padding out."""
        reduce_axis = _COMBINE[how][1]
        scores = scores.reshape(*valid.shape, *scores.shape[1:])
        valid = valid.reshape(*valid.shape, *(1,) * (scores.ndim - 2))
        scores = jnp.where(valid, scores, jnp.asarray(_identity(how, scores.dtype), scores.dtype))
        return reduce_axis(scores, axis=1 if self.grid.over == "examples" else 0)


def _feature_by_feature(noise: Array) -> Array:
    """``noise [r, e, ...]`` as it is, made in an order that suits a CPU.

    Draws are vectorised along their last axis, and compilers keep to it: for a few features most
    lanes would idle, and what is left over of an axis is done number by number. So they are made
    with the features first, all draws of one behind another, and turned around once.
    """
    num_features = math.prod(noise.shape[2:])
    if (
        jax.default_backend() != "cpu"
        or num_features > _FEW_FEATURES
        or jnp.issubdtype(noise.dtype, jax.dtypes.prng_key)
    ):
        return noise

    def row_major(a: Array) -> Array:
        return with_layout_constraint(a, Layout(major_to_minor=tuple(range(a.ndim))))

    features_first = row_major(noise.reshape(-1, num_features).T)
    return row_major(features_first.T).reshape(noise.shape)


def _take_own(perturbation: Perturbation, event_ndim: int, take: Callable) -> Perturbation:
    """Slices the per-example parameters along with the examples of a tile."""
    own, merge = split_leaves(perturbation, event_ndim)
    return merge([take(leaf) for leaf in own])


def _shard_sweep(sweep: Sweep, event_ndim: int, padded: int, split: bool) -> tuple[Sweep, Sweep]:
    """Pads the per-example parameters of a sweep, and says how each leaf is split over devices."""
    own = jax.tree.leaves(sweep.template().per_example(event_ndim))
    varying_own = [o for o, v in zip(own, sweep.is_varying, strict=True) if v]
    shared_own = [o for o, v in zip(own, sweep.is_varying, strict=True) if not v]
    name = "examples" if split else None

    def spec(is_own: bool, *leading: None) -> PartitionSpec:
        return PartitionSpec(*leading, name) if is_own else PartitionSpec()

    def rebuild(varying: tuple, shared: tuple) -> Sweep:
        return Sweep(varying, shared, sweep.size, sweep.is_varying, sweep.treedef)

    padded_sweep = rebuild(
        tuple(
            _pad(a, padded, axis=1) if o else a
            for a, o in zip(sweep.varying, varying_own, strict=True)
        ),
        tuple(_pad(a, padded) if o else a for a, o in zip(sweep.shared, shared_own, strict=True)),
    )
    specs = rebuild(tuple(spec(o, None) for o in varying_own), tuple(spec(o) for o in shared_own))
    return padded_sweep, specs


def _pad(a: Array, size: int, axis: int = 0) -> Array:
    """Repeats the last entry along an axis until it has ``size``."""
    if a.shape[axis] == size:
        return a
    return jnp.take(a, jnp.arange(size), axis=axis, mode="clip")


def _gather(tree: Any, name: str, axis: int) -> Any:
    return jax.tree.map(lambda a: jax.lax.all_gather(a, name, axis=axis, tiled=True), tree)


def _identity(how: str, dtype: Any) -> Any:
    """The neutral element of a reduction, for integers too."""
    init = _COMBINE[how][0]
    if jnp.issubdtype(dtype, jnp.integer) and math.isinf(init):
        info = jnp.iinfo(dtype)
        return info.max if init > 0 else info.min
    return init


# --- progress -------------------------------------------------------------------------------------

_bars: dict[int, Any] = {}
_bar_labels: dict[int, str] = {}
_bar_numbers = itertools.count()


@contextlib.contextmanager
def progress_bar(progress: bool, label: str) -> Iterator[Array | None]:
    """Opens a tqdm bar that the loops of :func:`reduce_draws` advance, also inside ``jit``.

    Yields the bar's number, which is data (so showing progress of another call does not retrace),
    or None when ``progress`` is False.
    """
    if not progress:
        yield None
        return
    try:
        import tqdm.auto  # noqa: F401
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    number = next(_bar_numbers)
    _bar_labels[number] = label
    try:
        yield jnp.int32(number)
        jax.effects_barrier()
    finally:
        if number in _bars:
            _bars.pop(number).close()


def _tick(bar: Array | None, total: int) -> None:
    if bar is not None:
        jax.debug.callback(_advance, bar, total)


def _advance(bar: Array, total: int) -> None:
    from tqdm.auto import tqdm

    number = int(bar)
    if number not in _bars:
        _bars[number] = tqdm(total=int(total), desc=_bar_labels.get(number, ""), leave=False)
    shown = _bars[number]
    shown.update(1)
    if shown.n >= shown.total:
        _bars.pop(number).close()
