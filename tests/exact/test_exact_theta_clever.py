"""Exact theta and CLEVER scores against the papers' numbers and simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from jaxrobust import exact


@pytest.mark.parametrize(
    ("sigma", "baseline", "theta"),
    [(0.3, 1.0, 1.763049), (1.0, 1.0, 7.203654), (0.3, 0.0, 0.522410)],
)
def test_linear_theta_of_the_paper(sigma, baseline, theta):
    found = exact.linear_theta([2.0], sigma, baseline, num_examples=31)
    assert found == pytest.approx(theta, abs=7e-7)


def test_linear_theta_by_simulation():
    rng = np.random.default_rng(9)
    weights, scale, sigma = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.0, 2.0]), 0.4
    residual = rng.normal(size=20)
    noise = rng.normal(size=(50_000, 20, 3)) * sigma * scale
    losses = np.square(residual + noise @ weights).mean(axis=-1)
    baseline = np.square(residual).mean()
    # The mean of the loss is MSE_0 + s^2.
    variance = sigma**2 * np.square(weights * scale).sum()
    assert abs(losses.mean() - baseline - variance) < 4 * losses.std() / math.sqrt(50_000)
    for alpha in (0.05, 0.5):
        theta = exact.linear_theta(
            weights, sigma, baseline, num_examples=20, feature_scale=scale, alpha=alpha
        )
        below = (losses <= theta).mean()
        assert abs(below - (1 - alpha)) < 4 * math.sqrt(alpha * (1 - alpha) / 50_000)


def test_linear_theta_for_hardly_any_noise():
    # Where SciPy's noncentral chi-square gives way (nan, or digits that are wrong) to a normal.
    assert exact.linear_theta([2.0], 0.0, 1.5, num_examples=31) == 1.5
    assert exact.linear_theta([0.0], 1.0, 1.5, num_examples=31) == 1.5
    for sigma in (1e-3, 1e-6, 1e-9, 1e-12):
        rise = exact.linear_theta([1.0], sigma, 1.0, num_examples=31) - 1
        normal = 2 * sigma / math.sqrt(31) * scipy.stats.norm.ppf(0.95)
        assert rise == pytest.approx(normal, rel=2 * sigma * 31 + 1e-16 / sigma)
    # Both sides of the switch agree (at a noncentrality of 1e9).
    below, above = (
        exact.linear_theta([1.0], math.sqrt(31 / nc), 1.0, num_examples=31)
        for nc in (1e9 * (1 - 1e-9), 1e9 * (1 + 1e-9))
    )
    assert below == pytest.approx(above, rel=1e-12)


# --- CLEVER ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "score"), [("linf", 2 / 7), ("l2", 0.4), ("l1", 0.5)])
def test_linear_clever_of_the_paper(norm, score):
    assert exact.linear_clever([3.0, -4.0], 2.0, 5.0, norm=norm) == pytest.approx(score, rel=1e-14)
    capped = exact.linear_clever([3.0, -4.0], 2.0, 0.3, norm=norm)
    assert capped == pytest.approx(min(score, 0.3), rel=1e-14)


def test_quadratic_and_second_order_clever_of_the_paper():
    assert exact.quadratic_clever(0.5, 0.0, 1.0, 1.0) == 0.5
    assert exact.second_order_clever(2.0, 5.0, 4.0, 1.0) == pytest.approx(0.350781, abs=5e-7)
    assert exact.quadratic_clever(2.0, 5.0, 4.0, 1.0) == pytest.approx(2 / 9, rel=1e-14)


def test_clever_scores_are_batched():
    gradient = np.array([[3.0, -4.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    scores = exact.linear_clever(gradient, [2.0, 0.5, 1.0, 0.0], 3.0)
    # Without a gradient a positive margin lasts to the edge of the ball.
    np.testing.assert_allclose(scores, [0.4, 0.5, 3.0, 0.0], rtol=1e-14)
    radius = np.array([0.1, 1.0, 10.0])
    np.testing.assert_allclose(
        exact.second_order_clever(2.0, 5.0, 0.0, radius), np.minimum(0.4, radius), rtol=1e-14
    )
    np.testing.assert_allclose(exact.quadratic_clever(0.0, 0.0, 0.0, radius), 0)


def test_second_order_clever_is_the_distance_of_a_quadratic():
    rng = np.random.default_rng(10)
    margin, slope, curvature = rng.uniform(0.1, 3, size=(3, 50))
    distance = exact.second_order_clever(margin, slope, curvature, 100.0)
    left = margin - slope * distance - curvature * distance**2 / 2
    np.testing.assert_allclose(left, 0, atol=1e-12)
    # First order never claims more, in a ball that holds the boundary.
    first = exact.quadratic_clever(margin, slope, curvature, distance * 1.5)
    assert (first <= distance).all()
