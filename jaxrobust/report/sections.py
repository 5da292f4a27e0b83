"""A section of a report: what was measured, as JSON, pictures and words.

To add one, write a module that turns its result into a :class:`Section`, as ``theta_section``
does; the JSON goes under ``sections.<name>`` of report.json, the plots into the folder, the HTML
into the page. Pictures and words are made from the JSON alone, so a section that was saved can be
shown again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxrobust.report import svg, theta_html, theta_json, theta_plots
from jaxrobust.report.theta import ThetaReport


class Section(NamedTuple):
    """One part of a report.

    Attributes:
        name: its key in the JSON.
        data: its JSON.
        summary: plain sentences for the top of the page.
        draw: ``data -> plots``: its pictures.
        html: ``(data, plots) -> HTML``: its body, with a heading of level 2.
        how_to_read: ``data -> HTML``: what its numbers mean, and when they mislead.
    """

    name: str
    data: dict[str, Any]
    summary: list[str]
    draw: Callable[[dict[str, Any]], list[svg.Plot]]
    html: Callable[[dict[str, Any], Sequence[svg.Plot]], str]
    how_to_read: Callable[[dict[str, Any]], str]


def theta_section(report: ThetaReport) -> Section:
    """The section of theta-robustness."""
    data = theta_json.theta_data(report)
    return Section(
        name="theta",
        data=data,
        summary=theta_html.theta_summary(data),
        draw=theta_plots.theta_plots,
        html=theta_html.theta_html,
        how_to_read=theta_html.how_to_read,
    )
