"""Real-world robustness at full size: coverage over many repeats, large counts, and speed."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxrobust as jr

KEY = jax.random.key(11)
UNIT = jr.perturbations.gaussian(1.0)


def threshold(params, x):
    """Label 1 above zero."""
    return jnp.stack([jnp.zeros(x.shape[0], x.dtype), x[:, 0]], axis=1)


@pytest.mark.slow
def test_coverage_over_two_thousand_repeats():
    repeats, num = 2000, 1000
    exact = np.array([0.5, 0.05, 0.001])
    x = jnp.asarray(-scipy.stats.norm.ppf(exact), jnp.float32)[:, None]
    labels = jnp.ones(3, jnp.int32)

    def run(key):
        result = jr.flip_probability(
            threshold, None, key, x, perturbation=UNIT, num_samples=num, labels=labels
        )
        return result.interval, result.mean_monte_carlo_interval

    each, mean = jax.jit(lambda keys: jax.lax.map(run, keys))(jax.random.split(KEY, repeats))
    each, mean = np.asarray(each), np.asarray(mean)
    covered = ((each[..., 0] <= exact) & (exact <= each[..., 1])).mean(axis=0)
    assert (covered >= 0.94).all(), covered
    centre = exact.mean()
    assert ((mean[:, 0] <= centre) & (centre <= mean[:, 1])).mean() >= 0.94


@pytest.mark.slow
def test_the_data_set_mean_covers_the_population_over_two_thousand_repeats():
    """Examples are drawn too: their distances from the boundary are normal."""
    repeats, n, num = 2000, 60, 100
    truth = scipy.stats.norm.sf(1 / np.sqrt(2))  # of x ~ N(1, 1): P[x + z < 0]

    def run(key):
        key_x, key_noise = jax.random.split(key)
        x = 1 + jax.random.normal(key_x, (n, 1))
        return jr.flip_probability(
            threshold, None, key_noise, x, perturbation=UNIT, num_samples=num,
            labels=jnp.ones(n, jnp.int32),
        ).mean_interval  # fmt: skip

    ends = jax.jit(lambda keys: jax.lax.map(run, keys))(jax.random.split(KEY, repeats))
    assert ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() >= 0.94


@pytest.mark.slow
def test_a_hundred_million_draws_are_counted_exactly():
    n = 10**8
    result = jr.flip_probability(
        threshold, None, KEY, jnp.full((1, 1), 50.0), perturbation=UNIT, num_samples=n,
        labels=jnp.zeros(1, jnp.int32), chunk_size=2**16,
    )  # fmt: skip
    assert int(result.flips[0]) == n  # float32 counters stop at 2^24


@pytest.mark.slow
def test_a_small_data_set_takes_seconds():
    rng = np.random.default_rng(0)
    sizes = [(4, 16), (16, 8), (8, 3)]
    params = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in sizes]

    def network(params, x):
        for w in params[:-1]:
            x = jax.nn.relu(x @ w)
        return x @ params[-1]

    x = jnp.asarray(rng.normal(size=(150, 4)), jnp.float32)
    seconds = []
    for seed in range(3):
        start = time.perf_counter()
        result = jr.flip_probability(
            network, params, jax.random.key(seed), x, perturbation=UNIT, num_samples=10_000
        )
        jax.block_until_ready(result)
        seconds.append(time.perf_counter() - start)
    assert min(seconds[1:]) < 5  # the first one compiles
    print(f"150 x 10,000 draws: {min(seconds[1:]):.2f} s")
