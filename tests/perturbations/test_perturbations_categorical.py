"""Confusion of categories against its own table, and through a model against exact sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr

TABLE = np.array([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], np.float32)
N = 4000


def one_hot(code):
    return np.eye(3, dtype=np.float32)[code]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_one_hot_and_codes_follow_the_table(code):
    hot = np.tile(np.append(one_hot(code), 9.0), (N, 1)).astype(np.float32)
    noise = jr.perturbations.confusion(TABLE, columns=(0, 1, 2))
    x_hat = np.asarray(jr.perturb(noise, jax.random.key(code), hot))
    assert (x_hat[:, 3] == 9).all()
    assert (x_hat[:, :3].sum(axis=1) == 1).all()
    share = x_hat[:, :3].mean(axis=0)
    error = np.sqrt(TABLE[code] * (1 - TABLE[code]) / N)
    assert (np.abs(share - TABLE[code]) <= 4 * error).all()  # exact where it is 0 or 1

    coded = np.full((N, 2), code, np.float32)
    noise = jr.perturbations.confusion(TABLE, columns=1)
    again = np.asarray(jr.perturb(noise, jax.random.key(code), coded))
    np.testing.assert_array_equal(again[:, 1], x_hat[:, :3].argmax(axis=1))  # the same draws
    assert (again[:, 0] == code).all()


def test_each_example_its_own_table():
    tables = np.stack([np.eye(3), np.eye(3)[[1, 2, 0]]]).astype(np.float32)
    noise = jr.perturbations.confusion(tables, columns=(0, 1, 2))
    x = np.stack([one_hot(0), one_hot(0)])
    np.testing.assert_array_equal(
        jr.perturb(noise, jax.random.key(0), x), np.stack([one_hot(0), one_hot(1)])
    )


def test_an_unknown_category_stays():
    noise = jr.perturbations.confusion(TABLE, columns=(0, 1, 2))
    assert not np.asarray(jr.perturb(noise, jax.random.key(0), np.zeros((5, 3), np.float32))).any()
    coded = jr.perturbations.confusion(TABLE, columns=0)
    x = np.array([[-1.0, 0.0], [3.0, 0.0]], np.float32)
    np.testing.assert_array_equal(jr.perturb(coded, jax.random.key(0), x), x)


def test_flips_of_two_confused_features_are_the_exact_sum():
    x = np.concatenate([one_hot([0, 1]), one_hot([0, 2])], axis=1)
    w = np.array([1.0, -1.0, 0.3, 0.6, -0.2, -0.8], np.float32)
    noise = jr.perturbations.chain(
        jr.perturbations.confusion(TABLE, columns=(0, 1, 2)),
        jr.perturbations.confusion(TABLE, columns=(3, 4, 5)),
    )
    found = jr.flip_probability(
        lambda w, x: jnp.stack([0 * x[:, 0], x @ w], axis=1), w, jax.random.key(1), x,
        perturbation=noise, num_samples=N,
    )  # fmt: skip
    for i, (a, b) in enumerate(((0, 0), (1, 2))):
        label = w[a] + w[3 + b] > 0
        margins = w[:3, None] + w[None, 3:]
        exact = np.sum(TABLE[a][:, None] * TABLE[b][None, :] * ((margins > 0) != label))
        error = np.sqrt(exact * (1 - exact) / N)
        assert abs(found.probability[i] - exact) <= 4 * error


@pytest.mark.parametrize(
    ("table", "columns", "error", "message"),
    [
        (np.ones((3, 2)), (0, 1, 2), ValueError, "table must be square"),
        (np.ones((1, 1)), 0, ValueError, "table must be square"),
        (2 * np.eye(3), (0, 1, 2), ValueError, "table must be probabilities"),
        (np.full((3, 3), np.nan), (0, 1, 2), ValueError, "table must be probabilities"),
        (0.5 * np.eye(3), (0, 1, 2), ValueError, "table must be rows"),
        ("table", 0, TypeError, "table must be real numbers"),
        (TABLE, (0, 1), ValueError, "columns must be one column"),
        (TABLE, (0, 1, 1), ValueError, "columns must be one column"),
        (TABLE, (-1, 0, 1), ValueError, "columns must be one column"),
        (TABLE, (0.0, 1.0, 2.0), TypeError, "columns must be one whole number"),
    ],
)
def test_bad_arguments_are_named(table, columns, error, message):
    with pytest.raises(error, match=message):
        jr.perturbations.confusion(table, columns=columns)


def test_columns_beyond_the_example_are_refused():
    noise = jr.perturbations.confusion(TABLE, columns=(0, 1, 3))
    with pytest.raises(ValueError, match="columns must be features of one example, from 0 to 2"):
        jr.perturb(noise, jax.random.key(0), np.zeros((2, 3), np.float32))
