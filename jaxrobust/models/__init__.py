"""Models as this library calls them: ``apply_fn(params, x [B, ...]) -> outputs [B, K]``."""

from jaxrobust.models.binary_outputs import binary
from jaxrobust.models.black_box import from_numpy, from_onnx, from_sklearn, outputs_of
from jaxrobust.models.checks import OUTPUTS, ApplyFn, check_apply_fn, num_classes, output_struct
from jaxrobust.models.preflight import Finding, Preflight, check_model

__all__ = [
    "OUTPUTS",
    "ApplyFn",
    "Finding",
    "Preflight",
    "binary",
    "check_apply_fn",
    "check_model",
    "from_numpy",
    "from_onnx",
    "from_sklearn",
    "num_classes",
    "output_struct",
    "outputs_of",
]
