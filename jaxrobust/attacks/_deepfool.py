"""DeepFool: from one linearised boundary to the next."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh

from jaxrobust import _checks
from jaxrobust._convolutions import loop_friendly
from jaxrobust.attacks import _geometry, _losses, _problem
from jaxrobust.attacks._boundary import pull_back, won
from jaxrobust.attacks._problem import ApplyFn, AttackResult, Bounds, Model, Problem, Verdict

__all__ = ["deepfool"]


def deepfool(
    apply_fn: ApplyFn,
    params: Any,
    x: Any,
    labels: Any,
    *,
    norm: str = "l2",
    num_steps: int = 50,
    overshoot: Any = 0.02,
    num_candidates: int = 10,
    bounds: Bounds = (0.0, 1.0),
    targeted: bool = False,
    mask: Any = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> AttackResult:
    """DeepFool: a small adversarial perturbation, by steps to the nearest linearised boundary.

    Moosavi-Dezfooli et al. 2016, "DeepFool: a simple and accurate method to fool deep neural
    networks", arXiv 1511.04599, algorithm 2 and eq. 11. Features that have met ``bounds`` are left
    out of the steps that follow. The paper multiplies the result by ``1 + overshoot`` to cross the
    boundary; here a bisection along the ray then takes back what was not needed.

    Args:
      apply_fn: As in `fgsm`.
      params: As in `fgsm`.
      x: As in `fgsm`.
      labels: As in `fgsm`.
      norm: ``"l2"`` or ``"linf"``.
      num_steps: Most steps; the loop ends when every example of the chunk is done.
      overshoot: How far beyond the linearised boundary to look; one number or ``[n]``.
      num_candidates: How many classes to consider: those of the highest logits at ``x``. Each costs
        a backward pass in every step. (Untargeted; a targeted attack needs one.)
      bounds: As in `fgsm`.
      targeted: As in `fgsm`.
      mask: As in `fgsm`.
      chunk_size: As in `fgsm`.
      mesh: As in `fgsm`.

    Returns:
      An `AttackResult`; ``x_adv`` of a failure is where the steps ended.

    Raises:
      TypeError: As in `fgsm`.
      ValueError: As in `fgsm`.

    Example:
      >>> import jax.numpy as jnp
      >>> w = jnp.array([[1.0, -1.0], [2.0, -2.0]])
      >>> x, labels = jnp.array([[0.1, 0.2]]), jnp.array([0])
      >>> result = deepfool(lambda w, x: x @ w, w, x, labels, bounds=None)
      >>> abs(float(result.distance[0]) - 1.0 / 20**0.5) < 1e-4  # margin over gradient
      True
    """
    _problem.check_choices(norm=norm, norms=("l2", "linf"), targeted=targeted)
    num_steps = _checks.count("num_steps", num_steps)
    num_candidates = _checks.count("num_candidates", num_candidates)
    problem = _problem.prepare(
        apply_fn, params, x, labels, bounds=bounds, mask=mask, overshoot=overshoot
    )
    return _problem.run(
        DeepFool(norm, num_steps, num_candidates), apply_fn, params, None, problem,
        targeted=targeted, chunk_size=chunk_size, mesh=mesh,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DeepFool:
    """Solves a `Problem` whose numbers hold ``overshoot``."""

    norm: str
    num_steps: int = 50
    num_candidates: int = 10

    def __call__(self, model: Model, key: Array | None, problem: Problem) -> AttackResult:
        """Returns a nearby adversarial input of each example."""
        del key
        x, overshoot = problem.x, problem.numbers["overshoot"]
        box = problem.lower, problem.upper
        logits = loop_friendly(model.apply_fn)(model.params, x)
        start = model.judge(logits, problem.labels)
        num_candidates = min(self.num_candidates, logits.shape[-1] - 1)
        others = _losses.best_other(jnp.where(jnp.isnan(logits), -jnp.inf, logits), problem.labels)
        candidates = lax.top_k(others, num_candidates)[1]

        # ``base`` accumulates the steps; ``x_adv`` is what they reach with the overshoot.
        def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            t, base, x_adv, done = state
            verdict, gaps, gradients = _linearize(model, problem, candidates, x_adv)
            done = done | won(verdict)
            step, stuck = self._nearest(problem, x_adv, verdict, gaps, gradients)
            done = done | stuck
            step = step.astype(x.dtype)  # a model may compute in another precision than its inputs
            still = done.reshape(-1, *(1,) * (x.ndim - 1))
            moved = jnp.clip(x_adv + step, *box)
            base = jnp.where(still, base, jnp.clip(base + moved - x_adv, *box))
            ahead = jnp.clip(x + (1 + overshoot) * (base - x), *box)
            return t + 1, base, jnp.where(still, x_adv, ahead), done

        def unfinished(state: tuple[Array, Array, Array, Array]) -> Array:
            return (state[0] < self.num_steps) & ~state[3].all()

        _, _, x_adv, _ = lax.while_loop(unfinished, body, (jnp.array(0), x, x, start.success))
        x_adv = pull_back(model, problem, x_adv)
        x_adv = jnp.where(start.success.reshape(-1, *(1,) * (x.ndim - 1)), x, x_adv)
        return _problem.finish(model, problem, x_adv, self.norm, model.evaluate(problem, x_adv))

    def _nearest(
        self, problem: Problem, x_adv: Array, verdict: Verdict, gaps: Array, gradients: Array
    ) -> tuple[Array, Array]:
        """The step ``[B, ...]`` to the nearest linearised boundary, and where there is none."""
        room = jnp.where(gradients > 0, problem.upper - x_adv, x_adv - problem.lower)
        gradients = gradients * (room > 0)
        shape = (gaps.shape[0], gaps.shape[1]) + (1,) * (x_adv.ndim - 1)
        flat = gradients.reshape(-1, *x_adv.shape[1:])
        slopes = _geometry.length(flat, _geometry.DUAL[self.norm]).reshape(gaps.shape)
        # The rounding makes even a step from a tie cross the boundary, and so does the last term
        # where all logits are 0.
        rise = jnp.abs(gaps) + verdict.rounding.reshape(1, -1)
        rise = rise + 64 * float(jnp.finfo(gaps.dtype).eps) * slopes
        distance = jnp.where(slopes > 0, _geometry.divide(rise, slopes), jnp.inf)
        distance = jnp.where(jnp.isfinite(distance), distance, jnp.inf)
        nearest = distance.argmin(0).reshape(1, -1)
        size = jnp.take_along_axis(distance, nearest, axis=0)[0]
        g = jnp.take_along_axis(gradients, nearest.reshape(1, *shape[1:]), axis=0)[0]
        direction = jnp.sign(g) if self.norm == "linf" else _geometry.unit(g, "l2")
        stuck = ~jnp.isfinite(size)
        size = jnp.where(stuck, 0, size).reshape(shape[1:])
        return size * direction, stuck


def _linearize(
    model: Model, problem: Problem, candidates: Array, x: Array
) -> tuple[Verdict, Array, Array]:
    """The verdict at ``x``, and each candidate's lead ``[C, B]`` with its gradient ``[C, B, ...]``.

    Targeted there is one candidate, the target, and its lead is over the best other class.
    """

    def leads(x: Array, params: Any, labels: Array, candidates: Array):
        logits = model.apply_fn(params, x)
        if model.targeted:
            return model.gap(logits, labels).reshape(1, -1), logits
        ahead = jnp.take_along_axis(logits, candidates, axis=1)
        return (ahead - _losses.own(logits, labels).reshape(-1, 1)).T, logits

    def run(x: Array, params: Any, labels: Array, candidates: Array):
        values, pullback, logits = jax.vjp(
            lambda x: leads(x, params, labels, candidates), x, has_aux=True
        )

        def one(which: Array) -> Array:
            rows = jnp.arange(values.shape[0]).reshape(-1, 1) == which
            return pullback(jnp.broadcast_to(rows, values.shape).astype(values.dtype))[0]

        return values, jax.vmap(one)(jnp.arange(values.shape[0])), logits

    values, gradients, logits = loop_friendly(run)(x, model.params, problem.labels, candidates)
    gradients = _problem.clean(gradients) * problem.mask.reshape(1, *problem.mask.shape)
    return model.judge(logits, problem.labels), values, gradients
