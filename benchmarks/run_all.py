"""Runs the benchmarks of speed one after another and writes RESULTS.md beside this file.

    python benchmarks/run_all.py [--peer-python VENV/bin/python] [-o FILE]

What somebody has written in the file under "Where goals are missed" is kept.
The peers' Python needs torch, and for some pieces torchattacks, foolbox and
adversarial-robustness-toolbox; without one, the pieces that need it are left out, and so are those
that need the data folder of JAXROBUST_DATA where there is none. Takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import pathlib
import platform
import subprocess
import sys
import time

import jax

HERE = pathlib.Path(__file__).parent
COMMENTS = "## Where goals are missed"
# Title, script, its arguments, whether it has peers, whether it needs data.
PIECES = (
    (
        "Estimators over bare model calls", "overheads.py", ["--networks", "resnet", "mlp"],
        False, False,
    ),
    (
        "Estimators over bare calls of EfficientNet-Lite0", "overheads.py",
        ["--networks", "lite0", "--rounds", "3"], False, True,
    ),
    ("Growth", "growth.py", [], False, False),
    (
        "Theta and flips beside NumPy and PyTorch", "peers_loops.py",
        ["--replicates", "1000"], True, False,
    ),
    ("Reverse Weibull fits beside SciPy", "peers_weibull.py", [], False, False),
    ("CLEVER beside ART", "peers_clever.py", [], True, False),
    ("PGD beside its bare gradients", "speed_attacks.py", ["--images", "0"], False, True),
    (
        "PGD beside torchattacks, foolbox and ART", "peers_attacks.py",
        ["--only", "pgd20_linf_8,pgd20_gradients", "--images", "100", "--repeats", "3"], True, True,
    ),
)  # fmt: skip


def machine() -> str:
    """The processor, its cores, the memory and the versions."""
    name = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1] for line in info.read_text().splitlines()
                 if line.startswith("model name")]  # fmt: skip
        name = names[0].strip() if names else name
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("jax", "numpy", "scipy"))
    return (
        f"{name}, {os.cpu_count()} cores, {memory:.0f} GB; {platform.system()};"
        f" {jax.devices()[0].device_kind} as seen by JAX; Python {platform.python_version()},"
        f" {versions}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python")
    parser.add_argument("--only", nargs="*", help="scripts to run, such as overheads.py")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for each piece")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=HERE / "RESULTS.md")
    args = parser.parse_args()
    earlier = args.output.read_text() if args.output.exists() else ""
    kept = "\n" + earlier[earlier.index(COMMENTS) :] if COMMENTS in earlier else ""
    parts = [
        "# Results of the benchmarks",
        f"{datetime.date.today()}. {machine()}.",
        "The pieces say what they ran. Load on the machine (1 minute) is given for each: where it"
        " is above the number of cores, others were running too, and only ratios of runs that took"
        " turns mean something.",
    ]
    for title, script, options, has_peers, needs_data in PIECES:
        if args.only and script not in args.only:
            continue
        parts.append(f"## {title}")
        if has_peers and not args.peer_python:
            parts.append("Not run: no `--peer-python`.")
            continue
        if needs_data and not os.environ.get("JAXROBUST_DATA"):
            parts.append("Not run: no data folder.")
            continue
        peers = ["--peer-python", args.peer_python] if has_peers else []
        command = [sys.executable, str(HERE / script), *options, *peers]
        start = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
            text = done.stdout if done.returncode == 0 else done.stderr[-2000:]
        except subprocess.TimeoutExpired:
            text = f"Not finished in {args.timeout:.0f} s."
        seconds = time.perf_counter() - start
        parts.append(f"`{script} {' '.join(options)}`: {seconds:.0f} s in all; load"
                     f" {os.getloadavg()[0]:.1f}.")  # fmt: skip
        # Tables stay tables, all else is shown as it was printed.
        lines = text.strip().splitlines()
        plain = [line for line in lines if not line.startswith("|")]
        tables = [line for line in lines if line.startswith("|")]
        if tables:
            parts.append("\n".join(tables))
        parts.append("```text\n" + "\n".join(plain).strip() + "\n```")
        args.output.write_text("\n\n".join(parts) + "\n" + kept)
        print(f"{script}: {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
