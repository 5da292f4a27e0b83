"""kappa at a level, correlations, groups, error search and the table, from known curves."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from jax.sharding import Mesh

import jaxrobust as jr
from jaxrobust.measures.directional import means

M = jr.measures
KEY = jax.random.key(0)


def made(risk, correct=None, certainty=None, kappa=None):
    """A result with given risks ``[K, n]``, its means and bootstrap as the measure makes them."""
    risk = jnp.asarray(risk, jnp.float32)
    num_points, num = risk.shape
    correct = jnp.ones(num, bool) if correct is None else jnp.asarray(correct)
    averages = means.summarise(KEY, risk, correct, 0.95, num_resamples=1000)
    fields = dict.fromkeys(jr.DirectionalRisk._fields) | {
        "kappa": jnp.arange(float(num_points)) if kappa is None else jnp.asarray(kappa),
        "risk": risk,
        "mean": averages.mean,
        "mean_interval": averages.interval,
        "resampled": averages.resampled,
        "correct": correct,
        "certainty": jnp.linspace(0.5, 1.0, num) if certainty is None else jnp.asarray(certainty),
    }
    return jr.DirectionalRisk(**fields)


def risks(num_points=5, num=60, seed=0):
    """Rising curves that differ from example to example, in steps of 1 / 64: with ties."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(1, 12, size=num)
    curve = 1 - np.exp(-np.arange(num_points)[:, None] / scale)
    return np.round(64 * np.clip(curve + rng.normal(size=curve.shape) / 20, 0, 1)) / 64


# --- kappa at a level -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "interpolated", "on_grid"),
    [
        ((0.0, 0.2, 0.4, 0.6), 1.25, 2),
        ((0.3, 0.4, 0.5, 0.6), 0.0, 0),
        ((0.25, 0.3, 0.4, 0.5), 0.0, 0),
        ((0.0, 0.25, 0.1, 0.9), 1.0, 1),  # the first time, though it falls again
        ((0.0, 0.1, 0.1, 0.2), math.inf, math.inf),
        ((0.0, 0.0, 0.0, 1.0), 2.25, 3),
    ],
)
def test_kappa_at_reads_the_curve(curve, interpolated, on_grid):
    result = made(np.tile(np.array(curve)[:, None], (1, 7)))
    found = jr.kappa_at(result, 0.25)
    assert float(found) == pytest.approx(interpolated, abs=1e-6)
    # All examples are alike, and so are the resampled curves.
    np.testing.assert_allclose(found.interval, [interpolated] * 2, rtol=1e-6)
    assert float(jr.kappa_at(result, level=0.25, interpolate=False)) == on_grid


def test_the_interval_is_the_bootstrap_of_numpy():
    values = risks()
    correct = np.arange(60) % 5 != 0
    result = made(values, correct)
    low, high = jr.kappa_at(result, 0.25).interval
    rng = np.random.default_rng(5)
    kept = values[:, correct]
    curves = np.stack(
        [kept[:, rng.integers(0, kept.shape[1], kept.shape[1])].mean(1) for _ in range(4000)]
    )
    crossings = [np.interp(0.25, c, np.arange(5.0)) for c in curves]
    expected = np.quantile(crossings, [0.025, 0.975])
    np.testing.assert_allclose([low, high], expected, atol=0.08)
    assert low < float(jr.kappa_at(result)) < high
    np.testing.assert_allclose(result.resampled.std(0), curves.std(0), rtol=0.15, atol=1e-4)
    narrow = jr.kappa_at(result, 0.25, confidence=0.5).interval
    assert low < narrow[0] < narrow[1] < high


def test_bootstrap_interval_covers():
    """Known curves, many samples of 60 examples: the true crossing is inside 19 times in 20."""
    pool = risks(num=20_000, seed=1)
    truth = float(np.interp(0.25, pool.mean(1), np.arange(5.0)))
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        result = made(pool[:, rng.integers(0, 20_000, 60)])
        low, high = jr.kappa_at(result).interval
        covered += bool(low <= truth <= high)
    # The percentile bootstrap falls a little short for few examples.
    assert 0.93 - 4 * math.sqrt(0.93 * 0.07 / 200) < covered / 200 <= 1


def test_an_upper_end_that_is_never_reached_is_infinite():
    values = np.zeros((4, 40))
    values[3, :10] = 1.0  # a mean of .25 at the last point: half of the resampled ones are below
    found = jr.kappa_at(made(values), 0.25)
    assert float(found) == 3
    assert found.interval[0] < 3
    assert found.interval[1] == math.inf


# --- correlations and groups ----------------------------------------------------------------------


