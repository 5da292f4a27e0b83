"""The gradient family against slow plain loops, one example and one step at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust import attacks
from jaxrobust.attacks import _geometry

RNG = np.random.default_rng(0)
NUM, DIM, K = 3, 6, 4
PARAMS = (
    jnp.asarray(RNG.normal(size=(DIM, 8)), jnp.float32),
    jnp.asarray(RNG.normal(size=(8, K)), jnp.float32),
)
X = RNG.uniform(0.1, 0.9, size=(NUM, DIM)).astype(np.float32)
KEY = jax.random.key(3)
EPS = 0.15


def mlp(params, x):
    return jnp.tanh(x @ params[0]) @ params[1]


Y = np.asarray(mlp(PARAMS, jnp.asarray(X)).argmax(-1))


@jax.jit
def slope(x, y):
    """Gradient of plain cross-entropy at one example."""
    return jax.grad(lambda v: -jax.nn.log_softmax(mlp(PARAMS, v.reshape(1, -1)))[0, y])(x)


def at(x, y):
    return np.asarray(slope(jnp.asarray(x, jnp.float32), y), np.float64)


def move(g, norm, size):
    return size * (np.sign(g) if norm == "linf" else g / np.linalg.norm(g))


def back(x, v, norm):
    delta = v - x
    if norm == "linf":
        delta = np.clip(delta, -EPS, EPS)
    else:
        delta = delta * min(1, EPS / np.linalg.norm(delta))
    return np.clip(x + delta, 0, 1)


def mean_one(g):
    return g / np.abs(g).mean()


def draws(i, *path):
    """The key of example i, and what is folded into it after."""
    key = jax.random.fold_in(jax.random.fold_in(KEY, 0), i)
    for data in path:
        key = jax.random.fold_in(key, data)
    return key


def one(sampler, key, *args):
    """A private sampler of the library (tested on its own) for a single example."""
    return np.asarray(sampler(key[None], jnp.zeros((1, DIM)), *args)[0], np.float64)


ONES = jnp.ones((1, 1))


def ball(key, norm):
    return one(_geometry.draw_ball, key, norm, ONES)


def loop(i, norm, start, num_steps, gradient, step):
    x, y = X[i].astype(np.float64), int(Y[i])
    v, velocity = start.copy(), np.zeros(DIM)
    for t in range(num_steps):
        g = gradient(x, y, v, t, i)
        delta, velocity = step(g, velocity)
        v = back(x, v + delta, norm)
    return v


def plain(x, y, v, t, i):
    return at(v, y)


def momentum(norm, size):
    def step(g, velocity):
        velocity = velocity + mean_one(g)
        return move(velocity, norm, size), velocity

    return step


def check(result, expected):
    np.testing.assert_allclose(result.x_adv, np.stack(expected), atol=2e-5)
    label = np.asarray(mlp(PARAMS, result.x_adv).argmax(-1))
    np.testing.assert_array_equal(result.label, label)
    np.testing.assert_array_equal(result.success, label != Y)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_fgsm(norm):
    result = attacks.fgsm(mlp, PARAMS, X, Y, eps=EPS, norm=norm)
    step = lambda g, m: (move(g, norm, EPS), m)  # noqa: E731
    check(result, [loop(i, norm, X[i], 1, plain, step) for i in range(NUM)])


@pytest.mark.parametrize(("norm", "start"), [("l2", True), ("linf", False)])
def test_pgd(norm, start):
    result = attacks.pgd(
        mlp, PARAMS, KEY, X, Y, eps=EPS, norm=norm, step_size=0.04, num_steps=7, random_start=start
    )
    step = lambda g, m: (move(g, norm, 0.04), m)  # noqa: E731
    starts = [
        np.clip(X[i] + start * EPS * ball(draws(i), norm), 0, 1).astype(np.float64)
        for i in range(NUM)
    ]
    check(result, [loop(i, norm, starts[i], 7, plain, step) for i in range(NUM)])


@pytest.mark.parametrize("norm", ["l2"])
def test_mi_fgsm(norm):
    result = attacks.mi_fgsm(mlp, PARAMS, X, Y, eps=EPS, norm=norm, num_steps=5)
    check(result, [loop(i, norm, X[i], 5, plain, momentum(norm, EPS / 5)) for i in range(NUM)])


@pytest.mark.parametrize("norm", ["linf"])
def test_pgn(norm):
    size = EPS / 3

    def gradient(x, y, v, t, i):
        total = 0
        for j in range(2):
            near = v + 3 * EPS * ball(draws(i, t, j), norm)
            first = at(near, y)
            scaled = mean_one(first) if norm == "linf" else move(first, norm, 1)
            total = total + (first + at(near - size * scaled, y)) / 2
        return total / 2

    result = attacks.pgn(mlp, PARAMS, KEY, X, Y, eps=EPS, norm=norm, num_steps=3, num_points=2)
    check(result, [loop(i, norm, X[i], 3, gradient, momentum(norm, size)) for i in range(NUM)])


@pytest.mark.parametrize(
    ("norm", "normalize"),
    [("l2", False), ("linf", False), pytest.param("l2", True, marks=pytest.mark.slow)],
)
def test_dn(norm, normalize):
    size, kappa = EPS / 3, 4.0
    order = np.inf if norm == "linf" else 2

    def gradient(x, y, v, t, i):
        total = 0
        for j in range(2):
            for_ball, for_sphere = jax.random.split(draws(i, t, j))
            if t == 0:
                eta = EPS * ball(for_ball, norm)
            else:
                delta = v - x
                xi = kappa * delta / np.linalg.norm(delta)
                xi = xi + one(_geometry.draw_normal, for_sphere, ONES)
                eta = np.linalg.norm(delta, order) * xi / np.linalg.norm(xi, order)
            total = total + at(np.clip(x + eta, 0, 1), y)
        return total / 2

    def step(g, velocity):
        velocity = velocity + move(g, norm, 1)
        return (move(velocity, norm, size) if normalize else size * velocity), velocity

    result = attacks.dn(
        mlp, PARAMS, KEY, X, Y,
        eps=EPS, norm=norm, kappa=kappa, num_steps=3, num_points=2, normalize_step=normalize,
    )  # fmt: skip
    check(result, [loop(i, norm, X[i], 3, gradient, step) for i in range(NUM)])


def test_restarts_keep_the_worst():
    kw = {"eps": 0.1, "num_steps": 2, "step_size": 0.01, "loss": "margin"}
    single = [
        attacks.pgd(mlp, PARAMS, KEY, X, Y, num_restarts=r, **kw) for r in (1, 3)
    ]  # fmt: skip

    def lead(result):
        logits = np.array(mlp(PARAMS, result.x_adv))
        rows = np.arange(NUM)
        own = logits[rows, Y]
        logits[rows, Y] = -np.inf
        return logits.max(-1) - own

    leads = [lead(r) for r in single]
    assert (leads[1] >= leads[0]).all()
    assert (leads[1] > leads[0]).any()


def test_callable_loss():
    def negative_own(logits, labels):
        return -jnp.take_along_axis(logits, labels.reshape(-1, 1), 1)[:, 0]

    result = attacks.fgsm(mlp, PARAMS, X, Y, eps=EPS, loss=negative_own)
    g = jax.grad(lambda v: negative_own(mlp(PARAMS, v), jnp.asarray(Y)).sum())(jnp.asarray(X))
    np.testing.assert_allclose(result.x_adv, np.clip(X + EPS * np.sign(g), 0, 1), atol=1e-6)
