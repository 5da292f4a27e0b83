"""Before measuring: is this model what the measures take it for?"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import _checks
from jaxrobust.models.checks import ApplyFn, output_struct

Array = jax.Array

_NO_GRADIENT = (TypeError, ValueError, NotImplementedError)


class Finding(NamedTuple):
    """Something about a model that its user should know.

    Attributes:
        code: a short name, such as ``"probabilities"``.
        severity: ``"error"`` (answers would mean nothing), ``"warning"`` (some would mislead) or
            ``"note"``.
        message: what was seen.
        advice: what to do.
    """

    code: str
    severity: Literal["error", "warning", "note"]
    message: str
    advice: str


class Preflight(NamedTuple):
    """What :func:`check_model` saw.

    Attributes:
        ok: no finding is an error.
        findings: errors first, then warnings, then notes.
        num_examples: examples that were looked at.
        num_outputs: columns K of the output; 1 for outputs ``[B]``.
        outputs: what the outputs look like: ``"logits"``, ``"probabilities"`` or ``"one column"``.
        num_nonfinite: examples with an output that is NaN or infinite (``-inf`` alone is a masked
            class, and counts only in the top class).
        call_difference: largest difference between two calls, relative to the largest output.
        batch_difference: the same between an example in this batch and in another one.
        zero_gradient: share of examples at which the gradient of the margin between the two
            largest outputs is exactly zero; NaN where there are no gradients or no margin.
        num_out_of_bounds: examples, of all in ``x``, with a value outside ``bounds``; 0 without.
        accuracy: share of correct labels; NaN without ``labels``.
    """

    ok: bool
    findings: tuple[Finding, ...]
    num_examples: int
    num_outputs: int
    outputs: str
    num_nonfinite: int
    call_difference: float
    batch_difference: float
    zero_gradient: float
    num_out_of_bounds: int
    accuracy: float


def check_model(
    apply_fn: ApplyFn,
    params: Any,
    x: Any,
    *,
    labels: Any = None,
    bounds: tuple[Any, Any] | None = None,
    max_examples: int = 64,
) -> Preflight:
    r"""Looks for what would make robustness estimates of a model meaningless.

    The model runs a few times on some examples: twice on the same batch (they should agree), once
    in another batch (an example's output should not depend on its neighbours), and once with its
    gradient. Every finding says what to do about it.

    Args:
        apply_fn: ``apply_fn(params, x [B, ...]) -> outputs [B, K]``.
        params: its parameters.
        x: inputs ``[n, ...]``.
        labels: true labels ``[n]``, for the accuracy; integers.
        bounds: ``(lower, upper)`` that inputs should lie in, broadcasting to one example.
        max_examples: how many examples to look at, spread evenly over ``x``.

    Returns:
        A :class:`Preflight`; print ``"\\n".join(f.message for f in preflight.findings)``.

    Raises:
        TypeError: if ``apply_fn`` is not callable or cannot be traced by JAX, or ``x`` is abstract.
        ValueError: if shapes do not fit.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> model = lambda w, x: jax.nn.softmax(x @ w)
        >>> found = jr.check_model(model, jnp.eye(2), jnp.array([[1.0, 0.0], [0.0, 2.0]]))
        >>> found.ok, [finding.code for finding in found.findings]
        (True, ['probabilities'])
    """
    x = _checks.examples("x", x)
    if not _checks.is_concrete(x):
        raise TypeError("x must be concrete: check_model looks at values; call it outside jit.")
    struct = output_struct(apply_fn, params, x)
    num_outputs = struct.shape[1] if len(struct.shape) == 2 else 1
    if labels is not None:
        labels = _checks.labels("labels", labels, x.shape[0], num_outputs if num_outputs > 1 else 2)
    most = _checks.count("max_examples", max_examples)
    chosen = np.unique(np.linspace(0, x.shape[0] - 1, min(most, x.shape[0])).round().astype(int))
    num_out_of_bounds = _out_of_bounds(x, bounds)
    x = x[chosen]

    # Eager calls: a hidden random state or a NumPy generator would be frozen inside a trace.
    out, again = (_columns(apply_fn(params, x)) for _ in range(2))
    other, at = _another_batch(x)
    neighbours = _columns(apply_fn(params, other))[: len(at)]
    size = np.max(np.abs(out[np.isfinite(out)]), initial=np.finfo(np.float32).tiny)
    seen = Preflight(
        ok=True,
        findings=(),
        num_examples=len(chosen),
        num_outputs=num_outputs,
        outputs=_kind(out, num_outputs),
        num_nonfinite=int(_nonfinite(out).sum()),
        call_difference=_difference(out, again) / size,
        batch_difference=_difference(out[at], neighbours) / size,
        zero_gradient=_zero_gradient(apply_fn, params, x, num_outputs),
        num_out_of_bounds=num_out_of_bounds,
        accuracy=_accuracy(out, labels, chosen),
    )
    # Sums are rounded in another order in a batch of another size.
    tolerance = float(jnp.finfo(struct.dtype).eps) ** 0.5 / 2
    order = ("error", "warning", "note")
    findings = sorted(_findings(seen, tolerance), key=lambda f: order.index(f.severity))
    return seen._replace(ok=all(f.severity != "error" for f in findings), findings=tuple(findings))


def _findings(seen: Preflight, tolerance: float) -> list[Finding]:
    n, out = seen.num_examples, []

    def found(code: str, severity: Any, message: str, advice: str) -> None:
        out.append(Finding(code, severity, message, advice))

    if seen.num_nonfinite:
        found(
            "non-finite outputs",
            "error",
            f"{seen.num_nonfinite} of {n} examples have outputs that are NaN or infinite.",
            "Look for overflow, log(0) or missing weights in apply_fn.",
        )
    if seen.call_difference > 0:
        found(
            "random",
            "error" if seen.call_difference > tolerance else "warning",
            "Two calls on the same inputs give different outputs (by"
            f" {seen.call_difference:.1e} of the largest).",
            "Switch dropout off: pass deterministic=True (Linen) or call model.eval() (NNX).",
        )
    elif not seen.batch_difference <= tolerance:
        found(
            "batch",
            "error",
            "An example's output depends on the other examples of its batch (by"
            f" {seen.batch_difference:.1e} of the largest output).",
            "Let batch normalisation use its running averages (use_running_average=True in Linen,"
            " model.eval() in NNX), and switch dropout off, also with a fixed key.",
        )
    if seen.outputs == "one column":
        found(
            "one column",
            "note",
            "The model has one output column.",
            "A regression is fine. A binary classifier with a single sigmoid output goes through"
            " jaxrobust.models.binary(apply_fn).",
        )
    if seen.outputs == "probabilities":
        found(
            "probabilities",
            "warning",
            "The outputs look like probabilities: rows are not negative and sum to one.",
            "Say outputs='probabilities' where a loss is measured. Attacks and CLEVER need logits:"
            " drop the last softmax, or pass lambda p, x: jnp.log(apply_fn(p, x)).",
        )
    if np.isnan(seen.zero_gradient):
        if seen.num_outputs > 1 and not seen.num_nonfinite:
            found(
                "no gradient",
                "warning",
                "The model has no gradient with respect to its inputs.",
                "theta and flip probabilities need none; attacks and CLEVER cannot be used.",
            )
    elif seen.zero_gradient > 0:
        found(
            "zero gradients",
            "warning",
            f"The gradient is exactly zero at {seen.zero_gradient:.0%} of the examples.",
            "Rounding, hard thresholds or saturation hide the slope: gradient attacks will fail and"
            " CLEVER will overestimate. Trust theta and flip probabilities.",
        )
    if seen.num_out_of_bounds:
        found(
            "out of bounds",
            "error",
            f"{seen.num_out_of_bounds} examples of x have values outside bounds.",
            "Pass the bounds of the inputs as the model gets them (after any normalisation).",
        )
    if seen.accuracy <= 1 / max(2, seen.num_outputs):
        found(
            "accuracy",
            "warning",
            f"Only {seen.accuracy:.0%} of the labels are predicted, no better than guessing.",
            "Check that inputs are scaled as in training, and that labels count from 0.",
        )
    return out


def _columns(out: Any) -> np.ndarray:
    out = np.asarray(jnp.asarray(out).astype(jnp.float32))
    return out[:, None] if out.ndim == 1 else out


def _another_batch(x: Array) -> tuple[Array, np.ndarray]:
    """A batch of other company and order, and which examples its first rows are."""
    if x.shape[0] == 1:
        return jnp.concatenate([x, jnp.zeros_like(x)]), np.array([0])
    at = np.arange(x.shape[0])[::-1][: (x.shape[0] + 1) // 2]
    return x[at], at


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference; outputs that are equal, or NaN twice, do not differ."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(same, 0.0, np.abs(a - b)), initial=0.0))


def _nonfinite(out: np.ndarray) -> np.ndarray:
    return np.isnan(out).any(axis=1) | ~np.isfinite(out.max(axis=1))


def _kind(out: np.ndarray, num_outputs: int) -> str:
    if num_outputs == 1:
        return "one column"
    with np.errstate(invalid="ignore"):
        simplex = (out >= 0).all() and (np.abs(out.sum(axis=1) - 1) < 1e-3).all()
    return "probabilities" if simplex else "logits"


def _zero_gradient(apply_fn: ApplyFn, params: Any, x: Array, num_outputs: int) -> float:
    if num_outputs == 1:
        return float("nan")

    def margin(x: Array) -> Array:
        top = jax.lax.top_k(apply_fn(params, x), 2)[0]
        return jnp.sum(top[:, 0] - top[:, 1])

    try:
        gradient = np.asarray(jax.jit(jax.grad(margin))(x), np.float32)
    except _NO_GRADIENT:  # a callback, or an operation without a derivative
        return float("nan")
    return float((gradient.reshape(x.shape[0], -1) == 0).all(axis=1).mean())


def _out_of_bounds(x: Array, bounds: tuple[Any, Any] | None) -> int:
    if bounds is None:
        return 0
    lower, upper = _checks.box(bounds, x)
    outside = (np.asarray(x) < np.asarray(lower)) | (np.asarray(x) > np.asarray(upper))
    return int(outside.reshape(x.shape[0], -1).any(axis=1).sum())


def _accuracy(out: np.ndarray, labels: Any, chosen: np.ndarray) -> float:
    if labels is None or out.shape[1] == 1:
        return float("nan")
    return float((out.argmax(axis=1) == np.asarray(labels)[chosen]).mean())
