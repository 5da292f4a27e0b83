"""The race of an untargeted score: the answer of the full run, for a part of its gradients."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxrobust as jr
from jaxrobust import CleverStatus as Status
from jaxrobust.measures.clever import _race, _sampling

G, B, K = 40, 16, 10


def network(params, x):
    inner, outer = params
    return jax.nn.relu(x @ inner[:-1] + inner[-1:]) @ outer


def network_params(seed, size=4, hidden=16, classes=K):
    rng = np.random.default_rng(seed)
    inner, outer = rng.normal(size=(size + 1, hidden)), rng.normal(size=(hidden, classes))
    return jnp.asarray(inner, jnp.float32), jnp.asarray(outer, jnp.float32)


def inputs(seed, num=20, size=4):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num, size)), jnp.float32)


def score(params, x, seed=0, race=True, **kwargs):
    options = {"radius": 0.5, "num_batches": G, "batch_size": B, **kwargs}
    return jr.clever_score(network, params, jax.random.key(seed), x, race=race, **options)


def dropped(result):
    return (np.asarray(result.status) & Status.DROPPED) != 0


def check_against_full(raced, full):
    """Counts inputs with the same answer; what was not dropped is the same in any case."""
    out = dropped(raced)
    assert not np.any(dropped(full))
    for name in ("maxima", "per_class", "lipschitz", "slope", "zero_share", "ks_pvalue"):
        mine, theirs = (np.asarray(getattr(r, name))[~out] for r in (raced, full))
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(np.asarray(raced.crossing)[out], np.asarray(full.crossing)[out])
    return np.sum(
        (raced.target == full.target) & np.isclose(raced.score, full.score, rtol=1e-5)
    )  # fmt: skip


def check_dropped(result, margin):
    """What a dropped class is left with: the largest gradient until then."""
    out = dropped(result)
    assert out.any()
    for i, j in np.argwhere(out):
        maxima = np.asarray(result.maxima[i, j])
        seen = maxima[~np.isnan(maxima)]
        np.testing.assert_array_equal(np.isnan(maxima), np.arange(maxima.size) >= seen.size)
        assert 15 <= seen.size < maxima.size
        assert result.lipschitz[i, j] == seen.max()
        np.testing.assert_allclose(result.per_class[i, j], margin[i, j] / seen.max(), rtol=1e-6)
        assert result.per_class[i, j] > result.score[i]
        assert np.isnan(result.ks_pvalue[i, j])
        np.testing.assert_array_equal(
            result.per_class_interval[i, j], [0, result.per_class[i, j]]
        )  # fmt: skip


def test_same_answer_as_the_full_run():
    same, total, evaluated = 0, 0, 0
    for seed in range(10):
        params, x = network_params(seed), inputs(seed)
        raced, full = (score(params, x, seed, race) for race in (True, False))
        same += check_against_full(raced, full)
        total += len(x)
        evaluated += np.isfinite(raced.maxima).sum()
    assert same >= 0.99 * total
    assert evaluated < 0.75 * total * (K - 1) * G
    check_dropped(score(network_params(0), inputs(0), radius=9.0), full_margin(0))


def full_margin(seed):
    logits = np.asarray(network(network_params(seed), inputs(seed)))
    return logits.max(axis=1, keepdims=True) - logits


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 10])
@pytest.mark.parametrize("num_batches", [50, 97])
def test_same_answer_on_many(size, num_batches):
    same, total = 0, 0
    for seed in range(40):
        params, x = network_params(seed, size), inputs(seed, size=size)
        same += check_against_full(
            *(score(params, x, seed, race, num_batches=num_batches) for race in (True, False))
        )
        total += len(x)
    assert same >= 0.99 * total


@pytest.mark.slow
def test_thousand_classes():
    params, x = network_params(1, classes=1000), inputs(1, num=3)
    raced, full = (score(params, x, race=race) for race in (True, False))
    assert check_against_full(raced, full) == len(x)
    chex.assert_shape(raced.maxima, (3, 1000, G))
    assert np.isfinite(raced.maxima).mean() < 0.6


def test_masked_and_tied_classes_race_along():
    params, x = network_params(4), inputs(4)
    clean = np.asarray(network(params, x))
    label = clean.argmax(axis=1)
    mask = np.bincount(label, minlength=K).argmin()  # a class that is seldom or never predicted
    tied = np.bincount(label, minlength=K).argmax()

    def edge(params, x):
        """One class is ruled out; the last one is always level with the most frequent one."""
        logits = network(params, x)
        logits = jnp.where(jnp.arange(K)[None] == mask, -jnp.inf, logits)
        return jnp.concatenate([logits[:, :-1], logits[:, tied][:, None]], axis=1)

    options = {"radius": 0.5, "num_batches": G, "batch_size": B}
    raced, full = (
        jr.clever_score(edge, params, jax.random.key(0), x, race=race, **options)
        for race in (True, False)
    )
    assert check_against_full(raced, full) == len(x)
    assert dropped(raced).any()
    assert not dropped(raced)[:, mask].any()
    others = np.asarray(raced.label) != mask
    np.testing.assert_array_equal(np.asarray(raced.status)[others, mask], Status.MASKED)
    level = np.isin(raced.label, [tied, K - 1])
    assert level.any()
    np.testing.assert_array_equal(np.asarray(raced.score)[level], 0.0)
    assert np.all(np.asarray(raced.score)[~level] > 0)


def test_dropped_classes_cost_no_gradients():
    rows = []

    @jax.custom_vjp
    def counted(x):
        return x

    def backward(_, gradient):
        jax.debug.callback(lambda: rows.append(len(gradient)))
        return (gradient,)

    counted.defvjp(lambda x: (x, None), backward)

    def counting(params, x):
        return network(params, counted(x))

    key = jax.random.key(0)
    request = _sampling.check(
        counting, network_params(3), key, inputs(3, num=1),
        radius=0.5, norm="l2", targets="all", bounds=None, mesh=None,
    )  # fmt: skip
    drawn = _sampling.sample(
        _sampling.GradientNorm(counting, "l2"), counting, network_params(3), key, request,
        num_batches=G, batch_size=B, chunk_size=None, progress=False, race=True,
    )  # fmt: skip
    jax.block_until_ready(drawn)
    jax.effects_barrier()
    assert len(rows) == np.isfinite(drawn.found["norm"]).sum() == drawn.batches.sum()
    assert set(rows) == {B}
    assert len(rows) < 0.8 * (K - 1) * G


def test_classes_at_the_radius_are_told_apart():
    # All scores are the radius; the nearest class is the same, though others come first.
    params, x = network_params(5), inputs(5)
    raced, full = (score(params, x, race=race, radius=1e-3) for race in (True, False))
    np.testing.assert_array_equal(raced.score, np.float32(1e-3))
    np.testing.assert_array_equal(raced.target, full.target)
    uncapped = np.asarray(full.margin / full.lipschitz)
    np.testing.assert_array_equal(full.target, np.nanargmin(uncapped, axis=1))
    assert dropped(raced).any()


@pytest.mark.slow
def test_devices_race_alike():
    params, x = network_params(2), inputs(2, num=3)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("replicates", "examples"))
    one, many = score(params, x), score(params, x, mesh=mesh)
    np.testing.assert_allclose(many.maxima, one.maxima, rtol=1e-5)
    np.testing.assert_array_equal(many.status, one.status)
    np.testing.assert_array_equal(many.target, one.target)


@pytest.mark.parametrize(
    ("margin", "gradient", "left"),
    [
        ([1.0, 1.5, 9.0], [1.0, 1.0, 1.0], [True, True, False]),  # up to 2.19 may be
        ([1.0, 9.0, 9.0], [1.0, 0.0, 9.0], [True, True, True]),  # no gradient, no bound
        ([1.0, 9.0, 9.0], [1.0, np.nan, 1.0], [True, True, False]),
        ([1.0, np.nan, np.inf], [1.0, 1.0, 1.0], [True, True, True]),
        ([0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [True, True, False]),  # tied classes
    ],
)
def test_only_classes_out_of_reach_are_dropped(margin, gradient, left):
    maxima = jnp.broadcast_to(jnp.array([gradient]), (16, 1, 3))
    maxima = jnp.concatenate([maxima, jnp.full_like(maxima, jnp.nan)])  # batches still to come
    margin = jnp.array([margin])
    found = _race.may_be_nearest(maxima, jnp.ones((1, 3), bool), margin, 16)
    np.testing.assert_array_equal(found[0], left)