@pytest.mark.parametrize("against", ["uniform", "certainty"])
def test_rank_correlation_is_that_of_scipy(against):
    values = risks()
    correct = np.arange(60) % 4 != 0
    certainty = np.round(np.random.default_rng(3).uniform(0.3, 1, 60), 1)
    result = made(values, correct, certainty)
    found = M.risk_correlation(result, against=against)
    other = values[0] if against == "uniform" else certainty
    for k in range(5):
        expected = scipy.stats.spearmanr(values[k, correct], other[correct]).statistic
        assert float(found.correlation[k]) == pytest.approx(expected, abs=2e-6)
        z = 1.959964 * math.sqrt((1 + expected**2 / 2) / (correct.sum() - 3))
        if expected < 0.999:
            ends = np.tanh([np.arctanh(expected) - z, np.arctanh(expected) + z])
            np.testing.assert_allclose(found.interval[k], ends, atol=1e-5)
    assert int(found.num_examples) == correct.sum()


def test_a_constant_has_no_correlation():
    values = risks()
    values[2] = 0.5
    found = M.risk_correlation(made(values))
    assert np.isnan(found.correlation[2])
    assert np.isnan(found.interval[2]).all()
    assert np.isfinite(np.delete(found.correlation, 2)).all()
    few = M.risk_correlation(made(values, np.arange(60) < 3))
    np.testing.assert_array_equal(few.interval[3], [-1, 1])


def test_groups_by_certainty():
    values = risks()
    correct = np.arange(60) % 5 != 0
    certainty = np.random.default_rng(3).uniform(0.3, 1, 60)
    found = M.risk_by_certainty(made(values, correct, certainty), num_groups=3)
    order = np.flatnonzero(correct)[np.argsort(certainty[correct])]
    for g, rows in enumerate(np.split(order, 3)):
        np.testing.assert_allclose(found.risk[:, g], values[:, rows].mean(1), rtol=1e-5, atol=1e-6)
        assert float(found.certainty[g]) == pytest.approx(certainty[rows].mean(), rel=1e-5)
    assert found.num_examples.tolist() == [16, 16, 16]
    assert (found.interval[..., 0] <= found.risk + 1e-6).all()
    assert (found.risk <= found.interval[..., 1] + 1e-6).all()


def test_interval_of_the_chosen_ones_is_theirs():
    values = jnp.asarray(np.random.default_rng(0).beta(0.3, 1.0, 50), jnp.float32)
    where = np.arange(50) % 3 != 0
    chosen = jr.intervals.bounded_mean(values, 0.9, where=where)
    alone = jr.intervals.bounded_mean(values[where], 0.9)
    np.testing.assert_allclose(chosen, alone, rtol=1e-5)
    none = jr.intervals.bounded_mean(values, 0.9, where=np.zeros(50, bool))
    assert none.tolist() == [0.0, 1.0]
    hidden = values.at[0].set(jnp.nan)
    np.testing.assert_allclose(
        jr.intervals.bounded_mean(hidden, 0.9, where=where), alone, rtol=1e-5
    )
    for bad, error in ((where * 1, TypeError), (where[1:], ValueError)):
        with pytest.raises(error, match="where must"):
            jr.intervals.bounded_mean(values, 0.9, where=bad)


# --- error search ---------------------------------------------------------------------------------

NUM, DRAWS = 6, 48
LABELS = jnp.zeros(NUM, int)
START = np.array([-0.2, -0.6, -0.9, -5.0, 0.4, -0.95], np.float32)  # the boundary is at 0


def half(params, x):
    return jnp.stack([jnp.zeros(x.shape[0]), x[:, 0] + params], axis=1)


def search(**change):
    arguments = {
        "x": jnp.zeros((NUM, 3)).at[:, 0].set(START), "labels": LABELS,
        "perturbation": jr.perturbations.uniform_sphere(1.0, norm="l2"), "num_samples": DRAWS,
    } | change  # fmt: skip
    x, labels = arguments.pop("x"), arguments.pop("labels")
    return jr.error_search(half, 0.0, KEY, x, labels, **arguments)


@pytest.fixture(scope="module")
def searched():
    return search()


def test_error_search_is_a_plain_loop(searched):
    x = jnp.zeros((NUM, 3)).at[:, 0].set(START)
    noise = jr.perturbations.uniform_sphere(1.0, norm="l2")
    wrong = np.array([jr.perturb(noise, KEY, x, replicate=j)[:, 0] > 0 for j in range(DRAWS)])
    np.testing.assert_array_equal(searched.errors, wrong.sum(0))
    np.testing.assert_array_equal(searched.found, wrong.any(0))
    assert searched.correct.tolist() == [True, True, True, True, False, True]
    kept = np.asarray(searched.correct)
    assert float(searched.rate) == pytest.approx(wrong.any(0)[kept].mean())
    assert searched.rate_interval[0] <= searched.rate <= searched.rate_interval[1]


def test_the_curve_is_the_mean_over_all_choices_of_draws(searched):
    assert searched.num_draws.tolist() == [1, 2, 4, 8, 16, 32, 48]
    kept = np.asarray(searched.errors)[np.asarray(searched.correct)]
    for t, value in zip(searched.num_draws.tolist(), searched.curve, strict=True):
        missed = scipy.special.comb(DRAWS - kept, t) / scipy.special.comb(DRAWS, t)
        assert float(value) == pytest.approx(1 - missed.mean(), abs=1e-6)
    assert float(searched.curve[-1]) == pytest.approx(float(searched.rate))
    assert (searched.curve_interval[:, 0] <= searched.curve).all()
    assert (searched.curve <= searched.curve_interval[:, 1]).all()


