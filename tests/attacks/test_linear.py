"""Linear models, where the nearest adversarial input is known: margin over dual norm of w."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust import attacks

DIM, NUM = 12, 24
DUAL = {"l1": np.inf, "l2": 2, "linf": 1}


def linear(params, x):
    w, b = params
    return x @ w + b.reshape(1, -1)


def problem(num_classes):
    rng = np.random.default_rng(num_classes)
    w = rng.normal(size=(DIM, num_classes)).astype(np.float32)
    b = rng.normal(size=num_classes).astype(np.float32)
    x = rng.normal(size=(NUM, DIM)).astype(np.float32)
    logits = x.astype(np.float64) @ w + b
    return (jnp.asarray(w), jnp.asarray(b)), x, logits.argmax(-1), logits


def nearest(params, logits, labels, norm, targets=None):
    """Exact distances in float64."""
    w = np.asarray(params[0], np.float64)
    found = []
    for i, y in enumerate(labels):
        others = [k for k in range(w.shape[1]) if k != y] if targets is None else [targets[i]]
        found.append(
            min(
                (logits[i, y] - logits[i, k]) / np.linalg.norm(w[:, y] - w[:, k], DUAL[norm])
                for k in others
            )
        )
    return np.array(found)


@pytest.mark.parametrize(
    ("norm", "num_classes"), [("l2", 5), ("linf", 5), pytest.param("l2", 2, marks=pytest.mark.slow)]
)
def test_deepfool_finds_the_distance(norm, num_classes):
    params, x, labels, logits = problem(num_classes)
    want = nearest(params, logits, labels, norm)
    result = attacks.deepfool(linear, params, x, labels, norm=norm, bounds=None)
    assert result.success.all()
    np.testing.assert_allclose(result.distance, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_carlini_wagner_finds_the_distance(norm):
    params, x, labels, logits = problem(2)
    want = nearest(params, logits, labels, norm)
    result = attacks.carlini_wagner(
        linear, params, x, labels, norm=norm, bounds=None, warm_start=False
    )
    assert result.success.all()
    np.testing.assert_allclose(result.distance, want, rtol=0.02)
    assert (np.asarray(result.distance) >= want * (1 - 1e-4)).all()


def test_carlini_wagner_with_many_classes_starts_warm():
    params, x, labels, logits = problem(5)
    result = attacks.carlini_wagner(linear, params, x, labels, bounds=None, num_steps=50)
    np.testing.assert_allclose(result.distance, nearest(params, logits, labels, "l2"), rtol=0.02)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_pgd_succeeds_exactly_beyond_the_distance(norm):
    params, x, labels, logits = problem(2)
    distance = nearest(params, logits, labels, norm)
    for factor, expected in ((0.98, False), (1.02, True)):
        result = attacks.pgd(
            linear,
            params,
            jax.random.key(0),
            x,
            labels,
            eps=(factor * distance).astype(np.float32),
            norm=norm,
            bounds=None,
        )
        assert (np.asarray(result.success) == expected).all()
        limit = factor * distance if expected else np.full(NUM, np.inf)
        assert (np.asarray(result.distance) <= limit * (1 + 1e-6)).all()
        assert expected or np.isinf(np.asarray(result.distance)).all()


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_one_step_is_the_dual_vector(norm):
    params, x, labels, _ = problem(2)
    result = attacks.fgsm(linear, params, x, labels, eps=0.3, norm=norm, bounds=None)
    delta = np.asarray(result.x_adv - x, np.float64)
    w = np.asarray(params[0], np.float64)
    climb = (w[:, 1] - w[:, 0]) * np.where(labels == 0, 1, -1)[:, None]
    gain = (climb * delta).sum(-1)
    np.testing.assert_allclose(gain, 0.3 * np.linalg.norm(climb, DUAL[norm], axis=1), rtol=1e-4)


def test_targeted_reaches_the_target():
    params, x, labels, logits = problem(3)
    targets = (labels + 1) % 3
    lower = nearest(params, logits, labels, "l2", targets)
    args = (linear, params, x, targets)
    deepfool = attacks.deepfool(*args, bounds=None, targeted=True)
    carlini = attacks.carlini_wagner(*args, bounds=None, targeted=True, num_steps=50)
    pgd = attacks.pgd(
        linear, params, jax.random.key(0), x, targets,
        eps=np.asarray(deepfool.distance) * 1.05, norm="l2", bounds=None, targeted=True,
    )  # fmt: skip
    for result in (deepfool, carlini, pgd):
        assert result.success.all()
        np.testing.assert_array_equal(result.label, targets)
        np.testing.assert_array_equal(linear(params, result.x_adv).argmax(-1), targets)
        assert (np.asarray(result.distance) >= lower * (1 - 1e-4)).all()


def test_box_blocks_the_cheapest_features():
    # The first feature is the steepest, but stands at its bound: l1 and DeepFool must go around.
    w = jnp.array([[10.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    params = (w, jnp.zeros(2))
    x, labels = np.array([[0.0, 0.4, 0.5]], np.float32), np.array([0])
    # Lead 1.3. Down to 0 the features are worth just that; to -.001, .01 + .802 + the rest.
    want = np.hypot(0.401, 0.488)
    result = attacks.deepfool(linear, params, x, labels, bounds=(0.0, 1.0))
    assert not result.success[0]
    result = attacks.deepfool(linear, params, x, labels, bounds=(-0.001, 1.0))
    assert result.success[0]
    assert abs(float(result.distance[0]) - want) < 0.01 * want
    result = attacks.pgd(
        linear, params, jax.random.key(0), x, labels, eps=0.91, norm="l1", bounds=(-0.001, 1.0)
    )
    assert result.success[0]
