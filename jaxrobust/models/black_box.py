"""Models that are not written in JAX, called back on the host: every measure, no gradients."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import _checks
from jaxrobust.models.checks import OUTPUTS, ApplyFn

Array = jax.Array

_METHODS = ("predict_proba", "decision_function", "predict")


def from_numpy(
    predict: Callable[[np.ndarray], Any],
    *,
    classes: Sequence[Any] | None = None,
    num_classes: int | None = None,
) -> ApplyFn:
    """A model written in NumPy, or anything else that runs on the host, as an ``apply_fn``.

    It is called back from compiled code (``jax.pure_callback``), with at most ``chunk_size`` inputs
    at a time, so everything that needs no gradient works with it: flips, theta, risk, error search,
    also in ``jit``, ``vmap`` and on a mesh. It must be a pure function of its input, and once for
    each shape of inputs it is tried on two rows of zeros, to learn what it returns. An error that
    it raises later on, inside compiled code, comes back as a ``jax.errors.JaxRuntimeError`` with
    its own type and message in the text.

    Args:
        predict: ``predict(x [B, ...]) -> scores [B, K]`` (logits or probabilities), values ``[B]``
            of a regression, or labels ``[B]``, which become the scores 0 and 1. ``x`` is a NumPy
            array of the dtype of the inputs.
        classes: what labels can be, in the order of the columns; any values that NumPy compares.
        num_classes: the same for labels ``0 .. num_classes - 1``.

    Returns:
        ``apply_fn(params, x)``; ``params`` is not used, pass ``None``. Two adapters of the same
        ``predict`` are equal, so making one again does not retrace. Of labels it knows that its
        outputs are probabilities (see :func:`outputs_of`).

    Raises:
        TypeError: if ``predict`` is not a hashable callable; when differentiated.
        ValueError: for both of or duplicates in classes; (when called) for results of the wrong
            shape or type, and labels that are none of the classes.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, jaxrobust as jr
        >>> apply_fn = jr.models.from_numpy(lambda x: (x[:, 0] > 0).astype(int), num_classes=2)
        >>> apply_fn(None, jnp.array([[1.0], [-1.0]])).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        >>> result = jr.flip_probability(
        ...     apply_fn, None, jax.random.key(0), jnp.array([[0.5]]), num_samples=1000,
        ...     perturbation=jr.perturbations.gaussian(1.0),
        ... )
        >>> bool(abs(result.probability[0] - 0.3085) < 0.06)  # Phi(-0.5)
        True
    """
    _check_callable("predict", predict)
    if classes is not None and num_classes is not None:
        raise ValueError("classes and num_classes say the same: give one of them.")
    if num_classes is not None:
        classes = range(_checks.count("num_classes", num_classes, minimum=2))
    if classes is None:
        return _BlackBox(predict, None, None)
    return _BlackBox(predict, _class_tuple(classes), "probabilities")


def from_sklearn(estimator: Any, *, method: str | None = None) -> ApplyFn:
    """A fitted scikit-learn estimator, or anything with its methods, as an ``apply_fn``.

    Columns are in the order of ``estimator.classes_``, so the label k is ``classes_[k]``. See
    :func:`from_numpy` for where it works and how errors come back.

    Args:
        estimator: a fitted classifier or regressor with one output.
        method: the method to call: ``"predict_proba"`` (probabilities), ``"decision_function"``
            (scores; one column of them becomes ``(0, score)``) or ``"predict"`` (labels, as scores
            0 and 1; a regressor's values). None takes ``predict_proba`` where there is one, else
            ``predict``. An estimator whose ``predict`` is not the largest of its probabilities
            (``SVC(probability=True)``) wants ``"predict"``.

    Returns:
        ``apply_fn(params, x)`` with outputs ``[B, K]`` (``[B]`` for a regressor); ``params`` is not
        used, pass ``None``. It knows whether its outputs are probabilities, so theta-robustness and
        the robustness card need not be told (see :func:`outputs_of`).

    Raises:
        TypeError: for what has no such method; when differentiated.
        ValueError: for an unknown method, or an estimator that is not fitted.

    Example:
        >>> import jax.numpy as jnp, jaxrobust as jr
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> stump = DecisionTreeClassifier().fit([[0.0], [1.0]], ["no", "yes"])
        >>> jr.models.from_sklearn(stump)(None, jnp.array([[0.2], [0.7]])).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if method is None:
        method = "predict_proba" if hasattr(estimator, "predict_proba") else "predict"
    _checks.choice("method", method, _METHODS)
    if isinstance(estimator, type) or not hasattr(estimator, method):
        raise TypeError(
            f"estimator must be a fitted estimator with the method {method};"
            f" got {_checks.describe(estimator)}."
        )
    classes = getattr(estimator, "classes_", None)
    is_classifier = any(hasattr(estimator, name) for name in _METHODS[:2])
    if classes is None and is_classifier:
        raise ValueError(f"estimator must be fitted first; got {estimator!r} without classes_.")
    if isinstance(classes, list):
        raise ValueError(f"estimator must have one output; got {len(classes)}.")
    names = None if classes is None or method != "predict" else _class_tuple(classes)
    call = getattr(estimator, method)
    if method == "decision_function":
        return _BlackBox(_Columns(call), None, "logits")
    return _BlackBox(call, names, None if classes is None else "probabilities")


def from_onnx(path: str | os.PathLike[str], *, output: str | None = None) -> ApplyFn:
    """A model in an ONNX file, run by ONNX Runtime on the CPU, as an ``apply_fn``.

    The model has one input ``[B, ...]``, B free. See :func:`from_numpy` for where it works and how
    errors come back.

    Args:
        path: the file; read once, now.
        output: the name of the output to take; None takes the first floating-point one (an
            exported classifier often has its labels first).

    Returns:
        ``apply_fn(params, x)``; ``params`` is not used, pass ``None``. Two adapters of the same
        bytes are equal.

    Raises:
        ImportError: without ``onnxruntime``, which is not installed along with this library.
        FileNotFoundError: if there is no such file.
        TypeError: when differentiated.
        ValueError: for a file that is no model, several inputs, or an unknown output.
    """
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ImportError(
            "jaxrobust.models.from_onnx needs ONNX Runtime: pip install onnxruntime"
        ) from error
    return _BlackBox(_OnnxPredict(runtime, pathlib.Path(path), output), None, None)


def outputs_of(apply_fn: ApplyFn, outputs: str) -> str:
    """What a model's outputs are: what its adapter knows, else what the caller says.

    Args:
        apply_fn: any model.
        outputs: ``"logits"`` or ``"probabilities"``.

    Returns:
        ``"logits"`` or ``"probabilities"``.

    Raises:
        ValueError: for unknown ``outputs``.

    Example:
        >>> import jaxrobust as jr
        >>> labels = jr.models.from_numpy(lambda x: x[:, 0] > 0, classes=[False, True])
        >>> jr.models.outputs_of(labels, "logits")
        'probabilities'
    """
    _checks.choice("outputs", outputs, OUTPUTS)
    known = apply_fn.outputs if isinstance(apply_fn, _BlackBox) else None
    return known or outputs


class _BlackBox:
    """An ``apply_fn`` that calls the host; equal to another one of the same model."""

    def __init__(
        self, predict: Callable[[np.ndarray], Any], classes: tuple | None, outputs: str | None
    ) -> None:
        self.outputs = outputs  # one of OUTPUTS, or None where it is not known
        self._identity = (predict, classes, outputs)
        self._columns: dict[Any, int] = {name: k for k, name in enumerate(classes or ())}
        self._tried: dict[Any, tuple[int, ...]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BlackBox) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"black box {self._identity[0]!r}"

    def __call__(self, params: Any, x: Array) -> Array:
        x = jnp.asarray(x)
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        shape = (x.shape[0], *self._tail(x.shape[1:], np.dtype(x.dtype)))
        # What vmap adds becomes part of the batch: one call on the host, however deep.
        event_ndim = x.ndim - 1

        def on_host(x: Any) -> np.ndarray:
            x = np.asarray(x)
            lead = x.shape[: x.ndim - event_ndim]
            rows = self._run(x.reshape(-1, *x.shape[x.ndim - event_ndim :]), shape[1:])
            return np.asarray(rows, dtype).reshape(*lead, *shape[1:])

        struct = jax.ShapeDtypeStruct(shape, dtype)
        return _no_gradient(functools.partial(_call_back, on_host, struct), x)

    def _tail(self, event_shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
        """Shape of one row of the outputs, from a trial on two rows of zeros."""
        key = (event_shape, dtype)
        if key not in self._tried:
            with jax.ensure_compile_time_eval():  # predict may itself use JAX
                found = self._run(np.zeros((2, *event_shape), dtype), None)
            self._tried[key] = found.shape[1:]
        return self._tried[key]

    def _run(self, x: np.ndarray, tail: tuple[int, ...] | None) -> np.ndarray:
        """Checked scores of a batch; ``tail`` is what the shape of a row must be."""
        out = np.asarray(self._identity[0](x))
        if self._columns:
            if out.shape not in ((len(x),), (len(x), 1)):
                raise ValueError(
                    f"predict must return one label for each of {len(x)} inputs, shape"
                    f" ({len(x)},); got {_checks.describe(out)}."
                )
            return self._one_hot(out.reshape(-1))
        if not np.issubdtype(out.dtype, np.floating):
            hint = ""
            if out.ndim == 1:
                hint = " Where these are labels, say so with classes or num_classes."
            raise ValueError(
                "predict must return floating-point scores [B, K] or values [B];"
                f" got {_checks.describe(out)}.{hint}"
            )
        wrong = out.ndim not in (1, 2) or len(out) != len(x) or 0 in out.shape
        if wrong or (tail is not None and out.shape[1:] != tail):
            expected = "scores [B, K] or values [B]"
            expected += "" if tail is None else f", here shape {(len(x), *tail)},"
            raise ValueError(
                f"predict must return {expected} for {len(x)} inputs of shape {x.shape};"
                f" got {_checks.describe(out)}."
            )
        return out

    def _one_hot(self, found: np.ndarray) -> np.ndarray:
        scores = np.zeros((len(found), len(self._columns)))
        for value in np.unique(found).tolist():
            if value not in self._columns:
                raise ValueError(
                    f"predict must return labels out of {list(self._columns)}; got {value!r}."
                )
            scores[found == value, self._columns[value]] = 1
        return scores


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _no_gradient(call: Callable[[Array], Array], x: Array) -> Array:
    return call(x)


@_no_gradient.defjvp
def _refuse(call: Any, primals: Any, tangents: Any) -> Any:
    raise TypeError(
        "a black-box model (jaxrobust.models.from_numpy, from_sklearn, from_onnx) has no gradient:"
        " attacks, CLEVER and whatever else differentiates need a model written in JAX."
    )


def _call_back(on_host: Callable[[Any], np.ndarray], struct: Any, x: Array) -> Array:
    return jax.pure_callback(on_host, struct, x, vmap_method="expand_dims")


class _Columns:
    """A decision function whose single column, of a binary model, becomes two."""

    def __init__(self, call: Callable[[np.ndarray], Any]) -> None:
        self._call = call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Columns) and self._call == other._call

    def __hash__(self) -> int:
        return hash(self._call)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        out = np.asarray(self._call(x))
        return np.stack([np.zeros_like(out), out], axis=1) if out.ndim == 1 else out


class _OnnxPredict:
    """One output of an ONNX model."""

    def __init__(self, runtime: Any, path: pathlib.Path, output: str | None) -> None:
        data = path.read_bytes()
        self._identity = (hashlib.sha256(data).hexdigest(), output)
        try:
            self._session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own error types are not public
            raise ValueError(f"path must be a model that ONNX Runtime reads: {error}") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1:
            names = [entry.name for entry in inputs]
            raise ValueError(f"path must be a model with one input; it has {names}.")
        floating = [entry.name for entry in outputs if entry.type in _ONNX_DTYPES]
        if (output or "") not in ("", *floating) or not floating:
            raise ValueError(
                f"output must be one of the floating-point {floating}; got {output!r}."
            )
        self._input, self._output = inputs[0].name, output or floating[0]
        self._dtype = _ONNX_DTYPES.get(inputs[0].type, np.float32)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OnnxPredict) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self._session.run([self._output], {self._input: x.astype(self._dtype)})[0]


_ONNX_DTYPES = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
}


def _class_tuple(classes: Sequence[Any]) -> tuple:
    names = tuple(np.asarray(list(classes)).tolist())
    if len(names) < 2 or len(set(names)) != len(names):
        raise ValueError(f"classes must be two or more different labels; got {list(classes)}.")
    return names


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(
            f"{name} must be a callable {name}(x) -> outputs; got {_checks.describe(value)}."
        )
    try:
        hash(value)
    except TypeError as error:
        raise TypeError(f"{name} must be hashable; got {_checks.describe(value)}.") from error
