"""Carlini and Wagner's attacks: Adam on a margin, with a bisection around it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.sharding import Mesh

from jaxrobust import _checks
from jaxrobust._convolutions import loop_friendly
from jaxrobust.attacks import _geometry, _problem
from jaxrobust.attacks._boundary import pull_back, won
from jaxrobust.attacks._deepfool import DeepFool
from jaxrobust.attacks._problem import ApplyFn, AttackResult, Bounds, Model, Problem, Verdict

__all__ = ["carlini_wagner"]


def carlini_wagner(
    apply_fn: ApplyFn,
    params: Any,
    x: Any,
    labels: Any,
    *,
    norm: str = "l2",
    num_steps: int = 200,
    num_bisections: int = 9,
    learning_rate: Any = 1e-2,
    initial_const: Any = 1e-3,
    confidence: Any = 0.0,
    warm_start: bool = True,
    bounds: Bounds = (0.0, 1.0),
    targeted: bool = False,
    mask: Any = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> AttackResult:
    """Carlini and Wagner's attack: the smallest perturbation an optimiser can find.

    Carlini & Wagner 2017, "Towards Evaluating the Robustness of Neural Networks", arXiv 1608.04644,
    sections V and VI. With ``f = max(confidence - lead, 0)``, lead the margin by which the attack
    has won (their f6):

    - l2: Adam on ``|delta|_2^2 + c f``, c found for each example by bisection from
      ``initial_const`` (times 10 until the attack succeeds).
    - linf: Adam on f within a box of half-width tau around x, tau found by bisection, from the
      first-order distance to the boundary (times 2 until the attack succeeds). The paper shrinks
      tau by tenths and lets a penalty hold delta near the box.

    The box is kept by projection, which unlike the paper's tanh works where only one side is
    bounded and does not flatten the gradient of features that lie on a bound. The best perturbation
    found is at last pulled back along its ray to the boundary.

    Args:
      apply_fn: As in `fgsm`.
      params: As in `fgsm`.
      x: As in `fgsm`.
      labels: As in `fgsm`.
      norm: ``"l2"`` or ``"linf"``.
      num_steps: Steps of Adam for each value of c, or tau (where a run ends when every example of
        the chunk has succeeded).
      num_bisections: Number of values of c (or tau).
      learning_rate: Adam's first, which falls linearly to 0; one number or ``[n]``. l2: in units
        of the width of ``bounds``, and such that 0.01 makes no first step longer than half the
        first-order distance to the boundary. linf: in units of 10 tau.
      initial_const: The first c of l2; one number or ``[n]``.
      confidence: By how much, in logits, the attack must win; one number or ``[n]``.
      warm_start: Take DeepFool's perturbation as the best so far, so that the result is never
        longer than that one: the optimiser follows the class of the highest logit, whose boundary
        need not be the nearest. False is the attack as published.
      bounds: As in `fgsm`.
      targeted: As in `fgsm`.
      mask: As in `fgsm`.
      chunk_size: As in `fgsm`.
      mesh: As in `fgsm`.

    Returns:
      An `AttackResult`; ``x_adv`` of a failure is ``x``.

    Raises:
      TypeError: As in `fgsm`.
      ValueError: As in `fgsm`.

    Example:
      >>> import jax.numpy as jnp
      >>> w = jnp.array([[1.0, -1.0], [2.0, -2.0]])
      >>> x, labels = jnp.array([[0.1, 0.2]]), jnp.array([0])
      >>> result = carlini_wagner(lambda w, x: x @ w, w, x, labels, bounds=None)
      >>> abs(float(result.distance[0]) * 20**0.5 - 1.0) < 0.02  # margin over gradient
      True
    """
    _problem.check_choices(norm=norm, norms=("l2", "linf"), targeted=targeted)
    num_steps = _checks.count("num_steps", num_steps)
    num_bisections = _checks.count("num_bisections", num_bisections)
    _checks.values("initial_const", initial_const, lambda v: v > 0, "above zero")
    _checks.values("learning_rate", learning_rate, lambda v: v > 0, "above zero")
    problem = _problem.prepare(
        apply_fn, params, x, labels,
        bounds=bounds, mask=mask, learning_rate=learning_rate,
        initial_const=initial_const, confidence=confidence, overshoot=0.02,
    )  # fmt: skip
    solver = _CarliniWagner(norm, num_steps, num_bisections, bool(warm_start))
    return _problem.run(
        solver, apply_fn, params, None, problem,
        targeted=targeted, chunk_size=chunk_size, mesh=mesh,
    )  # fmt: skip


class _Best(NamedTuple):
    x: Array  # [B, ...]
    size: Array  # column; inf where nothing was found


class _Search(NamedTuple):
    """The bisection of c or tau, columns: ``low`` and ``high`` are known to be on either side."""

    value: Array
    low: Array
    high: Array


class _Run(NamedTuple):
    """The state of one run of Adam."""

    t: Array
    x: Array
    adam: Any
    best: _Best
    found: Array  # column: whether this run has succeeded


@dataclasses.dataclass(frozen=True)
class _CarliniWagner:
    norm: str
    num_steps: int
    num_bisections: int
    warm_start: bool

    def __call__(self, model: Model, key: Array | None, problem: Problem) -> AttackResult:
        del key
        x = problem.x
        start = model.evaluate(problem, x)
        column = (-1,) + (1,) * (x.ndim - 1)
        ones = jnp.ones((x.shape[0], *(1,) * (x.ndim - 1)), x.dtype)
        near = self._first_order_distance(model, problem)
        rate = problem.numbers["learning_rate"]
        width = problem.upper - problem.lower
        if self._linf:
            first = jnp.where(near > 0, 1.5 * near, rate) * ones
        else:
            first = problem.numbers["initial_const"] * ones
            # Adam's first step has the same length along every feature; together it is then half
            # the way to the boundary, or less, and the leap over a near one is not made.
            leap = 50 * near / math.sqrt(x.size // x.shape[0])
            width = jnp.where(near > 0, jnp.minimum(width, leap), width)
        rate = rate * jnp.where(jnp.isfinite(width), width, 1)
        search = _Search(first, 0 * ones, jnp.inf * ones)
        best = _Best(x, jnp.where(start.success.reshape(column), 0, jnp.inf).astype(x.dtype))
        if self.warm_start:
            best = self._best_of_deepfool(model, problem, best)

        def bisect(carry: tuple[_Search, _Best], _: None) -> tuple[tuple[_Search, _Best], None]:
            search, best = carry
            end = self._minimize(model, problem, search.value, rate, best, start.success)
            # linf: what was found may lie well inside the box of half-width tau.
            reached = jnp.minimum(search.value, end.best.size) if self._linf else search.value
            high = jnp.where(end.found, jnp.minimum(search.high, reached), search.high)
            low = jnp.where(end.found, search.low, jnp.maximum(search.low, search.value))
            growth = 2 if self._linf else 10
            value = jnp.where(jnp.isfinite(high), (low + high) / 2, growth * search.value)
            return (_Search(value, low, high), end.best), None

        (_, best), _ = lax.scan(bisect, (search, best), None, length=self.num_bisections)
        confidence = problem.numbers["confidence"].reshape(-1)
        pulled = pull_back(model, problem, best.x, confidence)
        x_adv = jnp.where(start.success.reshape(column), x, pulled)
        return _problem.finish(model, problem, x_adv, self.norm, model.evaluate(problem, x_adv))

    @property
    def _linf(self) -> bool:
        return self.norm == "linf"

    def _first_order_distance(self, model: Model, problem: Problem) -> Array:
        """A column: how far the boundary lies if the model is linear; 0 where that says nothing."""
        x = problem.x
        verdict = model.evaluate(problem, x)
        g = model.gradient(model.gap, problem, x)
        slope = _geometry.length(g, _geometry.DUAL[self.norm])
        short = problem.numbers["confidence"].reshape(-1) - verdict.gap
        distance = _geometry.divide(jnp.maximum(short.reshape(slope.shape), 0), slope)
        return jnp.where(jnp.isfinite(distance), distance, 0).astype(x.dtype)

    def _best_of_deepfool(self, model: Model, problem: Problem, best: _Best) -> _Best:
        x_adv, success, distance, _ = DeepFool(self.norm)(model, None, problem)
        far = model.evaluate(problem, x_adv).gap >= problem.numbers["confidence"].reshape(-1)
        size = jnp.where(success & far, distance, jnp.inf).reshape(best.size.shape)
        nearer = size < best.size
        return _Best(jnp.where(nearer, x_adv, best.x), jnp.where(nearer, size, best.size))

    def _minimize(
        self, model: Model, problem: Problem, value: Array, rate: Array, best: _Best, wrong: Array
    ) -> _Run:
        """One run of Adam for one c (or tau) of each example; ``wrong`` need none."""
        x = problem.x
        column = (-1,) + (1,) * (x.ndim - 1)
        confidence = problem.numbers["confidence"]
        lower, upper = problem.lower, problem.upper
        if self._linf:
            lower, upper = jnp.maximum(lower, x - value), jnp.minimum(upper, x + value)
            rate = 10 * problem.numbers["learning_rate"] * value
        adam = optax.scale_by_adam()

        def objective(x_adv: Array, params: Any, x: Array, labels: Array, c: Array):
            logits = model.apply_fn(params, x_adv)
            # A hinge that still slopes at a tie, which is not yet a success.
            verdict = model.judge(logits, labels)
            goal = confidence.reshape(-1) + 2 * lax.stop_gradient(verdict.rounding)
            short = jnp.where(verdict.gap > goal, 0, goal - verdict.gap)
            loss = short
            if not self._linf:
                axes = tuple(range(1, x.ndim))
                loss = jnp.square(x_adv - x).sum(axes) + c.reshape(-1) * short
            return loss.sum(), logits

        value_and_gradient = loop_friendly(jax.value_and_grad(objective, has_aux=True))

        def step(state: _Run) -> _Run:
            (_, logits), g = value_and_gradient(state.x, model.params, x, problem.labels, value)
            verdict: Verdict = model.judge(logits, problem.labels)
            hit = (won(verdict) & (verdict.gap >= confidence.reshape(-1))).reshape(column)
            size = _geometry.length(state.x - x, self.norm)
            nearer = hit & (size < state.best.size)
            best = _Best(
                jnp.where(nearer, state.x, state.best.x), jnp.where(nearer, size, state.best.size)
            )
            move, moments = adam.update(_problem.clean(g) * problem.mask, state.adam)
            # The last steps must be small against the distance, which nobody knows beforehand.
            shrink = (1 - state.t / self.num_steps).astype(x.dtype)
            return _Run(
                state.t + 1,
                jnp.clip(state.x - shrink * rate * move, lower, upper),
                moments,
                best,
                state.found | hit,
            )

        def unfinished(state: _Run) -> Array:
            done = wrong | state.found.reshape(-1) if self._linf else wrong
            return (state.t < self.num_steps) & ~done.all()

        return lax.while_loop(
            unfinished,
            step,
            _Run(
                jnp.array(0),
                x,
                adam.init(x),
                best,
                jnp.zeros(value.shape, bool),
            ),
        )
