"""What several sections say alike."""

from __future__ import annotations

from typing import Any

from jaxrobust.report import page
from jaxrobust.report.formats import NO_INTERVAL, Estimate, show, show_interval

NORMS = {"l1": "ℓ1", "l2": "ℓ2", "linf": "ℓ∞"}
ATTACKS = {"dn": "DN", "fgsm": "FGSM", "mi_fgsm": "MI-FGSM", "pgd": "PGD-20", "pgn": "PGN"}


def left_out(title: str, data: dict[str, Any]) -> str | None:
    """The section's body where it was not measured; None where it was."""
    if "left_out" not in data:
        return None
    return f"<h2>{title}</h2>" + page.paragraph(f"Not measured: {data['left_out']}.")


def cell(number: Estimate, missing: str = "–") -> page.Cell:
    """A number in a table, its interval below."""
    inner = show_interval(number["interval"])
    if number["value"] is None:
        return (missing, inner)
    return (show(number["value"]), inner or NO_INTERVAL)


def noise(sigma: float, unit: str | None) -> str:
    """Gaussian noise of a level, in words."""
    words = "times the given scale" if unit == "feature_scale" else "standard deviations"
    return f"Gaussian noise of {sigma:g} {words} on every numeric value"
