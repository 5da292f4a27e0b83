"""Exact flip probabilities against the paper's numbers, plain quadrature and simulation."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from jaxrobust import exact

EYE = np.eye(2)
INF = math.inf


def correlated(rho):
    return np.array([[1.0, rho], [rho, 1.0]])


# --- flip probability -----------------------------------------------------------------------------

BOTH_POSITIVE = ([0.0, 0.0], [INF, INF])
NOT_BOTH_POSITIVE = ([[-INF, -INF], [0.0, -INF]], [[0.0, INF], [INF, 0.0]])
SAME_SIGN = ([[0.0, 0.0], [-INF, -INF]], [[INF, INF], [0.0, 0.0]])
SQUARE = ([-1.0, -1.0], [1.0, 1.0])


@pytest.mark.parametrize(
    ("cov", "robustness"), [(EYE, 0.91014375), ([[0.5, 0.3], [0.3, 0.5]], 0.94057582)]
)
def test_linear_gaussian_of_the_paper(cov, robustness):
    flip = exact.linear_gaussian([1.0, 2.0], -1.0, [2.0, 1.0], cov)
    assert 1 - flip == pytest.approx(robustness, abs=5e-9)


@pytest.mark.parametrize(
    ("boxes", "x", "cov", "robustness"),
    [
        (BOTH_POSITIVE, [1.0, 1.0], EYE, 0.70786098),
        (BOTH_POSITIVE, [1.0, 1.0], correlated(0.5), 0.74520359),
        (NOT_BOTH_POSITIVE, [-1.0, 1.0], EYE, 0.86651624),
        (SAME_SIGN, [1.0, 1.0], EYE, 0.73303247),
        (SQUARE, [0.0, 0.0], EYE, 0.46606494),
    ],
)
def test_box_gaussian_of_the_paper(boxes, x, cov, robustness):
    assert exact.box_gaussian(*boxes, x, cov) == pytest.approx(robustness, abs=5e-9)


@pytest.mark.parametrize(("x", "robustness"), [([0.0, 0.0], 0.86466472), ([1.0, 0.0], 0.73098794)])
def test_ball_gaussian_of_the_paper(x, robustness):
    assert exact.ball_gaussian(2.0, x, 1.0) == pytest.approx(robustness, abs=5e-9)


def test_linear_gaussian_is_batched():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 3)), rng.normal(size=3)
    roots = rng.normal(size=(5, 3, 3))
    covs = roots @ roots.transpose(0, 2, 1)
    found = exact.linear_gaussian(w, 0.3, x, covs)
    assert found.shape == (5,)
    assert found.dtype == np.float64
    for i in range(5):
        margin, spread = w @ x[i] + 0.3, math.sqrt(w @ covs[i] @ w)
        assert found[i] == pytest.approx(scipy.stats.norm.sf(abs(margin) / spread), rel=1e-12)
    shared = exact.linear_gaussian(w, 0.3, x, covs[0])
    alone = [exact.linear_gaussian(w, 0.3, point, covs[0]) for point in x]
    np.testing.assert_allclose(shared, alone, rtol=1e-14)


def test_linear_gaussian_is_accurate_in_the_far_tail():
    flip = exact.linear_gaussian([1.0], 0.0, [[37.0], [30.0]], [[1.0]])
    # Phi(-z) z / phi(z) -> 1 - 1/z^2 + 3/z^4 - 15/z^6.
    for value, z in zip(flip, (37.0, 30.0), strict=True):
        series = 1 - z**-2 + 3 * z**-4 - 15 * z**-6
        expected = math.exp(-z * z / 2 - math.log(z) - math.log(2 * math.pi) / 2) * series
        assert value == pytest.approx(expected, rel=1e-9)
    assert 0 < flip[0] < 1e-298


def test_linear_gaussian_without_noise_never_flips():
    singular = np.array([[1.0, -1.0], [-1.0, 1.0]])  # no noise along (1, 1)
    assert exact.linear_gaussian([1.0, 1.0], 0.0, [1.0, 1.0], np.zeros((2, 2))) == 0
    assert exact.linear_gaussian([1.0, 1.0], 0.0, [1.0, 1.0], singular) == 0
    assert exact.linear_gaussian([1.0, 1.0], 0.0, [0.0, 0.0], EYE) == 0.5


def test_boxes_on_both_sides_of_a_line_are_the_linear_rule():
    x = np.random.default_rng(1).normal(size=(6, 2))
    cov = correlated(0.7)
    right = exact.box_gaussian([0.25, -INF], [INF, INF], x, cov)
    flip = exact.linear_gaussian([1.0, 0.0], -0.25, x, cov)
    np.testing.assert_allclose(right, np.where(x[:, 0] > 0.25, 1 - flip, flip), rtol=1e-12)


def test_box_gaussian_keeps_small_probabilities():
    lower, upper = [20.0, -INF], [21.0, -10.0]
    found = exact.box_gaussian(lower, upper, [0.0, 0.0], EYE)
    expected = (scipy.stats.norm.sf(20) - scipy.stats.norm.sf(21)) * scipy.stats.norm.cdf(-10)
    assert found == pytest.approx(expected, rel=1e-12)
    assert 0 < found < 1e-100


def test_box_gaussian_with_a_covariance_for_each_input():
    x = np.array([[0.5, -0.2], [0.1, 0.4], [0.0, 0.0]])
    covs = np.stack([EYE, correlated(-0.4), np.zeros((2, 2))])
    found = exact.box_gaussian(*SQUARE, x, covs)
    alone = [exact.box_gaussian(*SQUARE, x[i], covs[i]) for i in range(3)]
    np.testing.assert_array_equal(found, alone)
    assert found[2] == 1
    # Plain quadrature of the conditional normal for the correlated one.
    spread = math.sqrt(1 - 0.4**2)

    def strip(u):
        mean = 0.4 - 0.4 * (u - 0.1)
        inside = scipy.special.ndtr((1 - mean) / spread) - scipy.special.ndtr((-1 - mean) / spread)
        return scipy.stats.norm.pdf(u, 0.1) * inside

    assert found[1] == pytest.approx(scipy.integrate.quad(strip, -1, 1)[0], rel=1e-10)


def test_box_gaussian_with_three_correlated_features():
    a = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.9]])
    x = np.array([0.2, -0.1, 0.3])
    lower, upper = np.array([-1.0, -INF, -0.5]), np.array([1.5, 0.7, INF])
    found = exact.box_gaussian(lower, upper, x, a @ a.T, tolerance=1e-5)
    draws = x + np.random.default_rng(2).normal(size=(400_000, 3)) @ a.T
    inside = ((draws > lower) & (draws <= upper)).all(axis=-1)
    error = inside.std() / math.sqrt(len(inside))
    assert abs(found - inside.mean()) < 4 * error
    assert found == exact.box_gaussian(lower, upper, x, a @ a.T, tolerance=1e-5)  # it repeats


def test_box_gaussian_ignores_features_without_bounds():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(6, 6))
    cov, x = root @ root.T, rng.normal(size=6)
    lower, upper = np.full(6, -INF), np.full(6, INF)
    lower[2], upper[4] = -0.3, 0.8
    kept = [2, 4]
    small = exact.box_gaussian(lower[kept], upper[kept], x[kept], cov[np.ix_(kept, kept)])
    assert exact.box_gaussian(lower, upper, x, cov) == small


@pytest.mark.parametrize(("x", "inside"), [(0.5, 1.0), (0.0, 0.0), (1.0, 1.0), (1.5, 0.0)])
def test_box_gaussian_where_one_feature_has_no_noise(x, inside):
    # The half-open convention decides, here for two features that are correlated besides.
    cov = np.zeros((3, 3))
    cov[:2, :2] = correlated(0.5)
    found = exact.box_gaussian([0.0] * 3, [INF, INF, 1.0], [1.0, 1.0, x], cov)
    assert found == pytest.approx(inside * 0.74520359, abs=5e-9)


def test_box_gaussian_with_singular_noise():
    ones = np.ones((3, 3))  # all three features move together
    found = exact.box_gaussian([-1.0] * 3, [1.0, 1.0, 2.0], [0.0] * 3, ones)
    assert found == pytest.approx(scipy.special.ndtr(1) - scipy.special.ndtr(-1), abs=1e-6)


def test_boxes_that_tile_the_plane_sum_to_one():
    edges = [-INF, -1.0, 0.3, INF]
    cells = list(itertools.product(itertools.pairwise(edges), repeat=2))
    lower = [[cell[0][0], cell[1][0]] for cell in cells]
    upper = [[cell[0][1], cell[1][1]] for cell in cells]
    x = np.random.default_rng(4).normal(size=(4, 2))
    for cov in (EYE, correlated(-0.8), np.zeros((2, 2))):
        np.testing.assert_allclose(exact.box_gaussian(lower, upper, x, cov), 1, rtol=1e-12)


def test_ball_gaussian_is_batched_and_has_limits():
    x = np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    found = exact.ball_gaussian([1.0, 2.0], x, [0.5, 2.0])
    for i, (radius, sigma) in enumerate([(1.0, 0.5), (2.0, 2.0)]):
        assert found[i] == exact.ball_gaussian(radius, x[i], sigma)
        draws = x[i] + sigma * np.random.default_rng(5).normal(size=(200_000, 3))
        inside = np.linalg.norm(draws, axis=-1) <= radius
        error = math.sqrt(max(found[i] * (1 - found[i]), 1e-9) / len(inside))
        assert abs(found[i] - inside.mean()) < 4 * error
    still = exact.ball_gaussian(3.0, np.array([[3.0, 0.0], [3.1, 0.0]]), 0.0)
    assert still.tolist() == [1.0, 0.0]


# --- trees ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def iris_tree():
    datasets = pytest.importorskip("sklearn.datasets")
    tree = pytest.importorskip("sklearn.tree")
    x, y = datasets.load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    fitted = tree.DecisionTreeClassifier(min_samples_leaf=3, random_state=0).fit(x, names[y])
    return fitted, x


def test_tree_without_noise_is_its_prediction(iris_tree):
    tree, x = iris_tree
    found = exact.tree_gaussian(tree, x, 0.0)
    assert found.shape == (150, 3)
    assert set(found.ravel().tolist()) == {0.0, 1.0}
    assert (tree.classes_[found.argmax(axis=-1)] == tree.predict(x)).all()


def test_tree_probabilities_against_draws(iris_tree):
    tree, x = iris_tree
    points, std = x[[0, 70, 77, 133]], np.array([0.3, 0.3, 0.5, 0.0])
    found = exact.tree_gaussian(tree, points, std)
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-12)
    for point, probability in zip(points, found, strict=True):
        draws = point + std * np.random.default_rng(6).normal(size=(100_000, 4))
        counts = (tree.predict(draws)[:, None] == tree.classes_).sum(axis=0)
        error = np.sqrt(np.maximum(probability * (1 - probability), 1e-6) / 100_000)
        assert (np.abs(counts / 100_000 - probability) < 4 * error).all()
    # One standard deviation for each input and feature gives the same.
    own = exact.tree_gaussian(tree, points, np.tile(std, (4, 1)))
    np.testing.assert_array_equal(own, found)
    np.testing.assert_array_equal(exact.tree_gaussian(tree, points[1], std), found[1])


def test_tree_agrees_with_its_leaves_as_boxes(iris_tree):
    tree, x = iris_tree
    # The leaves of a full tree, found by walking every path again.
    nodes, lower, upper, label = tree.tree_, [], [], []

    def walk(node, low, high):
        if nodes.children_left[node] < 0:
            lower.append(low), upper.append(high), label.append(nodes.value[node, 0].argmax())
            return
        f, t = nodes.feature[node], nodes.threshold[node]
        walk(nodes.children_left[node], low, np.where(np.arange(4) == f, np.minimum(high, t), high))
        walk(nodes.children_right[node], np.where(np.arange(4) == f, np.maximum(low, t), low), high)

    walk(0, np.full(4, -INF), np.full(4, INF))
    found = exact.tree_gaussian(tree, x, 0.4)
    for k in range(3):
        boxes = [i for i, which in enumerate(label) if which == k]
        expected = exact.box_gaussian(
            np.stack(lower)[boxes], np.stack(upper)[boxes], x, 0.16 * np.eye(4)
        )
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-12, atol=1e-300)
