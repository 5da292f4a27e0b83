"""The gradient family: FGSM, PGD, MI-FGSM, PGN and DN, named settings of one scanned ascent."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array
from jax.sharding import Mesh

from jaxrobust import _checks
from jaxrobust.attacks import _ascent, _losses, _problem
from jaxrobust.attacks._problem import ApplyFn, AttackResult, Bounds

__all__ = ["dn", "fgsm", "mi_fgsm", "pgd", "pgn"]


def fgsm(
    apply_fn: ApplyFn,
    params: Any,
    x: Any,
    labels: Any,
    *,
    eps: Any,
    norm: str = "linf",
    bounds: Bounds = (0.0, 1.0),
    targeted: bool = False,
    loss: _losses.Loss = "cross_entropy",
    mask: Any = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> AttackResult:
    """Fast gradient sign method: one step of full length along the gradient.

    Goodfellow et al. 2015, "Explaining and Harnessing Adversarial Examples", arXiv 1412.6572. The
    step is ``eps * sign(g)`` for linf and ``eps * g / |g|_2`` for l2; for l1 it goes to the
    features of largest gradient, each as far as ``bounds`` let it.

    Args:
      apply_fn: ``apply_fn(params, x[B, ...]) -> logits [B, K]``, K at least 2. Static.
      params: Any pytree. Traced: new weights do not retrace.
      x: Inputs ``[n, ...]``, floating, within ``bounds``.
      labels: ``[n]`` integers, the true classes; the classes to reach, if ``targeted``.
      eps: Radius of the ball around each input, in the units of ``x``; one number or ``[n]``.
      norm: ``"l1"``, ``"l2"`` or ``"linf"``.
      bounds: The box that holds all inputs: ``(lower, upper)``, each a number or an array that
        broadcasts to one example (bounds of each feature) or has the shape of ``x``; or None.
      targeted: Whether to reach ``labels`` instead of leaving them.
      loss: What to climb: ``"cross_entropy"`` (whose direction is kept where the softmax saturates,
        as float64 would show it), ``"margin"`` (best other logit less that of the
        label), ``"dlr"`` (difference of logits ratio, K at least 3), or a function ``(logits
        [B, K], labels [B]) -> [B]`` that is high where the label is missed. Targeted attacks
        descend it.
      mask: Boolean, True for the features that may move; shaped as a bound. None: all of them.
      chunk_size: Inputs in one call of the model, which bounds the memory; None picks it from the
        size of an input.
      mesh: A mesh with an axis ``"examples"`` to split the examples over; n need not divide.

    Returns:
      An `AttackResult`.

    Raises:
      TypeError: If an argument has the wrong type or dtype.
      ValueError: If shapes or options do not fit, the model has fewer than 2 outputs, or (in a
        plain call) values are NaN or out of range.

    Example:
      >>> import jax.numpy as jnp
      >>> w = jnp.array([[1.0, -1.0], [2.0, -2.0]])  # logit difference 2 x1 + 4 x2
      >>> x, labels = jnp.array([[0.1, 0.2]]), jnp.array([0])
      >>> result = fgsm(lambda w, x: x @ w, w, x, labels, eps=0.25, bounds=None)
      >>> result.success, result.x_adv.round(3)  # moved by 0.25 along (-1, -1)
      (Array([ True], dtype=bool), Array([[-0.15, -0.05]], dtype=float32))
    """
    _check_family(norm=norm, targeted=targeted, loss=loss)
    problem = _problem.prepare(
        apply_fn, params, x, labels, bounds=bounds, mask=mask, eps=eps, step_size=eps
    )
    solver = _ascent.Ascent(norm, loss, 1, _ascent.plain_gradient, _ascent.SteepestStep(norm))
    return _problem.run(
        solver, apply_fn, params, None, problem,
        targeted=targeted, chunk_size=chunk_size, mesh=mesh,
    )  # fmt: skip


def pgd(
    apply_fn: ApplyFn,
    params: Any,
    key: Array,
    x: Any,
    labels: Any,
    *,
    eps: Any,
    norm: str = "linf",
    step_size: Any = None,
    num_steps: int = 20,
    random_start: bool = True,
    num_restarts: int = 1,
    bounds: Bounds = (0.0, 1.0),
    targeted: bool = False,
    loss: _losses.Loss = "cross_entropy",
    mask: Any = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> AttackResult:
    """Projected gradient descent on the loss landscape: steps of steepest ascent in a ball.

    Madry et al. 2018, "Towards Deep Learning Models Resistant to Adversarial Attacks", arXiv
    1706.06083. Each step moves by ``step_size`` along the steepest direction of the norm (see
    `fgsm`), projects onto the ball (the Euclidean projection, also in l1) and clips to the box.
    I-FGSM (Kurakin et al. 2017, arXiv 1607.02533) is ``norm="linf", random_start=False`` with
    ``step_size=eps / num_steps``.

    Args:
      apply_fn: As in `fgsm`.
      params: As in `fgsm`.
      key: A typed key, consumed. Restart r of example i draws from ``fold_in(fold_in(key, r),
        i)``, so its draws do not depend on the chunks or devices.
      x: As in `fgsm`.
      labels: As in `fgsm`.
      eps: As in `fgsm`.
      norm: As in `fgsm`.
      step_size: Length of one step; one number or ``[n]``. None: ``5 * eps / num_steps``,
        a quarter of the radius in 20 steps, enough to cross the ball and settle on its far side.
      num_steps: Number of steps.
      random_start: Start uniformly in the ball (clipped to the box) instead of at ``x``.
      num_restarts: Number of starts, of which the worst is kept: a success before a failure, then
        the one where the attack won by more. More than 1 needs ``random_start``.
      bounds: As in `fgsm`.
      targeted: As in `fgsm`.
      loss: As in `fgsm`.
      mask: As in `fgsm`.
      chunk_size: As in `fgsm`.
      mesh: As in `fgsm`.

    Returns:
      An `AttackResult`.

    Raises:
      TypeError: As in `fgsm`; also if ``key`` is no typed key.
      ValueError: As in `fgsm`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> w = jnp.array([[1.0, -1.0], [2.0, -2.0]])
      >>> x, labels = jnp.array([[0.1, 0.2]]), jnp.array([0])  # the boundary is 0.2236 away in l2
      >>> attack = lambda eps: pgd(
      ...     lambda w, x: x @ w, w, jax.random.key(0), x, labels, eps=eps, norm="l2", bounds=None
      ... )
      >>> attack(0.22).success, attack(0.23).success
      (Array([False], dtype=bool), Array([ True], dtype=bool))
    """
    _check_family(norm=norm, targeted=targeted, loss=loss)
    _checks.prng_key(key)
    num_steps = _checks.count("num_steps", num_steps)
    num_restarts = _checks.count("num_restarts", num_restarts)
    if num_restarts > 1 and not random_start:
        raise ValueError(
            "num_restarts must be 1 without random_start (every start would be the same);"
            f" got {num_restarts}."
        )
    if step_size is None:
        step_size = _share("eps", eps, 5 / num_steps)
    problem = _problem.prepare(
        apply_fn, params, x, labels, bounds=bounds, mask=mask, eps=eps, step_size=step_size
    )
    solver = _ascent.Ascent(
        norm,
        loss,
        num_steps,
        _ascent.plain_gradient,
        _ascent.SteepestStep(norm),
        bool(random_start),
        num_restarts,
    )
    return _problem.run(
        solver, apply_fn, params, key, problem,
        targeted=targeted, chunk_size=chunk_size, mesh=mesh,
    )  # fmt: skip


def mi_fgsm(
    apply_fn: ApplyFn,
    params: Any,
    x: Any,
    labels: Any,
    *,
    eps: Any,
    norm: str = "linf",
    step_size: Any = None,
    num_steps: int = 10,
    decay: Any = 1.0,
    bounds: Bounds = (0.0, 1.0),
    targeted: bool = False,
    loss: _losses.Loss = "cross_entropy",
    mask: Any = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> AttackResult:
    """Momentum iterative FGSM: steepest ascent along a running sum of gradients.

    Dong et al. 2018, "Boosting Adversarial Attacks with Momentum", arXiv 1710.06081, algorithm 1:
    ``m <- decay * m + g / mean|g|``, then a step along the steepest direction of ``m``.

    Args:
      apply_fn: As in `fgsm`.
      params: As in `fgsm`.
      x: As in `fgsm`.
      labels: As in `fgsm`.
      eps: As in `fgsm`.
      norm: As in `fgsm`.
      step_size: Length of one step; one number or ``[n]``. None: ``eps / num_steps``.
      num_steps: Number of steps.
      decay: Share of the sum that a step keeps; one number or ``[n]``.
      bounds: As in `fgsm`.
      targeted: As in `fgsm`.
      loss: As in `fgsm`.
      mask: As in `fgsm`.
      chunk_size: As in `fgsm`.
      mesh: As in `fgsm`.

    Returns:
      An `AttackResult`.

    Raises:
      TypeError: As in `fgsm`.
      ValueError: As in `fgsm`.

    Example:
      >>> import jax.numpy as jnp
      >>> w = jnp.array([[1.0, -1.0], [2.0, -2.0]])
      >>> x, labels = jnp.array([[0.1, 0.2]]), jnp.array([0])
      >>> mi_fgsm(lambda w, x: x @ w, w, x, labels, eps=0.25, bounds=None).success
      Array([ True], dtype=bool)
    """
    _check_family(norm=norm, targeted=targeted, loss=loss)
    num_steps = _checks.count("num_steps", num_steps)
    if step_size is None:
        step_size = _share("eps", eps, 1 / num_steps)
    problem = _problem.prepare(
        apply_fn, params, x, labels,
        bounds=bounds, mask=mask, eps=eps, step_size=step_size, decay=decay,
    )  # fmt: skip
    solver = _ascent.Ascent(
        norm, loss, num_steps, _ascent.plain_gradient, _ascent.SteepestStep(norm, momentum=True)
    )
    return _problem.run(
        solver, apply_fn, params, None, problem,
        targeted=targeted, chunk_size=chunk_size, mesh=mesh,
    )  # fmt: skip


def pgn(
    apply_fn: ApplyFn,
    params: Any,
    key: Array,
    x: Any,
    labels: Any,
    *,
    eps: Any,
    norm: str = "linf",
    step_size: Any = None,
    num_steps: int = 10,
    num_points: int = 10,
    radius_scale: Any = 3.0,
    balance: Any = 0.5,
    decay: Any = 1.0,
    bounds: Bounds = (0.0, 1.0),
    targeted: bool = False,
    loss: _losses.Loss = "cross_entropy",
    mask: Any = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> AttackResult:
    """Penalising the gradient norm: momentum ascent towards flat maxima.

    Ge et al. 2023, "Boosting Adversarial Transferability by Achieving Flat Local Maxima", arXiv
    2306.05225, algorithm 1. Each step takes ``num_points`` points x' uniform in the ball of radius
    ``radius_scale * eps`` around the current one (not clipped to the box), their gradients g',
    the gradients g* at ``x' - step_size * g' / mean|g'|`` (for l1 and l2 at a step of that length
    against g'), and averages ``(1 - balance) g' + balance g*``; then it goes on as `mi_fgsm`.

    Args:
      apply_fn: As in `fgsm`.
      params: As in `fgsm`.
      key: A typed key, consumed; see `pgd`.
      x: As in `fgsm`.
      labels: As in `fgsm`.
      eps: As in `fgsm`.
      norm: As in `fgsm`.
      step_size: Length of one step; one number or ``[n]``. None: ``eps / num_steps``.
      num_steps: Number of steps.
      num_points: Points in a step; each costs two gradients.
      radius_scale: Radius of the draws, in units of ``eps``; one number or ``[n]``.
      balance: Weight of g* against g', 0 to 1; one number or ``[n]``.
      decay: Share of the sum that a step keeps; one number or ``[n]``.
      bounds: As in `fgsm`.
      targeted: As in `fgsm`.
      loss: As in `fgsm`.
      mask: As in `fgsm`.
      chunk_size: As in `fgsm`.
      mesh: As in `fgsm`.

    Returns:
      An `AttackResult`.

    Raises:
      TypeError: As in `fgsm`; also if ``key`` is no typed key.
      ValueError: As in `fgsm`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> w = jnp.array([[1.0, -1.0], [2.0, -2.0]])
      >>> x, labels = jnp.array([[0.1, 0.2]]), jnp.array([0])
      >>> pgn(
      ...     lambda w, x: x @ w, w, jax.random.key(0), x, labels, eps=0.25, bounds=None
      ... ).success
      Array([ True], dtype=bool)
    """
    _check_family(norm=norm, targeted=targeted, loss=loss)
    _checks.prng_key(key)
    num_steps = _checks.count("num_steps", num_steps)
    num_points = _checks.count("num_points", num_points)
    if step_size is None:
        step_size = _share("eps", eps, 1 / num_steps)
    _checks.values("balance", balance, lambda v: (v >= 0) & (v <= 1), "between 0 and 1")
    problem = _problem.prepare(
        apply_fn, params, x, labels,
        bounds=bounds, mask=mask, eps=eps, step_size=step_size, decay=decay,
        radius_scale=radius_scale, balance=balance,
    )  # fmt: skip
    solver = _ascent.Ascent(
        norm,
        loss,
        num_steps,
        _ascent.PenalizedGradient(norm, num_points),
        _ascent.SteepestStep(norm, momentum=True),
    )
    return _problem.run(
        solver, apply_fn, params, key, problem,
        targeted=targeted, chunk_size=chunk_size, mesh=mesh,
    )  # fmt: skip


def dn(
    apply_fn: ApplyFn,
    params: Any,
    key: Array,
    x: Any,
    labels: Any,
    *,
    eps: Any,
    norm: str = "linf",
    kappa: Any = 10.0,
    step_size: Any = None,
    num_steps: int = 10,
    num_points: int = 10,
    decay: Any = 1.0,
    normalize_step: bool = False,
    bounds: Bounds = (0.0, 1.0),
    targeted: bool = False,
    loss: _losses.Loss = "cross_entropy",
    mask: Any = None,
    chunk_size: int | None = None,
    mesh: Mesh | None = None,
) -> AttackResult:
    """Directional noise: an attack whose direction stays harmful when noise is added to it.

    "How Worst-Case Are Adversarial Attacks? Linking Adversarial and Statistical Robustness" (2026),
    algorithm 1. Each step averages the gradients at ``num_points`` copies of the CLEAN input: the
    first step draws them in the ball, the later ones on the sphere of radius ``|delta|`` around
    ``x``, in the direction of a normal draw shifted by ``kappa * delta / |delta|_2``. The average,
    at unit length (its sign, for linf), is added to a running sum, and the step is
    ``step_size * sum`` as printed: with ``decay=1`` it grows, and the projection onto the ball
    bounds it.

    Args:
      apply_fn: As in `fgsm`.
      params: As in `fgsm`.
      key: A typed key, consumed; see `pgd`.
      x: As in `fgsm`.
      labels: As in `fgsm`.
      eps: As in `fgsm`.
      norm: As in `fgsm`.
      kappa: How strongly the draws keep to the direction so far: small is wide noise, large is
        nearly the attack itself. One number or ``[n]``.
      step_size: Scale of one step; one number or ``[n]``. None: ``eps / num_steps``.
      num_steps: Number of steps.
      num_points: Points in a step; each costs one gradient.
      decay: Share of the sum that a step keeps; one number or ``[n]``.
      normalize_step: Bring the step to length ``step_size``, as `mi_fgsm` does, instead of the
        step as printed.
      bounds: As in `fgsm`.
      targeted: As in `fgsm`.
      loss: As in `fgsm`.
      mask: As in `fgsm`.
      chunk_size: As in `fgsm`.
      mesh: As in `fgsm`.

    Returns:
      An `AttackResult`.

    Raises:
      TypeError: As in `fgsm`; also if ``key`` is no typed key.
      ValueError: As in `fgsm`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> w = jnp.array([[1.0, -1.0], [2.0, -2.0]])
      >>> x, labels = jnp.array([[0.1, 0.2]]), jnp.array([0])
      >>> dn(
      ...     lambda w, x: x @ w, w, jax.random.key(0), x, labels, eps=0.25, bounds=None
      ... ).success
      Array([ True], dtype=bool)
    """
    _check_family(norm=norm, targeted=targeted, loss=loss)
    _checks.prng_key(key)
    num_steps = _checks.count("num_steps", num_steps)
    num_points = _checks.count("num_points", num_points)
    if step_size is None:
        step_size = _share("eps", eps, 1 / num_steps)
    problem = _problem.prepare(
        apply_fn, params, x, labels,
        bounds=bounds, mask=mask, eps=eps, step_size=step_size, decay=decay, kappa=kappa,
    )  # fmt: skip
    solver = _ascent.Ascent(
        norm,
        loss,
        num_steps,
        _ascent.NoisyGradient(norm, num_points),
        _ascent.AccumulatedStep(norm, bool(normalize_step)),
    )
    return _problem.run(
        solver, apply_fn, params, key, problem,
        targeted=targeted, chunk_size=chunk_size, mesh=mesh,
    )  # fmt: skip


def _check_family(*, norm: str, targeted: Any, loss: Any) -> None:
    _problem.check_choices(norm=norm, targeted=targeted)
    _losses.check(loss)


def _share(name: str, value: Any, share: float) -> jax.Array:
    """The default step: a share of ``value`` (checked here, for the message to name it)."""
    array = _checks.real_array(name, value)
    _checks.non_negative(name, array)
    return share * array
