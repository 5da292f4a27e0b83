"""One kind of key for every draw, so that draws do not depend on how they are batched."""

from __future__ import annotations

import jax


def threefry(key: jax.Array) -> jax.Array:
    """Returns a threefry key seeded by ``key``, or ``key`` itself if it is one.

    The hardware generators (``rbg``) give other numbers under ``vmap`` than one by one, which
    would break the promise of identical draws for any chunk size or number of devices.
    """
    if jax.random.key_impl(key) == "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.bits(key, (2,), "uint32"), impl="threefry2x32")
