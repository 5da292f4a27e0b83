"""Where Gompertz curves turn, and which of several lies lower: closed forms in (a, b, c, d).

Levene & Harris 2026 (arXiv 2606.31581) describe the growth of a loss with the noise level by a
Gompertz curve, see ``fit_gompertz``, and read these numbers off it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from scipy.special import lambertw

from jaxrobust import _checks
from jaxrobust.fits.gompertz import gompertz

Array = jax.Array

# Landmarks lie where u = exp(-b (x - c)) takes a fixed value. The third derivative vanishes at
# u = (3 + sqrt 5) / 2; the slope, (a - d) b u exp(-u), is half its maximum at the larger root of
# u exp(-u) = 1 / (2 e).
_U_KNEE = (3 + math.sqrt(5)) / 2
_U_HALF = float(-lambertw(-0.5 / math.e, -1).real)


class Landmarks(NamedTuple):
    """Where a Gompertz curve turns; every field has the shape of the parameters.

    Attributes:
        knee: Where the curve takes off (largest second derivative), clipped at 0 like the paper's.
        knee_value: The curve's value at the knee before clipping.
        half_slope: Where the slope first reaches half its maximum; it lies left of the knee.
        half_slope_published: The paper's formula for it, which is where the slope has reached
            85% of its maximum.
        inflection: Where the slope is largest: ``c``.
        threshold: Where the curve reaches ``level``, within [0, upper].
        threshold_value: The curve's value there: ``level``, unless the end of the range cut it.
        knee_signed: The knee before clipping.
    """

    knee: Array
    knee_value: Array
    half_slope: Array
    half_slope_published: Array
    inflection: Array
    threshold: Array
    threshold_value: Array
    knee_signed: Array


class RobustnessIndex(NamedTuple):
    """How ``k`` normalised curves compare.

    Attributes:
        pairwise: ``[k, k]`` share of the noise levels in [0, 1] at which curve i lies below j.
        overall: ``[k]`` mean of each row over the other curves.
    """

    pairwise: Array
    overall: Array


def landmarks(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    d: ArrayLike,
    *,
    level: ArrayLike = 2.0,
    upper: ArrayLike = 1.0,
) -> Landmarks:
    """Landmarks of Gompertz curves, in closed form.

    Levene & Harris 2026 (arXiv 2606.31581): the knee ``c - 0.9624 / b``, the half slope (truly
    ``c - 0.9852 / b``; the paper prints ``c - 0.5178 / b``), the inflection ``c``, and the noise
    level at which the loss has doubled. The last is looked for in ``[0, upper]``: a curve still
    at or below ``level`` at ``upper`` gets ``upper``, and one already above it at 0 (as when ``d
    >= level``) gets 0, each with the curve's value there.

    Args:
        a: upper plateau; the four parameters broadcast together.
        b: rate.
        c: inflection.
        d: lower plateau.
        level: the value that defines the threshold; 2 is a doubling of a loss ratio. NaN for no
            threshold (it is NaN then).
        upper: the largest noise level considered.

    Returns:
        The landmarks, each of the parameters' shape. NaN unless ``a >= d >= 0``, ``b > 0`` and
        all are finite, so those of a failed fit are NaN too.

    Raises:
        TypeError: if an argument is not real numbers.

    >>> marks = landmarks(a=31.3285, b=4.5410, c=0.3991, d=0.5594)
    >>> print(f"{marks.knee:.4f} {marks.knee_value:.4f} {marks.threshold:.4f}")
    0.1872 2.8039 0.1527
    """
    return _landmarks(
        *(
            _checks.real_array(name, value)
            for name, value in zip(
                ("a", "b", "c", "d", "level", "upper"), (a, b, c, d, level, upper), strict=True
            )
        )
    )


@jax.jit
def _landmarks(a: Array, b: Array, c: Array, d: Array, level: Array, upper: Array) -> Landmarks:
    a, b, c, d = jnp.broadcast_arrays(a, b, c, d)
    finite = jnp.isfinite(a) & jnp.isfinite(b) & jnp.isfinite(c)
    valid = finite & (a >= d) & (d >= 0) & (b > 0)
    a, b, c, d = (jnp.where(valid, value, jnp.nan) for value in (a, b, c, d))

    at_zero, at_upper = gompertz(0.0, a, b, c, d), gompertz(upper, a, b, c, d)
    asked = ~jnp.isnan(level)
    late = at_upper <= level
    inside = ~late & (at_zero < level)
    # Outside, level may be below d or above a, where the curve has no inverse.
    share = jnp.where(inside, (level - d) / jnp.where(a > d, a - d, 1.0), 0.5)
    crossing = jnp.clip(c - jnp.log(-jnp.log(share)) / b, 0.0, upper)
    knee = c - math.log(_U_KNEE) / b
    return Landmarks(
        knee=jnp.maximum(knee, 0.0),
        knee_value=d + (a - d) * math.exp(-_U_KNEE),
        half_slope=c - math.log(_U_HALF) / b,
        half_slope_published=c - math.log(_U_HALF - 1) / b,
        inflection=c,
        threshold=jnp.where(
            valid & asked, jnp.where(inside, crossing, jnp.where(late, upper, 0.0)), jnp.nan
        ),
        threshold_value=jnp.where(
            asked, jnp.where(inside, level, jnp.where(late, at_upper, at_zero)), jnp.nan
        ),
        knee_signed=knee,
    )


def robustness_index(b: ArrayLike, c: ArrayLike) -> RobustnessIndex:
    """Compares Gompertz curves by the share of noise levels at which one lies below another.

    Levene & Harris 2026 (arXiv 2606.31581). Each curve is normalised to rise from 0 to 1,
    ``exp(-exp(-b (x - c)))``, and two of them cross once, at ``(b_i c_i - b_j c_j) / (b_i -
    b_j)``. ``pairwise[i, j]`` is the part of [0, 1] on which curve i is the lower, more robust
    one; ``overall[i]`` is its mean over ``j != i``.

    **The index discards scale.** It sees how late and how steeply a loss rises, not how far: a
    model whose loss grows a hundredfold can outrank one whose loss doubles. Ordering the same
    models by their value at x = 1 often gives nearly the reverse, so report both.

    Args:
        b: ``[k]`` rates.
        c: ``[k]`` inflections, in units where the noise levels are [0, 1].

    Returns:
        The index. Of two curves of equal ``b``, the one of larger ``c`` has 1 and the other 0; if
        ``c`` is equal as well both have 1, hence also the diagonal, which ``overall`` leaves out.
        Otherwise ``pairwise[i, j] + pairwise[j, i]`` is 1. A curve that is not finite or has ``b
        <= 0`` (a failed fit) has NaN in its row and column, and the others' means leave it out.
        A curve with no other to compare with has ``overall`` 1, its index against itself.

    Raises:
        TypeError: if an argument is not real numbers.
        ValueError: if ``b`` and ``c`` are not of one shape ``[k]``, k >= 1.

    >>> import jax.numpy as jnp
    >>> index = robustness_index(b=jnp.array([1.7122, 4.5410]), c=jnp.array([0.9701, 0.3991]))
    >>> print(index.overall.round(4))
    [0.9465 0.0535]
    """
    b = _checks.real_array("b", b)
    c = _checks.real_array("c", c)
    if b.ndim != 1 or b.size == 0:
        raise ValueError(f"b must be the rates of curves, shape [k], k >= 1; got shape {b.shape}.")
    if c.shape != b.shape:
        raise ValueError(f"c must have the shape of b, {b.shape}; got shape {c.shape}.")
    return _index(b, c)


@jax.jit
def _index(b: Array, c: Array) -> RobustnessIndex:
    b_i, b_j, c_i, c_j = b[:, None], b[None, :], c[:, None], c[None, :]
    tie = b_i == b_j
    # (b_i c_i - b_j c_j) / (b_i - b_j) without its cancellation for nearly equal rates.
    shift = (c_i - c_j) / jnp.where(tie, 1.0, b_i - b_j)
    crossing = 0.5 * (c_i + c_j) + 0.5 * (b_i + b_j) * shift
    below = jnp.clip(jnp.where(b_i > b_j, crossing, 1.0 - crossing), 0.0, 1.0)
    pairwise = jnp.where(tie, (c_i >= c_j).astype(below.dtype), below)

    valid = jnp.isfinite(b) & jnp.isfinite(c) & (b > 0)
    counts = valid[:, None] & valid[None, :]
    others = counts & ~jnp.eye(b.size, dtype=bool)
    num_others = others.sum(axis=1)
    mean = jnp.where(others, pairwise, 0.0).sum(axis=1) / jnp.maximum(num_others, 1)
    overall = jnp.where(num_others > 0, mean, 1.0)
    return RobustnessIndex(
        pairwise=jnp.where(counts, pairwise, jnp.nan),
        overall=jnp.where(valid, overall, jnp.nan),
    )
