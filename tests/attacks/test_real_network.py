"""A real network: ResNet-32 on CIFAR-10."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust import attacks
from jaxrobust.zoo.resnet import load_cifar10

KEY = jax.random.key(0)


def load(data_dir, num, depth=32):
    """The network and the first ``num`` images that it classes rightly."""
    apply_fn, params = load_cifar10(depth, data_dir)
    with np.load(data_dir / "cifar10_test2000.npz") as data:
        x = jnp.asarray(data["x"][: num + num // 4 + 2] / 255, jnp.float32)
        y = data["y"][: len(x)].astype(np.int32)
    right = np.flatnonzero(np.asarray(jax.jit(apply_fn)(params, x).argmax(-1)) == y)[:num]
    assert len(right) == num
    return apply_fn, params, x[right], y[right]


def test_every_image_falls_and_not_far(data_dir):
    model = load(data_dir, 8, depth=20)
    apply_fn, params, x, y = model
    pgd = attacks.pgd(apply_fn, params, KEY, x, y, eps=8 / 255, num_steps=5)
    assert pgd.success.all()
    deepfool = attacks.deepfool(*model, num_candidates=3)
    assert deepfool.success.all()
    sizes = np.linalg.norm(np.asarray(deepfool.x_adv - x, np.float64).reshape(8, -1), axis=1)
    np.testing.assert_allclose(deepfool.distance, sizes, rtol=1e-5)
    assert 0.02 < sizes.mean() < 0.5
    # The boundary is there: a little less along the same direction and nothing has changed.
    inner = x + 0.99 * (deepfool.x_adv - x)
    assert (apply_fn(params, inner).argmax(-1) == y).all()


@pytest.mark.slow
def test_cross_entropy_slope_is_exact_where_float32_softmax_is_not(data_dir):
    """FGSM in float32 moves as plain cross-entropy does in float64, also for sure predictions."""
    apply_fn, params, x, y = load(data_dir, 40)
    ours = attacks.fgsm(apply_fn, params, x, y, eps=8 / 255)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda v: jnp.asarray(np.asarray(v), jnp.float64), params)
        wide_x = jnp.asarray(np.asarray(x), jnp.float64)

        def loss(v):
            rows = jax.nn.log_softmax(apply_fn(wide, v))
            return -jnp.take_along_axis(rows, jnp.asarray(y).reshape(-1, 1), 1).sum()

        signs = np.asarray(jnp.sign(jax.jit(jax.grad(loss))(wide_x)))
    moved = np.asarray(ours.x_adv) - np.asarray(x)
    free = (np.asarray(ours.x_adv) > 0) & (np.asarray(ours.x_adv) < 1)
    assert (np.sign(moved) == signs)[free].mean() > 0.999


@pytest.mark.slow
def test_pgd_costs_no_more_than_its_gradients(data_dir):
    apply_fn, params, x, y = load(data_dir, 100)

    def loss(x, params):
        rows = jax.nn.log_softmax(apply_fn(params, x))
        return -jnp.take_along_axis(rows, jnp.asarray(y).reshape(-1, 1), 1).sum()

    gradient = jax.jit(jax.grad(loss))

    def bare():
        for _ in range(20):
            jax.block_until_ready(gradient(x, params))

    def whole():
        jax.block_until_ready(attacks.pgd(apply_fn, params, KEY, x, y, eps=8 / 255))

    def seconds(fn):
        start = time.perf_counter()
        fn()
        return time.perf_counter() - start

    bare(), whole()
    # They take turns, so that whatever else the machine does falls on both.
    turns = [(seconds(whole), seconds(bare)) for _ in range(3)]
    assert np.median([a / b for a, b in turns]) < 1.15, turns


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "eps", "step"), [("linf", 8 / 255, 2 / 255), ("l2", 1.0, 0.25)])
def test_dn_is_broader_than_pgd(data_dir, norm, eps, step):
    """Mean noisy risk at kappa* = D^(1/4) of DN is at least three times that of PGD-20."""
    num = 200 if norm == "linf" else 50  # the risk of PGD is small there, and few images decide it
    apply_fn, params, x, y = load(data_dir, num)
    kw = {"eps": eps, "norm": norm}
    dn = attacks.dn(apply_fn, params, KEY, x, y, kappa=10.0, **kw)
    pgd = attacks.pgd(apply_fn, params, KEY, x, y, step_size=step, num_steps=20, **kw)
    order = np.inf if norm == "linf" else 2
    rng = np.random.default_rng(0)
    predict = jax.jit(lambda v: apply_fn(params, v).argmax(-1))

    def risk(result):
        delta = np.asarray(result.x_adv - x).reshape(num, -1)
        kappa = delta.shape[1] ** 0.25
        wrong = []
        for _ in range(16):
            xi = kappa * delta / np.linalg.norm(delta, axis=1, keepdims=True)
            xi = xi + rng.normal(size=delta.shape)
            eta = np.linalg.norm(delta, order, axis=1, keepdims=True) * xi
            eta = eta / np.linalg.norm(xi, order, axis=1, keepdims=True)
            wrong.append(predict(x + eta.reshape(x.shape).astype(np.float32)) != y)
        return np.mean(wrong)

    assert risk(dn) > 3 * risk(pgd)
