"""Directional noisy risk against its closed form, a plain loop, and its own promises.

Compiling takes most of the time, so that nearly all calls here share one model and one shape.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import jaxrobust as jr
from jaxrobust.measures.directional import means, risk

KEY = jax.random.key(0)
SIZE = 16
NUM = 8
DRAWS = 2000
ROWS = []  # inputs of each call of the model


def plane(params, x):
    """Class 1 where the first feature is above the threshold; nothing valid above 1.5."""
    jax.debug.callback(lambda size=x.shape[0]: ROWS.append(size))
    first = x.reshape(x.shape[0], -1)[:, 0]
    first = jnp.where(first > 1.5, jnp.nan, first)
    return jnp.stack([jnp.zeros(x.shape[0]), first - params], axis=1)


# Clean first feature; how far the attack goes along it. The threshold is 0.5.
START = np.array([0.0, 0.0, 0.0, 0.7, 0.0, 0.2, 0.0, 0.6], np.float32)
STEP = np.array([1.0, 0.4, 0.0, 0.0, 0.0, 0.6, 0.8, -0.4], np.float32)
LABELS = np.array([0, 0, 0, 0, 0, 0, 0, 1])
WRONG = 3  # classed wrongly from the start; the attack left it alone
STILL = (2, 3, 4)


def measure(start=START, step=STEP, size=SIZE, **change):
    x = jnp.zeros((len(start), size)).at[:, 0].set(start)
    arguments = {
        "apply_fn": plane, "params": 0.5, "key": KEY, "x": x, "labels": LABELS,
        "x_adv": x.at[:, 0].add(step), "norm": "l2", "kappas": [0.0, 1.0, 1e6],
        "num_samples": DRAWS,
    } | change  # fmt: skip
    names = ("apply_fn", "params", "key", "x", "labels", "x_adv")
    positional = [arguments.pop(name) for name in names]
    return jr.directional_risk(*positional, **arguments)


@pytest.fixture(scope="module")
def plain():
    return measure()


# --- the exact table ------------------------------------------------------------------------------

# With the threshold at 0, an example at -tau has its boundary at tau times the attack's step of 1.
TABLE = {
    2: ((0.5,), (0.0, 1.0, 2**0.25, 2**0.5)),
    16: ((0.25, 0.5, 0.1, 0.3, 0.6, 0.7, 0.8, 0.9), (0.0, 1.0, 2.0, 4.0)),
    3072: ((0.005, 0.02, 0.5), (0.0, 1.0, 55.4256, 20.0)),
}
PRINTED = {
    (2, 0.5): (0.333333, 0.696468, 0.755475, 0.816583),
    (16, 0.25): (0.166585, 0.506555, 0.841409, 0.998496),
    (16, 0.5): (0.020485, 0.133080, 0.427411, 0.952178),
}


@pytest.fixture(scope="module", params=TABLE)
def table(request):
    size = request.param
    taus, kappas = TABLE[size]
    num = 500 if size == 3072 else DRAWS
    result = measure(
        -np.float32(taus), 1.0, size, params=0.0, kappas=kappas, num_samples=num,
        labels=np.zeros(len(taus), int),
    )  # fmt: skip
    return size, taus, num, result


def test_the_exact_table(table):
    size, taus, num, result = table
    exact = jr.exact.linear_directional(size, np.array(taus), np.asarray(result.kappa)[:, None])
    # 4 standard errors; a risk of almost 0 or 1 may be off by a few draws.
    slack = 4 * np.sqrt(exact * (1 - exact) / num) + 2 / num
    assert (np.abs(np.asarray(result.risk) - exact) < slack).all(), (result.risk, exact)
    for i, tau in enumerate(taus):
        if (size, tau) in PRINTED:
            np.testing.assert_allclose(exact[:, i], PRINTED[size, tau], atol=1e-5)
    inside = (result.interval[..., 0] <= exact) & (exact <= result.interval[..., 1])
    assert inside.mean() > 0.7
    np.testing.assert_array_equal(result.errors, np.round(result.risk * num))


def test_kappa_star_is_among_the_kappas(table):
    size, _, _, result = table
    star = size**0.25
    assert float(result.kappa_star) == pytest.approx(star)
    assert np.isclose(np.asarray(result.kappa), star).sum() == 1
    assert (np.diff(result.kappa) > 0).all()
    assert len(result.kappa) == (5 if size == 3072 else 4)
    at = int(np.abs(np.asarray(result.kappa) - star).argmin())
    np.testing.assert_array_equal(result.risk_at_kappa_star, result.mean[at])


def test_means_of_the_table(table):
    _, taus, num, result = table
    assert result.correct.all()
    assert int(result.num_correct) == len(taus)
    assert int(result.num_samples) == num
    np.testing.assert_allclose(result.mean, result.risk.mean(axis=1), rtol=1e-6)
    assert (result.mean_interval[:, 0] <= result.mean).all()
    assert (result.mean <= result.mean_interval[:, 1]).all()
    assert float(result.attack_success_rate) == 1
    np.testing.assert_allclose(result.radius, 1, rtol=1e-6)
    np.testing.assert_allclose(result.realised_norm, 1, rtol=1e-6)
    np.testing.assert_array_equal(result.clipped_fraction, 0)


# --- every kind of example at once ----------------------------------------------------------------


def test_large_kappa_is_attack_success(plain):
    assert plain.succeeded.tolist() == [True, False, False, True, False, True, True, True]
    np.testing.assert_array_equal(plain.risk[-1], plain.succeeded)
    assert float(plain.mean[-1]) == pytest.approx(float(plain.attack_success_rate))
    assert float(plain.attack_success_rate) == pytest.approx(4 / 7)
    low, high = plain.attack_success_interval
    assert 0.1 < low < 4 / 7 < high < 0.95


def test_wrong_ones_are_left_out_and_failed_attacks_stay_in(plain):
    assert plain.correct.tolist() == [i != WRONG for i in range(NUM)]
    assert int(plain.num_correct) == 7
    kept = [i for i in range(NUM) if i != WRONG]
    np.testing.assert_allclose(plain.mean, np.asarray(plain.risk)[:, kept].mean(1), rtol=1e-6)
    assert (plain.risk[:, WRONG] == 1).all()
    assert (np.asarray(plain.mean)[-1] < 1).all()  # the failed ones pull it down


def test_a_zero_direction_is_marked_and_has_no_noise(plain):
    assert plain.zero_direction.tolist() == [i in STILL for i in range(NUM)]
    np.testing.assert_array_equal(plain.radius[jnp.array(STILL)], 0)
    np.testing.assert_array_equal(plain.risk[:, 2], 0)
    np.testing.assert_array_equal(plain.risk[:, 4], 0)


def test_certainty_is_the_probability_of_the_own_label(plain):
    share = 1 / (1 + np.exp(-np.abs(START - 0.5)))
    np.testing.assert_allclose(plain.certainty, share, rtol=1e-6)


def test_perturb_shows_what_was_counted(plain):
    """The draws are those of ``perturb``, counted here in NumPy; the same for every kappa."""
    delta = np.zeros((NUM, SIZE), np.float32)
    delta[:, 0] = STEP
    x = jnp.zeros((NUM, SIZE)).at[:, 0].set(START)

    @jax.jit
    @jax.vmap
    def copies(j, kappa):
        noise = jr.perturbations.directional(delta, kappa, np.abs(STEP), norm="l2")
        return jr.perturb(noise, KEY, x, replicate=j)[:, 0]

    for k, kappa in enumerate([0.0, 1.0, 2.0]):
        first = np.asarray(copies(jnp.arange(DRAWS), jnp.full(DRAWS, kappa)))
        np.testing.assert_array_equal(plain.errors[k], ((first > 0.5) != LABELS).sum(axis=0))


@pytest.mark.parametrize(
    ("chunk_size", "shape", "axes"),
    [
        (1001, (2, 2), ("replicates", "examples")),
        pytest.param(7, None, None, marks=pytest.mark.slow),
        pytest.param(50, (3,), ("examples",), marks=pytest.mark.slow),
        pytest.param(None, (8,), ("replicates",), marks=pytest.mark.slow),
    ],
)
def test_counts_agree_for_chunks_and_meshes(plain, chunk_size, shape, axes):
    mesh = shape and Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), axes)
    other = measure(chunk_size=chunk_size, mesh=mesh)
    for field in ("errors", "num_invalid", "correct", "succeeded"):
        np.testing.assert_array_equal(getattr(plain, field), getattr(other, field))
    np.testing.assert_allclose(plain.resampled, other.resampled, rtol=1e-5)


def cache_sizes():
    return risk._measure._cache_size(), means.summarise._cache_size()


def test_sweeping_never_retraces(plain):
    """New kappas, weights, inputs, labels, keys: the shapes are the same, so nothing is traced."""
    before = cache_sizes()
    for seed in range(3):
        result = measure(
            START + np.float32(0.1 * seed), params=0.5 - 0.1 * seed, key=jax.random.key(seed),
            kappas=[0.1, 5.0, 1.5 + seed], labels=LABELS[::-1].copy(), confidence=0.9 - seed / 9,
        )  # fmt: skip
        assert not np.array_equal(result.errors, plain.errors)
    assert cache_sizes() == before


def test_model_calls(plain):
    """Examples x draws x kappas, and the clean and attacked inputs once."""
    jax.effects_barrier()
    ROWS.clear()
    again = measure()
    jax.effects_barrier()
    assert sum(ROWS) == NUM * DRAWS * 4 + 2 * NUM
    assert len(ROWS) < 200  # in large batches
    np.testing.assert_array_equal(again.errors, plain.errors)


def test_inside_jit(plain):
    @jax.jit
    def run(params, kappas):
        result = measure(params=params, kappas=kappas)
        return result.errors, result.interval, result.kappa

    errors, interval, kappa = run(0.5, jnp.array([0.0, 1.0, 1e6]))
    np.testing.assert_array_equal(errors, plain.errors)
    np.testing.assert_allclose(interval, plain.interval, rtol=1e-6)
    np.testing.assert_array_equal(kappa, plain.kappa)


def test_outputs_that_are_no_labels():
    step = STEP.copy()
    step[0] = 2.0  # its attack leads to where the model gives NaN
    result = measure(step=step)
    invalid, errors = np.asarray(result.num_invalid), np.asarray(result.errors)
    assert 0 < invalid[1, 0] < DRAWS
    assert (invalid[:, 1:] == 0).all()
    np.testing.assert_allclose(result.risk[1, 0], errors[1, 0] / (DRAWS - invalid[1, 0]), rtol=1e-6)
    assert result.interval[1, 0, 1] > (errors[1, 0] + invalid[1, 0]) / DRAWS
    assert not result.succeeded[0]
    assert invalid[-1, 0] == DRAWS  # nothing is known at the attack itself ...
    assert np.isnan(result.risk[-1, 0])
    assert result.interval[-1, 0].tolist() == [0.0, 1.0]
    assert np.isnan(result.mean[-1])  # ... and the mean says so
    assert np.isfinite(result.mean[0])
    wrong = measure(START + np.float32(2.0) * (np.arange(NUM) == 1))
    assert wrong.correct.tolist() == [i not in (1, WRONG) for i in range(NUM)]


def test_no_example_is_right():
    result = measure(labels=np.where(START > 0.5, 0, 1))
    assert int(result.num_correct) == 0
    assert np.isnan(result.mean).all()
    assert np.isnan(float(result.attack_success_rate))
    np.testing.assert_array_equal(result.mean_interval, [[0.0, 1.0]] * 4)
    assert result.attack_success_interval.tolist() == [0.0, 1.0]
    assert np.isnan(float(jr.kappa_at(result)))


# --- norms, bounds, radius ------------------------------------------------------------------------


def boxed(upper, radius):
    """Linf noise in a box that begins at 0, whatever the attack was; one feature at its end 1."""
    x = jnp.zeros((NUM, SIZE)).at[1].set(0.5).at[:, 1].set(1.0)
    step = jnp.zeros(SIZE).at[0].set(0.3).at[1].set(0.1)[None]
    return measure(
        params=1.2, labels=np.zeros(NUM, int), x=x, x_adv=x + step, norm="linf",
        bounds=(0.0, upper), radius=jnp.full(NUM, radius),
    )  # fmt: skip


def test_clipping_is_reported():
    result = boxed(jnp.ones((NUM, SIZE)), 0.3)
    fraction, norm = np.asarray(result.clipped_fraction), np.asarray(result.realised_norm)
    # Half of the features leave a corner of the box; in its middle one of 16 can, half the time.
    slack = 4 * 0.5 / math.sqrt(DRAWS * SIZE)
    assert fraction[0, 0] == pytest.approx(0.5, abs=slack)
    assert fraction[0, 1] == pytest.approx(0.5 / SIZE, abs=slack)
    # Along the attack itself one feature keeps the radius, and one leaves the box.
    assert norm[-1, 0] == pytest.approx(0.3, abs=1e-5)
    assert (norm[:, 0] < 0.3 + 1e-6).all()
    assert norm[0, 0] < 0.28  # half the time the largest feature is lost
    np.testing.assert_allclose(result.radius, 0.3, rtol=1e-6)


def test_a_wide_box_changes_nothing_and_a_radius_may_be_given():
    result = boxed(jnp.full((NUM, SIZE), 9.0), 0.0)
    np.testing.assert_array_equal(result.realised_norm, 0)
    np.testing.assert_array_equal(result.clipped_fraction, 0)
    wide = boxed(jnp.full((NUM, SIZE), 9.0), 1.0)
    np.testing.assert_allclose(wide.realised_norm[-1], 1.0, rtol=1e-6)
    np.testing.assert_allclose(wide.realised_norm[0, 1], 1.0, atol=0.3)
    assert wide.risk[-1, 1] == 1  # 0.5 + 1.0 is beyond the threshold of 1.2
    assert not wide.succeeded.any()  # though the attack itself went 0.3


# --- misuse ---------------------------------------------------------------------------------------

X = jnp.zeros((NUM, SIZE))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"kappas": [0.0, -1.0]}, ValueError, r"kappas must be finite and not negative; .*-1\.0"),
        ({"kappas": [math.nan]}, ValueError, "kappas must be finite and not negative"),
        ({"kappas": [math.inf]}, ValueError, "kappas must be finite and not negative"),
        ({"kappas": 1.0}, ValueError, r"kappas must have shape \[K\]"),
        ({"kappas": ["a"]}, TypeError, "kappas must be real numbers"),
        ({"norm": "l3"}, ValueError, "norm must be one of"),
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1"),
        ({"num_resamples": 0}, ValueError, "num_resamples must be at least 1"),
        ({"x_adv": X[:3]}, ValueError, "x_adv must have the shape of x"),
        ({"x_adv": X.at[0, 0].set(jnp.nan)}, ValueError, "x_adv must be finite"),
        ({"x_adv": X.astype(int)}, TypeError, "x_adv must be floating"),
        ({"x": X.astype(int)}, TypeError, "x must be floating"),
        ({"labels": LABELS[:2]}, ValueError, "labels must have one label"),
        ({"labels": LABELS + 1}, ValueError, "labels must be labels from 0 to 1"),
        ({"labels": LABELS * 1.0}, TypeError, "labels must be integer"),
        ({"key": 0}, TypeError, "key must be a typed PRNG key"),
        ({"radius": -1.0}, ValueError, "radius must be finite and not negative"),
        ({"radius": jnp.ones(3)}, ValueError, "radius must be one number or one for each"),
        ({"bounds": 1.0}, ValueError, r"bounds must be None or a pair \(lower, upper\)"),
        ({"bounds": (1.0, 0.0)}, ValueError, "bounds must have lower <= upper"),
        ({"bounds": (0.0, jnp.ones(3))}, ValueError, r"bounds\[1\] must be a number"),
        ({"outputs": "scores"}, ValueError, "outputs must be one of"),
        ({"confidence": 1.0}, ValueError, "confidence must be between 0 and 1"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1"),
        ({"mesh": "all"}, TypeError, "mesh must be"),
        ({"apply_fn": lambda params, x: x[:, :1]}, ValueError, r"models\.binary"),
    ],
)
def test_misuse_names_the_argument(change, error, match):
    with pytest.raises(error, match=match):
        measure(**change)
