"""Networks: shapes, standardisation, training that repeats, and the papers' baselines."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrobust import zoo
from jaxrobust.zoo import networks

# Levene & Harris 2026. Errors and Brier scores to within 35%; accuracies to within their
# binomial error on evaluation sets of this size, which is larger than 0.02 for heart.
REGRESSION = {"oecd-cancer": 10.19, "oecd-flu": 12.82}
CLASSIFICATION = {"heart": (0.853, 0.106, 0.03), "breast-cancer": (0.972, 0.0203, 0.02)}


@functools.cache
def _iris_model(seed=0):
    return zoo.load_model("iris", jax.random.key(seed))


def _small(data, rows=300):
    """The first rows of a data set's training part."""
    return dataclasses.replace(data, x_train=data.x_train[:rows], y_train=data.y_train[:rows])


def test_every_data_set_has_a_spec_and_the_papers_widths():
    assert set(networks._SPECS) == set(zoo.datasets.names())
    assert zoo.spec("oecd-cancer").hidden == (64, 32)
    assert zoo.spec("oecd-flu").hidden == (64, 32)
    assert zoo.spec("oecd-flu").activation is nn.tanh
    assert zoo.spec("heart").hidden == (16, 8)
    assert zoo.spec("breast-cancer").hidden == (32, 16)
    assert zoo.spec("mnist").hidden == (512, 256, 128)
    relu = [n for n in zoo.datasets.names() if zoo.spec(n).activation is nn.relu]
    assert set(relu) == set(zoo.datasets.names()) - {"oecd-flu"}


@pytest.mark.parametrize("activation", [nn.relu, nn.tanh])
@pytest.mark.parametrize("regression", [False, True])
def test_mlp_equals_a_plain_matrix_product(activation, regression):
    mlp = zoo.MLP((5, 4, 1 if regression else 3), activation, regression)
    x = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    variables = mlp.init(jax.random.key(0), x)
    fixed = {"x_mean": jnp.array([1.0, -2.0]), "x_scale": jnp.array([0.5, 3.0])}
    if regression:
        fixed |= {"y_mean": jnp.float32(7.0), "y_scale": jnp.float32(2.0)}
    assert set(variables["standardization"]) == set(fixed)
    got = mlp.apply({**variables, "standardization": fixed}, x)
    h = (x - np.array([1.0, -2.0])) / np.array([0.5, 3.0])
    host = {nn.relu: lambda v: np.maximum(v, 0), nn.tanh: np.tanh}[activation]
    layers = [variables["params"][f"Dense_{i}"] for i in range(3)]
    for i, layer in enumerate(layers):
        h = h @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])[None]
        h = host(h) if i < 2 else h
    expected = 2.0 * h[:, 0] + 7.0 if regression else h
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_mlp_in_regression_refuses_more_than_one_output():
    with pytest.raises(ValueError, match="features must end in 1"):
        zoo.MLP((4, 2), regression=True).init(jax.random.key(0), jnp.ones((1, 3)))


def test_trained_model_has_the_documented_fields():
    model = _iris_model()
    data = model.dataset
    logits = model.apply_fn(model.params, data.x_test)
    assert logits.shape == (38, 3)
    assert logits.dtype == jnp.float32
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(model.params))
    assert model.train_loss.shape == (zoo.spec("iris").num_steps,)
    assert bool(model.converged)
    probabilities = np.asarray(jax.nn.softmax(logits), np.float64)
    brier = np.mean(
        [
            np.sum((np.eye(3)[y] - p) ** 2) / 2
            for y, p in zip(data.y_test, probabilities, strict=True)
        ]
    )
    assert float(model.baseline) == pytest.approx(brier, rel=1e-5)
    accuracy = np.mean(probabilities.argmax(axis=1) == data.y_test)
    assert float(model.accuracy) == pytest.approx(accuracy, abs=1e-6)


