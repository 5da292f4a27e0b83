"""What the preflight says of models with one fault each."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr

X = np.asarray(jax.random.uniform(jax.random.key(0), (12, 4)), np.float32)
W = jax.random.normal(jax.random.key(1), (4, 3))


def linear(w, x):
    return x @ w


def with_batch_statistics(w, x):
    return (x - x.mean(0, keepdims=True)) @ w


def staircase(w, x):
    return jnp.round(4 * x) / 4 @ w


def half_flat(w, x):
    return jnp.where(jnp.arange(x.shape[0])[:, None] % 2 == 0, 1.0, 0.0) * (x @ w)


def hidden_random(w, x):
    return x @ w + np.random.default_rng().normal(size=(x.shape[0], 1)).astype(np.float32)


class WithDropout(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x))


def codes(found):
    return [finding.code for finding in found.findings]


@pytest.mark.parametrize(
    ("apply_fn", "code", "ok"),
    [
        (linear, None, True),
        (with_batch_statistics, "batch", False),
        (staircase, "zero gradients", True),
        (hidden_random, "random", False),
        (lambda w, x: jax.nn.softmax(x @ w), "probabilities", True),
        (lambda w, x: x @ w[:, :1], "one column", True),
        (lambda w, x: x @ w[:, 0], "one column", True),
        (lambda w, x: jnp.log(x @ w), "non-finite outputs", False),
    ],
)
def test_each_fault_is_found_alone(apply_fn, code, ok):
    found = jr.check_model(apply_fn, W, X)
    assert codes(found) == ([code] if code else [])
    assert found.ok is ok
    assert all(f.message.endswith(".") and f.advice for f in found.findings)


def test_dropout_with_a_fixed_key_depends_on_the_batch():
    model = WithDropout()
    key = jax.random.key(0)
    params = model.init({"params": key, "dropout": key}, X)

    def apply_fn(params, x):
        return model.apply(params, x, rngs={"dropout": key})

    found = jr.check_model(apply_fn, params, X)
    assert found.call_difference == 0
    assert codes(found) == ["batch"]


def test_one_example_is_compared_in_other_company():
    assert codes(jr.check_model(with_batch_statistics, W, X[:1])) == ["batch", "zero gradients"]
    assert codes(jr.check_model(linear, W, X[:1])) == []


def test_share_of_zero_gradients():
    found = jr.check_model(half_flat, W, X)
    assert found.zero_gradient == 0.5


def test_a_masked_class_is_not_a_fault():
    found = jr.check_model(lambda w, x: (x @ w).at[:, 2].set(-jnp.inf), W, X)
    assert found.num_nonfinite == 0
    assert found.ok


def test_bounds_and_labels():
    labels = np.argmax(X @ np.asarray(W), axis=1)
    found = jr.check_model(linear, W, X, labels=labels, bounds=(0.0, 1.0))
    assert found.accuracy == 1.0
    assert codes(found) == []
    bad = jr.check_model(linear, W, X, labels=(labels + 1) % 3, bounds=(0.0, X.max() - 1e-3))
    assert codes(bad) == ["out of bounds", "accuracy"]
    assert bad.num_out_of_bounds == 1


def test_black_box_has_no_gradients():
    model = jr.models.from_numpy(lambda x: np.asarray(x) @ np.asarray(W))
    found = jr.check_model(model, None, X)
    assert codes(found) == ["no gradient"]


def test_a_model_that_is_not_traceable_is_told_of_from_numpy():
    for apply_fn in (
        lambda w, x: np.asarray(x) @ np.asarray(w),
        lambda w, x: x @ w if x.sum() > 0 else -x @ w,
    ):
        with pytest.raises(TypeError, match=r"apply_fn must be traceable.*from_numpy"):
            jr.check_model(apply_fn, W, X)
        with pytest.raises(TypeError, match=r"apply_fn must be traceable.*from_numpy"):
            jr.flip_probability(
                apply_fn, W, jax.random.key(0), X, perturbation=jr.perturbations.gaussian(0.1)
            )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"apply_fn": "linear"}, TypeError, "apply_fn must be a callable"),
        ({"x": X[0]}, ValueError, "x must have a leading axis"),
        ({"x": X[:0]}, ValueError, "x must hold at least one"),
        ({"x": np.where(X > 0.9, np.nan, X)}, ValueError, "x must be finite"),
        ({"labels": np.zeros(3, int)}, ValueError, "labels must have one label for each"),
        ({"labels": np.full(12, 3)}, ValueError, "labels must be labels from 0 to 2"),
        ({"labels": np.zeros(12)}, TypeError, "labels must be integer"),
        ({"bounds": (np.zeros(3), 1.0)}, ValueError, "bounds.0. must be a number"),
        ({"max_examples": 0}, ValueError, "max_examples"),
    ],
)
def test_bad_arguments_are_named(arguments, error, message):
    given = {"apply_fn": linear, "params": W, "x": X, **arguments}
    with pytest.raises(error, match=message):
        jr.check_model(given.pop("apply_fn"), given.pop("params"), given.pop("x"), **given)


def test_not_inside_a_trace():
    with pytest.raises(TypeError, match="x must be concrete"):
        jax.jit(lambda x: jr.check_model(linear, W, x).accuracy)(X)


def test_what_a_model_raises_is_kept_and_told_how_it_was_called():
    linen = pytest.importorskip("flax.linen")
    module = linen.Dense(3)
    x = jnp.ones((4, 2))
    variables = module.init(jax.random.key(0), x)
    jr.models.num_classes(module.apply, variables, x)
    with pytest.raises(Exception, match="dictionary of collections") as caught:
        jr.models.num_classes(module.apply, variables["params"], x)
    notes = "".join(caught.value.__notes__)
    assert "x of shape (4, 2) and params of type dict" in notes
    assert "train=False" in notes
