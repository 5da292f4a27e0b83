"""Models that run on the host: the same answers as models in JAX, and clear errors."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.tree import DecisionTreeClassifier

import jaxrobust as jr
from jaxrobust.measures.flip.probability import _count

KEY = jax.random.key(3)
UNIT = jr.perturbations.gaussian(1.0)
WEIGHTS = np.array([[0.0, 1.0], [0.0, 2.0]], np.float32)
X = jnp.array([[2.0, 1.0], [0.3, 0.1], [-1.0, 0.4]])


def linear(x):
    return x @ WEIGHTS


def in_jax(params, x):
    return x @ WEIGHTS


def flips(apply_fn, x=X, noise=UNIT, num_samples=500, **kwargs):
    return jr.flip_probability(
        apply_fn, None, KEY, x, perturbation=noise, num_samples=num_samples, **kwargs
    )


@pytest.mark.parametrize("axes", [None, ("replicates",), ("replicates", "examples")])
def test_the_same_flips_as_in_jax(axes):
    shape = {None: None, 1: (4,), 2: (4, 2)}[axes and len(axes)]
    mesh = axes and Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), axes)
    ours = flips(jr.models.from_numpy(linear), mesh=mesh)
    np.testing.assert_array_equal(ours.flips, flips(in_jax).flips)
    assert ours.flips.min() > 0


def test_outputs_through_jit_and_nested_vmap():
    apply_fn = jr.models.from_numpy(linear)
    grid = jnp.stack([jnp.stack([X, 2 * X]), jnp.stack([-X, X + 1])])
    found = jax.jit(jax.vmap(jax.vmap(lambda x: apply_fn(None, x))))(grid)
    np.testing.assert_allclose(found, grid @ WEIGHTS, rtol=1e-6)


def test_a_model_of_probabilities_need_not_be_called_one():
    data = load_iris()
    x, y = data.data.astype(np.float32), data.target
    estimator = LogisticRegression(max_iter=500).fit(x, y)
    adapt = jr.models.from_sklearn
    knows = {
        adapt(estimator): "probabilities",
        adapt(estimator, method="predict"): "probabilities",
        adapt(estimator, method="decision_function"): "logits",
        jr.models.from_numpy(linear, classes=["a", "b"]): "probabilities",
    }
    for told in jr.models.OUTPUTS:
        assert [jr.models.outputs_of(fn, told) for fn in knows] == list(knows.values())
        assert jr.models.outputs_of(jr.models.from_numpy(linear), told) == told
        assert jr.models.outputs_of(in_jax, told) == told
    found = jr.theta_robustness(
        adapt(estimator), None, KEY, x, y, perturbation=UNIT, loss="brier", num_replicates=20
    )
    expected = np.square(estimator.predict_proba(x) - np.eye(3)[y]).sum(axis=1).mean() / 2
    np.testing.assert_allclose(found.baseline, expected, rtol=1e-4)


def test_other_measures_take_it():
    apply_fn = jr.models.from_numpy(linear)
    kwargs = {"perturbation": UNIT, "threshold": 0.3, "max_samples": 1000}
    ours = jr.decide_flip(apply_fn, None, KEY, X, **kwargs)
    np.testing.assert_array_equal(ours.verdict, jr.decide_flip(in_jax, None, KEY, X, **kwargs)[0])
    labels = jnp.array([1, 1, 0])
    losses = [
        jr.theta_robustness(
            fn, None, KEY, X, labels, perturbation=UNIT, loss="brier", num_replicates=20
        ).losses
        for fn in (apply_fn, in_jax)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_an_equal_adapter_does_not_retrace():
    assert jr.models.from_numpy(linear) == jr.models.from_numpy(linear)
    assert jr.models.from_numpy(linear) != jr.models.from_numpy(linear, num_classes=2)
    flips(jr.models.from_numpy(linear))
    before = _count._cache_size()
    flips(jr.models.from_numpy(linear))
    assert _count._cache_size() == before


def test_labels_become_scores():
    names = np.array(["cat", "dog"])
    apply_fn = jr.models.from_numpy(lambda x: names[linear(x).argmax(1)], classes=["cat", "dog"])
    np.testing.assert_array_equal(apply_fn(None, X), np.eye(2)[np.asarray(X @ WEIGHTS).argmax(1)])
    np.testing.assert_array_equal(flips(apply_fn).flips, flips(in_jax).flips)
    with pytest.raises(ValueError, match="predict must return labels out of"):
        jr.models.from_numpy(lambda x: names[[0] * len(x)], classes=["dog", "cow"])(None, X)


def test_decision_trees_against_the_exact_answer():
    data = load_breast_cancer()
    forest = RandomForestClassifier(1, max_depth=6, random_state=0).fit(data.data, data.target)
    alone = DecisionTreeClassifier(random_state=0).fit(data.data, data.target)
    x, errors = data.data[:20].astype(np.float32), data.data[:20, 10:20].astype(np.float32)
    std = np.concatenate([errors, 0 * errors, 0 * errors], axis=1)
    noise = jr.perturbations.gaussian(1.0, feature_scale=std)
    for tree in (alone, forest.estimators_[0]):
        result = flips(jr.models.from_sklearn(tree), x, noise, num_samples=4000)
        exact = jr.exact.tree_gaussian(tree, x, std)
        label = tree.predict_proba(x).argmax(axis=1)
        np.testing.assert_array_equal(result.reference, label)
        flip = 1 - exact[np.arange(20), label]
        error = np.sqrt(flip * (1 - flip) / 4000) + 1e-4
        assert (np.abs(result.probability - flip) < 4 * error).all()
    assert 0.001 < flip.max() < 0.999  # not all of it trivial


def test_a_random_forest_against_a_plain_loop():
    data = load_breast_cancer()
    names = np.array(["malignant", "benign"])[data.target]
    forest = RandomForestClassifier(8, max_depth=4, random_state=0).fit(data.data, names)
    x = data.data[::80].astype(np.float32)
    noise = jr.perturbations.gaussian(0.2, feature_scale=data.data.std(axis=0).astype(np.float32))
    clean = forest.predict(x)
    counts = np.zeros(len(x), int)
    for j in range(20):
        counts += forest.predict(np.asarray(jr.perturb(noise, KEY, x, replicate=j))) != clean
    result = flips(jr.models.from_sklearn(forest), x, noise, num_samples=20)
    np.testing.assert_array_equal(result.flips, counts)
    assert counts.sum() > 0


def test_other_estimators():
    data = load_iris()
    x, y = data.data.astype(np.float32), data.target
    many = LogisticRegression(max_iter=500).fit(x, y)
    two = RidgeClassifier().fit(x[:100], y[:100])
    regressor = RandomForestRegressor(2, random_state=0).fit(x, y)
    adapt = jr.models.from_sklearn
    np.testing.assert_allclose(adapt(many)(None, x), many.predict_proba(x), rtol=1e-5)
    scores = adapt(two, method="decision_function")(None, x)
    np.testing.assert_allclose(scores[:, 1], two.decision_function(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scores.argmax(axis=1), two.predict(x))
    np.testing.assert_array_equal(adapt(two)(None, x).argmax(axis=1), two.predict(x))
    np.testing.assert_allclose(adapt(regressor)(None, x), regressor.predict(x), rtol=1e-6)
    assert adapt(many) == adapt(many)


def test_no_gradient():
    apply_fn = jr.models.from_numpy(linear)
    with pytest.raises(TypeError, match="has no gradient"):
        jax.grad(lambda x: apply_fn(None, x).sum())(X)
    with pytest.raises(TypeError, match="has no gradient"):
        jr.attacks.fgsm(apply_fn, None, X, jnp.array([1, 1, 0]), eps=0.1, bounds=None)


def test_its_own_error_reaches_the_user():
    def never(x):
        raise RuntimeError("the licence of this model ran out")

    def not_far(x):
        if np.abs(x).max() > 100:
            raise RuntimeError("input out of range: recalibrate")
        return linear(x)

    def too_many(x):
        return linear(x) if np.abs(x).max() == 0 else np.zeros((len(x), 3))

    with pytest.raises(RuntimeError, match="licence of this model ran out"):
        flips(jr.models.from_numpy(never))
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of range: recalibrate"):
        jax.block_until_ready(flips(jr.models.from_numpy(not_far), 1000 * X))
    with pytest.raises(jax.errors.JaxRuntimeError, match="predict must return scores"):
        jax.block_until_ready(flips(jr.models.from_numpy(too_many)))


@pytest.mark.parametrize(
    ("predict", "match"),
    [
        (lambda x: linear(x)[:1], "predict must return scores"),
        (lambda x: linear(x)[..., None], "predict must return scores"),
        (lambda x: linear(x).argmax(1), "classes or num_classes"),
        (lambda x: linear(x) + 1j, "predict must return floating-point"),
        (lambda x: None, "predict must return floating-point"),
        (lambda x: linear(x)[:, :1], r"models\.binary"),
    ],
)
def test_wrong_results(predict, match):
    with pytest.raises(ValueError, match=match):
        flips(jr.models.from_numpy(predict))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: jr.models.from_numpy(3), TypeError, "predict must be a callable"),
        (lambda: jr.models.from_numpy(linear, num_classes=1), ValueError, "num_classes"),
        (lambda: jr.models.from_numpy(linear, num_classes=2.0), TypeError, "num_classes"),
        (lambda: jr.models.from_numpy(linear, classes=[1, 1]), ValueError, "classes must be"),
        (lambda: jr.models.from_numpy(linear, classes=[0, 1], num_classes=2), ValueError,
         "classes and num_classes"),
        (lambda: jr.models.from_sklearn("tree"), TypeError, "estimator must be a fitted"),
        (lambda: jr.models.from_sklearn(DecisionTreeClassifier), TypeError, "estimator must be"),
        (lambda: jr.models.from_sklearn(DecisionTreeClassifier()), ValueError, "fitted first"),
        (lambda: jr.models.from_sklearn(RidgeClassifier(), method="predict_proba"), TypeError,
         "with the method predict_proba"),
        (lambda: jr.models.from_sklearn(RidgeClassifier(), method="score"), ValueError, "method"),
    ],
)  # fmt: skip
def test_misuse(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.fixture
def onnx_file(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the import itself
        onnx = pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"]),
         helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0)],
        "linear",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [None, 2])],
        [helper.make_tensor_value_info("label", kinds.INT64, [None]),
         helper.make_tensor_value_info("scores", kinds.FLOAT, [None, 2])],
        [onnx.numpy_helper.from_array(WEIGHTS, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "linear.onnx"
    onnx.save(model, path)
    return path


def test_onnx(onnx_file):
    apply_fn = jr.models.from_onnx(onnx_file)
    np.testing.assert_array_equal(flips(apply_fn).flips, flips(in_jax).flips)
    assert apply_fn == jr.models.from_onnx(str(onnx_file), output=None)
    with pytest.raises(ValueError, match="output must be one of"):
        jr.models.from_onnx(onnx_file, output="label")
    onnx_file.write_bytes(b"not a model")
    with pytest.raises(ValueError, match="path must be a model"):
        jr.models.from_onnx(onnx_file)
    with pytest.raises(FileNotFoundError):
        jr.models.from_onnx(onnx_file.with_name("none.onnx"))


def test_onnx_runtime_is_optional(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ImportError, match="pip install onnxruntime"):
        jr.models.from_onnx(tmp_path / "any.onnx")
