"""The ways Flax users call the measures: TrainState, NNX, a training loop, pmap."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxrobust as jr

nn = pytest.importorskip("flax.linen")
from flax import nnx  # noqa: E402
from flax.training import train_state  # noqa: E402

SIZE, CLASSES = 4, 3
_rng = np.random.default_rng(0)
LABELS = jnp.asarray(np.arange(24) % CLASSES, jnp.int32)
X = jnp.asarray(_rng.normal(size=(24, SIZE)) + 3 * np.eye(CLASSES, SIZE)[LABELS], jnp.float32)
NOISE = jr.perturbations.gaussian(0.5)


class Network(nn.Module):
    """A small classifier."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.relu(nn.Dense(8)(x)))


class Counted:
    """An apply_fn that counts how often it is traced: it runs in Python only then."""

    def __init__(self, apply_fn):
        self.apply_fn, self.traces = apply_fn, 0

    def __call__(self, params, x):
        self.traces += 1
        return self.apply_fn(params, x)


def from_params(params, x):
    """Linen wants its variables; a TrainState holds only the collection "params"."""
    return Network().apply({"params": params}, x)


# One object for all tests, so that plain calls compile once for all of them.
MODEL = Counted(from_params)


def new_state(apply_fn=None):
    network = Network()
    params = network.init(jax.random.key(0), X)["params"]
    return train_state.TrainState.create(
        apply_fn=apply_fn or network.apply, params=params, tx=optax.adam(0.05)
    )


def theta(apply_fn, params, key):
    return jr.theta_robustness(
        apply_fn, params, key, X, LABELS, perturbation=NOISE, loss="brier", num_replicates=64
    )


def flip(apply_fn, params, key):
    return jr.flip_probability(apply_fn, params, key, X, perturbation=NOISE, num_samples=64)


def loss_fn(params):
    logits = from_params(params, X)
    return optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()


@jax.jit
def train_epoch(state):
    def step(state, _):
        return state.apply_gradients(grads=jax.grad(loss_fn)(state.params)), None

    return jax.lax.scan(step, state, length=20)[0]


def test_training_loop_logs_robustness_without_a_retrace():
    state = new_state()
    log, traces = [], []
    for epoch in range(4):
        # One key for all epochs: the log then shows the training, not the luck of the draws.
        key = jax.random.key(2)
        found = theta(MODEL, state.params, key), flip(MODEL, state.params, key)
        log.append({"epoch": epoch, "theta": float(found[0].theta), "flip": float(found[1].mean)})
        traces.append(MODEL.traces)
        state = train_epoch(state)

    assert traces[0] > 0
    assert traces == [traces[0]] * 4
    assert log[-1]["theta"] < log[0]["theta"] - 0.1
    assert log[-1]["flip"] < log[0]["flip"]


def test_train_state_inside_a_jitted_eval_step():
    counted = Counted(Network().apply)
    state = new_state(counted)

    @jax.jit
    def eval_step(state, key):
        def apply_fn(params, x):
            return state.apply_fn({"params": params}, x)

        return theta(apply_fn, state.params, key)

    found = eval_step(state, jax.random.key(1))
    traced = counted.traces
    assert traced > 0
    plain = theta(MODEL, state.params, jax.random.key(1))
    np.testing.assert_allclose(found.losses, plain.losses, rtol=2e-5)

    trained = train_epoch(new_state()).params
    after = eval_step(state.replace(params=trained), jax.random.key(1))
    assert counted.traces == traced  # new weights, same computation
    assert after.theta < found.theta


def call_module(module, x):
    return module(x)


def test_nnx_module_is_the_params():
    counted = Counted(call_module)

    def measure(module):
        return jr.flip_probability(
            counted, module, jax.random.key(3), X, perturbation=NOISE, num_samples=2000
        )

    module = nnx.Linear(SIZE, 2, rngs=nnx.Rngs(0))
    found = measure(module)
    # Two classes: the boundary is a plane, whose flip probability is known.
    kernel, bias = np.asarray(module.kernel[...]), np.asarray(module.bias[...])
    exact = jr.exact.linear_gaussian(
        kernel[:, 1] - kernel[:, 0], bias[1] - bias[0], X, 0.25 * np.eye(SIZE)
    )
    error = np.sqrt(np.maximum(exact * (1 - exact), 1e-3) / 2000)
    assert np.max(np.abs(found.probability - exact) / error) < 4.5
    assert found.flips.max() > 100

    traced = counted.traces
    other = measure(nnx.Linear(SIZE, 2, rngs=nnx.Rngs(1)))
    assert counted.traces == traced  # a module is a pytree: its weights are data
    assert (other.flips != found.flips).any()


def test_pmap_over_split_keys():
    params = new_state().params
    keys = jax.random.split(jax.random.key(5), jax.device_count())
    assert len(keys) == 8

    def step(params, key):
        flips = flip(from_params, params, key).flips
        return flips, jax.lax.psum(flips, "devices")

    # As in older notebooks: the weights copied to every device, along a leading axis.
    replicated = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(keys)), params)
    flips, total = jax.pmap(step, axis_name="devices")(replicated, keys)

    one_by_one = np.stack([flip(MODEL, params, key).flips for key in keys])
    np.testing.assert_array_equal(flips, one_by_one)
    np.testing.assert_array_equal(total, np.tile(one_by_one.sum(axis=0), (len(keys), 1)))
    assert (one_by_one != one_by_one[0]).any()  # each device has draws of its own
