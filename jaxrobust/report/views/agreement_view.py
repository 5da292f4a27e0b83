"""Whether the measures find the same examples robust."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from jaxrobust.report import page, svg
from jaxrobust.report.formats import show, show_interval, show_share, with_interval
from jaxrobust.report.views import _common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Do the measures agree?"
# In words, and short for plots.
NAMES = {
    "certainty": ("confidence", "confidence"),
    "flip": ("1 − flip probability", "1 − flip"),
    "directional": ("1 − directional risk at κ*", "1 − risk"),
    "clever": ("CLEVER score", "CLEVER"),
    "distance": ("adversarial distance", "distance"),
}


def summary(data: dict[str, Any]) -> list[str]:
    """The pair that agrees most, and the one that agrees least."""
    pairs = _pairs(data)
    if not pairs:
        return []
    ordered = sorted(pairs, key=lambda pair: pair[2]["value"])
    confidence = data["config"]["confidence"]

    def words(pair: Any) -> str:
        a, b, number = pair
        return f"{NAMES[a][0]} and {NAMES[b][0]}, {with_interval(number, confidence)}"

    if len(ordered) == 1:
        return [f"The rank correlation is that of {words(ordered[0])}."]
    return [
        f"Rank correlation between measures is highest for {words(ordered[-1])}, and lowest for"
        f" {words(ordered[0])}."
    ]


def draw(data: dict[str, Any]) -> list[svg.Plot]:
    """A scatter matrix of ranks."""
    if "left_out" in data:
        return []
    names = data["names"]
    size = len(names)
    columns = {name: _ranks(name, data["columns"][name]) for name in names}

    def paint(figure: Figure) -> None:
        grid = figure.subplots(size - 1, size - 1, squeeze=False)
        for i, j in itertools.product(range(size - 1), repeat=2):
            axes = grid[i, j]
            if j > i:
                axes.axis("off")
                continue
            across, up = names[j], names[i + 1]
            axes.plot(
                columns[across], columns[up], "o", color=svg.colour("data"), markersize=2.2,
                markeredgewidth=0, alpha=0.6,
            )  # fmt: skip
            axes.grid(False)
            axes.set(xlim=(-0.06, 1.06), ylim=(-0.06, 1.06), xticks=[], yticks=[])
            if j == 0:
                axes.set_ylabel(NAMES[up][1], fontsize=10)
            if i == size - 2:
                axes.set_xlabel(NAMES[across][1], fontsize=10)

    return [
        svg.draw(
            "agreement-scatter",
            paint,
            alt=f"Scatter plots of {size} measures against each other for"
            f" {data['num_examples']} examples; the table gives their rank correlations.",
            caption="Each point is an example, placed by its ranks: the least robust at the left"
            " and bottom, the most robust at the right and top.",
            size=(5.2, 5.0),
        )
    ]


def _ranks(name: str, values: Sequence[float | None]) -> np.ndarray:
    """Ranks from 0 to 1, ties sharing theirs; where no adversarial distance was found, the top."""
    missing = np.inf if name == "distance" else np.nan
    ranks = stats.rankdata([missing if v is None else v for v in values], nan_policy="omit")
    return (ranks - 1) / max(np.count_nonzero(~np.isnan(ranks)) - 1, 1)


def html(data: dict[str, Any], plots: Sequence[svg.Plot]) -> str:
    """The section's body."""
    missing = _common.left_out(TITLE, data)
    if missing:
        return missing
    names = data["names"]
    intro = (
        f"For the {data['num_examples']} correctly classified examples, each measure is turned so"
        " that larger is more robust, and examples are ranked by it. Spearman's rank correlation is"
        " 1 where two measures order them alike, 0 where they have nothing in common."
    )
    rows: list[list[page.Cell]] = []
    for i, name in enumerate(names[1:], start=1):
        row: list[page.Cell] = [NAMES[name][1]]
        for j in range(len(names) - 1):
            number = data["spearman"][i][j]
            row.append(_common.cell(number) if j < i else "")
        rows.append(row)
    reasons = sorted(
        {
            f"{NAMES[a][0]} and {NAMES[b][0]}: {number['reason']}."
            for a, b, number in _all_pairs(data)
            if number["value"] is None
        }
    )
    worst = [p for p in _pairs(data) if ((p[2]["interval"] or [None, None])[1] or 0) < 0]
    flags = [
        f"{NAMES[a][0]} and {NAMES[b][0]} order the examples in nearly opposite ways"
        f" ({show(n['value'])}; interval {show_interval(n['interval'])})."
        for a, b, n in worst
    ]
    return (
        f"<h2>{TITLE}</h2>"
        + page.paragraph(intro)
        + page.flags(flags + reasons)
        + page.table(
            "Rank correlations; small print:"
            f" {show_share(data['config']['confidence'])} bootstrap intervals over examples",
            ["", *(NAMES[name][1] for name in names[:-1])],
            rows,
        )
        + "".join(page.figure(plot, "wide") for plot in plots)
    )


def how_to_read(data: dict[str, Any]) -> str:
    """What agreement means."""
    if "left_out" in data:
        return ""
    return page.definitions(
        [
            (
                "Agreement",
                "The measures answer different questions, so they need not agree. Where confidence"
                " orders examples like all the others do, it is a cheap stand-in for them; where it"
                " does not, it is no sign of robustness. Examples that tie in a measure (no flips"
                " at all) lower its correlations.",
            )
        ]
    )


def _all_pairs(data: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    if "left_out" in data:
        return []
    names = data["names"]
    return [
        (names[j], names[i], data["spearman"][i][j]) for i in range(len(names)) for j in range(i)
    ]


def _pairs(data: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [pair for pair in _all_pairs(data) if pair[2]["value"] is not None]
