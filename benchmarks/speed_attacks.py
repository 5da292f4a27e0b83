"""PGD against its bare gradients, and how broad DN is beside PGD, on ResNet-32 and CIFAR-10.

    python benchmarks/speed_attacks.py [--batch 100] [--repeats 3] [--images 100] [--draws 32]

Speed: one call of ``attacks.pgd`` (20 steps, linf 8/255) against 20 calls of the jitted gradient of
plain cross-entropy, in turns. Both do 20 gradients; PGD also draws its start, projects, and judges
its result. Breadth: mean noisy risk at kappa* = D^(1/4) of DN (kappa 10) and of PGD-20 with random
start, with a 95% interval of their ratio from a paired bootstrap over the images.

Found with JAX 0.10 on two CPU cores: PGD over its gradients 0.893, 0.951 and 0.882 in three turns
at batch 100 (an earlier day 0.885, 0.899, 0.917). It can be below 1 since a loop inside one program
saves its start and end. Breadth, linf 8/255, 200 images, 64 draws: risk of DN 0.1305 (success
0.95), of PGD 0.0405, ratio 3.22 (2.29 to 5.52); l2 1.0, 100 images, 32 draws: 0.4738 and 0.1228,
ratio 3.86 (2.91 to 5.69). The paper's table has 4.1 and 4.0 there, on another ResNet-32.

Needs the weights and images in the folder that JAXROBUST_DATA (or ``--data``) names.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxrobust as jr
from jaxrobust import attacks
from jaxrobust.zoo.resnet import load_cifar10

KEY = jax.random.key(0)
SETTINGS = {"linf": (8 / 255, 2 / 255), "l2": (1.0, 0.25)}


def load(data: pathlib.Path, num: int):
    """The network and the first ``num`` images that it classes rightly."""
    apply_fn, params = load_cifar10(32, data)
    with np.load(data / "cifar10_test2000.npz") as archive:
        x = jnp.asarray(archive["x"][: num + num // 4 + 2] / 255, jnp.float32)
        y = archive["y"][: len(x)].astype(np.int32)
    right = np.flatnonzero(np.asarray(jax.jit(apply_fn)(params, x).argmax(-1)) == y)[:num]
    return apply_fn, params, x[right], jnp.asarray(y[right])


def speed(apply_fn, params, x, y, repeats: int) -> None:
    """Prints the seconds of each turn, and the median ratio."""

    def loss(x, params, y):
        rows = jax.nn.log_softmax(apply_fn(params, x))
        return -jnp.take_along_axis(rows, y.reshape(-1, 1), 1).sum()

    gradient = jax.jit(jax.grad(loss))

    def bare():
        for _ in range(20):
            jax.block_until_ready(gradient(x, params, y))

    def whole():
        jax.block_until_ready(attacks.pgd(apply_fn, params, KEY, x, y, eps=8 / 255))

    def seconds(fn):
        start = time.perf_counter()
        fn()
        return time.perf_counter() - start

    bare(), whole()
    turns = np.array([(seconds(whole), seconds(bare)) for _ in range(repeats)])
    for a, b in turns:
        print(f"pgd {a:7.2f} s   20 gradients {b:7.2f} s   ratio {a / b:.3f}", flush=True)
    print(f"batch {len(x)}: median ratio {np.median(turns[:, 0] / turns[:, 1]):.3f}", flush=True)


def breadth(apply_fn, params, x, y, norm: str, draws: int) -> None:
    """Prints mean noisy risk of both attacks, and their ratio."""
    eps, step = SETTINGS[norm]
    kw = {"eps": eps, "norm": norm}
    pgd = attacks.pgd(apply_fn, params, KEY, x, y, step_size=step, num_steps=20, **kw)
    dn = attacks.dn(apply_fn, params, KEY, x, y, kappa=10.0, **kw)
    risks = {}
    for name, result in {"dn": dn, "pgd": pgd}.items():
        found = jr.directional_risk(
            apply_fn, params, jax.random.key(1), x, y, result.x_adv,
            norm=norm, kappas=jnp.zeros(1), num_samples=draws,
        )  # fmt: skip
        at_star = int(jnp.abs(found.kappa - found.kappa_star).argmin())
        risks[name] = np.asarray(found.risk[at_star], np.float64)
        print(
            f"{norm} {name:4s} success {np.mean(result.success):.3f}"
            f"  risk at kappa* {risks[name].mean():.4f}",
            flush=True,
        )
    picks = np.random.default_rng(0).integers(len(x), size=(4000, len(x)))
    above, below = risks["dn"][picks].mean(1), risks["pgd"][picks].mean(1)
    ratios = np.divide(above, below, out=np.full_like(above, np.inf), where=below > 0)
    low, high = np.quantile(ratios, [0.025, 0.975], method="inverted_cdf")
    ratio = risks["dn"].mean() / max(risks["pgd"].mean(), 1e-12)
    print(f"{norm} ratio {ratio:.2f}, 95% interval {low:.2f} to {high:.2f}", flush=True)


def main() -> None:
    """Runs both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("JAXROBUST_DATA"))
    parser.add_argument("--batch", type=int, default=100, help="of the speed test; 0 skips it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=100, help="of the breadth test; 0 skips it")
    parser.add_argument("--draws", type=int, default=32)
    parser.add_argument("--norms", default="linf,l2")
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data (or JAXROBUST_DATA) must name the folder of weights and images")
    if args.batch:
        speed(*load(pathlib.Path(args.data), args.batch), args.repeats)
    if args.images:
        model = load(pathlib.Path(args.data), args.images)
        for norm in args.norms.split(","):
            breadth(*model, norm, args.draws)


if __name__ == "__main__":
    main()
