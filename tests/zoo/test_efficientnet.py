"""EfficientNet-Lite0 against what it is known to get right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust.zoo import efficientnet


@pytest.mark.slow
def test_18_of_20_images_are_right(data_dir):
    apply_fn, params = efficientnet.load_imagenet(data_dir)
    with np.load(data_dir / "imagenet20.npz") as data:
        images, labels = jnp.asarray(data["x"] / 255, jnp.float32), data["y"]
    logits = jax.jit(apply_fn)(params, images)
    assert logits.shape == (20, 1000)
    assert int((logits.argmax(-1) == labels).sum()) == 18


def test_bad_arguments(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="data_dir must hold efficientnet_lite0"):
        efficientnet.load_imagenet(tmp_path)
    monkeypatch.delenv("JAXROBUST_DATA", raising=False)
    with pytest.raises(ValueError, match="data_dir must name"):
        efficientnet.load_imagenet()
