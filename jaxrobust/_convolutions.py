"""Convolutions that stay fast inside loops on the CPU.

XLA's CPU compiler brings a convolution into the layout of its fast kernel (inputs NHWC, weights
HWIO) only outside loop bodies; inside ``lax.scan`` and its kin any other layout, and every gradient
with respect to an input, falls to a naive kernel, six times slower on a small ResNet (jax issue
12868). Everything here that calls a model in a loop therefore goes through `loop_friendly`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core
from jax.extend.core import primitives

__all__ = ["loop_friendly"]


def loop_friendly(fn: Callable) -> Callable:
    """Returns ``fn`` with its convolutions laid out as XLA's fast CPU kernel wants them.

    ``fn`` is traced, and each ``conv_general_dilated`` in it, however deeply nested (``jit``,
    ``custom_jvp``, ``scan``, ``cond``, ``remat``, ...), is bound again with the dimension numbers
    NHWC, HWIO, NHWC. The outputs are those of ``fn``, to rounding. Where there is nothing to
    change (another backend, no convolutions, or all of them canonical) ``fn`` runs as it is.

    Wrap outermost: gradients taken of the returned function hold new convolutions, of which this
    one knows nothing. Write ``loop_friendly(jax.grad(f))``, not ``jax.grad(loop_friendly(f))``.

    Args:
      fn: A traceable function of pytrees of arrays.

    Returns:
      A function with the same arguments and outputs, to be called under ``jit``, mostly in the
      body of a loop. (Called outside a trace it works, but traces ``fn`` every time.)

    Example:
      >>> import jax, jax.numpy as jnp
      >>> kernel = jnp.ones((4, 2, 3, 3))  # OIHW
      >>> conv = lambda x: jax.lax.conv(x, kernel, (1, 1), "SAME")
      >>> x = jnp.ones((1, 2, 8, 8))
      >>> bool(jnp.allclose(loop_friendly(conv)(x), conv(x)))
      True
    """

    def wrapped(*args: Any) -> Any:
        if jax.default_backend() != "cpu":
            return fn(*args)
        jaxpr, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        run = _evaluate if _needs_change(jaxpr.jaxpr) else _run_unchanged
        outputs = run(jaxpr, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), outputs)

    return wrapped


def _run_unchanged(closed: core.ClosedJaxpr, inputs: Sequence[Any]) -> Sequence[Any]:
    return core.jaxpr_as_fun(closed)(*inputs)


def _canonical(num_spatial: int) -> lax.ConvDimensionNumbers:
    """Dimension numbers NHWC, HWIO, NHWC for any number of spatial axes."""
    image = (0, num_spatial + 1, *range(1, num_spatial + 1))
    kernel = (num_spatial + 1, num_spatial, *range(num_spatial))
    return lax.ConvDimensionNumbers(image, kernel, image)


def _is_convolution_to_change(eqn: core.JaxprEqn) -> bool:
    if eqn.primitive is not primitives.conv_general_dilated_p:
        return False
    found = eqn.params["dimension_numbers"]
    canonical = _canonical(len(found.lhs_spec) - 2)
    return (tuple(found.lhs_spec), tuple(found.rhs_spec), tuple(found.out_spec)) != tuple(canonical)


def _inner(value: Any) -> list[Any]:
    """The jaxprs held by one parameter of an equation."""
    if isinstance(value, core.ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, core.Jaxpr):
        return [value]
    if isinstance(value, (tuple, list)):
        return [jaxpr for item in value for jaxpr in _inner(item)]
    return []


def _needs_change(jaxpr: core.Jaxpr) -> bool:
    return any(
        _is_convolution_to_change(eqn)
        or any(_needs_change(inner) for value in eqn.params.values() for inner in _inner(value))
        for eqn in jaxpr.eqns
    )


def _convert(value: Any) -> Any:
    """A parameter of an equation with the convolutions of the jaxprs it holds laid out anew."""
    if isinstance(value, core.ClosedJaxpr):
        if not _needs_change(value.jaxpr):
            return value
        return jax.make_jaxpr(lambda *inputs: _evaluate(value, inputs))(*value.in_avals)
    if isinstance(value, core.Jaxpr):
        # An open jaxpr (remat) has no constants, so closing it over none and opening it is exact.
        return _convert(core.ClosedJaxpr(value, ())).jaxpr if not value.constvars else value
    if isinstance(value, (tuple, list)):
        return type(value)(map(_convert, value)) if _inner(value) else value
    return value


def _evaluate(closed: core.ClosedJaxpr, inputs: Sequence[Any]) -> Sequence[Any]:
    """Evaluates a jaxpr equation by equation, changing what must be changed."""
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        with eqn.ctx.manager:
            if _is_convolution_to_change(eqn):
                lhs, rhs = operands
                outputs = [_convolution(lhs, rhs, eqn.params)]
            else:
                params = {name: _convert(value) for name, value in eqn.params.items()}
                # The functions of a custom derivative come apart from its parameters in old JAX.
                bound = eqn.primitive.get_bind_params(params)
                functions, params = bound if isinstance(bound, tuple) else ((), bound)
                outputs = eqn.primitive.bind(*functions, *operands, **params)
                outputs = outputs if eqn.primitive.multiple_results else [outputs]
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _convolution(lhs: jax.Array, rhs: jax.Array, params: dict[str, Any]) -> jax.Array:
    """The same convolution in canonical layout."""
    found = params["dimension_numbers"]
    canonical = _canonical(len(found.lhs_spec) - 2)

    def lay_out(x: jax.Array, source: Sequence[int], target: Sequence[int]) -> jax.Array:
        # ``source[a]`` and ``target[a]`` are the positions of logical axis ``a``, now and then.
        order = [source[target.index(position)] for position in range(x.ndim)]
        return x if order == list(range(x.ndim)) else lax.transpose(x, order)

    lhs = lay_out(lhs, found.lhs_spec, canonical.lhs_spec)
    rhs = lay_out(rhs, found.rhs_spec, canonical.rhs_spec)
    # Without the barrier XLA folds the transpose (and the reversal that a gradient brings) back
    # into the convolution, and with it the slow kernel.
    rhs = lax.optimization_barrier(rhs)
    out = primitives.conv_general_dilated_p.bind(
        lhs, rhs, **{**params, "dimension_numbers": canonical}
    )
    return lay_out(out, canonical.out_spec, found.out_spec)