def test_error_search_agrees_for_chunks_and_meshes(searched):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("replicates", "examples"))
    other = search(chunk_size=5, mesh=mesh)
    np.testing.assert_array_equal(searched.errors, other.errors)
    np.testing.assert_array_equal(searched.correct, other.correct)


# --- the table ------------------------------------------------------------------------------------


def test_the_table_of_named_attacks():
    x = jnp.zeros((NUM, 3)).at[:, 0].set(np.array([0.4, 0.3, 0.2, 0.1, 0.7, 0.0], np.float32))
    seen = []

    def step(apply_fn, params, x, labels, *, eps, norm, share):
        seen.append((eps, norm))
        return x.at[:, 0].add(eps * share)

    def keyed(apply_fn, params, key, x, labels, *, eps, norm):
        assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        return jr.attacks.AttackResult(x.at[:, 0].add(eps), None, None, None)

    rows = M.directional_table(
        half, -0.5, KEY, x, LABELS, num_samples=64, kappas=[0.0, 2.0, 1e6],
        attacks={"half": functools.partial(step, share=0.5), "keyed": keyed},
        budgets=[("l2", 0.25), ("l2", 0.5)],
    )  # fmt: skip
    assert [(r.attack, r.norm, r.eps) for r in rows] == [
        ("half", "l2", 0.25), ("keyed", "l2", 0.25), ("half", "l2", 0.5), ("keyed", "l2", 0.5),
    ]  # fmt: skip
    assert seen == [(0.25, "l2"), (0.5, "l2")]
    success = [float(r.risk.attack_success_rate) for r in rows]
    np.testing.assert_allclose(success, [0.2, 0.4, 0.4, 0.8])
    # The same step is the same row, whoever made it: all rows share their draws.
    np.testing.assert_array_equal(rows[1].risk.errors, rows[2].risk.errors)
    for row in rows:
        np.testing.assert_array_equal(row.kappa_at.kappa, jr.kappa_at(row.risk).kappa)
    lines = M.format_table(rows).splitlines()
    assert len(lines) == 5
    assert lines[4].split()[:3] == ["keyed", "l2", "0.5"]
    assert "0.800" in lines[4]
    assert "inf" in lines[1]


# --- misuse ---------------------------------------------------------------------------------------

RESULT = made(np.zeros((2, 4)), kappa=[1.0, 2.0])
TABLE = {"attacks": {"a": half}, "budgets": [("l2", 1.0)], "kappas": [0.0]}


def table(**change):
    return M.directional_table(half, 0.0, KEY, jnp.ones((NUM, 3)), LABELS, **(TABLE | change))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: jr.kappa_at(3.0), TypeError, "directional_risk must be"),
        (lambda: jr.kappa_at(RESULT, 0.0), ValueError, "level must be above 0"),
        (lambda: jr.kappa_at(RESULT, 1.1), ValueError, "level must be above 0"),
        (lambda: jr.kappa_at(RESULT, math.nan), ValueError, "level must be above 0"),
        (lambda: jr.kappa_at(RESULT, confidence=0.0), ValueError, "confidence must be"),
        (lambda: M.risk_correlation(3.0), TypeError, "directional_risk must be"),
        (lambda: M.risk_correlation(RESULT), ValueError, r"directional_risk\.kappa\[0\] must"),
        (lambda: M.risk_correlation(RESULT, against="x"), ValueError, "against must be one of"),
        (lambda: M.risk_by_certainty(None), TypeError, "directional_risk must be"),
        (lambda: M.risk_by_certainty(RESULT, num_groups=0), ValueError, "num_groups must"),
        (lambda: M.format_table([]), ValueError, "rows must hold"),
        (lambda: table(attacks=[half]), TypeError, "attacks must map names to functions"),
        (lambda: table(attacks={"a": 3}), TypeError, "attacks must map names to functions"),
        (lambda: table(attacks={}), ValueError, "attacks must hold"),
        (lambda: table(budgets=[]), ValueError, "budgets must hold"),
        (lambda: table(budgets=[("l3", 1.0)]), ValueError, "norm in budgets must be one of"),
        (lambda: search(num_samples=0), ValueError, "num_samples must be at least 1"),
        (lambda: search(perturbation=0.1), TypeError, "perturbation must be"),
        (lambda: search(labels=LABELS + 2), ValueError, "labels must be labels from 0 to 1"),
        (lambda: search(confidence=2.0), ValueError, "confidence must be"),
        (lambda: search(x=jnp.ones((NUM, 3), int)), TypeError, "x must be floating"),
    ],
)
def test_misuse_names_the_argument(call, error, match):
    with pytest.raises(error, match=match):
        call()
