"""The theta section's pictures, drawn from its JSON."""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrobust.report import svg
from jaxrobust.report.formats import show, show_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# JSON name, words, marker, size.
LANDMARKS = (
    ("threshold", "loss doubled", "s", 5.0),
    ("half_slope", "half slope", "<", 6.0),
    ("knee", "knee", "o", 5.5),
    ("inflection", "inflection", "D", 4.5),
)


def theta_plots(data: dict[str, Any]) -> list[svg.Plot]:
    """One plot of all curves (if there are several), and one for each probability."""
    plots = [curve_plot(data, curve) for curve in data["curves"]]
    plots = [overview_plot(data), *plots] if len(plots) > 1 else plots
    return [*plots, pictures_plot(data["pictures"])] if data.get("pictures") else plots


def quantity(data: dict[str, Any]) -> str:
    """What the vertical axis shows: "ratio", or "theta" where ratios are undefined."""
    return "ratio" if data["normalised"] else "theta"


def x_label(data: dict[str, Any]) -> str:
    """The horizontal axis in words."""
    if data["config"]["noise_unit"] == "feature_scale":
        return "noise level σ (in units of each feature's scale)"
    return "noise level σ (in standard deviations of each feature)"


def y_label(data: dict[str, Any]) -> str:
    """The vertical axis in words."""
    loss = data["config"]["loss"]
    return "θ / loss without noise" if data["normalised"] else f"θ ({loss} loss)"


def gompertz(fit: dict[str, Any], x: Any) -> Any:
    """The fitted curve at ``x``, or None if there is none."""
    a, b, c, d = (fit[name]["value"] for name in "abcd")
    if None in (a, b, c, d):
        return None
    return d + (a - d) * np.exp(-np.exp(np.minimum(-b * (np.asarray(x) - c), 50.0)))


def curve_name(probability: float) -> str:
    """File name of the plot of one probability, without its ending."""
    return f"theta-p{probability:g}"


def curve_plot(data: dict[str, Any], curve: dict[str, Any]) -> svg.Plot:
    """Measured curve with its interval band, the fit, and the landmarks on it."""
    probability, fit = curve["probability"], curve["fit"]
    x, y, low, high = _columns(data, curve)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        handles = [
            axes.fill_between(
                x, low, high, color=svg.colour("band"), alpha=0.45, linewidth=0, label=_band(data)
            ),
            *axes.plot(
                x,
                y,
                "o",
                color=svg.colour("data"),
                markersize=3.2 if len(x) > 40 else 4.5,
                markeredgewidth=0,
                label="measured",
                clip_on=False,
                in_layout=False,
                zorder=3,
            ),
        ]
        fine = np.linspace(x[0], x[-1], 201)
        fitted = gompertz(fit, fine)
        if fitted is not None:
            label = "Gompertz fit" if fit["converged"] else "fit (not converged)"
            style = "-" if fit["converged"] else "--"
            handles += axes.plot(
                fine, fitted, style, color=svg.colour("fit"), linewidth=1.2, zorder=4, label=label
            )
        for name, words, marker, size in LANDMARKS:
            where = curve["landmarks"][name]["value"]
            if fitted is None or where is None:
                continue
            reached = name != "threshold" or doubles(data, curve)
            inside = x[0] <= where <= x[-1] and reached
            label = f"{words} {where:.2f}" if inside else f"{words}: not in range"
            handles += axes.plot(
                [where] if inside else [],
                [gompertz(fit, where)] if inside else [],
                marker,
                markersize=size,
                color=svg.colour("paper"),
                markeredgecolor=svg.colour("ink"),
                markeredgewidth=1.2,
                label=label,
                clip_on=False,
                in_layout=False,
                zorder=5,
            )
        _frame(axes, data, x)
        figure.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=8.5)

    return svg.draw(
        curve_name(probability),
        paint,
        alt=_alt(data, curve),
        caption=caption(curve),
        size=(4.5, 4.3),
    )


