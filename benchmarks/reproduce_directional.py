"""Reproduces the directional noisy risk of attacks on CIFAR-10 (ResNet-32).

After "How Worst-Case Are Adversarial Attacks? Linking Adversarial and Statistical Robustness" 2026,
table 2: kappa_.25, R at kappa* and attack success of DN, FGSM, MI-FGSM, PGD and PGN, beside what
the paper prints; the rank correlation of R(kappa) with R(0); how many errors random search finds;
and what the sweep costs against bare forward passes.

    python benchmarks/reproduce_directional.py           # reduced: two budgets, 20 images
    python benchmarks/reproduce_directional.py --all-budgets --images 500 --draws 256

The data folder is the one named by JAXROBUST_DATA, or ``--data-dir``. The paper's checkpoint is
another ResNet-32, so numbers are to be near and in the same order, not equal. With 20 images the
intervals are wide: the order of DN against PGD is clear, neighbours in the table are not.

Found with 40 images (37 classed rightly) and 16 draws: kappa_.25 / R at kappa* / success.

    attack    linf 8/255            l2 1.0
    DN 10     11.7 / .132 / .97     3.6 / .546 / 1
    DN 20     11.6 / .132 / .97     4.4 / .512 / 1
    DN 50     12.3 / .115 / 1       6.0 / .345 / 1
    DN 100    13.8 / .095 / 1       6.3 / .307 / 1
    FGSM      14.2 / .115 / .92     6.2 / .299 / .84
    MI-FGSM   13.2 / .112 / 1       5.9 / .363 / 1
    PGD-5     31.1 / .044 / 1       11.4 / .130 / 1
    PGD-20    32.3 / .047 / 1       10.9 / .140 / 1
    PGN       32.9 / .044 / 1       9.1 / .204 / 1

In l2 the attacks come in the paper's order but for the two PGDs; in linf but for FGSM and MI-FGSM
(both pairs far within their intervals) and PGN: the paper has .079 and kappa_.25 of 17 (here 20 to
47 with 95% confidence), and here PGN is as narrow as PGD. The correlation of
R(kappa) with R(0) falls with kappa for every attack, from 1 to below .3 at kappa 50.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxrobust as jr
from jaxrobust import attacks, measures
from jaxrobust.zoo.efficientnet import load_imagenet
from jaxrobust.zoo.resnet import load_cifar10

# kappa_.25, R at kappa*, attack success.
PAPER = {
    ("linf", 8 / 255): {
        "DN 10": (12, 0.13, 0.93),
        "DN 100": (13, 0.097, 0.999),
        "FGSM": (17, 0.10, 0.737),
        "MI-FGSM": (14, 0.103, 0.997),
        "PGD-5": (40, 0.028, 0.995),
        "PGD-20": (44, 0.032, 1.0),
        "PGN": (17, 0.079, 0.999),
    },
    ("l2", 1.0): {
        "DN 10": (4, 0.43, 0.95),
        "DN 100": (7, 0.252, 1.0),
        "FGSM": (8, 0.231, 0.634),
        "MI-FGSM": (6, 0.311, 0.997),
        "PGD-5": (15, 0.111, 0.95),
        "PGD-20": (14, 0.108, 1.0),
        "PGN": (8, 0.214, 1.0),
    },
}
BUDGETS = (("linf", 8 / 255), ("l2", 1.0))
MORE_BUDGETS = (("linf", 4 / 255), ("l2", 0.5))
STEP_SIZE = {"linf": 2 / 255, "l2": 0.25}


def pgd(num_steps, apply_fn, params, key, x, labels, *, eps, norm):
    """PGD from a random start, with the paper's step."""
    return attacks.pgd(
        apply_fn, params, key, x, labels,
        eps=eps, norm=norm, step_size=STEP_SIZE[norm], num_steps=num_steps,
    )  # fmt: skip


def dn(kappa, apply_fn, params, key, x, labels, *, eps, norm):
    """DN; kappa is data, so all of them compile once."""
    return attacks.dn(apply_fn, params, key, x, labels, eps=eps, norm=norm, kappa=kappa)


ATTACKS = {
    **{f"DN {kappa:g}": functools.partial(dn, kappa) for kappa in (10.0, 20.0, 50.0, 100.0)},
    "FGSM": attacks.fgsm,
    "MI-FGSM": attacks.mi_fgsm,
    "PGD-5": functools.partial(pgd, 5),
    "PGD-20": functools.partial(pgd, 20),
    "PGN": attacks.pgn,
}


def print_table(rows):
    print(measures.format_table(rows))
    print("\nin the paper: kappa_.25 / R at kappa* / success")
    for row in rows:
        printed = PAPER.get((row.norm, row.eps), {}).get(row.attack)
        if printed:
            print(f"  {row.attack:8} {row.norm:4} {row.eps:.4g}:", " / ".join(map(str, printed)))


def print_ratios(rows):
    for norm, eps in dict.fromkeys((row.norm, row.eps) for row in rows):
        at_star = {r.attack: float(r.risk.risk_at_kappa_star) for r in rows
                   if (r.norm, r.eps) == (norm, eps)}  # fmt: skip
        order = " > ".join(sorted(at_star, key=at_star.__getitem__, reverse=True))
        print(f"\n{norm} {eps:.4g}: by R at kappa*: {order}")
        if "DN 10" in at_star and at_star.get("PGD-20", 0) > 0:
            print(f"  DN 10 over PGD-20: {at_star['DN 10'] / at_star['PGD-20']:.2f}")


