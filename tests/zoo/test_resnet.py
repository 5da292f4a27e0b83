"""The CIFAR-10 networks, against their known accuracy and the definition of their parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrobust.zoo import resnet


@pytest.mark.parametrize(
    ("depth", "num"), [(20, 200), (32, 200), pytest.param(32, 2000, marks=pytest.mark.slow)]
)
def test_accuracy(data_dir, depth, num):
    """As on all 10,000 test images, 91.73% and 92.63%, within 3 standard errors."""
    apply_fn, params = resnet.load_cifar10(depth, data_dir)
    with np.load(data_dir / "cifar10_test2000.npz") as data:
        images, labels = data["x"][:num], data["y"][:num]
    logits = jax.jit(apply_fn)(params, jnp.asarray(images / 255, jnp.float32))
    assert logits.shape == (num, 10)
    known = {20: 0.9173, 32: 0.9263}[depth]
    accuracy = float((logits.argmax(-1) == labels).mean())
    assert abs(accuracy - known) < 3 * np.sqrt(known * (1 - known) / num)


def test_agrees_with_an_unfolded_network(data_dir):
    """The first block by SciPy's correlation, with batch normalisation as it is written."""
    from scipy.signal import correlate

    _, params = resnet.load_cifar10(20, data_dir)
    with np.load(data_dir / "resnet20_cifar10.npz") as archive:
        w = {k: np.asarray(v, np.float64) for k, v in archive.items()}
    x = np.random.default_rng(0).uniform(size=(8, 8, 16))

    def conv_norm(x, kernel, norm):
        padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        maps = [
            correlate(padded, k.transpose(1, 2, 0), "valid")[:, :, 0] for k in w[f"{kernel}.weight"]
        ]
        y = np.stack(maps, -1) - w[f"{norm}.running_mean"]
        return (
            y / np.sqrt(w[f"{norm}.running_var"] + 1e-5) * w[f"{norm}.weight"] + w[f"{norm}.bias"]
        )

    want = conv_norm(x, "layer1.0.conv1", "layer1.0.bn1")
    got = resnet._convolve(params["layers"][0][0][0], jnp.asarray(x[None], jnp.float32), 1)
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-4)


def test_bad_arguments(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="depth must be 20 or 32"):
        resnet.load_cifar10(18)
    with pytest.raises(FileNotFoundError, match="data_dir must hold resnet32"):
        resnet.load_cifar10(32, tmp_path)
    monkeypatch.delenv("JAXROBUST_DATA", raising=False)
    with pytest.raises(ValueError, match="data_dir must name"):
        resnet.load_cifar10(32)