def test_standardization_is_that_of_the_training_columns():
    data = zoo.datasets.load("digits")
    model = zoo.train(jax.random.key(0), data, hidden=(4,), num_steps=1)
    got = model.params["standardization"]
    wide = data.x_train.astype(np.float64)
    scale = wide.std(axis=0)
    np.testing.assert_allclose(got["x_mean"], wide.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(got["x_scale"], np.where(scale == 0, 1, scale), rtol=1e-6)
    yes_no = dataclasses.replace(data, numeric=np.arange(64) != 20)
    kept = zoo.train(jax.random.key(0), yes_no, hidden=(4,), num_steps=1)
    assert float(kept.params["standardization"]["x_mean"][20]) == 0
    assert float(kept.params["standardization"]["x_scale"][20]) == 1
    np.testing.assert_array_equal(kept.params["standardization"]["x_mean"][21:], got["x_mean"][21:])
    raw = zoo.train(jax.random.key(0), data, hidden=(4,), num_steps=1, standardize=False)
    np.testing.assert_array_equal(raw.params["standardization"]["x_mean"], 0)
    np.testing.assert_array_equal(raw.params["standardization"]["x_scale"], 1)


def test_training_repeats_bit_for_bit_and_differs_between_keys():
    first, again = _iris_model(0), zoo.load_model("iris", jax.random.key(0))
    chex.assert_trees_all_equal(first.params, again.params)
    chex.assert_trees_all_equal(first.train_loss, again.train_loss)
    other = _iris_model(1)
    kernel = first.params["params"]["Dense_0"]["kernel"]
    assert not np.array_equal(kernel, other.params["params"]["Dense_0"]["kernel"])


def test_apply_fn_is_shared_and_new_weights_never_retrace():
    first, other = _iris_model(0), _iris_model(1)
    assert first.apply_fn is other.apply_fn
    assert hash(first.apply_fn) == hash(other.apply_fn)

    @functools.partial(jax.jit, static_argnames="apply_fn")
    @chex.assert_max_traces(n=1)
    def predict(apply_fn, params, x):
        return apply_fn(params, x)

    outputs = [predict(m.apply_fn, m.params, m.dataset.x_test) for m in (first, other)]
    np.testing.assert_allclose(
        outputs[1], other.apply_fn(other.params, other.dataset.x_test), rtol=1e-5, atol=1e-5
    )
    assert not np.array_equal(*outputs)
    wine = zoo.load_model("wine", jax.random.key(0))
    assert wine.apply_fn is first.apply_fn  # 3 classes and (16, 8) as well
    deeper = zoo.train(jax.random.key(0), first.dataset, hidden=(8,), num_steps=1)
    assert deeper.apply_fn != first.apply_fn


def test_new_keys_and_rates_reuse_the_compiled_training():
    data = zoo.datasets.load("iris")

    def run(seed, learning_rate, weight_decay):
        return zoo.train(
            jax.random.key(seed),
            data,
            hidden=(3,),
            num_steps=2,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
        )

    run(0, 1e-3, 0.0)
    compiled = networks._fit._cache_size()
    run(1, 1e-2, 0.1)
    run(2, jnp.float32(0.5), 1)
    assert networks._fit._cache_size() == compiled


def test_an_ensemble_trains_under_vmap_and_in_jit():
    data = zoo.datasets.load("iris")
    keys = jax.vmap(jax.random.key)(jnp.arange(3))

    def params_of(key):
        return zoo.train(key, data, hidden=(3,), num_steps=5).params["params"]

    together = jax.jit(jax.vmap(params_of))(keys)
    for i in range(3):
        one = params_of(keys[i])
        chex.assert_trees_all_close(jax.tree.map(lambda a: a[i], together), one, atol=1e-5)  # noqa: B023


def test_full_batch_training_equals_a_plain_loop():
    data = zoo.datasets.load("iris")
    key, steps, rate, decay = jax.random.key(3), 6, 0.05, 0.2
    model = zoo.train(
        key, data, hidden=(4,), activation=nn.tanh, num_steps=steps, batch_size=None,
        learning_rate=rate, weight_decay=decay,
    )  # fmt: skip
    mlp = zoo.MLP((4, 3), nn.tanh)
    fixed = model.params["standardization"]
    params = jax.jit(mlp.init)(jax.random.split(key)[0], data.x_train[:1])["params"]

    def loss_fn(params):
        logits = mlp.apply({"params": params, "standardization": fixed}, data.x_train)
        plain = optax.softmax_cross_entropy_with_integer_labels(logits, data.y_train).mean()
        penalty = 0.5 * decay * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return plain + penalty, plain

    leaves, structure = jax.tree.flatten(params)
    gradient_fn = jax.jit(jax.grad(loss_fn, has_aux=True))
    weights = [np.asarray(leaf, np.float64) for leaf in leaves]
    first, second = [0.0] * len(weights), [0.0] * len(weights)
    losses = []
    for step in range(steps):
        gradient, plain = gradient_fn(
            jax.tree.unflatten(structure, [w.astype(np.float32) for w in weights])
        )
        losses.append(float(plain))
        size = rate * 0.5 * (1 + np.cos(np.pi * step / steps))
        for j, leaf in enumerate(jax.tree.leaves(gradient)):
            g = np.asarray(leaf, np.float64)
            first[j] = 0.9 * first[j] + 0.1 * g
            second[j] = 0.999 * second[j] + 0.001 * g**2
            mean = first[j] / (1 - 0.9 ** (step + 1))
            square = second[j] / (1 - 0.999 ** (step + 1))
            weights[j] = weights[j] - size * mean / (np.sqrt(square) + 1e-8)
    params = jax.tree.unflatten(structure, weights)
    np.testing.assert_allclose(model.train_loss, losses, rtol=1e-4)
    chex.assert_trees_all_close(model.params["params"], params, rtol=1e-3, atol=1e-4)


def test_minibatches_are_drawn_from_the_whole_training_set():
    # Sorted by class: a network that saw only the first rows would never learn the last class.
    data = zoo.datasets.load("iris")
    order = np.argsort(data.y_train, kind="stable")
    data = dataclasses.replace(data, x_train=data.x_train[order], y_train=data.y_train[order])
    model = zoo.train(jax.random.key(0), data, hidden=(16,), num_steps=400, batch_size=8,
                      learning_rate=1e-2)  # fmt: skip
    logits = model.apply_fn(model.params, data.x_train)
    per_class = [np.mean(np.asarray(logits.argmax(1))[data.y_train == k] == k) for k in range(3)]
    assert min(per_class) > 0.85


def test_training_that_runs_into_infinities_says_so():
    data = zoo.datasets.load("iris")
    model = zoo.train(jax.random.key(0), data, hidden=(4,), num_steps=20, learning_rate=1e38)
    assert not bool(model.converged)


def test_no_hidden_layer_is_a_linear_model():
    model = zoo.train(jax.random.key(0), zoo.datasets.load("iris"), hidden=(), num_steps=3)
    assert set(model.params["params"]) == {"Dense_0"}


def test_training_and_prediction_with_x64():
    data = zoo.datasets.load("iris")
    with jax.enable_x64(True):
        model = zoo.train(jax.random.key(0), data, hidden=(4,), num_steps=20)
        logits = model.apply_fn(model.params, data.x_test.astype(np.float64))
    assert bool(model.converged)
    assert logits.dtype == jnp.float64


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(key=jnp.zeros(2, jnp.uint32)), TypeError, "key must be a typed PRNG key"),
        (dict(dataset="iris"), TypeError, "dataset must be a Dataset"),
        (dict(hidden=8), TypeError, "hidden must be a sequence"),
        (dict(hidden=(8, 0)), ValueError, "hidden must be at least 1"),
        (dict(hidden=(8.0,)), TypeError, "hidden must be a whole number"),
        (dict(activation="relu"), TypeError, "activation must be a function"),
        (dict(num_steps=0), ValueError, "num_steps must be at least 1"),
        (dict(batch_size=0), ValueError, "batch_size must be at least 1"),
        (dict(learning_rate=0.0), ValueError, "learning_rate must be finite and above 0"),
        (dict(learning_rate=float("nan")), ValueError, "learning_rate must be finite"),
        (dict(weight_decay=-1.0), ValueError, "weight_decay must be finite and not negative"),
    ],
)
def test_bad_arguments_of_train(change, error, message):
    arguments = dict(key=jax.random.key(0), dataset=zoo.datasets.load("iris"), hidden=(4,)) | change
    with pytest.raises(error, match=message):
        zoo.train(arguments.pop("key"), arguments.pop("dataset"), **arguments)


