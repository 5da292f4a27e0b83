"""Intervals against SciPy, NumPy, exact enumeration and simulation."""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrobust as jr
from jaxrobust import intervals

SIDES = ["both", "lower", "upper"]


# --- Clopper-Pearson ------------------------------------------------------------------------------


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_clopper_pearson_is_that_of_scipy(side, confidence):
    # One-sided intervals of SciPy belong to one-sided tests.
    alternative = {"both": "two-sided", "lower": "greater", "upper": "less"}[side]
    counts, totals = zip(
        *[(k, n) for n in (1, 2, 7, 50, 1000) for k in {0, 1, n // 3, n - 1, n}], strict=True
    )
    found = intervals.clopper_pearson(np.array(counts), np.array(totals), confidence, side=side)
    assert found.shape == (len(counts), 2)
    for ends, k, n in zip(np.asarray(found), counts, totals, strict=True):
        test = scipy.stats.binomtest(k, n, alternative=alternative)
        expected = test.proportion_ci(confidence, method="exact")
        np.testing.assert_allclose(ends, expected, rtol=3e-7, atol=1e-12)


@pytest.mark.parametrize("side", SIDES)
def test_clopper_pearson_at_the_ends(side):
    nothing = intervals.clopper_pearson(0, 0, 0.95, side=side)
    none = intervals.clopper_pearson(0, 10_000, 0.95, side=side)
    all_ = intervals.clopper_pearson(10_000, 10_000, 0.95, side=side)
    assert nothing.tolist() == [0.0, 1.0]
    assert none[0] == 0
    assert all_[1] == 1
    # The rule of three (3.69 when the error is shared by both ends).
    three = {"both": 1 - 0.025**1e-4, "lower": 1.0, "upper": 1 - 0.05**1e-4}[side]
    assert none[1] == pytest.approx(three, rel=1e-6)
    beside = {"both": 0.025**1e-4, "lower": 0.05**1e-4, "upper": 0.0}[side]
    assert all_[0] == pytest.approx(beside, rel=1e-6)


@pytest.mark.parametrize("count", [0, 3, 50_000_000, 99_999_997, 100_000_000])
def test_clopper_pearson_of_a_hundred_million(count):
    total = 100_000_000  # beyond 2^24, where float32 stops counting
    lower, upper = intervals.clopper_pearson(count, total, 0.95).tolist()
    beta = scipy.stats.beta
    assert lower == pytest.approx(
        beta.ppf(0.025, count, total - count + 1) if count else 0, rel=1e-6
    )
    assert upper == pytest.approx(
        beta.isf(0.025, count + 1, total - count) if count < total else 1, rel=1e-6
    )
    neighbours = [intervals.clopper_pearson(c, total, 0.95) for c in (3, 4)]
    assert (neighbours[0] != neighbours[1]).all()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("total", [1, 5, 30])
def test_coverage_of_clopper_pearson_by_enumeration(side, total):
    counts = np.arange(total + 1)
    ends = np.asarray(intervals.clopper_pearson(counts, total, 0.9, side=side), np.float64)
    for p in np.linspace(0, 1, 101):
        covered = (ends[:, 0] <= p + 1e-7) & (p - 1e-7 <= ends[:, 1])
        coverage = scipy.stats.binom.pmf(counts, total, p)[covered].sum()
        assert coverage >= 0.9 - 1e-12


def test_clopper_pearson_traced_is_the_plain_one():
    counts, totals = np.array([0, 3, 10, 999]), np.array([10, 10, 10, 1000])
    plain = intervals.clopper_pearson(counts, totals, 0.99)
    jitted = jax.jit(lambda k, n: intervals.clopper_pearson(k, n, 0.99))
    np.testing.assert_array_equal(jitted(counts, totals), plain)
    mapped = jax.vmap(lambda k, n: intervals.clopper_pearson(k, n, 0.99))
    np.testing.assert_array_equal(mapped(jnp.asarray(counts), jnp.asarray(totals)), plain)
    # One traced argument among known ones that broadcast against it, below two maps.
    wide = intervals.clopper_pearson(counts[None, :], np.array([[1000], [2000]]), 0.99)
    both = jax.vmap(jax.vmap(lambda k: intervals.clopper_pearson(k, [1000, 2000], 0.99)))
    found = jax.jit(both)(jnp.asarray(counts)[None])
    np.testing.assert_array_equal(found[0].transpose(1, 0, 2), wide)
    # A traced confidence is a float32, so this one agrees to its rounding.
    levels = jax.vmap(lambda c: intervals.clopper_pearson(3, 10, c))(jnp.array([0.9, 0.99]))
    np.testing.assert_allclose(levels[1], intervals.clopper_pearson(3, 10, 0.99), rtol=1e-5)


def test_clopper_pearson_in_double_precision():
    with jax.enable_x64(True):
        found = intervals.clopper_pearson(3, 10, 0.95)
        assert found.dtype == jnp.float64
        expected = scipy.stats.binomtest(3, 10).proportion_ci(0.95, method="exact")
        np.testing.assert_allclose(found, expected, rtol=1e-12)


# --- quantile ranks -------------------------------------------------------------------------------


def exact_ranks(m, q, confidence, side, slack):
    """The tightest valid ranks, by enumeration of the binomial in exact arithmetic."""
    q = fractions.Fraction(str(q))
    tail = (1 - fractions.Fraction(str(confidence))) / (2 if side == "both" else 1)
    tail *= 1 + fractions.Fraction(slack)
    pmf = [math.comb(m, k) * q**k * (1 - q) ** (m - k) for k in range(m + 1)]
    below = [sum(pmf[:r], fractions.Fraction(0)) for r in range(m + 2)]  # P(binomial < r)
    upper = min([r for r in range(1, m + 1) if below[r] >= 1 - tail], default=m + 1)
    lower = max([r for r in range(1, m + 1) if below[r] <= tail], default=0)
    estimate = max(1, math.ceil(q * m))
    return estimate, lower if side != "upper" else 0, upper if side != "lower" else m + 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_ranks_are_the_tightest_valid_ones(side, confidence):
    for m in (1, 2, 3, 10, 31, 58, 59, 60):
        for q in (0, 0.05, 0.3, 0.5, 0.95, 1):
            found = intervals.quantile_ranks(m, q, confidence, side=side)
            # At an exact tie, rounding may take the one valid rank or the next.
            ties = [exact_ranks(m, q, confidence, side, slack) for slack in (-1e-12, 1e-12)]
            for rank, bounds in zip(found, zip(*ties, strict=True), strict=True):
                assert min(bounds) <= rank <= max(bounds), (m, q)


@pytest.mark.parametrize(
    ("m", "q", "confidence", "upper"),
    [(1000, 0.95, 0.95, 962), (1000, 0.95, 0.99, 966), (59, 0.95, 0.95, 59), (58, 0.95, 0.95, 59)],
)
def test_one_sided_ranks_of_the_paper(m, q, confidence, upper):
    # A 95% bound on the 0.95-quantile takes 59 samples; rank m + 1 stands for infinity.
    assert intervals.quantile_ranks(m, q, confidence, side="upper").upper == upper


@pytest.mark.parametrize(
    ("m", "alpha", "rank"),
    [
        (1000, 0.18, 820),
        (100, 0.41, 59),
        (1000, 0.05, 950),
        (1000, 1.0, 1),
        (1000, 0.0, 1000),
        (7, 0.5, 4),
        (1, 0.05, 1),
    ],
)
def test_the_estimate_has_an_exact_rank(m, alpha, rank):
    assert intervals.quantile_ranks(m, 1 - intervals.exact_fraction(alpha)).estimate == rank
    assert intervals.quantile_ranks(m, 1 - alpha).estimate == rank  # as a user would write it


def test_the_estimate_is_the_inverted_cdf_of_numpy():
    rng = np.random.default_rng(0)
    for m in (1, 2, 10, 40, 1000):
        samples = rng.normal(size=m)
        for percent in range(1, 100):
            # NumPy's product of a float and m is not exact: a nudge puts it on the right side.
            q = fractions.Fraction(percent, 100)
            nudged = np.quantile(samples, float(q) - 1e-12, method="inverted_cdf")
            rank = intervals.quantile_ranks(m, q).estimate
            assert np.sort(samples)[rank - 1] == nudged


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (0.18, "18/100"),
        (1 - 0.18, "82/100"),
        (0.1 + 0.2, "3/10"),
        (np.float32(0.05), "5/100"),
        (jnp.float32(0.41), "41/100"),
        (np.float16(0.1), "1/10"),
        (1, "1"),
        (0, "0"),
        (1e-9, "1/1000000000"),
        (fractions.Fraction(1, 3), "1/3"),
        (np.float64(0.123456789012345), "123456789012345/1000000000000000"),
    ],
)
def test_exact_fractions(value, exact):
    assert intervals.exact_fraction(value) == fractions.Fraction(exact)


