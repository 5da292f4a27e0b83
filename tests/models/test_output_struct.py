"""The shape of a model's outputs: asked for once for each structure, and never a stale answer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust.models import output_struct

X = jnp.ones((4, 3))
W = jnp.ones((3, 2))


def counting(fn):
    """The function, and a list that grows with every trace of it."""
    traces = []

    def apply_fn(params, x):
        traces.append(x.shape)
        return fn(params, x)

    return apply_fn, traces


def test_a_second_call_with_other_values_traces_nothing():
    apply_fn, traces = counting(lambda w, x: x @ w["w"])
    for scale in (1, 2):
        assert output_struct(apply_fn, {"w": scale * W}, scale * X).shape == (4, 2)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("params", "x", "shape"),
    [(jnp.ones((3, 5)), X, (4, 5)), (W, jnp.ones((7, 3)), (7, 2)), (np.ones((3, 5)), X, (4, 5))],
)
def test_another_structure_is_looked_at_anew(params, x, shape):
    apply_fn, _ = counting(lambda w, x: x @ w)
    assert output_struct(apply_fn, W, X).shape == (4, 2)
    assert output_struct(apply_fn, params, x).shape == shape


def test_precision_is_part_of_the_structure():
    def apply_fn(_, x):
        return jnp.zeros((len(x), 2), float)

    assert output_struct(apply_fn, W, X).dtype == jnp.float32
    with jax.enable_x64(True):
        assert output_struct(apply_fn, W, X).dtype == jnp.float64
    assert output_struct(apply_fn, W, X).dtype == jnp.float32


def test_a_failure_is_not_remembered():
    apply_fn, traces = counting(lambda w, x: x @ w.T)
    for _ in range(2):
        with pytest.raises(TypeError, match="dot_general") as caught:
            output_struct(apply_fn, W, X)
        assert any("jaxrobust called apply_fn" in note for note in caught.value.__notes__)
    assert len(traces) == 2


@jax.tree_util.register_pytree_node_class
class Unhashable:
    """A node that keeps a list beside its leaves."""

    def __init__(self, w, names):
        self.w, self.names = w, names

    def tree_flatten(self):
        return (self.w,), self.names

    @classmethod
    def tree_unflatten(cls, names, leaves):
        return cls(*leaves, names)


@pytest.mark.parametrize("params", [Unhashable(W, ["a"]), Unhashable(2.0, [])])
def test_parameters_that_cannot_be_looked_up(params):
    apply_fn, _ = counting(lambda p, x: x @ (p.w * W))
    assert output_struct(apply_fn, params, X).shape == (4, 2)
