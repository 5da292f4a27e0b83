"""Flip probabilities under Gaussian noise, for rules whose regions are simple."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.stats
from scipy.special import ndtr

from jaxrobust import _checks
from jaxrobust.exact import _inputs

Array = np.ndarray


def linear_gaussian(weights: Any, bias: Any, x: Any, cov: Any) -> Array:
    """Flip probability of a linear rule: ``P(x) = Phi(-|m| / sqrt(w' cov w))``, ``m = w . x + b``.

    The probability that the sign of ``w . x + b`` changes when ``N(0, cov)`` is added to ``x``. It
    is the small number that is returned, accurate in the far tail (down to 1e-300); the robustness
    of Scher & Truegler is ``R(x) = 1 - P(x)``.

    Args:
        weights: ``w [d]``.
        bias: ``b``, a scalar.
        x: inputs ``[n, d]``, or one ``[d]``.
        cov: covariance ``[d, d]``, or ``[n, d, d]`` for each input its own; positive
            semi-definite.

    Returns:
        Probabilities ``[n]`` (a scalar for one input); 0 where the noise cannot change ``m``.

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for values that are not finite, shapes that do not fit, or a covariance that is
            not symmetric and positive semi-definite.

    Source: Scher & Truegler 2022, arXiv 2204.10046, for a linear classifier.

    Example:
        >>> import jaxrobust as jr
        >>> flip = jr.exact.linear_gaussian([1.0, 2.0], -1.0, [2.0, 1.0], [[1.0, 0.0], [0.0, 1.0]])
        >>> round(1 - float(flip), 8)
        0.91014375
    """
    x = _inputs.numbers("x", x, (1, 2))
    weights = _inputs.numbers("weights", weights, 1)
    _inputs.features("weights", weights, x.shape[-1], "x")
    bias = _inputs.numbers("bias", bias, 0)
    cov = _inputs.covariance(cov, x)
    margin = np.abs(x @ weights + bias)
    spread = np.sqrt(np.maximum(np.einsum("i,...ij,j->...", weights, cov, weights), 0))
    margin, spread = np.broadcast_arrays(margin, spread)
    ratio = np.full(margin.shape, np.inf)
    np.divide(margin, spread, out=ratio, where=spread > 0)
    return ndtr(-ratio)


def box_gaussian(lower: Any, upper: Any, x: Any, cov: Any, *, tolerance: float = 1e-6) -> Array:
    """Probability that ``x + N(0, cov)`` falls into any of some disjoint axis-aligned boxes.

    With the boxes of the label of ``x``, this is the robustness ``R(x)`` of any rule made of boxes.
    A box is ``lower < x <= upper`` (as a decision tree splits), which matters only where a feature
    has no noise.

    Args:
        lower: lower corners ``[B, d]``, or one ``[d]``; ``-inf`` for none.
        upper: upper corners, of the same shape; ``inf`` for none.
        x: inputs ``[n, d]``, or one ``[d]``.
        cov: covariance ``[d, d]``, or ``[n, d, d]`` for each input its own; positive
            semi-definite.
        tolerance: absolute error for each box that bounds three or more correlated features, which
            takes SciPy's quasi-Monte Carlo integration (seeded, so the result repeats). All other
            boxes are exact to rounding.

    Returns:
        Probabilities ``[n]`` (a scalar for one input).

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for a NaN or crossed bound, boxes that overlap, a tolerance that is not above
            zero, shapes that do not fit, or a covariance that is not symmetric and positive
            semi-definite.

    Source: Scher & Truegler 2022, arXiv 2204.10046, for rules made of boxes.

    Example:
        >>> import jaxrobust as jr
        >>> eye = [[1.0, 0.0], [0.0, 1.0]]
        >>> round(float(jr.exact.box_gaussian([-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], eye)), 8)
        0.46606494
    """
    x = _inputs.numbers("x", x, (1, 2))
    cov = _inputs.covariance(cov, x)
    lower = np.atleast_2d(_inputs.real("lower", lower, (1, 2)))
    upper = np.atleast_2d(_inputs.real("upper", upper, (1, 2)))
    _check_boxes(lower, upper, x.shape[-1])
    _inputs.numbers("tolerance", tolerance, 0)
    _checks.values("tolerance", tolerance, lambda v: v > 0, "above zero")
    points = np.atleast_2d(x)
    covs = np.broadcast_to(cov, (len(points), *cov.shape[-2:]))
    total = np.zeros(len(points))
    for low, high in zip(lower, upper, strict=True):
        # Features without a bound integrate to one, whatever they are correlated with.
        bounded = np.isfinite(low) | np.isfinite(high)
        inner = covs[:, bounded][:, :, bounded]
        total += _box(low[bounded], high[bounded], points[:, bounded], inner, tolerance)
    return total.reshape(x.shape[:-1])


def ball_gaussian(radius: Any, x: Any, sigma: Any) -> Array:
    """Probability that ``x + N(0, sigma^2 I)`` stays within the l2 ball of a radius around zero.

    ``|x + sigma z|^2 / sigma^2`` is noncentral chi-square with d degrees of freedom and
    noncentrality ``|x|^2 / sigma^2``. For a ball around ``c``, pass ``x - c``.

    Args:
        radius: not negative, a scalar or ``[n]``.
        x: inputs ``[n, d]``, or one ``[d]``.
        sigma: noise level, not negative, a scalar or ``[n]``.

    Returns:
        Probabilities ``[n]`` (a scalar for one input). Without noise, 1 inside or on the ball.

    Raises:
        TypeError: for values that are not numbers.
        ValueError: for values that are negative or not finite, or shapes that do not fit.

    Source: Scher & Truegler 2022, arXiv 2204.10046, for a rule that is a ball.

    Example:
        >>> import jaxrobust as jr
        >>> round(float(jr.exact.ball_gaussian(2.0, [1.0, 0.0], 1.0)), 8)
        0.73098794
    """
    x = _inputs.numbers("x", x, (1, 2))
    scalars = (0, 1) if x.ndim == 2 else 0
    radius = _inputs.numbers("radius", radius, scalars)
    sigma = _inputs.numbers("sigma", sigma, scalars)
    _checks.non_negative("radius", radius)
    _checks.non_negative("sigma", sigma)
    distance = np.linalg.norm(x, axis=-1)
    if _inputs.broadcast(("radius", radius), ("x", distance), ("sigma", sigma)) != distance.shape:
        raise ValueError(
            f"radius and sigma must fit the {distance.size} inputs of x;"
            f" got shapes {radius.shape} and {sigma.shape}."
        )
    safe = np.where(sigma > 0, sigma, 1.0)
    inside = scipy.stats.ncx2.cdf((radius / safe) ** 2, x.shape[-1], (distance / safe) ** 2)
    return np.where(sigma > 0, inside, distance <= radius)


def tree_gaussian(tree: Any, x: Any, std: Any) -> Array:
    """Probability of each prediction of a decision tree under independent Gaussian noise.

    The leaves of a tree are disjoint boxes, so the probability of a class is a sum of products of
    normal probabilities. The flip probability of ``x`` is the sum over the classes other than the
    one predicted there.

    Args:
        tree: a fitted scikit-learn ``DecisionTreeClassifier`` of one output (or anything with its
            ``tree_`` and ``classes_``).
        x: inputs ``[n, d]``, or one ``[d]``.
        std: standard deviation of the noise of each feature: a scalar, ``[d]`` or ``[n, d]``.

    Returns:
        Probabilities ``[n, K]`` (``[K]`` for one input) that the tree predicts each of the K
        classes, in the order of ``tree.classes_``; without noise, the prediction itself.

    Raises:
        TypeError: for what is not a fitted tree, or values that are not numbers.
        ValueError: for a tree of several outputs, a negative or non-finite std, or shapes that do
            not fit.

    Source: Scher & Truegler 2022, arXiv 2204.10046, for rules made of boxes.

    Example:
        >>> import jaxrobust as jr
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> stump = DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1])  # splits at 0.5
        >>> jr.exact.tree_gaussian(stump, [1.5], 1.0).round(4).tolist()
        [0.1587, 0.8413]
    """
    if not hasattr(tree, "tree_") or not hasattr(tree, "classes_"):
        raise TypeError(
            "tree must be a fitted decision tree classifier, with tree_ and classes_;"
            f" got {_checks.describe(tree)}."
        )
    nodes = tree.tree_
    if nodes.value.shape[1] != 1:
        raise ValueError(f"tree must have one output; got {nodes.value.shape[1]}.")
    x = _inputs.numbers("x", x, (1, 2))
    _inputs.features("x", x, nodes.n_features, "the inputs that the tree was fitted to")
    std = _inputs.numbers("std", std, (0, 1, 2) if x.ndim == 2 else (0, 1))
    _checks.non_negative("std", std)
    if _inputs.broadcast(("std", std), ("x", x)) != x.shape:
        raise ValueError(f"std must fit x of shape {x.shape}; got shape {std.shape}.")
    std = np.broadcast_to(std, x.shape)
    # scikit-learn compares in single precision, which decides where there is no noise.
    x = np.where(std > 0, x, x.astype(np.float32))
    winner = nodes.value[:, 0, :].argmax(axis=-1)
    found = np.zeros((*x.shape[:-1], nodes.value.shape[-1]))
    stack: list[tuple[int, dict[int, tuple[float, float]]]] = [(0, {})]
    while stack:
        node, box = stack.pop()
        left, right = int(nodes.children_left[node]), int(nodes.children_right[node])
        if left == right:
            inside = np.ones(x.shape[:-1])
            for feature, (low, high) in box.items():
                inside *= _interval(low, high, x[..., feature], std[..., feature])
            found[..., winner[node]] += inside
            continue
        feature, threshold = int(nodes.feature[node]), float(nodes.threshold[node])
        low, high = box.get(feature, (-np.inf, np.inf))
        stack.append((left, {**box, feature: (low, min(high, threshold))}))
        stack.append((right, {**box, feature: (max(low, threshold), high)}))
    return found


def _interval(low: Any, high: Any, x: Array, std: Array) -> Array:
    """``P[low < x + std Z <= high]``, from the tail that is the shorter one."""
    safe = np.where(std > 0, std, 1.0)
    a = np.where(std > 0, (low - x) / safe, np.where(low < x, -np.inf, np.inf))
    b = np.where(std > 0, (high - x) / safe, np.where(x <= high, np.inf, -np.inf))
    above = a > 0
    return ndtr(np.where(above, -a, b)) - ndtr(np.where(above, -b, a))


def _box(low: Array, high: Array, x: Array, covs: Array, tolerance: float) -> Array:
    """Probability of one box whose features are all bounded, for inputs ``x [n, d]``."""
    variance = np.diagonal(covs, axis1=-2, axis2=-1)
    others = ~np.eye(x.shape[-1], dtype=bool)
    linked = ((covs != 0) & others).any(axis=-1) & (variance > 0)
    # A feature that moves on its own is a factor; those that move together are one integral.
    alone = _interval(low, high, x, np.sqrt(np.maximum(variance, 0)))
    result = np.where(linked, 1.0, alone).prod(axis=-1)
    for i in np.flatnonzero(linked.any(axis=-1)):
        some = linked[i]
        normal = scipy.stats.multivariate_normal(
            x[i, some],
            covs[i][np.ix_(some, some)],
            allow_singular=True,
            seed=0,
            abseps=tolerance,
            releps=tolerance,
        )
        result[i] *= min(max(float(normal.cdf(high[some], lower_limit=low[some])), 0.0), 1.0)
    return result


def _check_boxes(lower: Array, upper: Array, size: int) -> None:
    if lower.shape != upper.shape:
        raise ValueError(
            f"lower and upper must have the same shape; got {lower.shape} and {upper.shape}."
        )
    _inputs.features("lower", lower, size, "x")
    if (lower > upper).any():
        box, feature = np.argwhere(lower > upper)[0]
        raise ValueError(
            f"lower must not exceed upper; got {lower[box, feature]} above {upper[box, feature]} in"
            f" box {box}, feature {feature}."
        )
    for box in range(len(lower) - 1):
        common = np.maximum(lower[box], lower[box + 1 :]) < np.minimum(upper[box], upper[box + 1 :])
        if common.all(axis=-1).any():
            other = box + 1 + int(common.all(axis=-1).argmax())
            raise ValueError(f"lower and upper must be disjoint boxes; {box} and {other} overlap.")
