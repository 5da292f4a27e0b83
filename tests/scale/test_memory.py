"""Peak memory does not grow with the number of draws or of examples, only with the chunk.

In processes of their own, which tell their highest resident set so far. Were all noisy inputs of a
large run kept, that would take 400 MB. The noise is one number for a whole input, so that the test
takes no longer than need be.
"""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = """
import json
import jax, jax.numpy as jnp
import jaxrobust as jr

D = 512
noise = jr.perturbations.from_sampler(lambda key, x: x + jax.random.normal(key, (), x.dtype))

def apply_fn(params, x):
    return x @ params

params = jnp.ones((D, 2)) * jnp.array([1.0, -1.0])
key = jax.random.key(0)

def theta(m, n):
    return jr.theta_robustness(
        apply_fn, params, key, jnp.ones((n, D)), jnp.zeros((n, 2)),
        perturbation=noise, num_replicates=m, chunk_size=200,
    )

def flip(m, n):
    return jr.flip_probability(
        apply_fn, params, key, jnp.ones((n, D)), perturbation=noise, num_samples=m, chunk_size=200
    )

def peak(fn, *args):
    jax.block_until_ready(fn(*args))
    # Not getrusage: a child of a large process would inherit its peak.
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0])

"""


def peaks(*calls):
    """Highest resident sets, after each of the calls in one process."""
    script = SCRIPT + f"print(json.dumps([{', '.join(f'peak({call})' for call in calls)}]))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


pytestmark = pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc"
)


@pytest.fixture(autouse=True)
def _compile_quickly(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")


def test_peak_memory_is_flat_in_draws():
    _, small, theta, flips, kept = peaks(
        "theta, 100, 20",
        "flip, 100, 20",
        "theta, 10_000, 20",
        "flip, 10_000, 20",
        "lambda: jnp.ones((200_000, D)) + 1",
    )
    assert theta < 1.1 * small
    assert flips < 1.1 * small
    assert kept > 1.5 * small  # growth would have been seen


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["theta", "flip"])
def test_peak_memory_is_flat_in_examples(measure):
    # Each in a process of its own: compiling for another number of examples takes memory, too.
    (few,) = peaks(f"{measure}, 100, 20")
    (many,) = peaks(f"{measure}, 100, 2000")
    assert many < 1.1 * few
