"""The picture of directional noisy risk: mean risk over kappa, from noise to the attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrobust.measures.directional import DirectionalRisk, KappaAt, kappa_at
from jaxrobust.report import svg
from jaxrobust.report.formats import show, show_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def risk_curves_plot(
    results: Mapping[str, DirectionalRisk],
    *,
    level: float = 0.25,
    confidence: float = 0.95,
    name: str = "directional-risk",
) -> svg.Plot:
    """Mean risk over kappa for several attacks, with kappa* and the level marked.

    Args:
        results: by the attack's name, for inputs of one size. The means' bands are their own
            ``mean_interval``; the more curves, the fainter they are.
        level: marked by a dotted line; each curve has a dot where it first reaches it.
        confidence: that the results were measured with, for the caption.
        name: file name without its ending.

    Returns:
        A plot with its SVG, a description for screen readers, and a caption.

    Raises:
        ValueError: for no results, or inputs of different sizes.
        ImportError: without Matplotlib.
    """
    if not results:
        raise ValueError("results must hold at least one directional risk; got none.")
    stars = {float(result.kappa_star) for result in results.values()}
    if len(stars) > 1:
        raise ValueError(
            f"results must be of inputs of one size, with one kappa*; got {sorted(stars)}."
        )
    star = stars.pop()
    reached = {label: kappa_at(result, level) for label, result in results.items()}
    return svg.draw(
        name,
        lambda figure: _paint(figure, results, reached, star, level),
        alt=_alt(results, reached, star, level),
        caption=(
            "Mean risk of the initially right examples as noise leans towards the attack ever more"
            f" strongly (kappa, on a root scale). Bands are {show_share(confidence)} intervals; the"
            f" dashed line is κ* = {show(star)}; a dot marks the first kappa with a mean risk of"
            f" {level:g}."
        ),
        size=(4.6, 4.3),
    )


def _paint(
    figure: Figure,
    results: Mapping[str, DirectionalRisk],
    reached: Mapping[str, KappaAt],
    star: float,
    level: float,
) -> None:
    axes = figure.add_subplot()
    handles: list[Any] = []
    for number, (label, result) in enumerate(results.items()):
        kappa, mean, ends = (
            np.asarray(a, np.float64) for a in (result.kappa, result.mean, result.mean_interval)
        )
        colour = svg.series(number)
        # The colours repeat after six: the dashes tell the rest apart.
        style = ("-", "--", ":")[number // len(svg.SERIES) % 3]
        shade = 0.25 / len(results)
        axes.fill_between(kappa, ends[:, 0], ends[:, 1], color=colour, alpha=shade, linewidth=0)
        found = float(reached[label])
        words = f"{label}: {show(found)}" if np.isfinite(found) else f"{label}: never"
        # Straight between the points of the sweep, as kappa is read off, also on the root scale.
        fine = np.union1d(kappa, kappa[0] + (kappa[-1] - kappa[0]) * np.linspace(0, 1, 200) ** 2)
        line = np.interp(fine, kappa, mean)
        handles += axes.plot(fine, line, style, color=colour, linewidth=1.6, label=words)
        if np.isfinite(found):
            height = float(np.interp(found, kappa, mean))
            axes.plot(
                [found],
                [height],
                "o",
                markersize=4.5,
                color=svg.colour("paper"),
                markeredgecolor=colour,
                markeredgewidth=1.2,
                clip_on=False,
                zorder=5,
            )
    axes.axhline(level, color=svg.colour("muted"), linewidth=0.8, linestyle=":")
    axes.axvline(star, color=svg.colour("ink"), linewidth=0.8, linestyle="--")
    axes.annotate(
        "κ*",
        (star, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -2),
        textcoords="offset points",
        va="top",
    )
    # Most of the change is at small kappas, and 0 has to be in the picture.
    axes.set_xscale("function", functions=(_root, np.square))
    last = max(float(result.kappa[-1]) for result in results.values())
    axes.set_xlim(0, last)
    axes.set_xticks([tick for tick in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500) if tick <= last])
    axes.set_ylim(0, 1)
    axes.set_xlabel("kappa: how strongly the noise leans towards the attack")
    axes.set_ylabel("mean risk R(kappa)")
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=2,
        fontsize=8.5,
        title=f"kappa at a mean risk of {level:g}",
        alignment="left",
        title_fontsize=8.5,
    )


def _root(kappa: Any) -> Any:
    return np.sqrt(np.maximum(kappa, 0))


def _alt(
    results: Mapping[str, DirectionalRisk],
    reached: Mapping[str, KappaAt],
    star: float,
    level: float,
) -> str:
    parts = []
    for label, result in results.items():
        kappa, mean = np.asarray(result.kappa), np.asarray(result.mean)
        found = float(reached[label])
        until = f"at kappa {show(found)}" if np.isfinite(found) else "never"
        parts.append(
            f"{label} from {show(float(mean[0]))} at kappa {show(float(kappa[0]))} to"
            f" {show(float(mean[-1]))} at kappa {show(float(kappa[-1]))},"
            f" {show(float(result.risk_at_kappa_star))} at kappa*, reaching {level:g} {until}"
        )
    return f"Mean risk over kappa, with kappa* = {show(star)} marked: " + "; ".join(parts) + "."
