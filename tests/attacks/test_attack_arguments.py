"""Bad input is refused by name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust import attacks

W = jnp.ones((2, 3))
X = np.full((4, 2), 0.5, np.float32)
Y = np.array([0, 1, 2, 0])
KEY = jax.random.key(0)


def model(w, x):
    return x @ w


def with_(array, value):
    array = np.array(array)
    array.flat[1] = value
    return array


fgsm = functools.partial(attacks.fgsm, eps=0.1)
pgd = functools.partial(attacks.pgd, eps=0.1)
mesh = jax.make_mesh((2,), ("replicates",), axis_types=(jax.sharding.AxisType.Auto,))
BAD = {
    "x integer": (lambda: fgsm(model, W, X.astype(int), Y), TypeError, "x must be floating"),
    "x one axis": (lambda: fgsm(model, W, X[0], Y), ValueError, "x must have a leading axis"),
    "x empty": (lambda: fgsm(model, W, X[:0], Y[:0]), ValueError, "x must hold at least one"),
    "x NaN": (lambda: fgsm(model, W, with_(X, np.nan), Y), ValueError, "x must be finite"),
    "x outside": (lambda: fgsm(model, W, X + 1, Y), ValueError, "x must lie within bounds"),
    "x below": (
        lambda: fgsm(model, W, X, Y, bounds=(np.array([0.0, 0.6]), 1.0)),
        ValueError,
        r"x must lie within bounds.*index \(0, 1\)",
    ),
    "labels float": (lambda: fgsm(model, W, X, Y * 1.0), TypeError, "labels must be integer"),
    "labels shape": (lambda: fgsm(model, W, X, Y[:3]), ValueError, "labels must have one"),
    "labels high": (lambda: fgsm(model, W, X, with_(Y, 3)), ValueError, "labels must be labels"),
    "labels low": (lambda: fgsm(model, W, X, with_(Y, -1)), ValueError, "labels must be labels"),
    "eps negative": (lambda: pgd(model, W, KEY, X, Y, eps=-1.0), ValueError, "eps must be finite"),
    "eps NaN": (lambda: fgsm(model, W, X, Y, eps=np.nan), ValueError, "eps must be finite"),
    "eps infinite": (lambda: fgsm(model, W, X, Y, eps=np.inf), ValueError, "eps must be finite"),
    "eps shape": (lambda: fgsm(model, W, X, Y, eps=np.ones(3)), ValueError, "eps must be one"),
    "eps text": (lambda: fgsm(model, W, X, Y, eps="big"), TypeError, "eps must be real"),
    "step_size": (
        lambda: pgd(model, W, KEY, X, Y, step_size=-0.1),
        ValueError,
        "step_size must be finite",
    ),
    "norm": (lambda: fgsm(model, W, X, Y, norm="l3"), ValueError, "norm must be one of 'l1'"),
    "norm deepfool": (
        lambda: attacks.deepfool(model, W, X, Y, norm="l1"),
        ValueError,
        "norm must be one of 'l2', 'linf'",
    ),
    "norm carlini_wagner": (
        lambda: attacks.carlini_wagner(model, W, X, Y, norm="l1"),
        ValueError,
        "norm must be one of",
    ),
    "bounds pair": (lambda: fgsm(model, W, X, Y, bounds=0.5), ValueError, "bounds must be None or"),
    "bounds order": (
        lambda: fgsm(model, W, X, Y, bounds=(1.0, 0.0)),
        ValueError,
        "bounds must have lower <= upper",
    ),
    "bounds shape": (
        lambda: fgsm(model, W, X, Y, bounds=(np.zeros(3), 1.0)),
        ValueError,
        r"bounds\[0\] must be a number",
    ),
    "mask dtype": (
        lambda: fgsm(model, W, X, Y, mask=np.ones(2)),
        TypeError,
        "mask must be boolean",
    ),
    "mask shape": (
        lambda: fgsm(model, W, X, Y, mask=np.ones(3, bool)),
        ValueError,
        "mask must be a number",
    ),
    "targeted": (lambda: fgsm(model, W, X, Y, targeted=1), TypeError, "targeted must be True"),
    "loss": (lambda: fgsm(model, W, X, Y, loss="hinge"), ValueError, "loss must be one of"),
    "loss dlr": (
        lambda: fgsm(model, W[:, :2], X, np.zeros(4, int), loss="dlr"),
        ValueError,
        "loss 'dlr' needs",
    ),
    "num_steps": (
        lambda: pgd(model, W, KEY, X, Y, num_steps=0),
        ValueError,
        "num_steps must be at least 1",
    ),
    "num_steps float": (
        lambda: attacks.mi_fgsm(model, W, X, Y, eps=0.1, num_steps=2.0),
        TypeError,
        "num_steps must be a whole",
    ),
    "num_restarts": (
        lambda: pgd(model, W, KEY, X, Y, num_restarts=2, random_start=False),
        ValueError,
        "num_restarts must be 1 without random_start",
    ),
    "num_points": (
        lambda: attacks.dn(model, W, KEY, X, Y, eps=0.1, num_points=0),
        ValueError,
        "num_points must be at least 1",
    ),
    "kappa": (
        lambda: attacks.dn(model, W, KEY, X, Y, eps=0.1, kappa=-1.0),
        ValueError,
        "kappa must be finite",
    ),
    "balance": (
        lambda: attacks.pgn(model, W, KEY, X, Y, eps=0.1, balance=2.0),
        ValueError,
        "balance must be between 0 and 1",
    ),
    "initial_const": (
        lambda: attacks.carlini_wagner(model, W, X, Y, initial_const=0.0),
        ValueError,
        "initial_const must be above zero",
    ),
    "key old": (
        lambda: pgd(model, W, jax.random.PRNGKey(0), X, Y),
        TypeError,
        "key must be a typed PRNG key",
    ),
    "key none": (lambda: pgd(model, W, None, X, Y), TypeError, "key must be a typed PRNG key"),
    "keys": (
        lambda: pgd(model, W, jax.random.split(KEY), X, Y),
        ValueError,
        "key must be one key",
    ),
    "apply_fn": (lambda: fgsm(W, model, X, Y), TypeError, "apply_fn must be a callable"),
    "one output": (
        lambda: fgsm(lambda w, x: jax.nn.sigmoid(x @ w[:, :1]), W, X, Y),
        ValueError,
        r"apply_fn must return.*jaxrobust\.models\.binary",
    ),
    "flat output": (
        lambda: fgsm(lambda w, x: x @ w[:, 0], W, X, Y),
        ValueError,
        r"apply_fn must return.*jaxrobust\.models\.binary",
    ),
    "three axes": (
        lambda: fgsm(lambda w, x: (x @ w).reshape(4, 3, 1), W, X, Y),
        ValueError,
        "apply_fn must return",
    ),
    "chunk_size": (
        lambda: fgsm(model, W, X, Y, chunk_size=0),
        ValueError,
        "chunk_size must be at least 1",
    ),
    "mesh": (lambda: fgsm(model, W, X, Y, mesh="cpu"), ValueError, "mesh must be None or"),
    "mesh axis": (lambda: fgsm(model, W, X, Y, mesh=mesh), ValueError, "axis named 'examples'"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message):
        call()
