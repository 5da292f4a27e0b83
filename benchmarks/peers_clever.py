"""Our CLEVER beside ART's ``clever_u``: margin gradients a second, on the same weights and image.

    python benchmarks/peers_clever.py --peer-python VENV/bin/python [--batches 50] [--size 1024]

A fully connected network 784-512-256-128-10 with random weights, untargeted, l2, one image. ART
runs in a child process (its environment needs torch and adversarial-robustness-toolbox); the two
take turns, so that a busy machine slows both alike. The unit is the gradient of one margin at one
point. ART computes two class gradients for each and has a pool of ``10 * size`` points, from which
it draws all batches; ours draws every batch anew, ``batches * size`` points. ``--peer-size`` makes
ART's pool smaller; when very small, the time of its nine fits weighs on its rate.

Also printed: our time for a point over that of the bare forward and nine backward passes.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time

import numpy as np

WIDTHS = (784, 512, 256, 128, 10)
RADIUS = 2.0
POOL = 10


def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        f"w{i}": (rng.normal(size=(a, b)) * (2 / a) ** 0.5).astype(np.float32)
        for i, (a, b) in enumerate(itertools.pairwise(WIDTHS))
    }
    return {**arrays, "x": rng.random((1, 784)).astype(np.float32)}


def serve(path: str, batches: int, size: int) -> None:
    """The child: runs ART's score whenever a line comes, and prints seconds and score."""
    import torch
    from art.estimators.classification import PyTorchClassifier
    from art.metrics import clever_u

    arrays = np.load(path)
    layers = []
    for i in range(len(WIDTHS) - 1):
        layer = torch.nn.Linear(WIDTHS[i], WIDTHS[i + 1])
        layer.weight.data = torch.from_numpy(arrays[f"w{i}"].T.copy())
        layer.bias.data.zero_()
        layers += [layer, torch.nn.ReLU()]
    classifier = PyTorchClassifier(
        torch.nn.Sequential(*layers[:-1]), torch.nn.CrossEntropyLoss(), (784,), 10
    )
    for _ in sys.stdin:
        start = time.perf_counter()
        score = clever_u(
            classifier, arrays["x"][0], batches, size, RADIUS, 2, pool_factor=POOL, verbose=False
        )
        print(time.perf_counter() - start, score, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", help="the Python of an environment with ART")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--peer-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.batches, args.peer_size)
        return

    import jax
    import jax.numpy as jnp

    import jaxrobust as jr

    arrays = weights()
    params = [jnp.asarray(arrays[f"w{i}"]) for i in range(len(WIDTHS) - 1)]
    x = jnp.asarray(arrays["x"])

    def apply_fn(params, x):
        for w in params[:-1]:
            x = jax.nn.relu(x @ w)
        return x @ params[-1]

    @jax.jit
    def bare(params, points):
        logits, pull_back = jax.vjp(lambda v: apply_fn(params, v), points)
        unit = jnp.eye(10)
        label = logits.argmax(-1)
        shifts = jnp.arange(1, 10)
        cotangents = unit[label][None] - unit[(label[None] + shifts[:, None]) % 10]
        return [pull_back(c)[0] for c in cotangents]

    points = jax.random.uniform(jax.random.key(1), (args.size, 784))

    def ours():
        return jr.clever_score(
            apply_fn, params, jax.random.key(0), x,
            radius=RADIUS, num_batches=args.batches, batch_size=args.size,
        )  # fmt: skip

    def seconds(fn) -> float:
        start = time.perf_counter()
        jax.block_until_ready(fn())
        return time.perf_counter() - start

    result = ours()
    seconds(lambda: bare(params, points))
    times: dict[str, list[float]] = {"ours": [], "bare": [], "art": []}
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, **arrays)
        file.flush()
        child = None
        if args.peer_python:
            child = subprocess.Popen(
                [args.peer_python, __file__, "--serve", file.name, "--batches", str(args.batches),
                 "--peer-size", str(args.peer_size)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        for _ in range(args.rounds):
            times["ours"].append(seconds(ours))
            times["bare"].append(np.median([seconds(lambda: bare(params, points)) for _ in "xxx"]))
            if child is not None:
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write("go\n")
                child.stdin.flush()
                elapsed, peer_score = map(float, child.stdout.readline().split())
                times["art"].append(elapsed)
        if child is not None:
            child.communicate()

    ours_point = np.median(times["ours"]) / (args.batches * args.size)
    bare_point = np.median(times["bare"]) / args.size
    print(f"{jax.devices()}; {args.batches} batches of {args.size}, l2, radius {RADIUS}")
    low, high = result.interval[0]
    print(
        f"ours  {9 / ours_point:12.0f} margin gradients a second; {np.median(times['ours']):.2f} s;"
        f" score {float(result.score[0]):.4f} [{low:.4f}, {high:.4f}]"
    )
    print(f"      {ours_point / bare_point:.2f} times one forward and nine backward passes")
    if times["art"]:
        art_point = np.median(times["art"]) / (POOL * args.peer_size)
        print(f"ART   {9 / art_point:12.0f} margin gradients a second; score {peer_score:.4f}")
        print(f"ours is {art_point / ours_point:.1f} times as fast")


if __name__ == "__main__":
    main()
