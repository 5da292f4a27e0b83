"""Our reverse Weibull fit beside SciPy's: time for each fit, and whose likelihood is higher.

    python benchmarks/peers_weibull.py [--fits 1000] [--maxima 500] [--peers 20] [--rounds 5]

Samples of maxima of several shapes. SciPy's ``weibull_max.fit`` runs from each of five starts on a
few samples; ours fits the whole batch in one call (compiled before). The two take turns, so that a
busy machine slows both alike, and the ratio printed is that of the medians.

Likelihoods are compared where SciPy's best start is valid: finite, its location not below the
largest maximum, its shape from 1 to 100.
"""

from __future__ import annotations

import argparse
import time
import warnings

import jax
import numpy as np
from scipy import stats

from jaxrobust.fits import fit_reverse_weibull
from jaxrobust.fits.reverse_weibull import MAX_SHAPE, METHODS, MIN_SHAPE

STARTS = [(1.5, 0.02), (3.0, 0.2), (8.0, 0.8), (20.0, 3.0), (60.0, 8.0)]  # shape, excess in ranges


def draws(num: int, size: int, seed: int = 0) -> np.ndarray:
    """Samples in turn: reverse Weibull with shapes from 1.2 to 30, Gumbel, with ties, sharp."""
    rng = np.random.default_rng(seed)
    samples = []
    for i in range(num):
        shape = np.exp(rng.uniform(np.log(1.2), np.log(30)))
        samples.append(
            (
                1 - 0.1 * rng.weibull(shape, size),
                rng.gumbel(size=size),
                np.round(3 - rng.weibull(3.0, size), 1),
                -rng.weibull(rng.uniform(0.5, 1.2), size),
            )[(0, 0, 0, 1, 2, 3)[i % 6]]
        )
    return np.stack(samples).astype(np.float32)


def scipy_fit(sample: np.ndarray) -> float:
    """The best log-likelihood over the starts whose answer is valid; -inf if none is."""
    sample = sample.astype(float)
    top, spread, best = sample.max(), np.ptp(sample), -np.inf
    for shape, excess in STARTS:
        location = top + spread * excess
        try:
            found = stats.weibull_max.fit(
                sample, shape, loc=location, scale=np.mean(location - sample)
            )
        except (ValueError, RuntimeError, stats.FitError):
            continue
        value = np.sum(stats.weibull_max.logpdf(sample, *found))
        if MIN_SHAPE <= found[0] <= MAX_SHAPE and found[1] >= top and np.isfinite(value):
            best = max(best, value)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fits", type=int, default=1000, help="samples in our batch")
    parser.add_argument("--maxima", type=int, default=500, help="maxima in each sample")
    parser.add_argument("--peers", type=int, default=20, help="samples SciPy fits in each round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")

    samples = draws(args.fits, args.maxima)
    fits = {method: fit_reverse_weibull(samples, method=method) for method in METHODS}
    jax.block_until_ready(fits)

    seconds: dict[str, list[float]] = {name: [] for name in ("scipy", *METHODS)}
    gaps = []
    for turn in range(args.rounds):
        chosen = np.arange(turn * args.peers, (turn + 1) * args.peers) % args.fits
        start = time.perf_counter()
        best = np.array([scipy_fit(samples[i]) for i in chosen])
        seconds["scipy"].append((time.perf_counter() - start) / args.peers)
        gaps.append(np.asarray(fits["mle"].log_likelihood, float)[chosen] - best)
        for method in METHODS:
            start = time.perf_counter()
            jax.block_until_ready(fit_reverse_weibull(samples, method=method))
            seconds[method].append((time.perf_counter() - start) / args.fits)

    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    print(f"{args.maxima} maxima in a sample; {args.fits} fits in a batch; {jax.devices()[0]}")
    for name, value in medians.items():
        ratio = medians["scipy"] / value
        print(f"{name:15s} {1e3 * value:9.3f} ms a fit   {ratio:7.1f} times SciPy's speed")
    print(f"one start of SciPy {1e3 * medians['scipy'] / len(STARTS):.3f} ms")
    gap = np.concatenate(gaps)
    valid = np.isfinite(gap)
    print(
        f"log-likelihood, ours minus SciPy's best, on {valid.sum()} of {gap.size} samples where"
        f" SciPy's is valid: least {gap[valid].min():.2g}, median {np.median(gap[valid]):.2g},"
        f" most {gap[valid].max():.2g}"
    )


if __name__ == "__main__":
    main()
