"""Theta curves and flips beside loops in NumPy and PyTorch, and PyTorch batched by hand.

    python benchmarks/peers_loops.py [--peer-python VENV/bin/python] [--replicates 20] [--rounds 3]

Theta: 4 curves (noise on a quarter, half, three quarters and all of the features) x 101 noise
levels on 114 rows of 30 features, network 32-16-2, Brier score; ``--replicates 1000`` is the size
of the study. Flips: 150 examples of 4 features with correlated noise, network 16-8-3, 10,000 draws
each. Random weights: time does not depend on them.

The plain loops are timed on a share of the work and scaled. Batched by hand means: noise drawn once
for all levels, as many replicates at once as is fastest. Peers run in a child process and use all
cores; ours is run as it is, and with each core as a device of a mesh. All take turns, so that a
busy machine slows them alike; the ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time

import numpy as np

ROWS, FEATURES, LEVELS, CURVES = 114, 30, 101, (0.25, 0.5, 0.75, 1.0)
EXAMPLES, MEASURED, DRAWS = 150, 4, 10_000
LOOP_SHARE = {"theta_loop": 200, "flip_numpy": 10}  # of levels x replicates; of examples


def weights(*widths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(a, b)) * (2 / a) ** 0.5).astype(np.float32)
        for a, b in itertools.pairwise(widths)
    ]


def inputs(rows: int, features: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(rows, features)).astype(np.float32)


def covariance() -> np.ndarray:
    root = np.random.default_rng(2).normal(size=(MEASURED, MEASURED))
    return (root @ root.T / MEASURED).astype(np.float32)


# --- the peers, in the child -----------------------------------------------------------------


def peer_jobs(replicates: int) -> dict:
    import torch

    torch.set_grad_enabled(False)

    def network(x, layers):
        for w in layers[:-1]:
            x = torch.relu(x @ w)
        return x @ layers[-1]

    theta_layers = [torch.from_numpy(w) for w in weights(FEATURES, 32, 16, 2)]
    flip_layers = [torch.from_numpy(w) for w in weights(MEASURED, 16, 8, 3)]
    x = torch.from_numpy(inputs(ROWS, FEATURES))
    onehot = torch.nn.functional.one_hot(torch.arange(ROWS) % 2, 2).float()
    levels = torch.linspace(0, 1, LEVELS)

    def brier(x_hat):
        shares = torch.softmax(network(x_hat, theta_layers), -1)
        return ((shares - onehot) ** 2).sum(-1).mean(-1) / 2

    def theta_loop():
        num = LOOP_SHARE["theta_loop"]
        losses = []
        for i in range(num):
            noise = torch.randn(ROWS, FEATURES) * (torch.rand(ROWS, FEATURES) < 0.5)
            losses.append(brier(x + levels[i % LEVELS] * noise).item())
        return len(CURVES) * LEVELS * replicates / num

    def theta_batched(size):
        for p in CURVES:
            losses = torch.empty(LEVELS, replicates)
            for first in range(0, replicates, size):
                block = slice(first, min(first + size, replicates))
                shape = (block.stop - first, ROWS, FEATURES)
                noise = torch.randn(shape)
                if p < 1:
                    noise *= torch.rand(shape) < p
                for s in range(LEVELS):
                    losses[s, block] = brier(x + levels[s] * noise)
            losses.sort(1)
        return 1

    x_flip = torch.from_numpy(inputs(EXAMPLES, MEASURED))
    factor = torch.linalg.cholesky(torch.from_numpy(covariance()))

    def flip_batched(size):
        reference = network(x_flip, flip_layers).argmax(-1)
        flips = torch.zeros(EXAMPLES, dtype=torch.long)
        for _ in range(DRAWS // size):
            x_hat = x_flip + torch.randn(size, EXAMPLES, MEASURED) @ factor.T
            flips += (network(x_hat, flip_layers).argmax(-1) != reference).sum(0)
        return 1

    def flip_numpy():
        rng, cov = np.random.default_rng(0), covariance().astype(float)
        layers = weights(MEASURED, 16, 8, 3)

        def label(z):
            for w in layers[:-1]:
                z = np.maximum(z @ w, 0)
            return (z @ layers[-1]).argmax(-1)

        num = LOOP_SHARE["flip_numpy"]
        for row in inputs(EXAMPLES, MEASURED)[:num]:
            noisy = rng.multivariate_normal(row, cov, DRAWS).astype(np.float32)
            (label(noisy) != label(row[None])).mean()
        return EXAMPLES / num

    jobs = {"theta_loop": theta_loop, "flip_numpy": flip_numpy}
    for size in (20, 100):
        jobs[f"theta_batched_{size}"] = lambda size=size: theta_batched(size)
    jobs["theta_batched_alone"] = lambda: theta_batched(20)
    for size in (100, 500):
        jobs[f"flip_batched_{size}"] = lambda size=size: flip_batched(size)
    jobs["flip_batched_alone"] = lambda: flip_batched(100)
    return jobs


def serve(replicates: int) -> None:
    """Runs a job for each line, and prints its seconds, scaled to the whole of the work."""
    import torch

    jobs = peer_jobs(replicates)
    print(" ".join(jobs), flush=True)
    cores = torch.get_num_threads()
    for line in sys.stdin:
        # Batches are tried with one thread too: on small arrays several may be slower.
        torch.set_num_threads(1 if line.startswith("theta_loop") or "alone" in line else cores)
        start = time.perf_counter()
        scale = jobs[line.strip()]()
        print((time.perf_counter() - start) * scale, flush=True)


# --- ours ------------------------------------------------------------------------------------


def our_jobs(replicates: int) -> dict:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)

    import jaxrobust as jr

    def apply_fn(layers, x):
        for w in layers[:-1]:
            x = jax.nn.relu(x @ w)
        return x @ layers[-1]

    def total(_, x):
        return jnp.stack([x.sum(-1), -x.sum(-1)], axis=-1)

    theta_layers, flip_layers = weights(FEATURES, 32, 16, 2), weights(MEASURED, 16, 8, 3)
    x, y = jnp.asarray(inputs(ROWS, FEATURES)), jnp.arange(ROWS) % 2
    x_flip, noise = inputs(EXAMPLES, MEASURED), jr.perturbations.multivariate_normal(covariance())
    key = jax.random.key(0)

    def curve(mesh, p):
        return jr.robustness_curve(
            apply_fn, theta_layers, key, x, y, loss="brier", num_replicates=replicates, mesh=mesh,
            perturbation=lambda s: jr.perturbations.gaussian(s, probability=p),
            scales=jnp.linspace(0, 1, LEVELS),
        ).theta  # fmt: skip

    def flip(mesh):
        return jr.flip_probability(
            apply_fn, flip_layers, key, x_flip, perturbation=noise, num_samples=DRAWS, mesh=mesh
        ).flips

    def draws_alone():
        """The flips of a model that only adds up its inputs: the noise, and little else."""
        return jr.flip_probability(
            total, None, key, x_flip, perturbation=noise, num_samples=DRAWS
        ).flips

    cores = jax.sharding.Mesh(jax.devices(), ("replicates",))
    return {
        "theta": lambda: [curve(None, p) for p in CURVES],
        "theta_mesh": lambda: [curve(cores, p) for p in CURVES],
        "flip": lambda: flip(None),
        "flip_mesh": lambda: flip(cores),
        "draws_alone": draws_alone,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default=sys.executable, help="one that has torch")
    parser.add_argument("--replicates", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.replicates)
        return

    import jax

    ours = our_jobs(args.replicates)
    first = {}
    for name, job in ours.items():
        start = time.perf_counter()
        jax.block_until_ready(job())
        first[name] = time.perf_counter() - start
    command = [args.peer_python, __file__, "--serve", "--replicates", str(args.replicates)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    peers = child.stdout.readline().split()
    seconds: dict[str, list[float]] = {name: [] for name in (*ours, *peers)}
    for _ in range(args.rounds):
        for name, job in ours.items():
            start = time.perf_counter()
            jax.block_until_ready(job())
            seconds[name].append(time.perf_counter() - start)
        for name in peers:
            child.stdin.write(name + "\n")
            child.stdin.flush()
            seconds[name].append(float(child.stdout.readline()))
    child.communicate()

    print(f"{os.cpu_count()} cores; {args.rounds} rounds; medians in seconds")
    for name, values in seconds.items():
        compiled = f"   first call {first[name]:.1f} s" if name in first else ""
        print(f"{name:20s} {statistics.median(values):9.3f}{compiled}")

    def ratio(own: str, peer: str) -> float:
        """The median over rounds of how many times as long the peer takes, at its best size."""
        return min(
            statistics.median(b / a for a, b in zip(seconds[own], seconds[name], strict=True))
            for name in peers
            if name.startswith(peer)
        )

    print("\n| times as fast as | one device | each core a device | goal |\n|---|---|---|---|")
    for label, own, peer, goal in (
        ("theta: PyTorch, a loop over replicates", "theta", "theta_loop", 20),
        ("theta: PyTorch, batched by hand", "theta", "theta_batched", 4),
        ("flips: NumPy, a loop over examples", "flip", "flip_numpy", 10),
        ("flips: PyTorch, batched by hand", "flip", "flip_batched", 1),
    ):
        found = [ratio(own, peer), ratio(f"{own}_mesh", peer)]
        print(f"| {label} | {found[0]:.2f} | {found[1]:.2f} | {goal} |")
    share = statistics.median(
        a / b for a, b in zip(seconds["draws_alone"], seconds["flip"], strict=True)
    )
    print(f"\nDrawing the normals alone takes {share:.0%} of the time of the flips (one device).")


if __name__ == "__main__":
    main()
