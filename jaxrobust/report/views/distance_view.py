"""The nearest adversarial example that was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrobust.report import page, svg
from jaxrobust.report.formats import show
from jaxrobust.report.views import _common

TITLE = "Nearest adversarial example found"


def summary(data: dict[str, Any]) -> list[str]:
    """The median distance."""
    if "left_out" in data or data["median"] is None:
        return []
    norm = _common.NORMS[data["config"]["norm"]]
    return [
        f"Half of the correctly classified inputs have an adversarial example within an {norm}"
        f" distance of {show(data['median'])} units or less (found by DeepFool)."
    ]


def draw(data: dict[str, Any]) -> list[svg.Plot]:
    """Distances are drawn beside CLEVER."""
    return []


def html(data: dict[str, Any], plots: Sequence[svg.Plot]) -> str:
    """The section's body."""
    missing = _common.left_out(TITLE, data)
    if missing:
        return missing
    total, config = len(data["examples"]["index"]), data["config"]
    found = total - data["num_already_wrong"] - data["num_not_found"]
    text = (
        f"DeepFool looks for a small {_common.NORMS[config['norm']]} perturbation that changes the"
        f" label; a unit is {config['unit']}. It was found for {found} of {total} examples, at a"
        f" median distance of {show(data['median'])}; 90% of them are within"
        f" {show(data['quantile_90'])}. Misclassified to begin with:"
        f" {data['num_already_wrong']}; not found: {data['num_not_found']}."
    )
    return f"<h2>{TITLE}</h2>" + page.paragraph(text)


def how_to_read(data: dict[str, Any]) -> str:
    """What a distance means."""
    if "left_out" in data:
        return ""
    return page.definitions(
        [
            (
                "Adversarial distance",
                "An upper bound on the distance to the nearest input of another label: there may"
                " be a nearer one that the attack missed.",
            )
        ]
    )
