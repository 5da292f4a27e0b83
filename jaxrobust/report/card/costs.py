"""What a card will cost, before it is made: model calls, time and memory."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrobust import models, montecarlo
from jaxrobust.report.card.config import CardConfig

# Gradients for each example: of the attacks as they are called here.
GRADIENTS = {"fgsm": 1, "mi_fgsm": 10, "pgd": 20, "pgn": 200, "dn": 100}
DEEPFOOL_STEPS = 50
_MOST_CLASSES = 12  # untargeted CLEVER up to so many; beyond, the runner-up only
# A gradient costs about as much as so many forward passes.
_GRADIENT_COST = 3
# XLA compiles this many programs, each for a few seconds.
_PROGRAMS = {"preflight": 2, "theta": 2, "flip": 1, "distance": 1, "directional": 2, "clever": 3}


class SectionCost(NamedTuple):
    """At most so many of each.

    Attributes:
        model_inputs: inputs that go forward through the model.
        gradients: inputs that go backward through it, too.
    """

    model_inputs: int
    gradients: int


class Plan(NamedTuple):
    """What a card will cost.

    Attributes:
        sections: for each section, its :class:`SectionCost`.
        seconds: of running on one core or one accelerator, from the model's measured speed;
            compilation not included.
        programs: how many programs will be compiled.
        bytes: of memory for one chunk of inputs in the model, by XLA's count.
    """

    sections: dict[str, SectionCost]
    seconds: float
    programs: int
    bytes: int

    def __str__(self) -> str:
        inputs = sum(cost.model_inputs for cost in self.sections.values())
        gradients = sum(cost.gradients for cost in self.sections.values())
        return (
            f"at most {inputs:,} model inputs and {gradients:,} gradients: {self.programs} programs"
            " to compile, each for some seconds (with a small model most of the time), and about"
            f" {max(1, self.seconds):,.0f} s of computing on one device."
            f" Memory: {max(1, round(self.bytes / 2**20)):,} MB for a chunk of inputs in the model"
        )


def num_classes(outputs: jax.ShapeDtypeStruct, y: Any) -> int:
    """The number of classes of a model with such outputs and labels; 0 for a regression."""
    classification = jnp.issubdtype(y.dtype, jnp.integer) and outputs.ndim == 2
    return outputs.shape[1] if classification and outputs.shape[1] > 1 else 0


def clever_targets(config: CardConfig, num_classes: int) -> str:
    """Which classes CLEVER looks at."""
    return config.targets or ("all" if num_classes <= _MOST_CLASSES else "top2")


def section_costs(
    config: CardConfig, num_examples: int, num_classes: int
) -> dict[str, SectionCost]:
    """The cost of each section that will be measured.

    Args:
        config: of the card.
        num_examples: n, of the data.
        num_classes: 0 for a regression, of which only theta is measured.
    """
    theta = config.theta
    curves = len(theta.probabilities or (0.25, 0.5, 0.75, 1.0))
    n = min(config.num_examples, num_examples)
    points = len({*config.kappas, -1.0})  # kappa* is added
    draws = config.num_batches * config.batch_size
    targets = num_classes - 1 if clever_targets(config, num_classes) == "all" else 1
    costs = {
        "theta": SectionCost(
            curves * (len(theta.scales) * theta.num_replicates + 1) * num_examples, 0
        ),
        "flip": SectionCost((config.num_flips + 2) * n, 0),
        "distance": SectionCost(
            (DEEPFOOL_STEPS + 1) * n, DEEPFOOL_STEPS * min(10, max(num_classes - 1, 0)) * n
        ),
        "directional": SectionCost(
            len(config.attacks) * (points * config.num_noise + 2) * n,
            sum(GRADIENTS[name] for name in config.attacks) * n,
        ),
        "clever": SectionCost((draws + 1) * n, draws * targets * n),
        "agreement": SectionCost(0, 0),
    }
    kept = config.sections if num_classes else ("theta",)
    return {name: cost for name, cost in costs.items() if name in kept}


def plan(apply_fn: models.ApplyFn, params: Any, x: Any, y: Any, config: CardConfig) -> Plan:
    """Counts what a card will cost, and times the model on one chunk of inputs.

    Args:
        apply_fn: as for :func:`jaxrobust.report.robustness_card`.
        params: as there.
        x: as there.
        y: as there.
        config: of the card.

    Returns:
        A :class:`Plan`; ``print`` it.

    Example:
        >>> import jax.numpy as jnp
        >>> from jaxrobust.report import plan, preset
        >>> x, y = jnp.zeros((30, 2)), jnp.zeros(30, int)
        >>> found = plan(lambda w, x: x @ w, jnp.eye(2), x, y, preset("quick"))
        >>> found.sections["flip"].model_inputs
        30060
    """
    x = jnp.asarray(x)
    classes = num_classes(models.output_struct(apply_fn, params, x), jnp.asarray(y))
    sections = section_costs(config, len(x), classes)
    size = montecarlo.chunk_examples(config.theta.chunk_size, x.shape[1:])
    chunk = x[np.arange(size) % len(x)]
    compiled = jax.jit(apply_fn).lower(params, chunk).compile()
    memory = compiled.memory_analysis()
    num_bytes = sum(
        getattr(memory, f"{kind}_size_in_bytes", 0) for kind in ("temp", "argument", "output")
    )
    jax.block_until_ready(compiled(params, chunk))
    start = time.perf_counter()
    jax.block_until_ready(compiled(params, chunk))
    each = (time.perf_counter() - start) / size
    work = sum(c.model_inputs + _GRADIENT_COST * c.gradients for c in sections.values())
    programs = _PROGRAMS["preflight"] + sum(_PROGRAMS.get(name, 0) for name in sections)
    programs += len(config.attacks) if "directional" in sections else 0
    return Plan(sections, work * each, programs, int(num_bytes))
