"""The papers' data sets and fully connected networks, ready to be measured.

>>> import jax
>>> from jaxrobust import zoo
>>> model = zoo.load_model("iris", jax.random.key(0))
>>> logits = model.apply_fn(model.params, model.dataset.x_test)
>>> logits.shape
(38, 3)
"""

try:
    import flax.linen  # noqa: F401
    import sklearn.datasets  # noqa: F401
except ImportError as error:
    raise ImportError(
        "jaxrobust.zoo needs Flax and scikit-learn: pip install 'jaxrobust[zoo]'."
    ) from error

from jaxrobust.zoo import datasets, networks
from jaxrobust.zoo.datasets import Dataset
from jaxrobust.zoo.networks import MLP, Spec, TrainedModel, load_model, spec, train

__all__ = [
    "MLP",
    "Dataset",
    "Spec",
    "TrainedModel",
    "datasets",
    "load_model",
    "networks",
    "spec",
    "train",
]
