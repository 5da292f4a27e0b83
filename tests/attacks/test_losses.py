"""The losses: their definition, and slopes that neither die nor turn into NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrobust.attacks import _losses

RNG = np.random.default_rng(0)
LOGITS = jnp.asarray(RNG.normal(size=(6, 4)) * 3, jnp.float32)
cross_entropy = jax.jit(_losses.cross_entropy)
LABELS = jnp.asarray([0, 1, 2, 3, 0, 1])


def test_cross_entropy():
    want = optax.losses.softmax_cross_entropy_with_integer_labels(LOGITS, LABELS)
    np.testing.assert_allclose(cross_entropy(LOGITS, LABELS), want, rtol=1e-5, atol=1e-6)
    got = jax.jit(jax.grad(lambda v: cross_entropy(v, LABELS).sum()))(LOGITS)
    want = jax.nn.softmax(LOGITS) - jax.nn.one_hot(LABELS, 4)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_margin_and_dlr():
    logits, labels = np.asarray(LOGITS), np.asarray(LABELS)
    for row, y, margin, dlr in zip(
        logits,
        labels,
        _losses.margin(LOGITS, LABELS),
        _losses.dlr(LOGITS, LABELS),
        strict=True,
    ):
        other = max(row[k] for k in range(4) if k != y)
        top = sorted(row, reverse=True)
        np.testing.assert_allclose(margin, other - row[y], rtol=1e-6)
        np.testing.assert_allclose(dlr, (other - row[y]) / (top[0] - top[2]), rtol=1e-5)


def test_saturated_cross_entropy_keeps_its_direction():
    logits = jnp.asarray([[300.0, 0.0, -1.0]])
    g = jax.jit(jax.grad(lambda v: cross_entropy(v, jnp.array([0])).sum()))(logits)[0]
    assert (np.asarray(optax.softmax_cross_entropy_with_integer_labels(logits, jnp.array([0]))) == 0
    ).all()  # fmt: skip
    np.testing.assert_allclose(g / -g[0], [-1, 1 / (1 + np.exp(-1)), 1 / (1 + np.e)], rtol=1e-4)


@pytest.mark.parametrize("name", ["cross_entropy", "margin", "dlr"])
def test_ruled_out_classes_and_ties_give_finite_slopes(name):
    inf = jnp.inf
    logits = jnp.asarray(
        [
            [1.0, -inf, 2.0, 0.0],
            [-inf, 1.0, 2.0, 0.0],
            [0.0, 0.0, 0.0, 0.0],
            [1.0, -inf, -inf, -inf],
        ]
    )
    fn = _losses.objective(name, targeted=False)

    def total(free):
        return fn(jnp.where(jnp.isinf(logits), logits, free), jnp.array([0, 0, 0, 0])).sum()

    assert np.isfinite(jax.jit(jax.grad(total))(logits)).all()


def test_targeted_is_the_negative():
    plain = _losses.objective("margin", False)(LOGITS, LABELS)
    np.testing.assert_array_equal(_losses.objective("margin", True)(LOGITS, LABELS), -plain)