# --- quantile intervals ---------------------------------------------------------------------------


def test_quantile_takes_order_statistics_along_the_last_axis():
    rng = np.random.default_rng(1)
    samples = rng.permuted(np.tile(np.arange(1.0, 101.0), (2, 3, 1)), axis=-1)
    _, lower, upper = intervals.quantile_ranks(100, 0.3, 0.9)
    found = intervals.quantile(samples, 0.3, 0.9)
    assert found.shape == (2, 3, 2)
    assert (found == jnp.array([lower, upper], float).reshape(1, 1, 2)).all()
    jitted = jax.jit(lambda s: intervals.quantile(s, 0.3, 0.9))(samples)
    np.testing.assert_array_equal(jitted, found)
    mapped = jax.vmap(lambda s: intervals.quantile(s, 0.3, 0.9))(jnp.asarray(samples))
    np.testing.assert_array_equal(mapped, found)


def test_quantile_is_infinite_where_there_are_too_few_samples():
    for m, last in [(58, math.inf), (59, 59.0)]:
        samples = np.arange(1.0, m + 1)
        found = intervals.quantile(samples, 0.95, 0.95, side="upper").tolist()
        assert found == [-math.inf, last]
    assert intervals.quantile([3.0], 0.5, 0.95).tolist() == [-math.inf, math.inf]
    # The smallest and largest possible values are bounded on one side only.
    assert intervals.quantile([3.0, 4.0], 1.0).tolist() == [4.0, math.inf]
    assert intervals.quantile([3.0, 4.0], 0.0).tolist() == [-math.inf, 3.0]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("name", "q"), [("normal", 0.95), ("normal", 0.5), ("binomial", 0.9), ("constant", 0.5)]
)
def test_coverage_of_the_quantile_by_simulation(name, q, side):
    rng = np.random.default_rng(2)
    trials, m, confidence = 4000, 80, 0.9
    draw, truth = {
        "normal": (lambda size: rng.normal(size=size), scipy.stats.norm.ppf(q)),
        # Ties among few values: the interval is closed, so it covers more often, never less.
        "binomial": (lambda size: rng.binomial(4, 0.3, size), scipy.stats.binom.ppf(q, 4, 0.3)),
        "constant": (np.ones, 1.0),
    }[name]
    ends = np.asarray(intervals.quantile(draw((trials, m)), q, confidence, side=side))
    covered = ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean()
    error = math.sqrt(confidence * (1 - confidence) / trials)
    assert covered >= confidence - 4 * error
    if name == "normal":  # the exact coverage is that of the binomial
        _, lower, upper = intervals.quantile_ranks(m, q, confidence, side=side)
        law = scipy.stats.binom(m, q)
        exact = law.cdf(upper - 1) - law.cdf(lower - 1)
        assert exact >= confidence
        assert abs(covered - exact) < 4 * math.sqrt(exact * (1 - exact) / trials)


