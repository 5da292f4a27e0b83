"""The one loop of the gradient family: gradient, step, projection, and the worst of the restarts.

An attack of the family is a choice of the gradient (plain, penalised, over noisy copies) and of the
step (steepest ascent, with momentum or without); `Ascent` scans them. All parts are hashable, so
that together they make one static argument.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxrobust.attacks import _geometry, _losses
from jaxrobust.attacks._problem import AttackResult, Model, Problem, Verdict, finish

# gradient(climb, problem, keys, x_adv, t) -> g, where climb(x) is the gradient of the loss at x.
Gradient = Callable[[Callable[[Array], Array], Problem, Array | None, Array, Array], Array]
# step(problem, x_adv, velocity, g) -> (move, velocity)
Step = Callable[[Problem, Array, Array, Array], tuple[Array, Array]]


@dataclasses.dataclass(frozen=True)
class Ascent:
    """Projected ascent of a loss in a ball of radius eps; solves a `Problem`."""

    norm: str
    loss: _losses.Loss
    num_steps: int
    gradient: Gradient
    step: Step
    random_start: bool = False
    num_restarts: int = 1

    def __call__(self, model: Model, key: Array | None, problem: Problem) -> AttackResult:
        """Returns the worst input found over the restarts."""
        x = problem.x
        objective = _losses.objective(self.loss, model.targeted)
        judged = model.evaluate(problem, x)

        def climb(inputs: Array) -> Array:
            return model.gradient(objective, problem, inputs)

        def restart(best: tuple[Array, Verdict], r: Array) -> tuple[tuple[Array, Verdict], None]:
            keys = None
            if key is not None:
                seed = jax.random.fold_in(key, r)
                keys = jax.vmap(jax.random.fold_in, (None, 0))(seed, problem.which)
            x_adv = self._ascend(climb, problem, keys)
            verdict = model.evaluate(problem, x_adv)
            # A success beats a failure, then the wider gap wins; whatever is found beats the
            # clean input, and the clean input stays where it is adversarial as it is.
            better = (verdict.success & ~best[1].success) | (
                (verdict.success == best[1].success) & (verdict.gap > best[1].gap)
            )
            better = (better | (r == 0)) & ~judged.success
            return _choose(better, (x_adv, verdict), best), None

        (x_adv, verdict), _ = lax.scan(restart, (x, judged), jnp.arange(self.num_restarts))
        return finish(model, problem, x_adv, self.norm, verdict)

    def _ascend(
        self, climb: Callable[[Array], Array], problem: Problem, keys: Array | None
    ) -> Array:
        x, eps = problem.x, problem.numbers["eps"]
        box = problem.lower, problem.upper
        start = x
        if self.random_start and keys is not None:
            noise = eps * _geometry.draw_ball(keys, x, self.norm, problem.mask)
            start = jnp.clip(x + noise, *box)

        def body(carry: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], None]:
            x_adv, velocity = carry
            g = self.gradient(climb, problem, keys, x_adv, t)
            move, velocity = self.step(problem, x_adv, velocity, g)
            return (_geometry.project(x, x_adv + move, self.norm, eps, *box), velocity), None

        (x_adv, _), _ = lax.scan(body, (start, jnp.zeros_like(x)), jnp.arange(self.num_steps))
        return _geometry.settle(x, x_adv, self.norm, eps, *box)


def _choose(pick: Array, yes: Any, no: Any) -> Any:
    """Row by row, ``yes`` where ``pick [B]``, else ``no``."""

    def choose(a: Array, b: Array) -> Array:
        return jnp.where(pick.reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, yes, no)


def plain_gradient(climb, problem, keys, x_adv, t):
    """The gradient at the current point."""
    del problem, keys, t
    return climb(x_adv)


def _fold(keys: Array, data: Array) -> Array:
    return jax.vmap(jax.random.fold_in, (0, None))(keys, data)


def _mean_over_points(point_gradient: Callable[[Array], Array], x: Array, num_points: int) -> Array:
    """The mean of ``point_gradient(j)`` over points j, one after another to bound the memory."""

    def add(total: Array, j: Array) -> tuple[Array, None]:
        return total + point_gradient(j), None

    total, _ = lax.scan(add, jnp.zeros_like(x), jnp.arange(num_points))
    return total / num_points


@dataclasses.dataclass(frozen=True)
class PenalizedGradient:
    """PGN: the mean gradient at points nearby and one descent step from them."""

    norm: str
    num_points: int

    def __call__(self, climb, problem, keys, x_adv, t):
        """Returns the gradient for step ``t``."""
        x = problem.x
        numbers = problem.numbers
        step_keys = _fold(keys, t)

        def at_point(j):
            noise = _geometry.draw_ball(_fold(step_keys, j), x, self.norm, problem.mask)
            near = x_adv + numbers["radius_scale"] * numbers["eps"] * noise
            first = climb(near)
            second = climb(near - numbers["step_size"] * _mean_step(first, self.norm))
            balance = numbers["balance"]
            return (1 - balance) * first + balance * second

        return _mean_over_points(at_point, x, self.num_points)


def _mean_step(g: Array, norm: str) -> Array:
    """A gradient at the scale of one step: mean magnitude 1 for linf, else length 1."""
    if norm != "linf":
        return _geometry.unit(g, norm)
    return mean_one(g)


def mean_one(g: Array) -> Array:
    """Each row divided by its mean magnitude; a row of zeros stays one."""
    g = _geometry.divide(g, _geometry.length(g, "linf"))
    return _geometry.divide(g, jnp.abs(g).mean(tuple(range(1, g.ndim)), keepdims=True))


@dataclasses.dataclass(frozen=True)
class NoisyGradient:
    """DN: the mean gradient at points around the clean input, drawn towards the attack so far."""

    norm: str
    num_points: int

    def __call__(self, climb, problem, keys, x_adv, t):
        """Returns the gradient for step ``t``."""
        x, mask, numbers = problem.x, problem.mask, problem.numbers
        delta = x_adv - x
        radius = _geometry.length(delta, self.norm)
        shift = numbers["kappa"] * _geometry.unit(delta, "l2")
        step_keys = _fold(keys, t)

        def at_point(j):
            # Two keys: a row may need the ball or the sphere, and must not see one draw twice.
            pairs = jax.vmap(jax.random.split)(_fold(step_keys, j))
            in_ball = numbers["eps"] * _geometry.draw_ball(pairs[:, 0], x, self.norm, mask)
            xi = shift + _geometry.draw_normal(pairs[:, 1], x, mask)
            on_sphere = radius * _geometry.unit(xi, self.norm)
            eta = jnp.where(radius > 0, on_sphere, in_ball)
            return climb(jnp.clip(x + eta, problem.lower, problem.upper))

        return _mean_over_points(at_point, x, self.num_points)


@dataclasses.dataclass(frozen=True)
class SteepestStep:
    """Steepest ascent along the gradient, or along its running sum where there is momentum.

    With momentum the gradient is first divided by its mean magnitude, as in MI-FGSM.
    """

    norm: str
    momentum: bool = False

    def __call__(self, problem, x_adv, velocity, g):
        """Returns the move and the new velocity."""
        numbers = problem.numbers
        if self.momentum:
            velocity = numbers["decay"] * velocity + mean_one(g)
            g = velocity
        box = problem.lower, problem.upper
        return _geometry.steepest(g, self.norm, numbers["step_size"], x_adv, *box), velocity


@dataclasses.dataclass(frozen=True)
class AccumulatedStep:
    """DN: the running sum of unit gradients; the move is that sum, of whatever length it has."""

    norm: str
    normalize: bool

    def __call__(self, problem, x_adv, velocity, g):
        """Returns the move and the new velocity."""
        numbers = problem.numbers
        step_size = numbers["step_size"]
        box = problem.lower, problem.upper
        towards = jnp.sign(g) if self.norm == "linf" else _geometry.unit(g, self.norm)
        velocity = numbers["decay"] * velocity + towards
        if self.normalize:
            return _geometry.steepest(velocity, self.norm, step_size, x_adv, *box), velocity
        return step_size * velocity, velocity
