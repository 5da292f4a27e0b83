"""The nearest adversarial example that was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrobust.report import page, svg
from jaxrobust.report.formats import EXAMPLES, show, show_share, with_interval
from jaxrobust.report.views import _common

TITLE = "Nearest adversarial example found"


def summary(data: dict[str, Any]) -> list[str]:
    """The median distance."""
    if "left_out" in data or not _num_correct(data):
        return []
    correct, config = _num_correct(data), data["config"]
    if data["median"]["value"] is None:
        return [
            f"DeepFool found an adversarial example for {correct - data['num_not_found']} of"
            f" {correct} correctly classified inputs: fewer than half, so it knows no median"
            " distance. That it found none does not mean that there is none."
        ]
    median = with_interval(data["median"], config["confidence"], over=EXAMPLES)
    return [
        f"Half of the {correct} correctly classified inputs looked at have an adversarial example"
        f" within an {_common.NORMS[config['norm']]} distance of {median} units, found by DeepFool"
        f" (a unit is {config['unit']})."
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
    correct = _num_correct(data)
    found = correct - data["num_not_found"]
    text = (
        f"DeepFool looks for a small {_common.NORMS[config['norm']]} perturbation that changes the"
        f" label; a unit is {config['unit']}. Of {total} examples, {data['num_already_wrong']} are"
        f" misclassified to begin with; of the other {correct}, one was found for {found}, at a"
        f" median distance of {show(data['median_found'])}; 90% of those found are within"
        f" {show(data['quantile_90_found'])}."
    )
    rows: list[list[page.Cell]] = [
        [name, _common.cell(data[key], "not reached")]
        for name, key in (("half", "median"), ("90%", "quantile_90"))
    ]
    table = page.table(
        f"How near, over all {correct} correctly classified examples; small print:"
        f" {show_share(config['confidence'])} intervals over examples",
        ["share of examples", "within a distance of"],
        rows,
    )
    flags = []
    if data["num_invalid"]:
        flags.append(
            f"{data['num_invalid']} examples are left out: the model's outputs for them are NaN or"
            " infinite."
        )
    return (
        f"<h2>{TITLE}</h2>" + page.paragraph(text) + page.flags(flags) + (table if correct else "")
    )


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


def _num_correct(data: dict[str, Any]) -> int:
    return len(data["examples"]["index"]) - data["num_already_wrong"] - data["num_invalid"]