def print_correlations(rows):
    print("\nSpearman correlation over images, of R(kappa) with R(0) / with the model's certainty")
    for row in rows:
        own = measures.risk_correlation(row.risk)
        sure = measures.risk_correlation(row.risk, against="certainty")
        cells = [
            f"{float(kappa):g}: {float(a):.2f}/{float(b):.2f}"
            for kappa, a, b in zip(own.kappa, own.correlation, sure.correlation, strict=True)
        ]
        print(f"  {row.attack:8} {row.norm:4} {row.eps:.4g}  " + "  ".join(cells))


def print_search(apply_fn, params, key, x, labels, num_samples, budgets):
    print("\nrandom search on the sphere: share of images with an error after T draws")
    for norm, eps in budgets:
        found = jr.error_search(
            apply_fn, params, key, x, labels, num_samples=num_samples,
            perturbation=jr.perturbations.gaussian_sphere(eps, norm=norm),
        )  # fmt: skip
        cells = zip(found.num_draws.tolist(), found.curve, strict=True)
        print(f"  {norm:4} {eps:.4g}  " + "  ".join(f"{t}: {float(c):.3f}" for t, c in cells))


def print_imagenet(data_dir, key, num_images, num_samples, kappas):
    """The large case, D = 150,528, for the attacks that take few gradients."""
    apply_fn, params = load_imagenet(data_dir)
    with np.load(pathlib.Path(data_dir) / "imagenet20.npz") as data:
        x = jnp.asarray(data["x"][:num_images] / 255, jnp.float32)
        labels = jnp.asarray(data["y"][:num_images], jnp.int32)
    rows = measures.directional_table(
        apply_fn, params, key, x, labels, budgets=[("linf", 4 / 255)], num_samples=num_samples,
        attacks={name: ATTACKS[name] for name in ("FGSM", "MI-FGSM", "PGD-5")}, kappas=kappas,
    )  # fmt: skip
    print(f"\nEfficientNet-Lite0, {num_images} ImageNet images, D = {x[0].size:,},"
          f" kappa* = {float(rows[0].risk.kappa_star):.4f}")  # fmt: skip
    print(measures.format_table(rows))


def cost_ratio(apply_fn, params, x, labels, turns):
    """Seconds of a sweep over those of as many bare jitted forward passes; they take turns."""
    batch = len(x) * (340 // len(x))
    images = jnp.tile(x, (batch // len(x), 1, 1, 1))
    forward = jax.jit(apply_fn)
    draws, kappas = 2 * batch // len(x), (0.0, 20.0)  # and kappa*

    def sweep(seed):
        jax.block_until_ready(
            jr.directional_risk(
                apply_fn, params, jax.random.key(seed), x, labels, 1 - x,
                norm="linf", kappas=jnp.array(kappas), num_samples=draws, chunk_size=batch,
                num_resamples=1,
            )
        )  # fmt: skip

    def bare(_):
        for _ in range(2 * (len(kappas) + 1)):
            jax.block_until_ready(forward(params, images))

    def seconds(fn, seed):
        start = time.perf_counter()
        fn(seed)
        return time.perf_counter() - start

    seconds(sweep, 0), seconds(bare, 0)
    return [seconds(sweep, turn) / seconds(bare, turn) for turn in range(turns)]


def main():
    parser = argparse.ArgumentParser(description="Directional noisy risk on CIFAR-10.")
    parser.add_argument("--data-dir", default=os.environ.get("JAXROBUST_DATA"))
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--kappas", type=float, nargs="+", default=[0, 5, 10, 20, 50])
    parser.add_argument("--all-budgets", action="store_true", help="linf 4/255 and l2 0.5 too")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--search-draws", type=int, default=64)
    parser.add_argument("--imagenet", type=int, default=0, help="images of the large case, to 20")
    parser.add_argument("--turns", type=int, default=3, help="of the timing; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.data_dir:
        parser.error("--data-dir (or JAXROBUST_DATA) must name the folder of data files")
    apply_fn, params = load_cifar10(32, arguments.data_dir)
    with np.load(pathlib.Path(arguments.data_dir) / "cifar10_test2000.npz") as data:
        x = jnp.asarray(data["x"][: arguments.images] / 255, jnp.float32)
        labels = jnp.asarray(data["y"][: arguments.images], jnp.int32)
    budgets = (*BUDGETS, *MORE_BUDGETS) if arguments.all_budgets else BUDGETS
    key, search_key = jax.random.split(jax.random.key(arguments.seed))
    start = time.perf_counter()
    kappas = jnp.array(arguments.kappas, jnp.float32)
    for budget in budgets:
        rows = measures.directional_table(
            apply_fn, params, key, x, labels, budgets=[budget], num_samples=arguments.draws,
            attacks={name: ATTACKS[name] for name in arguments.attacks}, kappas=kappas,
        )  # fmt: skip
        print_table(rows)
        print_ratios(rows)
        print_correlations(rows)
        print(flush=True)
    print_search(apply_fn, params, search_key, x, labels, arguments.search_draws, budgets)
    print(f"\n{time.perf_counter() - start:.0f} seconds")
    if arguments.imagenet:
        print_imagenet(arguments.data_dir, key, arguments.imagenet, arguments.draws, kappas)
    if arguments.turns:
        ratios = cost_ratio(apply_fn, params, x, labels, arguments.turns)
        turns = ", ".join(f"{r:.3f}" for r in ratios)
        print(f"sweep over bare forward passes: {statistics.median(ratios):.3f} (of {turns})")


if __name__ == "__main__":
    main()
