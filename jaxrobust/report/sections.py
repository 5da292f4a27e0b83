"""The sections of a report: how each is put into words and pictures.

A section is JSON under ``sections.<name>`` of report.json. To add one, write its :class:`Renderer`
and enter it in :data:`RENDERERS`. Pictures and words are made from the JSON alone, so a section
that was saved can be shown again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxrobust.report import svg, theta_html, theta_plots
from jaxrobust.report.views import (
    agreement_view,
    clever_view,
    directional_view,
    distance_view,
    flip_view,
    preflight_view,
)

Data = dict[str, Any]


class Renderer(NamedTuple):
    """How a section is shown.

    Attributes:
        summary: ``data -> sentences`` for the top of the page.
        draw: ``data -> plots``: its pictures.
        html: ``(data, plots) -> HTML``: its body, with a heading of level 2.
        how_to_read: ``data -> HTML``: what its numbers mean, and when they mislead.
    """

    summary: Callable[[Data], list[str]]
    draw: Callable[[Data], list[svg.Plot]]
    html: Callable[[Data, Sequence[svg.Plot]], str]
    how_to_read: Callable[[Data], str]


def _of(module: Any) -> Renderer:
    return Renderer(module.summary, module.draw, module.html, module.how_to_read)


# What a section measures, in a sentence; only those that a card may have to leave out.
IN_WORDS = {
    "flip": "flip probability",
    "distance": "adversarial distance",
    "directional": "directional risk",
    "clever": "CLEVER",
    "agreement": "the agreement of the measures",
}

# In the order of the page.
RENDERERS: dict[str, Renderer] = {
    "preflight": _of(preflight_view),
    "theta": Renderer(
        theta_html.theta_summary,
        theta_plots.theta_plots,
        theta_html.theta_html,
        theta_html.how_to_read,
    ),
    "flip": _of(flip_view),
    "distance": _of(distance_view),
    "directional": _of(directional_view),
    "clever": _of(clever_view),
    "agreement": _of(agreement_view),
}
