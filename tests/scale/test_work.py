"""What one device of a mesh has to do: its share of the arithmetic, and no moving of the data.

By XLA's own account of the program that one device runs. XLA counts the body of a loop once, so the
chunks here hold a device's whole share: there is one turn of each loop over chunks, and what is
counted is what is done. (The steps of an attack and the classes of CLEVER are loops still; their
turns do not depend on the mesh.)
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxrobust as jr

N, D, WIDTH, CLASSES = 64, 96, 64, 3
LABELS = jnp.arange(N) % CLASSES
NOISE = jr.perturbations.gaussian(0.1)
BIG = {"chunk_size": 10**6}


def apply_fn(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def theta(mesh, params, key, x):
    return jr.theta_robustness(
        apply_fn, params, key, x, LABELS,
        perturbation=NOISE, loss="brier", num_replicates=64, mesh=mesh, **BIG,
    )  # fmt: skip


def flip(mesh, params, key, x):
    return jr.flip_probability(
        apply_fn, params, key, x, perturbation=NOISE, num_samples=64, mesh=mesh, **BIG
    )


def directional(mesh, params, key, x):
    return jr.directional_risk(
        apply_fn, params, key, x, LABELS, x + 0.1,
        norm="l2", kappas=jnp.array([0.0, 1.0]), num_samples=128, num_resamples=2, mesh=mesh, **BIG,
    )  # fmt: skip


def clever(mesh, params, key, x):
    return jr.clever_score(
        apply_fn, params, key, x,
        radius=0.1, targets="top2", num_batches=8, batch_size=32, mesh=mesh, **BIG,
    )  # fmt: skip


def pgd(mesh, params, key, x):
    return jr.attacks.pgd(
        apply_fn, params, key, x, LABELS,
        eps=0.1, norm="linf", step_size=0.02, num_steps=5, bounds=None, mesh=mesh, **BIG,
    )  # fmt: skip


def compile_on(measure, devices, axis):
    """The program of one device; compiled without much optimising, which takes longer than it."""
    mesh = Mesh(np.array(jax.devices()[:devices]), (axis,))
    params = {"w": jnp.ones((D, WIDTH)), "v": jnp.ones((WIDTH, CLASSES))}
    lowered = jax.jit(functools.partial(measure, mesh)).lower(
        params, jax.random.key(0), jnp.ones((N, D))
    )
    return lowered.compile(compiler_options={"xla_backend_optimization_level": 0})


def collective_sizes(text):
    """The numbers of elements that each collective of a program in HLO gives out."""
    for line in text.splitlines():
        found = re.search(r"= (.*?) (all-|collective-|reduce-scatter)[\w-]*\(", line)
        if found:
            for shape in re.findall(r"\[([\d,]*)\]", found[1]):
                yield int(np.prod([int(size) for size in shape.split(",") if size]))


def check(measure, axis, counts):
    programs = {devices: compile_on(measure, devices, axis) for devices in counts}
    flops = {devices: p.cost_analysis()["flops"] for devices, p in programs.items()}
    for devices, found in flops.items():
        assert found == pytest.approx(flops[1] / devices, rel=0.05)
        moved = list(collective_sizes(programs[devices].as_text()))
        assert moved or devices == 1 or measure is pgd  # whose results stay where they are made
        assert all(size < N * D / 8 for size in moved)


@pytest.mark.parametrize(
    ("measure", "axis"), [(theta, "replicates"), (flip, "examples"), (pgd, "examples")]
)
def test_a_device_does_its_share_and_moves_no_data(measure, axis):
    check(measure, axis, (1, 4))


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["replicates", "examples"])
@pytest.mark.parametrize("measure", [theta, flip, directional, clever])
def test_every_measure_shares_its_work(measure, axis):
    check(measure, axis, (1, 2, 4))


def test_collectives_are_found():
    mesh = Mesh(np.array(jax.devices()[:2]), ("examples",))
    gather = jax.shard_map(
        lambda x: jax.lax.all_gather(x, "examples", tiled=True),
        mesh=mesh,
        in_specs=PartitionSpec("examples"),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    text = jax.jit(gather).lower(jnp.ones((N, D))).compile().as_text()
    assert list(collective_sizes(text)) == [N * D]
