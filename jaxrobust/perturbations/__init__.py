"""What is done to an input: push-forwards of a standard normal draw.

A perturbation is a frozen pytree. Its heart is ``transform(z, x_i) -> x_hat_i``: it takes a
standard normal vector ``z [latent_size]`` and ONE example ``x_i`` of shape ``event_shape``, and
returns the perturbed example. That single form gives common random numbers, quasi-Monte Carlo
points and rare-event splitting for nothing, since each of them only chooses ``z`` differently.

A parameter is either shared by all examples or carries a leading axis ``n`` of examples, along
which it is sliced together with ``x``: it is per example when it has one axis more than one example
needs (``sigma [n]``, ``feature_scale [n, *event_shape]``, ``cov [n, d, d]``).
"""

from jaxrobust.perturbations.base import Perturbation
from jaxrobust.perturbations.categorical import confusion
from jaxrobust.perturbations.combinations import chain, clipped, from_sampler, resample
from jaxrobust.perturbations.directional import directional
from jaxrobust.perturbations.gaussian import ensemble, gaussian, multivariate_normal
from jaxrobust.perturbations.norms import gaussian_sphere, uniform_ball, uniform_sphere

__all__ = [
    "Perturbation",
    "chain",
    "clipped",
    "confusion",
    "directional",
    "ensemble",
    "from_sampler",
    "gaussian",
    "gaussian_sphere",
    "multivariate_normal",
    "resample",
    "uniform_ball",
    "uniform_sphere",
]
