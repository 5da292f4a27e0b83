"""Eight devices, or two processes of two devices each, find what one device finds.

In processes of their own, because the number of devices is fixed when JAX starts.
"""

import pathlib
import re
import socket
import subprocess
import sys

import numpy as np
import pytest

WORKER = pathlib.Path(__file__).with_name("worker.py")
# Fits to maxima, by iteration, and what comes from them: rounding in the maxima grows in them.
FITTED = r"clever.*(score|per_class|lipschitz|fit|ks_|interval)"


def work(tmp_path, name, measures, *args):
    """Starts the worker on one process."""
    out = tmp_path / f"{name}.npz"
    command = [sys.executable, str(WORKER), str(out), measures, *map(str, args)]
    return out, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(*processes):
    """Waits for them all, and ends them all if one fails."""
    try:
        for process in processes:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output[-3000:]
    finally:
        for process in processes:
            process.kill()


def run(tmp_path, name, measures, *args):
    out, process = work(tmp_path, name, measures, *args)
    finish(process)
    return np.load(out)


def free_port():
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


def assert_same(found, expected):
    """Whole numbers, truths and attacked inputs bit for bit, floats to rounding."""
    assert set(found) == set(expected.files)
    for name in expected.files:
        if expected[name].dtype.kind in "biu":
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
        else:
            rtol = 1e-3 if re.search(FITTED, name) else 1e-6
            np.testing.assert_allclose(found[name], expected[name], rtol, 1e-7, err_msg=name)


@pytest.mark.parametrize(
    "measures",
    ["theta,flip,split,pgd", pytest.param("directional,clever", marks=pytest.mark.slow)],
)
def test_devices_and_hosts_find_what_one_device_finds(tmp_path, measures):
    one = run(tmp_path, "one", measures, 1, "none")
    assert_same(run(tmp_path, "eight", measures, 8, "2x4"), one)

    port = free_port()
    started = [work(tmp_path, f"of_{i}", measures, 2, "2x2", i, 2, port) for i in range(2)]
    finish(*(process for _, process in started))
    assert_same(np.load(started[0][0]), one)
