"""Closed-form answers for models simple enough to have one: oracles for tests and for users.

Everything here is NumPy and SciPy in double precision, computed on the host: nothing is drawn, and
nothing is traced. One file for each measure that the answers belong to.
"""

from jaxrobust.exact.clever import linear_clever, quadratic_clever, second_order_clever
from jaxrobust.exact.directional import linear_directional, linear_kappa_at
from jaxrobust.exact.flip import ball_gaussian, box_gaussian, linear_gaussian, tree_gaussian
from jaxrobust.exact.theta import linear_theta

__all__ = [
    "ball_gaussian",
    "box_gaussian",
    "linear_clever",
    "linear_directional",
    "linear_gaussian",
    "linear_kappa_at",
    "linear_theta",
    "quadratic_clever",
    "second_order_clever",
    "tree_gaussian",
]
