"""A model from an Orbax checkpoint is measured as the model that was saved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr

nn = pytest.importorskip("flax.linen")
ocp = pytest.importorskip("orbax.checkpoint")


class Network(nn.Module):
    """A small classifier."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.relu(nn.Dense(8)(x)))


def test_checkpoint_in_measure_out(tmp_path):
    network = Network()
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 4)), jnp.float32)
    variables = network.init(jax.random.key(0), x)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "checkpoint", variables)

    # Elsewhere, later: only the architecture and the folder are known.
    shapes = jax.eval_shape(network.init, jax.random.key(1), x)
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "checkpoint", shapes)

    def flips(variables):
        return jr.flip_probability(
            network.apply, variables, jax.random.key(2), x,
            perturbation=jr.perturbations.gaussian(0.5), num_samples=200,
        ).flips  # fmt: skip

    found = flips(restored)
    np.testing.assert_array_equal(found, flips(variables))
    assert found.max() > 0
    # Other weights give other numbers, so the ones above did come from the checkpoint.
    assert (found != flips(network.init(jax.random.key(1), x))).any()
