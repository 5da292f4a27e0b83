"""What a measure will cost, before it runs: by XLA's own account of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxrobust import _checks, models, montecarlo
from jaxrobust.perturbations.base import Perturbation, check_perturbation, perturb

# Of one program: what it takes in, gives out, and needs meanwhile.
_MEMORY = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")


class CostEstimate(NamedTuple):
    """What :func:`estimate_cost` found; plain numbers.

    Attributes:
        model_inputs: inputs that go forward through the model, as given.
        gradients: inputs that go forward and backward through it, as given.
        flops: of all of them, and of drawing the noise if a perturbation was given. NaN where the
            backend does not say.
        bytes: of memory for one chunk in the model: parameters, inputs, outputs and what lies
            between. NaN where the backend does not say.
        chunk_size: inputs in that chunk; hand it to the measure.
    """

    model_inputs: int
    gradients: int
    flops: float
    bytes: float
    chunk_size: int


def estimate_cost(
    apply_fn: models.ApplyFn,
    params: Any,
    x: Any,
    *,
    model_inputs: int,
    gradients: int = 0,
    perturbation: Perturbation | None = None,
    num_draws: int | None = None,
    chunk_size: int | None = None,
    memory: int | None = None,
) -> CostEstimate:
    """Counts what so many calls of a model cost, without running it.

    The model is compiled for one chunk of inputs, and XLA's count for that chunk is scaled. (XLA
    counts the body of a loop once: of a model that loops over its layers or over time, the FLOPs
    here are too few. What a black box does on the host is not counted.) How many inputs a measure
    takes stands in its docstring: ``(m + 1) n`` for
    :func:`~jaxrobust.theta_robustness`, ``(S m + 1) n`` with ``m n`` draws for
    :func:`~jaxrobust.robustness_curve`, ``(N + 1) n`` for :func:`~jaxrobust.flip_probability`,
    ``(K N + 2) n`` with ``N n`` draws for :func:`~jaxrobust.directional_risk`; PGD of T steps
    takes ``T n`` gradients.

    Args:
        apply_fn: ``apply_fn(params, x [B, ...]) -> outputs [B, ...]``.
        params: the model's parameters, any pytree.
        x: inputs ``[n, ...]``; only their shape and type are looked at.
        model_inputs: inputs that go forward through the model, over the whole measure.
        gradients: inputs that go forward and backward (with respect to the input) through it.
        perturbation: what is done to the inputs, so that the draws are counted too.
        num_draws: noisy inputs that are drawn; by default ``model_inputs``. Fewer in a sweep.
        chunk_size: inputs for one call of the model. None takes what the measures would take.
        memory: bytes that one chunk may need in the model; an automatic chunk is made small enough
            for it. The draws of a chunk need a few times the size of its inputs besides.

    Returns:
        A :class:`CostEstimate`.

    Raises:
        TypeError: for counts that are not whole numbers, inputs that are not floating, a function
            that is no model, or a perturbation that is none.
        ValueError: for negative counts; for a ``memory`` that is too small for one input (or for
            the given ``chunk_size``), or that the backend cannot tell.

    Example:
        >>> import jax.numpy as jnp, jaxrobust as jr
        >>> cost = jr.estimate_cost(
        ...     lambda w, x: x @ w, jnp.ones((8, 2)), jnp.ones((10, 8)), model_inputs=1000
        ... )
        >>> cost.flops, cost.chunk_size  # each input takes 8 x 2 products and sums
        (32000.0, 8192)
    """
    model_inputs = _checks.count("model_inputs", model_inputs, minimum=0)
    gradients = _checks.count("gradients", gradients, minimum=0)
    x = _checks.examples("x", x)
    models.output_struct(apply_fn, params, x)
    automatic = chunk_size is None
    size = montecarlo.chunk_examples(chunk_size, x.shape[1:])
    if memory is not None:
        memory = _checks.count("memory", memory)

    while True:
        programs = _programs(apply_fn, params, x, size, model_inputs, gradients)
        most = max(map(_bytes, programs.values()))
        if memory is None or most <= memory:
            break
        if math.isnan(most):
            raise ValueError("memory must be None here: this backend does not tell what is needed.")
        if size == 1 or not automatic:
            raise ValueError(
                f"memory must be enough for a chunk of {size} in the model, which needs {most:,.0f}"
                f" bytes; got {memory:,}."
            )
        # What is needed is about linear in the size, with something left at 0 (the parameters).
        size = max(1, min(size // 2, int(size * memory / most)))

    numbers = {"forward": model_inputs, "gradient": gradients}
    flops = sum(numbers[name] / size * _flops(program) for name, program in programs.items())
    if perturbation is not None:
        check_perturbation(perturbation)
        perturbation.check_shapes(x.shape)
        draws = model_inputs if num_draws is None else _checks.count("num_draws", num_draws, 0)
        drawn = _compiled(perturb, perturbation, jax.random.key(0), x)
        flops += draws / x.shape[0] * _flops(drawn)
    elif num_draws is not None:
        raise ValueError(f"num_draws must be None without a perturbation; got {num_draws}.")
    return CostEstimate(model_inputs, gradients, float(flops), most, size)


def _programs(
    apply_fn: models.ApplyFn, params: Any, x: Any, size: int, model_inputs: int, gradients: int
) -> dict[str, Any]:
    """The model, and its gradient if there are any, compiled for a chunk."""
    chunk = jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)

    def gradient(params: Any, x: Any) -> Any:
        return jax.grad(lambda x: apply_fn(params, x).sum())(x)

    programs = {}
    if model_inputs or not gradients:
        programs["forward"] = _compiled(apply_fn, params, chunk)
    if gradients:
        programs["gradient"] = _compiled(gradient, params, chunk)
    return programs


def _compiled(fn: Callable[..., Any], *args: Any) -> Any:
    return jax.jit(fn).lower(*args).compile()


def _flops(program: Any) -> float:
    return float((program.cost_analysis() or {}).get("flops", math.nan))


def _bytes(program: Any) -> float:
    found = program.memory_analysis()
    return math.nan if found is None else float(sum(getattr(found, name) for name in _MEMORY))