def test_order_statistics_take_traced_ranks():
    samples = jnp.array([[3.0, 1.0, 2.0], [9.0, 7.0, 8.0]])

    @jax.jit
    def pick(ranks):
        return intervals.order_statistics(samples, intervals.QuantileRanks(*ranks))

    found = pick((jnp.int32(2), jnp.int32(0), jnp.int32(4)))
    np.testing.assert_array_equal(found[:, 0], [2.0, 8.0])
    assert np.isneginf(found[:, 1]).all()
    assert np.isposinf(found[:, 2]).all()


# --- arguments ------------------------------------------------------------------------------------

NAN = math.nan


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "error", "match"),
    [
        (intervals.clopper_pearson, (-1, 10), {}, ValueError, "count must be from 0 to total"),
        (intervals.clopper_pearson, (11, 10), {}, ValueError, "count must be from 0 to total"),
        (intervals.clopper_pearson, ([1, 11], 10), {}, ValueError, "count must be from 0 to total"),
        (intervals.clopper_pearson, (0, -1), {}, ValueError, "count must be from 0 to total"),
        (intervals.clopper_pearson, (1.5, 10), {}, ValueError, "count must be whole"),
        (intervals.clopper_pearson, (NAN, 10), {}, ValueError, "count must be whole"),
        (intervals.clopper_pearson, (1, NAN), {}, ValueError, "total must be whole"),
        (intervals.clopper_pearson, ("a", 10), {}, TypeError, "count must be whole"),
        (intervals.clopper_pearson, (1, None), {}, TypeError, "total must be whole"),
        (intervals.clopper_pearson, (1, 10, 0.0), {}, ValueError, "confidence"),
        (intervals.clopper_pearson, (1, 10, 1.0), {}, ValueError, "confidence"),
        (intervals.clopper_pearson, (1, 10, 95), {}, ValueError, "confidence"),
        (intervals.clopper_pearson, (1, 10, NAN), {}, ValueError, "confidence"),
        (intervals.clopper_pearson, (1, 10), {"side": "two"}, ValueError, "side"),
        (intervals.quantile_ranks, (0, 0.5), {}, ValueError, "num_samples"),
        (intervals.quantile_ranks, (1.0, 0.5), {}, TypeError, "num_samples"),
        (intervals.quantile_ranks, (10, 1.5), {}, ValueError, "q must be from 0 to 1"),
        (intervals.quantile_ranks, (10, -0.1), {}, ValueError, "q must be from 0 to 1"),
        (intervals.quantile_ranks, (10, NAN), {}, ValueError, "a fraction must be"),
        (intervals.quantile_ranks, (10, None), {}, ValueError, "a fraction must be"),
        (intervals.quantile_ranks, (10, [0.5]), {}, ValueError, "a fraction must be"),
        (intervals.quantile_ranks, (10, 0.5, 1.0), {}, ValueError, "confidence"),
        (intervals.quantile_ranks, (10, 0.5), {"side": "two"}, ValueError, "side"),
        (intervals.quantile, ("a", 0.5), {}, TypeError, "samples must be real"),
        (intervals.quantile, (1.0, 0.5), {}, ValueError, "samples must have shape"),
        (intervals.quantile, (np.ones((3, 0)), 0.5), {}, ValueError, "samples must have shape"),
        (intervals.quantile, ([1.0, NAN], 0.5), {}, ValueError, "samples must be numbers"),
        (intervals.quantile, ([1.0], 2), {}, ValueError, "q must be from 0 to 1"),
    ],
)
def test_bad_arguments(fn, args, kwargs, error, match):
    with pytest.raises(error, match=rf"^{match}\b"):
        fn(*args, **kwargs)


def test_they_are_handed_on():
    assert jr.intervals is intervals