def overview_plot(data: dict[str, Any]) -> svg.Plot:
    """All measured curves in one picture, each labelled at its end."""
    curves = data["curves"]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        ends = []
        for number, curve in enumerate(curves):
            x, y, low, high = _columns(data, curve)
            colour = svg.series(number)
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(x, y, color=colour, linewidth=1.8)
            finite = np.flatnonzero(np.isfinite(y))
            if finite.size:
                last = finite[-1]
                ends.append((y[last], x[last], colour, f"p = {curve['probability']:g}"))
        _frame(axes, data, x)
        if data["normalised"]:
            axes.axhline(data["level"], color=svg.colour("muted"), linewidth=0.8, linestyle=":")
        spread = _spread([end[0] for end in ends], 0.07 * axes.get_ylim()[1])
        for place, (_, right, colour, label) in zip(spread, ends, strict=True):
            axes.annotate(
                label,
                (right, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                annotation_clip=False,
            )

    lines = "; ".join(
        f"p = {curve['probability']:g} ends at {show(curve['points'][quantity(data)][-1])}"
        for curve in curves
    )
    dotted = " The dotted line marks a doubled loss." if data["normalised"] else ""
    return svg.draw(
        "theta-overview",
        paint,
        alt=f"{len(curves)} curves of {y_label(data)} against the noise level: {lines}.",
        caption=f"Measured curves for every probability p of a value being perturbed; the bands are"
        f" {_band(data)}s.{dotted}",
        size=(4.6, 3.4),
    )


def pictures_plot(pictures: dict[str, Any]) -> svg.Plot:
    """One input image under the noise, p downwards and sigma to the right."""
    rows, columns = pictures["probabilities"], pictures["scales"]
    pixels = np.frombuffer(base64.b64decode(pictures["pixels"]), np.uint8)
    images = pixels.reshape(len(rows), len(columns), *pictures["shape"])
    if images.ndim == 5 and images.shape[-1] == 1:
        images = images[..., 0]

    def paint(figure: Figure) -> None:
        grid = figure.subplots(len(rows), len(columns), squeeze=False)
        for axes, image in zip(grid.ravel(), images.reshape(-1, *images.shape[2:]), strict=True):
            axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            axes.spines[:].set_visible(False)
        for axes, p in zip(grid[:, 0], rows, strict=True):
            axes.set_ylabel(f"p = {p:g}")
        for axes, sigma in zip(grid[0], columns, strict=True):
            axes.set_title(f"σ = {sigma:g}", loc="center")

    return svg.draw(
        "theta-pictures",
        paint,
        alt=f"The first image under noise: {len(rows)} probabilities by {len(columns)} levels.",
        caption="The first example under this noise: each pixel is perturbed with probability p.",
        size=(4.6, 3.6),
    )


def caption(curve: dict[str, Any]) -> str:
    """What a probability means."""
    p = curve["probability"]
    if p == 1:
        return "p = 1: every numeric value gets noise."
    return f"p = {p:g}: each numeric value gets noise with a probability of {show_share(p)}."


def _alt(data: dict[str, Any], curve: dict[str, Any]) -> str:
    points, fit = curve["points"], curve["fit"]
    y = points[quantity(data)]
    text = (
        f"{y_label(data)} against the noise level σ for p = {curve['probability']:g}: from"
        f" {show(y[0])} at σ = {show(points['scale'][0])} to {show(y[-1])} at"
        f" σ = {show(points['scale'][-1])}, with a Gompertz curve"
    )
    if fit["a"]["value"] is None:
        return f"{text} {fit['explanation']}."
    marks = ", ".join(
        f"{words} {show(curve['landmarks'][name]['value'])}"
        for name, words, *_ in LANDMARKS
        if curve["landmarks"][name]["value"] is not None
        and (name != "threshold" or doubles(data, curve))
    )
    state = "" if fit["converged"] else f" ({fit['explanation']})"
    return f"{text} of R squared {show(fit['r_squared'], 4)}{state}. Landmarks: {marks}."


def doubles(data: dict[str, Any], curve: dict[str, Any]) -> bool:
    """Whether the fitted curve reaches the threshold's level within the range."""
    value = curve["landmarks"]["threshold_value"]["value"]
    return data["normalised"] and value is not None and value >= data["level"]


def _columns(data: dict[str, Any], curve: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """x, y, low and high; NaN where the JSON has null, the curve where the band is open."""
    name = quantity(data)
    points = curve["points"]
    x, y, low, high = (
        np.array(points[column], np.float64)
        for column in ("scale", name, f"{name}_low", f"{name}_high")
    )
    return x, y, np.where(np.isnan(low), y, low), np.where(np.isnan(high), y, high)


def _band(data: dict[str, Any]) -> str:
    return f"{show_share(data['config']['confidence'])} interval"


def _frame(axes: Axes, data: dict[str, Any], x: np.ndarray) -> None:
    axes.set_xlabel(x_label(data))
    axes.set_ylabel(y_label(data))
    if x[-1] > x[0]:
        axes.set_xlim(x[0], x[-1])
    axes.set_ylim(bottom=0)


def _spread(places: list[float], gap: float) -> list[float]:
    """Moves labels apart, as little as needed and keeping their order."""
    order = np.argsort(places, kind="stable")
    moved = np.array(places, float)
    for _ in range(50):
        for below, above in itertools.pairwise(order):
            overlap = gap - (moved[above] - moved[below])
            if overlap > 1e-9:
                moved[below] -= overlap / 2
                moved[above] += overlap / 2
    return list(moved)
