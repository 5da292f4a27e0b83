"""What the closed forms refuse."""

import math

import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust import exact

EYE = np.eye(2)
INF = math.inf
NAN = math.nan
X = np.zeros((3, 2))


def correlated(rho):
    return np.array([[1.0, rho], [rho, 1.0]])


BAD = [
    (exact.linear_gaussian, ("a", 0, X, EYE), {}, TypeError, "weights"),
    (exact.linear_gaussian, ([1.0], 0, X, EYE), {}, ValueError, "weights"),
    (exact.linear_gaussian, ([[1.0, 2.0]], 0, X, EYE), {}, ValueError, "weights"),
    (exact.linear_gaussian, ([1.0, NAN], 0, X, EYE), {}, ValueError, "weights"),
    (exact.linear_gaussian, ([1.0, 1.0], [0.0], X, EYE), {}, ValueError, "bias"),
    (exact.linear_gaussian, ([1.0, 1.0], 0, 1.0, EYE), {}, ValueError, "x"),
    (exact.linear_gaussian, ([1.0, 1.0], 0, X * NAN, EYE), {}, ValueError, "x"),
    (exact.linear_gaussian, ([1.0, 1.0], 0, X, np.eye(3)), {}, ValueError, "cov"),
    (exact.linear_gaussian, ([1.0, 1.0], 0, X, [EYE] * 2), {}, ValueError, "cov"),
    (exact.linear_gaussian, ([1.0, 1.0], 0, X[0], [EYE]), {}, ValueError, "cov"),
    (
        exact.linear_gaussian,
        ([1.0, 1.0], 0, X, [[1, 2], [0, 1]]),
        {},
        ValueError,
        "cov must be symmetric",
    ),
    (
        exact.linear_gaussian,
        ([1.0, 1.0], 0, X, correlated(2)),
        {},
        ValueError,
        "cov must be positive semi-definite",
    ),
    (exact.linear_gaussian, ([1.0, 1.0], 0, X, EYE * NAN), {}, ValueError, "cov"),
    (exact.box_gaussian, ([0, 0], [[1, 1]] * 2, X, EYE), {}, ValueError, "lower and upper"),
    (exact.box_gaussian, ([0], [1], X, EYE), {}, ValueError, "lower"),
    (exact.box_gaussian, ([0, NAN], [1, 1], X, EYE), {}, ValueError, "lower"),
    (exact.box_gaussian, ([0, 2], [1, 1], X, EYE), {}, ValueError, "lower must not exceed upper"),
    (
        exact.box_gaussian,
        ([[0, 0]] * 2, [[1, 1]] * 2, X, EYE),
        {},
        ValueError,
        "lower and upper must be disjoint",
    ),
    (exact.box_gaussian, ([0, 0], [1, 1], X, EYE), {"tolerance": 0.0}, ValueError, "tolerance"),
    (exact.box_gaussian, ([0, 0], [1, 1], X, EYE + 0j), {}, TypeError, "cov"),
    (exact.ball_gaussian, (-1.0, X, 1.0), {}, ValueError, "radius"),
    (exact.ball_gaussian, (1.0, X, -1.0), {}, ValueError, "sigma"),
    (exact.ball_gaussian, (1.0, X, [1.0, 1.0]), {}, ValueError, "radius, x, sigma"),
    (exact.ball_gaussian, ([1.0], X[0], 1.0), {}, ValueError, "radius"),
    (exact.tree_gaussian, (None, X, 1.0), {}, TypeError, "tree"),
    (exact.linear_directional, (2.0, 0.5, 1.0), {}, TypeError, "dimension"),
    (exact.linear_directional, (0, 0.5, 1.0), {}, ValueError, "dimension"),
    (exact.linear_directional, (2, NAN, 1.0), {}, ValueError, "tau"),
    (exact.linear_directional, (2, 0.5, INF), {}, ValueError, "kappa"),
    (exact.linear_directional, (2, [0.5] * 2, [1.0] * 3), {}, ValueError, "tau, kappa"),
    (exact.linear_kappa_at, (2, [0.5], 0.5), {}, ValueError, "tau"),
    (exact.linear_kappa_at, (2, 0.5, 1.0), {}, ValueError, "level"),
    (exact.linear_theta, (["a"], 1.0, 1.0), {"num_examples": 3}, TypeError, "weights"),
    (exact.linear_theta, ([1.0], -1.0, 1.0), {"num_examples": 3}, ValueError, "sigma"),
    (exact.linear_theta, ([1.0], 1.0, -1.0), {"num_examples": 3}, ValueError, "baseline"),
    (exact.linear_theta, ([1.0], 1.0, 1.0), {"num_examples": 0}, ValueError, "num_examples"),
    (exact.linear_theta, ([1.0], 1, 1), {"num_examples": 3, "alpha": 1.0}, ValueError, "alpha"),
    (
        exact.linear_theta,
        ([1.0, 2.0], 1, 1),
        {"num_examples": 3, "feature_scale": [1.0] * 3},
        ValueError,
        "weights, feature_scale",
    ),
    (exact.linear_clever, ([1.0], 1.0, 1.0), {"norm": "l3"}, ValueError, "norm"),
    (exact.linear_clever, (1.0, 1.0, 1.0), {}, ValueError, "gradient"),
    (exact.linear_clever, ([1.0], -1.0, 1.0), {}, ValueError, "margin"),
    (exact.linear_clever, ([1.0], 1.0, -1.0), {}, ValueError, "radius"),
    (exact.linear_clever, ([[1.0]] * 2, [1.0] * 3, 1.0), {}, ValueError, "gradient, margin"),
    (exact.quadratic_clever, (1.0, -1.0, 1.0, 1.0), {}, ValueError, "gradient_norm"),
    (exact.second_order_clever, (1.0, 1.0, -1.0, 1.0), {}, ValueError, "curvature"),
]


@pytest.mark.parametrize(("fn", "args", "kwargs", "error", "match"), BAD)
def test_bad_arguments(fn, args, kwargs, error, match):
    with pytest.raises(error, match=rf"^{match}\b"):
        fn(*args, **kwargs)


@pytest.mark.parametrize(
    ("x", "std", "match"),
    [
        (np.zeros((2, 3)), 1.0, "x"),
        (np.zeros((2, 4)), -1.0, "std"),
        (np.zeros(4), [1.0] * 3, "std"),
    ],
)
def test_bad_arguments_of_a_tree(x, std, match):
    trees = pytest.importorskip("sklearn.tree")
    tree = trees.DecisionTreeClassifier().fit(np.eye(4), [0, 1, 0, 1])
    with pytest.raises(ValueError, match=rf"^{match}\b"):
        exact.tree_gaussian(tree, x, std)


def test_a_tree_of_several_outputs_is_refused():
    tree = pytest.importorskip("sklearn.tree")
    two = tree.DecisionTreeClassifier().fit([[0.0], [1.0]], [[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="tree must have one output"):
        exact.tree_gaussian(two, [[0.5]], 1.0)


def test_everything_is_handed_on():
    assert jr.exact is exact
    assert all(callable(getattr(exact, name)) for name in exact.__all__)
