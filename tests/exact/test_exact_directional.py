"""The exact directional risk against SciPy, quadrature and simulation, in any dimension."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from jaxrobust import exact

INF = math.inf


@pytest.mark.parametrize(
    ("dimension", "tau", "risks", "kappa_quarter"),
    [
        (2, 0.5, (0.333333, 0.696468, 0.755475, 0.816583), 0.0),
        (16, 0.25, (0.166585, 0.506555, 0.841409, 0.998496), 0.297936),
        (16, 0.5, (0.020485, 0.133080, 0.427411, 0.952178), 1.470512),
    ],
)
def test_linear_directional_of_the_paper(dimension, tau, risks, kappa_quarter):
    kappas = [0.0, 1.0, dimension**0.25, dimension**0.5]
    np.testing.assert_allclose(exact.linear_directional(dimension, tau, kappas), risks, atol=7e-7)
    assert exact.linear_kappa_at(dimension, tau, 0.25) == pytest.approx(kappa_quarter, abs=7e-7)


@pytest.mark.parametrize("dimension", [2, 3, 16, 100])
def test_linear_directional_is_noncentral_t(dimension):
    tau = np.array([-0.5, -0.01, 0.01, 0.25, 0.5, 0.9])[:, None]
    kappa = np.array([0.0, 0.5, 1.0, 3.0, 10.0, 20.0])
    bound = math.sqrt(dimension - 1) * tau / np.sqrt(1 - tau**2)
    expected = scipy.stats.nct.sf(bound, dimension - 1, kappa)
    found = exact.linear_directional(dimension, tau, kappa)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dimension", [2, 3, 16, 784, 3072, 150528])
@pytest.mark.parametrize("tau", [0.001, 0.05, 0.3, 0.7, 0.72, 0.999])
def test_linear_directional_without_a_lean_is_a_cap(dimension, tau):
    # Half the squared cosines of uniform directions, Beta(1/2, (D - 1) / 2), lie beyond tau.
    cap = scipy.stats.beta.sf(tau**2, 0.5, (dimension - 1) / 2) / 2
    found = exact.linear_directional(dimension, tau, 0.0)
    assert found == pytest.approx(cap, rel=1e-9, abs=1e-250)


@pytest.mark.parametrize(
    ("dimension", "tau", "kappa"),
    [
        (3072, 0.05, 2.5),
        (150528, 0.01, 4.0),
        (150528, 0.05, 19.6972),
        (150528, 0.5, 224.0),
        (150528, 0.9, 801.0),
        (150528, 0.999, 8668.0),  # SciPy's noncentral t is off by 1e-6 here
        (150528, 0.999999, 274341.7),  # and by .13 here
    ],
)
def test_linear_directional_in_high_dimension(dimension, tau, kappa):
    found = float(exact.linear_directional(dimension, tau, kappa))
    # Quadrature over the chi-square variable, between its extreme quantiles.
    slope = tau / math.sqrt((1 - tau) * (1 + tau))
    chi = scipy.stats.chi2(dimension - 1)

    nodes = np.linspace(-8, 8, 4001)
    values = scipy.stats.norm.pdf(nodes) * scipy.special.ndtr(
        kappa - slope * np.sqrt(chi.ppf(scipy.special.ndtr(nodes)))
    )
    if slope < 100:  # the integrand is smooth on the grid of nodes
        assert found == pytest.approx(values.sum() * (nodes[1] - nodes[0]), abs=1e-8)
    rng = np.random.default_rng(7)
    first = kappa + rng.normal(size=1_000_000)
    rest = np.sqrt(rng.chisquare(dimension - 1, size=1_000_000))
    share = (first > slope * rest).mean()
    assert 0.01 < found < 0.999
    assert abs(share - found) < 4 * math.sqrt(found * (1 - found) / 1_000_000)


def test_linear_directional_by_plain_simulation():
    rng = np.random.default_rng(8)
    direction = np.zeros(12)
    direction[3] = 1.0
    xi = 1.5 * direction + rng.normal(size=(200_000, 12))
    crossed = xi[:, 3] / np.linalg.norm(xi, axis=-1) > 0.4
    found = float(exact.linear_directional(12, 0.4, 1.5))
    assert abs(crossed.mean() - found) < 4 * math.sqrt(found * (1 - found) / 200_000)


def test_linear_directional_at_the_edges():
    risk = exact.linear_directional(16, [-2.0, -1.0, 0.0, 1.0, 2.0], 1.0)
    np.testing.assert_allclose(risk, [1, 1, scipy.special.ndtr(1), 0, 0], rtol=1e-12)
    line = exact.linear_directional(1, [-2.0, -0.5, 0.5, 1.0], 1.0)  # noise is +-r on a line
    np.testing.assert_allclose(line, [1, scipy.special.ndtr(1), scipy.special.ndtr(1), 0])
    # Leaning away is the mirror image of leaning towards.
    towards = exact.linear_directional(7, 0.3, [0.5, 2.0])
    away = exact.linear_directional(7, -0.3, [-0.5, -2.0])
    np.testing.assert_allclose(towards + away, 1, rtol=1e-12)
    for tau in (0.2, 0.95):
        extreme = exact.linear_directional(50, tau, [1e4, 1e12, 1e300])
        np.testing.assert_allclose(extreme, 1, rtol=1e-12)
        assert (np.diff(exact.linear_directional(50, tau, np.linspace(0, 9, 40))) > 0).all()


@pytest.mark.parametrize(("dimension", "tau"), [(2, 0.9), (3072, 0.2), (150528, 0.05), (5, 0.99)])
def test_linear_kappa_at_inverts_the_risk(dimension, tau):
    for level in (0.25, 0.9):
        kappa = exact.linear_kappa_at(dimension, tau, level)
        assert kappa > 0
        assert exact.linear_directional(dimension, tau, kappa) == pytest.approx(level, abs=1e-10)


def test_linear_kappa_at_is_zero_or_infinite_at_the_ends():
    assert exact.linear_kappa_at(16, -0.5, 0.25) == 0
    assert exact.linear_kappa_at(16, 0.0, 0.5) == 0
    assert exact.linear_kappa_at(16, 1.0, 0.25) == INF
    assert exact.linear_kappa_at(16, 0.5, 1e-3) == 0
