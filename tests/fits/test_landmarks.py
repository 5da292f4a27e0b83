"""Landmarks and index: the paper's numbers, and the definitions by brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust.fits import landmarks, robustness_index
from jaxrobust.fits.landmarks import _index, _landmarks

A = np.array([241.8389, 93.1385, 2.1674, 10.1129, 31.3285])
B = np.array([1.7122, 2.042, 2.8214, 1.2998, 4.5410])
C = np.array([0.9701, 0.7317, 0.5018, 0.7045, 0.3991])
D = np.array([0.0, 0.0, 1.1031, 0.1536, 0.5594])
# Computed from the rows above; the paper's tables agree where they are right.
TARGETS = {
    "knee_signed": [0.40800, 0.26039, 0.16068, -0.03594, 0.18716],
    "knee": [0.40800, 0.26039, 0.16068, 0.0, 0.18716],
    "half_slope": [0.39470, 0.24923, 0.15261, -0.05346, 0.18214],
    "half_slope_published": [0.66768, 0.47812, 0.31827, 0.30612, 0.28507],
    "knee_value": [17.64121, 6.79409, 1.18074, 0.88009, 2.80389],
    "inflection": C,
    "threshold": [0.05455, 0.07268, 1.0, 0.30296, 0.15270],
    "threshold_value": [2.0, 2.0, 1.93595, 2.0, 2.0],
}


@pytest.mark.parametrize("name", TARGETS)
def test_papers_landmarks(name):
    marks = landmarks(A, B, C, D)
    np.testing.assert_allclose(getattr(marks, name), TARGETS[name], atol=2e-5)


def test_landmarks_are_where_the_definitions_put_them():
    a, b, c, d = A[4], B[4], C[4], D[4]
    x = np.linspace(-0.5, 1.0, 300_001)
    y = d + (a - d) * np.exp(-np.exp(-b * (x - c)))
    slope = np.gradient(y, x)
    curvature = np.gradient(slope, x)
    with jax.enable_x64(True):
        marks = landmarks(a, b, c, d)
    np.testing.assert_allclose(marks.knee_signed, x[10 + np.argmax(curvature[10:-10])], atol=1e-4)
    np.testing.assert_allclose(marks.inflection, x[np.argmax(slope)], atol=1e-4)
    np.testing.assert_allclose(marks.half_slope, x[np.argmax(slope >= slope.max() / 2)], atol=1e-4)
    np.testing.assert_allclose(marks.threshold, x[np.argmax(y >= 2)], atol=1e-4)
    # What the paper's slip marks.
    there = np.interp(marks.half_slope_published, x, slope) / slope.max()
    np.testing.assert_allclose(there, 0.85, atol=5e-3)


@pytest.mark.parametrize(
    ("parameters", "threshold", "value"),
    [
        ((3.0, 5.0, 0.5, 0.5), 0.5 - np.log(-np.log(0.6)) / 5, 2.0),  # crosses inside
        ((1.5, 5.0, 0.5, 0.5), 1.0, 0.5 + np.exp(-np.exp(-2.5))),  # plateau below the level
        ((9.0, 5.0, 2.0, 0.5), 1.0, 0.5 + 8.5 * np.exp(-np.exp(5.0))),  # crosses after the end
        ((9.0, 5.0, 0.5, 2.5), 0.0, 2.5 + 6.5 * np.exp(-np.exp(2.5))),  # d above the level
        ((9.0, 2.0, -0.5, 0.5), 0.0, 0.5 + 8.5 * np.exp(-np.exp(-1.0))),  # crossed before 0
        ((2.0, 5.0, 0.5, 2.0), 1.0, 2.0),  # flat at the level: never above it
        ((3.0, 5.0, 0.5, 3.0), 0.0, 3.0),  # flat above it
    ],
)
def test_threshold_at_the_ends(parameters, threshold, value):
    marks = landmarks(*parameters)
    np.testing.assert_allclose(marks.threshold, threshold, rtol=1e-5)
    np.testing.assert_allclose(marks.threshold_value, value, rtol=1e-5)


def test_level_and_upper():
    marks = landmarks(A, B, C, D, level=3.0, upper=2.0)
    crossing = C - np.log(-np.log((3.0 - D) / (A - D), where=A > 3, out=np.zeros(5) - 1.0)) / B
    np.testing.assert_allclose(marks.threshold, np.where(A > 3, crossing, 2.0), rtol=1e-5)


@pytest.mark.parametrize(
    "parameters",
    [
        (np.nan, 1.0, 0.5, 0.0),
        (3.0, np.nan, 0.5, 0.0),
        (3.0, 1.0, np.nan, 0.0),
        (3.0, 1.0, 0.5, np.nan),
        (np.inf, 1.0, 0.5, 0.0),
        (3.0, 0.0, 0.5, 0.0),
        (3.0, -1.0, 0.5, 0.0),
        (1.0, 1.0, 0.5, 2.0),
        (3.0, 1.0, 0.5, -1.0),
    ],
)
def test_invalid_parameters_give_nan(parameters):
    assert all(np.isnan(leaf) for leaf in landmarks(*parameters))


def test_landmarks_transform():
    def threshold(a, b, c, d):
        return landmarks(a, b, c, d).threshold

    point = (A[4], B[4], C[4], D[4])
    with jax.enable_x64(True):
        gradient = jax.grad(threshold, argnums=(0, 1, 2, 3))(*point)
        for i, g in enumerate(gradient):
            up, down = list(point), list(point)
            up[i], down[i] = up[i] + 1e-5, down[i] - 1e-5
            np.testing.assert_allclose(g, (threshold(*up) - threshold(*down)) / 2e-5, rtol=1e-5)
    mapped = jax.vmap(landmarks)(*map(jnp.asarray, (A, B, C, D)))
    for one, other in zip(mapped, landmarks(A, B, C, D), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert landmarks(A, B[0], 0.5, 0.0).inflection.shape == (5,)


def test_new_numbers_do_not_retrace():
    landmarks(A, B, C, D)
    robustness_index(B, C)
    before = _landmarks._cache_size(), _index._cache_size()
    landmarks(2 * A, B, C, D, level=3.0, upper=4.0)
    robustness_index(2 * B, C)
    assert (_landmarks._cache_size(), _index._cache_size()) == before


# ---------------------------------------------------------------------------- the index


def test_papers_index():
    index = robustness_index(B, C)
    upper = {(0, 1): 1, (0, 2): 1, (0, 3): 1, (1, 2): 1, (0, 4): 0.946512, (1, 3): 0.779335}
    upper |= {(1, 4): 0.872676, (2, 3): 0.328647, (2, 4): 0.769403}
    for (i, j), expected in upper.items():
        np.testing.assert_allclose(index.pairwise[i, j], expected, atol=2e-5)
        np.testing.assert_allclose(index.pairwise[j, i], 1 - expected, atol=2e-5)
    expected = [0.98663, 0.66300, 0.27451, 0.40385, 0.17201]
    np.testing.assert_allclose(index.overall, expected, atol=2e-5)


def slow_index(b, c):
    """The definition, pair by pair."""
    pairwise = np.ones((len(b), len(b)))
    for i in range(len(b)):
        for j in range(len(b)):
            if b[i] == b[j]:
                pairwise[i, j] = 1.0 if c[i] >= c[j] else 0.0
            else:
                crossing = (b[i] * c[i] - b[j] * c[j]) / (b[i] - b[j])
                pairwise[i, j] = np.clip(1 - crossing if b[i] < b[j] else crossing, 0, 1)
    overall = [np.mean([row[j] for j in range(len(b)) if j != i]) for i, row in enumerate(pairwise)]
    return pairwise, np.array(overall)


def test_index_matches_a_loop_with_ties():
    rng = np.random.default_rng(0)
    b = rng.choice([1.0, 2.0, 3.5], size=20) + rng.choice([0.0, 0.01], size=20)
    c = rng.choice(np.linspace(0, 1, 6), size=20)
    assert len({(x, y) for x, y in zip(b, c, strict=True)}) < 20  # some curves are equal
    pairwise, overall = slow_index(b, c)
    with jax.enable_x64(True):
        index = robustness_index(b, c)
        np.testing.assert_allclose(index.pairwise, pairwise, atol=1e-9)
        np.testing.assert_allclose(index.overall, overall, atol=1e-9)
    # In float32 nearly equal rates must not lose the crossing to cancellation.
    index = robustness_index(b, c)
    np.testing.assert_allclose(index.pairwise, pairwise, atol=2e-4)


def test_index_is_the_share_of_noise_levels_below():
    x = (np.arange(100_000) + 0.5) / 100_000
    u = B[:, None] * (x[None, :] - C[:, None])
    index = robustness_index(B, C)
    for i in range(5):
        for j in range(5):
            if i != j:
                np.testing.assert_allclose(index.pairwise[i, j], np.mean(u[i] < u[j]), atol=1e-4)


def test_index_ignores_scale_and_reverses_the_order_of_the_losses():
    overall = np.asarray(robustness_index(B, C).overall)
    loss_at_end = D + (A - D) * np.exp(-np.exp(-B * (1 - C)))
    assert np.argmax(overall) == np.argmax(loss_at_end)  # the "best" has the largest loss


def test_one_curve():
    index = robustness_index([2.0], [0.5])
    np.testing.assert_array_equal(index.pairwise, [[1.0]])
    np.testing.assert_array_equal(index.overall, [1.0])


@pytest.mark.parametrize(
    ("bad_b", "bad_c"), [(np.nan, 0.5), (2.0, np.nan), (-1.0, 0.5), (0.0, 0.5)]
)
def test_failed_fits_do_not_spoil_the_others(bad_b, bad_c):
    index = robustness_index(np.append(B, bad_b), np.append(C, bad_c))
    expected = robustness_index(B, C)
    np.testing.assert_array_equal(index.pairwise[:5, :5], expected.pairwise)
    np.testing.assert_allclose(index.overall[:5], expected.overall, rtol=1e-6)
    assert np.isnan(index.pairwise[5]).all()
    assert np.isnan(index.pairwise[:, 5]).all()
    assert np.isnan(index.overall[5])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: robustness_index(B[:, None], C), ValueError, "b must"),
        (lambda: robustness_index(2.0, 0.5), ValueError, "b must"),
        (lambda: robustness_index(B[:0], C[:0]), ValueError, "b must .* k >= 1"),
        (lambda: robustness_index(B, C[:3]), ValueError, r"c must have the shape of b, \(5,\)"),
        (lambda: robustness_index("b", C), TypeError, "b must be real"),
        (lambda: robustness_index(B, C + 1j), TypeError, "c must be real"),
        (lambda: landmarks(A, B, "c", D), TypeError, "c must be real"),
        (lambda: landmarks(A, B, C, D, level="two"), TypeError, "level must be real"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
