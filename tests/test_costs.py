"""Costs told before anything runs: against XLA's count of the whole compiled call."""

import jax
import jax.numpy as jnp
import pytest

import jaxrobust as jr

PARAMS = {"w": jnp.ones((24, 64)), "v": jnp.ones((64, 3))}
X = jnp.ones((32, 24))
NOISE = jr.perturbations.gaussian(0.1)


def apply_fn(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def compiled_flops(fn):
    """Of the whole call, in one chunk: XLA counts the body of a loop over chunks once."""
    lowered = jax.jit(fn).lower(PARAMS, jax.random.key(0), X)
    return lowered.compile().cost_analysis()["flops"]


def test_flips_cost_what_xla_says():
    found = compiled_flops(
        lambda params, key, x: jr.flip_probability(
            apply_fn, params, key, x, perturbation=NOISE, num_samples=100, chunk_size=10**5
        )
    )
    cost = jr.estimate_cost(apply_fn, PARAMS, X, model_inputs=101 * 32, perturbation=NOISE)
    assert cost.flops == pytest.approx(found, rel=0.2)
    bare = jr.estimate_cost(apply_fn, PARAMS, X, model_inputs=101 * 32)
    assert bare.flops < 0.8 * found  # the draws do count


def test_gradients_cost_what_xla_says():
    def attack(params, key, x):
        labels = jnp.zeros(32, int)
        return jr.attacks.fgsm(apply_fn, params, x, labels, eps=0.1, bounds=None, chunk_size=32)

    found = compiled_flops(attack)
    # One gradient, and the model at the clean and at the attacked inputs.
    cost = jr.estimate_cost(apply_fn, PARAMS, X, model_inputs=2 * 32, gradients=32)
    assert cost.flops == pytest.approx(found, rel=0.2)
    assert cost.gradients == 32


def test_costs_are_proportional_and_do_not_depend_on_the_chunk():
    cost = jr.estimate_cost(apply_fn, PARAMS, X, model_inputs=1000, chunk_size=64)
    twice = jr.estimate_cost(apply_fn, PARAMS, X, model_inputs=2000, chunk_size=128)
    assert twice.flops == pytest.approx(2 * cost.flops, rel=1e-3)
    assert (cost.chunk_size, twice.chunk_size) == (64, 128)


@pytest.mark.parametrize("gradients", [0, 5])
def test_automatic_chunk_keeps_to_a_budget(gradients):
    def cost(**kwargs):
        return jr.estimate_cost(apply_fn, PARAMS, X, model_inputs=10, gradients=gradients, **kwargs)

    free = cost()
    budget = int(free.bytes / 5)
    kept = cost(memory=budget)
    assert kept.bytes <= budget
    assert 1 <= kept.chunk_size < free.chunk_size
    # No smaller than need be, and the model really needs no more for such a chunk.
    assert cost(chunk_size=2 * kept.chunk_size + 2).bytes > budget
    program = jax.jit(apply_fn).lower(PARAMS, jnp.ones((kept.chunk_size, 24))).compile()
    assert program.memory_analysis().temp_size_in_bytes <= budget


def test_the_chunk_is_that_of_the_measures():
    calls = []

    def noting(params, x):
        calls.append(x.shape[0])
        return apply_fn(params, x)

    cost = jr.estimate_cost(apply_fn, PARAMS, X, model_inputs=1)
    jax.eval_shape(
        lambda key: (
            jr.flip_probability(noting, PARAMS, key, X, perturbation=NOISE, num_samples=4096).flips
        ),
        jax.random.key(0),
    )
    assert max(calls) == cost.chunk_size


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"model_inputs": 1.5}, TypeError, "model_inputs"),
        ({"model_inputs": -1}, ValueError, "model_inputs"),
        ({"gradients": "all"}, TypeError, "gradients"),
        ({"perturbation": 0.1}, TypeError, "perturbation"),
        ({"num_draws": 3}, ValueError, "num_draws"),
        ({"num_draws": -3, "perturbation": NOISE}, ValueError, "num_draws"),
        ({"chunk_size": 0}, ValueError, "chunk_size"),
        ({"memory": 100}, ValueError, "memory"),
        ({"memory": 1.0}, TypeError, "memory"),
        ({"memory": 30_000, "chunk_size": 1000}, ValueError, "memory"),
    ],
)
def test_bad_arguments(kwargs, error, match):
    with pytest.raises(error, match=match):
        jr.estimate_cost(apply_fn, PARAMS, X, **{"model_inputs": 1, **kwargs})