@pytest.mark.parametrize(
    "function", [zoo.spec, lambda name: zoo.load_model(name, jax.random.key(0))]
)
def test_unknown_names_are_refused(function):
    with pytest.raises(ValueError, match="Did you mean 'heart'"):
        function("hearts")


def test_load_model_needs_a_typed_key():
    with pytest.raises(TypeError, match="key must be a typed PRNG key"):
        zoo.load_model("iris", 0)


@pytest.mark.parametrize("name", REGRESSION)
def test_regression_baselines_are_near_the_papers(name, data_dir):
    for seed in range(3):
        model = zoo.load_model(name, jax.random.key(seed), data_dir=data_dir)
        assert model.accuracy is None
        predicted = model.apply_fn(model.params, model.dataset.x_test)
        assert predicted.shape == (31,)
        mse = np.mean((np.asarray(predicted, np.float64) - model.dataset.y_test) ** 2)
        assert float(model.baseline) == pytest.approx(mse, rel=1e-4)
        assert mse == pytest.approx(REGRESSION[name], rel=0.35)


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_classification_baselines_are_near_the_papers(name, request):
    data_dir = None if name == "breast-cancer" else request.getfixturevalue("data_dir")
    accuracy, brier, tolerance = CLASSIFICATION[name]
    for seed in range(3):
        model = zoo.load_model(name, jax.random.key(seed), data_dir=data_dir)
        assert float(model.accuracy) == pytest.approx(accuracy, abs=tolerance)
        assert float(model.baseline) == pytest.approx(brier, rel=0.35)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("iris", 0.85),
        ("wine", 0.9),
        pytest.param("digits", 0.95, marks=pytest.mark.slow),
        pytest.param("ionosphere", 0.88, marks=pytest.mark.slow),
    ],
)
def test_the_other_data_sets_are_learned(name, least, request):
    data_dir = request.getfixturevalue("data_dir") if name == "ionosphere" else None
    model = zoo.load_model(name, jax.random.key(0), data_dir=data_dir)
    assert float(model.accuracy) >= least


def test_mnist_is_learned_from_a_part_in_a_few_steps(data_dir):
    data = _small(zoo.datasets.load("mnist", data_dir=data_dir), rows=5000)
    spec = zoo.spec("mnist")._replace(num_steps=60, batch_size=128)
    model = zoo.train(jax.random.key(0), data, **spec._asdict())
    assert model.apply_fn(model.params, data.x_test).shape == (1000, 10)
    assert float(model.accuracy) > 0.85


@pytest.mark.slow
def test_mnist_baseline_is_near_the_papers(data_dir):
    model = zoo.load_model("mnist", jax.random.key(0), data_dir=data_dir)
    assert float(model.accuracy) == pytest.approx(0.979, abs=0.02)
    assert float(model.baseline) == pytest.approx(0.0137, rel=0.35)
