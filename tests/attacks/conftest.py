"""These tests compile many small programs and run each for a moment: compile them in haste."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _quick_compilation(request):
    if "slow" in request.keywords:  # these measure, or run long
        yield
        return
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
