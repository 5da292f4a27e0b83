"""What the preflight found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrobust.report import page, svg


def summary(data: dict[str, Any]) -> list[str]:
    """Findings that make numbers meaningless come before any number."""
    return [
        f"Take care: {finding['message']} {finding['advice']}"
        for finding in data["findings"]
        if finding["severity"] == "error"
    ]


def draw(data: dict[str, Any]) -> list[svg.Plot]:
    """Nothing to draw."""
    return []


def html(data: dict[str, Any], plots: Sequence[svg.Plot]) -> str:
    """The findings, if there are any."""
    if not data["findings"]:
        return ""
    intro = f"The model ran a few times on {data['num_examples']} examples before measuring."
    return (
        "<h2>Before measuring</h2>"
        + page.paragraph(intro)
        + page.flags([f"{f['message']} {f['advice']}" for f in data["findings"]])
    )


def how_to_read(data: dict[str, Any]) -> str:
    """Nothing to add."""
    return ""
