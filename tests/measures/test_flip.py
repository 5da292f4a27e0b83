"""Real-world robustness against closed forms, plain loops, and every promise of its docstrings."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import Mesh

import jaxrobust as jr

KEY = jax.random.key(5)


def plane(params, x):
    """Two classes, split by the plane w.x + b = 0."""
    return jnp.stack([jnp.zeros(x.shape[0], x.dtype), x @ params["w"] + params["b"]], axis=1)


def quadrant(params, x):
    return jnp.stack([jnp.zeros(x.shape[0], x.dtype), x.min(axis=1)], axis=1)


def product(params, x):
    return jnp.stack([jnp.zeros(x.shape[0], x.dtype), x.prod(axis=1)], axis=1)


def box(params, x):
    return jnp.stack([jnp.zeros(x.shape[0], x.dtype), 1 - jnp.abs(x).max(axis=1)], axis=1)


def disc(params, x):
    return jnp.stack([jnp.zeros(x.shape[0], x.dtype), 4 - jnp.square(x).sum(axis=1)], axis=1)


PLANE = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(-1.0)}
COV = jnp.array([[0.5, 0.3], [0.3, 0.5]])
HALF = jnp.array([[1.0, 0.5], [0.5, 1.0]])
UNIT = jr.perturbations.gaussian(1.0)
EXACT = [
    (plane, [2.0, 1.0], UNIT, 0.91014375),
    (plane, [2.0, 1.0], jr.perturbations.multivariate_normal(COV), 0.94057582),
    (quadrant, [1.0, 1.0], UNIT, 0.70786098),
    (quadrant, [1.0, 1.0], jr.perturbations.multivariate_normal(HALF), 0.74520359),
    (quadrant, [-1.0, 1.0], UNIT, 0.86651624),
    (product, [1.0, 1.0], UNIT, 0.73303247),
    (box, [0.0, 0.0], UNIT, 0.46606494),
    (disc, [0.0, 0.0], UNIT, 0.86466472),
    (disc, [1.0, 0.0], UNIT, 0.73098794),
]


@pytest.mark.parametrize(("apply_fn", "point", "noise", "exact"), EXACT)
def test_the_exact_table(apply_fn, point, noise, exact):
    n = 100_000
    result = jr.flip_probability(
        apply_fn, PLANE, KEY, jnp.array([point]), perturbation=noise, num_samples=n
    )
    error = np.sqrt(exact * (1 - exact) / n)
    assert abs(float(result.robustness[0]) - exact) < 4 * error
    assert int(result.flips[0]) + round(float(result.robustness[0]) * n) == n
    np.testing.assert_allclose(result.probability + result.robustness, 1)


@pytest.mark.parametrize(("apply_fn", "point", "noise", "exact"), EXACT[:4])
def test_sobol_is_at_least_three_times_as_accurate(apply_fn, point, noise, exact):
    n = 10_000
    errors = []
    for seed in range(8):
        result = jr.flip_probability(
            apply_fn, PLANE, jax.random.key(seed), jnp.array([point]), perturbation=noise,
            num_samples=n, sampling="sobol",
        )  # fmt: skip
        errors.append(float(result.robustness[0]) - exact)
    plain = np.sqrt(exact * (1 - exact) / n)
    assert np.sqrt(np.mean(np.square(errors))) < plain / 3


def test_sobol_points_are_those_of_scipy():
    from jaxrobust.measures.flip import sobol

    directions = sobol.direction_numbers(5, 64)
    per = 64

    def point(j):
        return sobol.draw(directions, per, UNIT, KEY, j, jnp.int32(0), jnp.zeros(5))

    z = np.asarray(jax.vmap(point)(jnp.arange(per)))
    got = np.round(scipy.stats.norm.cdf(z) * 2**23 - 0.5).astype(np.int64)
    want = scipy.stats.qmc.Sobol(5, scramble=False).random(per)
    want = np.round(want * 2**23).astype(np.int64)
    # A digital shift leaves the exclusive or of two points alone (rounding of ndtri: last bits).
    difference = (got ^ got[:1]) ^ (want ^ want[:1])
    assert (difference < 2**8).all()


def test_a_plain_loop_gives_the_same_counts():
    x = jnp.array([[2.0, 1.0], [0.4, 0.4], [-1.0, 0.0]])
    errors = jnp.array([[1.0, 1.0], [0.1, 0.2], [0.0, 0.0]])
    noise = jr.perturbations.gaussian(1.0, feature_scale=errors)
    n = 200
    result = jr.flip_probability(plane, PLANE, KEY, x, perturbation=noise, num_samples=n)
    clean = np.asarray(plane(PLANE, x)).argmax(axis=1)
    flips = np.zeros(3, int)
    for j in range(n):
        hat = jr.perturb(noise, KEY, x, replicate=j)
        flips += np.asarray(plane(PLANE, hat)).argmax(axis=1) != clean
    np.testing.assert_array_equal(result.flips, flips)
    np.testing.assert_array_equal(result.reference, clean)
    assert result.flips[2] == 0  # a standard error of zero is no noise
    assert result.interval[2, 0] == 0
    np.testing.assert_allclose(result.interval[2, 1], 1 - 0.025 ** (1 / n), rtol=1e-5)


@pytest.mark.parametrize(
    ("chunk_size", "shape", "axes"),
    [(7, None, None), (None, (4,), ("replicates",)), (9, (2, 2), ("replicates", "examples"))],
)
@pytest.mark.parametrize("sampling", ["random", "sobol"])
def test_counts_agree_for_chunks_and_meshes(sampling, chunk_size, shape, axes):
    x = jnp.linspace(-2.0, 2.0, 10).reshape(5, 2)
    mesh = shape and Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), axes)
    common = {"perturbation": UNIT, "num_samples": 320, "sampling": sampling}
    plain = jr.flip_probability(plane, PLANE, KEY, x, **common)
    other = jr.flip_probability(plane, PLANE, KEY, x, chunk_size=chunk_size, mesh=mesh, **common)
    np.testing.assert_array_equal(plain.flips, other.flips)


def test_labels_replace_the_clean_prediction():
    x = jnp.array([[2.0, 1.0]])
    same = jr.flip_probability(plane, PLANE, KEY, x, perturbation=UNIT, num_samples=1000)
    other = jr.flip_probability(
        plane, PLANE, KEY, x, perturbation=UNIT, num_samples=1000, labels=jnp.array([0])
    )
    assert int(same.flips[0]) + int(other.flips[0]) == 1000


def test_coverage_of_the_intervals():
    repeats, n, num = 500, 6, 400
    p = jnp.array([0.5, 0.05, 0.001, 0.2, 0.0, 0.9])
    b = jnp.asarray(scipy.stats.norm.ppf(np.asarray(p)), jnp.float32)

    def shifted(b, x):
        return jnp.stack([jnp.zeros(x.shape[0]), -(x[:, 0] - x[:, 1])], axis=1)

    x = jnp.stack([jnp.zeros(n), jnp.where(jnp.isfinite(b), b, -40.0)], axis=1)
    noise = jr.perturbations.gaussian(1.0, where=jnp.array([True, False]))

    def run(key):
        result = jr.flip_probability(
            shifted, b, key, x, perturbation=noise, num_samples=num,
            labels=jnp.zeros(n, jnp.int32),
        )  # fmt: skip
        return result.interval, result.mean_monte_carlo_interval

    each, mean = jax.jit(jax.lax.map, static_argnums=0)(run, jax.random.split(KEY, repeats))
    # Labels 0 flip where x0 < x1 + z0: the probability is Phi(b).
    truth = 1 - p
    truth = jnp.where(jnp.isfinite(b), scipy.stats.norm.sf(-b), 0.0)
    each, truth = np.asarray(each), np.asarray(truth)
    covered = ((each[..., 0] <= truth) & (truth <= each[..., 1])).mean(axis=0)
    slack = 4 * np.sqrt(0.95 * 0.05 / repeats)
    assert (covered > 0.95 - slack).all(), covered
    centre = float(truth.mean())
    assert ((mean[:, 0] <= centre) & (centre <= mean[:, 1])).mean() > 0.95 - slack


def test_mean_interval_covers_the_population():
    rng = np.random.default_rng(0)
    covered = 0
    repeats = 400
    for _ in range(repeats):
        p = rng.beta(0.1, 2.0, size=80)
        lower, upper = jr.intervals.bounded_mean(
            jnp.asarray(rng.binomial(100, p) / 100, jnp.float32)
        )
        covered += lower <= 0.1 / 2.1 <= upper
    assert covered / repeats > 0.95 - 4 * np.sqrt(0.95 * 0.05 / repeats)


def test_without_a_clean_label_there_is_no_flip_probability():
    def torn(params, x):  # no label on the clean input, but one for nearly all draws
        return jnp.where(jnp.abs(x[:, :1] - 2.0) < 1e-6, jnp.nan, plane(params, x))

    x = jnp.array([[2.0, 1.0], [1.9, 1.0]])
    found = jr.flip_probability(torn, PLANE, KEY, x, perturbation=UNIT, num_samples=256)
    assert found.reference[0] == -1
    assert found.num_invalid.tolist() == [256, 0]
    assert np.isnan(found.probability).tolist() == [True, False]
    assert found.interval[0].tolist() == [0.0, 1.0]
    decision = jr.decide_flip(
        torn, PLANE, KEY, x, perturbation=UNIT, threshold=0.5, max_samples=1024
    )
    assert decision.verdict[0] == jr.FlipVerdict.UNDECIDED
    rare = jr.rare_flip_probability(torn, PLANE, KEY, x[:1], perturbation=UNIT)
    assert rare.status[0] == jr.RareStatus.INVALID
    assert rare.interval[0].tolist() == [0.0, 1.0]


def test_invalid_outputs_are_counted_and_widen_the_interval():
    def fragile(params, x):
        out = plane(params, x)
        return jnp.where(x[:, :1] > 3.0, jnp.nan, out)

    result = jr.flip_probability(
        fragile, PLANE, KEY, jnp.array([[2.0, 1.0]]), perturbation=UNIT, num_samples=1000
    )
    flips, invalid = int(result.flips[0]), int(result.num_invalid[0])
    assert 100 < invalid < 220
    np.testing.assert_allclose(result.probability[0], flips / (1000 - invalid), rtol=1e-6)
    np.testing.assert_allclose(
        result.interval[0, 1], jr.intervals.clopper_pearson(flips + invalid, 1000, 0.95)[1]
    )

    def broken(params, x):
        return plane(params, x) * jnp.nan

    result = jr.flip_probability(
        broken, PLANE, KEY, jnp.array([[2.0, 1.0]]), perturbation=UNIT, num_samples=100
    )
    assert int(result.num_invalid[0]) == 100
    assert jnp.isnan(result.probability[0])
    assert result.interval[0].tolist() == [0.0, 1.0]


def test_a_ruled_out_class_is_no_failure():
    def masked(params, x):
        return jnp.concatenate([plane(params, x), jnp.full((x.shape[0], 1), -jnp.inf)], axis=1)

    x = jnp.array([[2.0, 1.0]])
    plain = jr.flip_probability(plane, PLANE, KEY, x, perturbation=UNIT, num_samples=500)
    other = jr.flip_probability(masked, PLANE, KEY, x, perturbation=UNIT, num_samples=500)
    assert other.flips.tolist() == plain.flips.tolist()
    assert other.num_invalid.tolist() == [0]


def test_a_sampler_and_traced_calls():
    noise = jr.perturbations.from_sampler(lambda key, x: x + jax.random.normal(key, x.shape))
    x = jnp.array([[2.0, 1.0], [0.0, 0.6]])

    def run(params, key):
        return jr.flip_probability(
            plane, params, key, x, perturbation=noise, num_samples=300
        )._replace(num_samples=jnp.int32(300))

    plain = run(PLANE, KEY)
    jitted = jax.jit(run)(PLANE, KEY)
    np.testing.assert_array_equal(plain.flips, jitted.flips)
    np.testing.assert_allclose(plain.interval, jitted.interval, rtol=1e-6)
    both = jax.vmap(run, (None, 0))(PLANE, jnp.stack([KEY, jax.random.key(9)]))
    np.testing.assert_array_equal(both.flips[0], plain.flips)


def test_new_parameters_do_not_retrace():
    x = jnp.array([[2.0, 1.0]])
    traced = chex.assert_max_traces(plane, n=4)
    chex.clear_trace_counter()
    for sigma, scale in ((1.0, 1.0), (0.5, 2.0), (0.1, 3.0)):
        jr.flip_probability(
            traced, {"w": scale * PLANE["w"], "b": PLANE["b"]}, KEY, x,
            perturbation=jr.perturbations.gaussian(sigma), num_samples=100,
        )  # fmt: skip


# --- decisions ------------------------------------------------------------------------------------


def test_decisions_are_right_and_cheap():
    # 95 of 100 examples are far from the boundary.
    distance = np.full(100, 8.0)
    distance[:5] = [2.3, 1.5, 0.5, 0.0, 2.0]
    x = jnp.stack([jnp.asarray(distance, jnp.float32), jnp.zeros(100)], axis=1)
    params = {"w": jnp.array([1.0, 0.0]), "b": jnp.array(0.0)}
    decision = jr.decide_flip(
        plane, params, KEY, x, perturbation=UNIT, threshold=0.05, max_samples=10_000
    )
    truth = scipy.stats.norm.sf(distance)
    expected = np.where(truth < 0.05, jr.FlipVerdict.BELOW, jr.FlipVerdict.ABOVE)
    np.testing.assert_array_equal(decision.verdict, expected)
    assert int(decision.num_samples.sum()) < 0.1 * 100 * 10_000
    assert ((decision.interval[:, 0] <= truth) & (truth <= decision.interval[:, 1])).all()
    counts = jr.flip_probability(
        plane, params, KEY, x[:1], perturbation=UNIT, num_samples=int(decision.num_samples[0])
    )
    assert counts.flips[0] == decision.flips[0]  # the same draws as plain Monte Carlo


def test_a_verdict_is_consistent_with_its_interval():
    x = jnp.array([[0.9, 0.0], [1.645, 0.0], [1.64, 0.0]])
    params = {"w": jnp.array([1.0, 0.0]), "b": jnp.array(0.0)}
    decision = jr.decide_flip(
        plane, params, KEY, x, perturbation=UNIT, threshold=0.05, max_samples=2000
    )
    for verdict, (lower, upper) in zip(decision.verdict, decision.interval, strict=True):
        if verdict == jr.FlipVerdict.BELOW:
            assert upper <= 0.05
        elif verdict == jr.FlipVerdict.ABOVE:
            assert lower >= 0.05
        else:
            assert lower < 0.05 < upper
    assert decision.verdict[1] == jr.FlipVerdict.UNDECIDED
    assert decision.num_samples[1] == 1792  # the looks that fit into 2000 draws


def test_sequential_coverage_at_a_stop_chosen_by_the_draws():
    """Stopping when the interval looks best must not spoil it."""
    rng = np.random.default_rng(1)
    p, repeats, longest = 0.05, 400, 1000
    flips = np.cumsum(rng.random((repeats, longest)) < p, axis=1)
    totals = np.arange(1, longest + 1)
    looks = np.arange(9, longest, 10)
    ends = np.asarray(
        jr.intervals.binomial_sequence(flips[:, looks], totals[looks][None, :], around=0.05)
    )
    always = ((ends[..., 0] <= p) & (p <= ends[..., 1])).all(axis=1).mean()
    assert always > 0.95 - 4 * np.sqrt(0.95 * 0.05 / repeats)


def test_decision_limits_are_where_the_sequence_clears_the_threshold():
    from jaxrobust.intervals import binomial_sequence, decision_limits

    totals = np.array([10, 256, 1024, 5000])
    for threshold in (0.01, 0.2, 0.7):
        limits = np.asarray(decision_limits(totals, threshold, 0.95))
        for total, (few, many) in zip(totals, limits, strict=True):
            counts = np.arange(total + 1)
            ends = np.asarray(binomial_sequence(counts, total, 0.95, around=threshold), np.float64)
            below = counts[ends[:, 1] <= threshold]
            above = counts[ends[:, 0] >= threshold]
            assert abs(few - (below.max() if below.size else -1)) <= 0
            assert abs(many - (above.min() if above.size else total + 1)) <= 0


def test_what_can_never_be_decided_is_undecided():
    """Outputs that are all invalid, a probability that is the threshold, or too few draws."""

    def broken_at_first(params, x):
        out = plane({"w": jnp.array([1.0, 0.0]), "b": jnp.array(0.0)}, x)
        return jnp.where(x[:, 1:] > 0, jnp.nan, out)

    x = jnp.array([[0.3, 40.0], [0.0, -40.0], [3.0, -40.0]])
    labels = jnp.array([1, 1, 1])
    for most, verdicts in ((2000, [0, 0, jr.FlipVerdict.BELOW]), (5, [0, 0, 0])):
        decision = jr.decide_flip(
            broken_at_first, None, KEY, x, perturbation=UNIT, threshold=0.5, labels=labels,
            max_samples=most,
        )  # fmt: skip
        assert jr.FlipVerdict.UNDECIDED == 0
        assert decision.verdict.tolist() == verdicts
        spent = most // min(256, most) * min(256, most)
        assert decision.num_samples[:2].tolist() == [spent, spent]
        assert decision.num_invalid.tolist() == [spent, 0, 0]
        assert decision.flips[0] == 0
        assert decision.interval[0].tolist() == [0, 1]
        assert decision.interval[1, 0] < 0.5 < decision.interval[1, 1]
