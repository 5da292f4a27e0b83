"""Test set-up: several CPU devices, strict numerics, and where the optional data sets lie."""

import os
import pathlib

# Read once, when JAX starts: eight devices on a plain CPU, so that meshes are really tested.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
_DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
if _DATA.is_dir():
    os.environ.setdefault("JAXROBUST_DATA", str(_DATA))

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def data_dir() -> pathlib.Path:
    """The folder of data sets that are not embedded; the test is skipped where there is none."""
    folder = os.environ.get("JAXROBUST_DATA")
    if not folder or not pathlib.Path(folder).is_dir():
        pytest.skip("needs the data folder named by JAXROBUST_DATA")
    return pathlib.Path(folder)
