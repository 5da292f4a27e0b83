"""Residual networks for CIFAR-10, with trained weights."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["cifar10_logits", "load_cifar10"]

_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
_BATCH_NORM_EPS = 1e-5


def load_cifar10(
    depth: int = 32, data_dir: str | os.PathLike[str] | None = None
) -> tuple[Callable[[Any, jax.Array], jax.Array], dict[str, Any]]:
    """Loads a trained ResNet for CIFAR-10.

    The networks of He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2
    (option A shortcuts), arXiv 1512.03385; weights by Yerlan Idelbayev
    (akamaster/pytorch_resnet_cifar10, BSD-2). They class 92.6% (depth 32) and 91.7% (depth 20) of
    the 10,000 test images rightly.

    Args:
      depth: 20 or 32.
      data_dir: The folder that holds ``resnet{depth}_cifar10.npz``; by default the one named by
        the environment variable ``JAXROBUST_DATA``.

    Returns:
      ``(apply_fn, params)``: `cifar10_logits`, and its weights with each batch normalisation
      folded into the convolution before it.

    Raises:
      ValueError: If ``depth`` is neither 20 nor 32, or no folder is known.
      FileNotFoundError: If the folder lacks the file.

    Example:
      >>> apply_fn, params = load_cifar10(20)  # doctest: +SKIP
      >>> logits = apply_fn(params, images / 255.0)  # [B, 32, 32, 3] -> [B, 10]  # doctest: +SKIP
    """
    if depth not in (20, 32):
        raise ValueError(f"depth must be 20 or 32; got {depth!r}.")
    folder = data_dir if data_dir is not None else os.environ.get("JAXROBUST_DATA")
    if not folder:
        raise ValueError(
            "data_dir must name the folder that holds the weights (or set the environment variable"
            f" JAXROBUST_DATA); got {data_dir!r}."
        )
    path = pathlib.Path(folder) / f"resnet{depth}_cifar10.npz"
    if not path.is_file():
        raise FileNotFoundError(f"data_dir must hold {path.name}; there is no file {path}.")
    with np.load(path) as archive:
        weights = dict(archive)

    def convolution(conv: str, norm: str) -> dict[str, jax.Array]:
        scale = weights[f"{norm}.weight"] / np.sqrt(
            weights[f"{norm}.running_var"] + _BATCH_NORM_EPS
        )
        kernel = weights[f"{conv}.weight"].transpose(2, 3, 1, 0) * scale  # OIHW to HWIO
        bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        return {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}

    def block(name: str) -> list[dict[str, jax.Array]]:
        return [convolution(f"{name}.conv{i}", f"{name}.bn{i}") for i in (1, 2)]

    num_blocks = (depth - 2) // 6
    params = {
        "stem": convolution("conv1", "bn1"),
        "layers": [[block(f"layer{i}.{j}") for j in range(num_blocks)] for i in (1, 2, 3)],
        "head": {
            "kernel": jnp.asarray(weights["linear.weight"].T),
            "bias": jnp.asarray(weights["linear.bias"]),
        },
    }
    return cifar10_logits, params


def cifar10_logits(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """The logits of a CIFAR-10 ResNet.

    Args:
      params: Weights from `load_cifar10`.
      x: Images ``[B, 32, 32, 3]``, channels last, values in ``[0, 1]``; they are normalised here.

    Returns:
      Logits ``[B, 10]`` of the classes airplane, automobile, bird, cat, deer, dog, frog, horse,
      ship, truck.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> conv = lambda c_in, c: {"kernel": jnp.ones((3, 3, c_in, c)), "bias": jnp.zeros(c)}
      >>> params = {
      ...     "stem": conv(3, 16),
      ...     "layers": [[[conv(16, 16), conv(16, 16)]], [], []],
      ...     "head": {"kernel": jnp.ones((16, 10)), "bias": jnp.zeros(10)},
      ... }
      >>> cifar10_logits(params, jnp.ones((2, 32, 32, 3))).shape
      (2, 10)
    """
    mean, std = (jnp.asarray(v, x.dtype).reshape(1, 1, 1, 3) for v in (_MEAN, _STD))
    x = jax.nn.relu(_convolve(params["stem"], (x - mean) / std, 1))
    for blocks in params["layers"]:
        for first, second in blocks:
            channels = first["kernel"].shape[-1]
            stride = 1 if channels == x.shape[-1] else 2
            branch = jax.nn.relu(_convolve(first, x, stride))
            branch = _convolve(second, branch, 1)
            if stride == 2:
                pad = channels // 4
                x = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (pad, pad)))
            x = jax.nn.relu(x + branch)
    pooled = x.mean(axis=(1, 2))
    return pooled @ params["head"]["kernel"] + params["head"]["bias"].reshape(1, -1)


def _convolve(params: dict[str, jax.Array], x: jax.Array, stride: int) -> jax.Array:
    # Padding 1 on both sides, also at stride 2, where "SAME" would pad on one side only.
    out = lax.conv_general_dilated(
        x,
        params["kernel"],
        (stride, stride),
        ((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return out + params["bias"].reshape(1, 1, 1, -1)
