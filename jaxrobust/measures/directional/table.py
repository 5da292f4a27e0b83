"""The benchmark table: named attacks, several budgets, and how worst-case each of them is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrobust import _checks, models
from jaxrobust.measures.directional.risk import DirectionalRisk, directional_risk
from jaxrobust.measures.directional.summaries import KappaAt, kappa_at
from jaxrobust.perturbations.norms import NORMS

Array = jax.Array
Attack = Callable[..., Any]


class TableRow(NamedTuple):
    """One attack at one budget.

    Attributes:
        attack: its name.
        norm: of the attack and of the noise.
        eps: the attack's budget.
        kappa_at: kappa at the level, with its interval.
        risk: everything else: ``risk.risk_at_kappa_star``, ``risk.attack_success_rate``, the curve
            ``risk.mean`` over ``risk.kappa``.
    """

    attack: str
    norm: str
    eps: float
    kappa_at: KappaAt
    risk: DirectionalRisk


def directional_table(
    apply_fn: models.ApplyFn,
    params: Any,
    key: Array,
    x: Array,
    labels: Array,
    *,
    attacks: Mapping[str, Attack],
    budgets: Sequence[tuple[str, float]],
    kappas: Array,
    level: float = 0.25,
    confidence: Any = 0.95,
    **options: Any,
) -> tuple[TableRow, ...]:
    """Runs named attacks at several budgets and measures the directional noisy risk of each.

    All attacks are measured with the same draws (common random numbers), so that differences
    between rows are clearer than their intervals say.

    Args:
        apply_fn: classifier, as for :func:`directional_risk`.
        params: the model's parameters.
        key: typed PRNG key; for the attacks that draw, and for the noise.
        x: clean inputs ``[n, ...]``.
        labels: the true classes ``[n]``.
        attacks: by name, each ``attack(apply_fn, params, key, x, labels, *, eps, norm)`` that
            returns the attacked inputs or a tuple with them as ``x_adv``, such as
            ``jaxrobust.attacks.pgd`` or a ``functools.partial`` of it. An attack without a
            parameter ``key`` is called without a key.
        budgets: pairs ``(norm, eps)``.
        kappas: ``[K]``, the sweep.
        level: of the mean risk, for ``kappa_at``.
        confidence: of every interval.
        **options: further keywords of :func:`directional_risk`, such as ``num_samples``.

    Returns:
        A :class:`TableRow` for each budget and attack, budgets outermost. :func:`format_table`
        writes them out.

    Raises:
        TypeError: for attacks that are no mapping of names to functions.
        ValueError: for no attacks or budgets, an unknown norm, and as :func:`directional_risk`.

    Source: "How Worst-Case Are Adversarial Attacks? Linking Adversarial and Statistical
    Robustness" 2026: its table 2.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> x = jnp.tile(jnp.array([[0.9, 0.1]]), (20, 1))
        >>> rows = jr.measures.directional_table(
        ...     jnp.add, jnp.zeros((1, 2)), jax.random.key(0), x, jnp.zeros(20, int),
        ...     attacks={"FGSM": jr.attacks.fgsm}, budgets=[("l2", 0.5), ("l2", 0.75)],
        ...     kappas=jnp.array([0.0, 1.0]),
        ... )
        >>> [(row.attack, row.eps, float(row.risk.attack_success_rate)) for row in rows]
        [('FGSM', 0.5, 0.0), ('FGSM', 0.75, 1.0)]
    """
    _checks.prng_key(key)
    _check_attacks(attacks)
    if not budgets:
        raise ValueError("budgets must hold at least one pair (norm, eps); got none.")
    attack_key, noise_key = jax.random.split(key)
    rows = []
    for norm, eps in budgets:
        _checks.choice("norm in budgets", norm, NORMS)
        for number, (name, attack) in enumerate(attacks.items()):
            own_key = jax.random.fold_in(attack_key, number)
            keys = (own_key,) if _takes_key(attack) else ()
            attacked: Any = attack(apply_fn, params, *keys, x, labels, eps=eps, norm=norm)
            x_adv: Any = getattr(attacked, "x_adv", attacked)
            risk = directional_risk(
                apply_fn,
                params,
                noise_key,
                x,
                labels,
                x_adv,
                norm=norm,
                kappas=kappas,
                confidence=confidence,
                **options,
            )
            reached = kappa_at(risk, level, confidence=confidence)
            rows.append(TableRow(name, norm, float(eps), reached, risk))
    return tuple(rows)


def format_table(rows: Sequence[TableRow]) -> str:
    """Writes a table out: kappa at the level, risk at kappa*, attack success, with intervals.

    Args:
        rows: from :func:`directional_table`.

    Returns:
        Lines of aligned columns. A kappa that is never reached is ``inf``.

    Raises:
        ValueError: for no rows.

    Example:
        >>> import jax, jax.numpy as jnp, jaxrobust as jr
        >>> x = jnp.tile(jnp.array([[0.9, 0.1]]), (20, 1))
        >>> rows = jr.measures.directional_table(
        ...     jnp.add, jnp.zeros((1, 2)), jax.random.key(0), x, jnp.zeros(20, int),
        ...     attacks={"FGSM": jr.attacks.fgsm}, budgets=[("l2", 0.5)],
        ...     kappas=jnp.array([0.0, 1.0]),
        ... )
        >>> print(jr.measures.format_table(rows)[:60].splitlines()[0].split()[:5])
        ['attack', 'norm', 'eps', 'kappa', 'R']
    """
    if not rows:
        raise ValueError("rows must hold at least one row of a table; got none.")
    cells = [["attack", "norm", "eps", "kappa", "", "R at kappa*", "", "success", "", "n"]]
    for row in rows:
        risk = row.risk
        star = int(np.abs(np.asarray(risk.kappa) - float(risk.kappa_star)).argmin())
        cells.append(
            [
                row.attack,
                row.norm,
                f"{row.eps:.4g}",
                f"{float(row.kappa_at):.2f}",
                _ends(row.kappa_at.interval, 2),
                f"{float(risk.risk_at_kappa_star):.4f}",
                _ends(risk.mean_interval[star], 4),
                f"{float(risk.attack_success_rate):.3f}",
                _ends(risk.attack_success_interval, 3),
                f"{int(risk.num_correct)}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if k < 2 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _ends(interval: Any, digits: int) -> str:
    low, high = np.asarray(interval)
    return f"({low:.{digits}f} to {high:.{digits}f})"


def _check_attacks(attacks: Any) -> None:
    if not isinstance(attacks, Mapping) or not all(map(callable, attacks.values())):
        raise TypeError(
            "attacks must map names to functions, such as {'PGD': jaxrobust.attacks.pgd};"
            f" got {_checks.describe(attacks)}."
        )
    if not attacks:
        raise ValueError("attacks must hold at least one named attack; got none.")


def _takes_key(attack: Attack) -> bool:
    return "key" in inspect.signature(attack).parameters
