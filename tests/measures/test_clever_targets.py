"""The classes that CLEVER scores: those asked for, those masked, and a thousand of them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust import CleverStatus as Status
from jaxrobust.measures.clever import _margins

KEY = jax.random.key(3)
N, G, B = 3, 20, 16  # three margins and twenty batches everywhere: the fits compile once
SMALL = {"num_batches": G, "batch_size": B}


def network(params, x):
    """Four classes, one hidden layer of ReLU."""
    inner, outer = params
    return jax.nn.relu(x @ inner[:2] + inner[2:]) @ outer


def network_params(hidden=8):
    rng = np.random.default_rng(2)
    return jnp.asarray(rng.normal(size=(3, hidden)), jnp.float32), jnp.asarray(
        rng.normal(size=(hidden, 4)), jnp.float32
    )


NETWORK = network_params()
POINT = jnp.array([[0.3, -0.2]])


def clever(apply_fn, params, x=POINT, radius=1.0, **kwargs):
    return jr.clever_score(apply_fn, params, KEY, x, radius=radius, **{**SMALL, **kwargs})


def flags(result, example=0, target=1):
    return Status(int(result.status[example, target]))


@pytest.mark.parametrize(
    "targets",
    ["given", *(pytest.param(t, marks=pytest.mark.slow) for t in ("top2", "least", "random"))],
)
def test_targets_are_those_asked_for(targets):
    everything = clever(network, NETWORK, POINT)
    margin, label = np.asarray(everything.margin[0]), int(everything.label[0])
    others = np.array([j for j in range(4) if j != label])
    expected = {
        "top2": np.full(N, np.nanargmin(margin)),
        "least": np.full(N, np.nanargmax(margin)),
        "given": others,
    }
    result = clever(
        network, NETWORK, jnp.repeat(POINT, N, axis=0),
        targets=others if targets == "given" else targets,
    )  # fmt: skip
    np.testing.assert_array_equal(result.target, expected.get(targets, result.target))
    assert np.all(np.isin(result.target, others))
    target = int(result.target[0])  # its draws are those of the untargeted score
    np.testing.assert_allclose(result.maxima[0, target], everything.maxima[0, target], rtol=1e-5)
    scored = np.asarray(result.status) != Status.NOT_SCORED
    np.testing.assert_array_equal(scored.sum(axis=1), 1)
    np.testing.assert_array_equal(~scored, np.isnan(result.per_class))


@pytest.mark.parametrize("which", ["top2", "least", "random"])
def test_masked_classes_are_never_chosen(which):
    logits = jnp.array([[3.0, -jnp.inf, 1.0, 0.0], [-jnp.inf, 0.0, -jnp.inf, -jnp.inf]])
    at = _margins.choose(KEY, logits, which)
    np.testing.assert_array_equal(at.label, [0, 1])
    assert int(at.targets[0, 0]) in {"top2": [2], "least": [3], "random": [2, 3]}[which]
    np.testing.assert_array_equal(at.masked[:, 0], [False, True])
    assert int(at.targets[1, 0]) != 1


def test_random_targets_are_uniform_over_the_others():
    logits = jnp.zeros((3000, 4)).at[:, 2].set(1.0).at[:, 3].set(-jnp.inf)
    at = _margins.choose(KEY, logits, "random")
    share = np.bincount(at.targets[:, 0], minlength=4) / 3000
    np.testing.assert_allclose(share, [0.5, 0.5, 0, 0], atol=4 * 0.5 / 3000**0.5)


def test_thousand_classes():
    weights = jax.random.normal(jax.random.key(1), (2, 1000))
    x = jnp.array([[1.0, 0.5], [-1.0, 0.2], [0.3, 1.0]])
    result = clever(lambda w, x: x @ w, weights, x, radius=9.0, targets="top2")
    chex.assert_shape(result.maxima, (N, 1000, G))
    logits = np.asarray(x @ weights)
    for i in range(N):
        second, first = np.argsort(logits[i])[-2:]
        assert (int(result.label[i]), int(result.target[i])) == (first, second)
        gradient = weights[:, first] - weights[:, second]
        exact = jr.exact.linear_clever(gradient, logits[i, first] - logits[i, second], 9.0)
        np.testing.assert_allclose(result.score[i], exact, rtol=1e-4)


def test_masked_classes_are_left_out_of_the_smallest():
    def masked(params, x):
        logits = network(params, x)
        return jnp.where(jnp.arange(4)[None] == 3, -jnp.inf, logits)

    result, free = clever(masked, NETWORK, POINT), clever(network, NETWORK, POINT)
    assert int(free.label[0]) != 3
    others = jnp.array([j for j in range(3) if j != int(free.label[0])])
    assert flags(result, 0, 3) == Status.MASKED
    assert np.isnan(result.per_class[0, 3])
    np.testing.assert_allclose(result.score[0], jnp.min(free.per_class[0, others]), rtol=1e-4)


def test_target_that_is_the_prediction_has_score_0():
    label = int(np.argmax(network(NETWORK, POINT)))
    other = (label + 1) % 4
    x = jnp.repeat(POINT, N, axis=0)
    result = clever(network, NETWORK, x, targets=np.array([label, other, other]))
    assert float(result.score[0]) == 0
    assert np.all(result.score[1:] > 0)
    np.testing.assert_array_equal(result.target, [label, other, other])
    assert flags(result, 0, label) & Status.TIED_CLASSES
