"""Comparing models by their reports: the robustness index, and beside it what it leaves out."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrobust.fits.landmarks import robustness_index
from jaxrobust.report import files, page, schema, svg, theta_plots
from jaxrobust.report.formats import (
    Estimate,
    estimate,
    plain,
    show,
    show_interval,
    show_scale,
    show_share,
)
from jaxrobust.report.schema import ReportError
from jaxrobust.report.theta import MAX_FAILED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INDEX = (
    "The index of two models is the share of noise levels in [0, 1] at which the one's normalised"
    " curve, exp(-exp(-b (x - c))), lies below the other's; the overall index is its mean over the"
    " other models. It compares shapes and discards scale."
)
_REVERSE = (
    "f(1) is the fitted loss at σ = 1 in units of the loss without noise: the scale. The order by"
    " f(1) is often nearly the reverse of the order by the index, so use neither alone."
)


def compare(folders: Sequence[str | os.PathLike[str]], probability: float = 1.0) -> dict[str, Any]:
    """Compares reports by the robustness index of Levene & Harris 2026, beside f(1).

    Args:
        folders: two or more folders written by :func:`jaxrobust.report.write`.
        probability: which curve of each report.

    Returns:
        An object for compare.json; see :mod:`jaxrobust.report.schema`. Intervals come from the
        reports' resampled curves.

    Raises:
        ReportError: if a folder holds no readable report, or not that curve.
        ValueError: for fewer than two folders.

    Source: Levene & Harris 2026, arXiv 2606.31581; computed by
    :func:`jaxrobust.fits.robustness_index`.
    """
    if len(folders) < 2:
        raise ValueError(f"compare needs at least two folders; got {len(folders)}.")
    reports = [schema.read_report(pathlib.Path(folder)) for folder in folders]
    curves = [_find(f, r, probability) for f, r in zip(folders, reports, strict=True)]
    thetas = [report["sections"]["theta"] for report in reports]
    confidence = thetas[0]["config"]["confidence"]
    b, c = (_parameters([curve["fit"][name]["value"] for curve in curves]) for name in "bc")
    index = robustness_index(b, c)
    low, high, overall = _intervals(curves, confidence)
    models = []
    titles = _titles(folders, reports)
    for i, folder in enumerate(folders):
        fit = curves[i]["fit"]
        models.append(
            {
                "folder": str(folder),
                "title": titles[i],
                "loss": thetas[i]["config"]["loss"],
                "baseline": thetas[i]["baseline"],
                "normalised": thetas[i]["normalised"],
                "at_one": fit["at_one"],
                "measured_at_one": _measured_at_one(thetas[i], curves[i]),
                "b": fit["b"],
                "c": fit["c"],
                "converged": fit["converged"],
                "explanation": fit["explanation"],
                "overall": estimate(index.overall[i], overall[i], _reason(fit)),
            }
        )
    return {
        "schema": schema.COMPARE,
        "version": schema.VERSION,
        "probability": probability,
        "confidence": confidence,
        "models": models,
        "pairwise": [[plain(value) for value in row] for row in np.asarray(index.pairwise)],
        "pairwise_low": low,
        "pairwise_high": high,
        "notes": _notes(models, thetas, reports),
        "files": [],
    }


def write(data: dict[str, Any], folder: str | os.PathLike[str]) -> pathlib.Path:
    """Writes compare.json, compare.html and two plots; returns the page's path.

    Args:
        data: from :func:`compare`.
        folder: made if need be; other files in it stay.

    Raises:
        OSError: if the folder cannot be written.
    """
    plots = [_shape_plot(data), _scale_plot(data)]
    out = {f"plots/{plot.name}.svg": plot.svg for plot in plots}
    out["compare.html"] = _html(data, plots)
    out["compare.json"] = schema.dumps({**data, "files": sorted(out)})
    files.write_folder(folder, out, manifest="compare.json")
    return pathlib.Path(folder) / "compare.html"


def as_text(data: dict[str, Any]) -> str:
    """The comparison as plain text for a terminal."""
    models = data["models"]
    width = min(44, max(len(m["title"]) for m in models))
    lines = [
        f"Curves for p = {show_scale(data['probability'])};"
        f" intervals of {show_share(data['confidence'])}, Monte Carlo error only.",
        "",
        f"   {'':{width}}  {'index':>5}  {'':14}  {'f(1)':>7}  {'':14}  {'clean loss':>10}",
    ]
    for i, m in enumerate(models):
        mark = " " if m["converged"] else "*"
        lines.append(
            f"{i + 1:>2}{mark}{_shorten(m['title'], width):{width}}"
            f"  {_fixed(m['overall']['value']):>5}  {_fixed_interval(m['overall']):14}"
            f"  {show(m['at_one']['value']):>7}  {show_interval(m['at_one']['interval']):14}"
            f"  {show(m['baseline']):>10}"
        )
    lines += ["", "Pairwise: share of noise levels at which the row's normalised curve is lower"]
    lines.append("    " + "".join(f"{j + 1:>7}" for j in range(len(models))))
    for i, row in enumerate(data["pairwise"]):
        cells = "".join(f"{'–' if i == j else _fixed(value):>7}" for j, value in enumerate(row))
        lines.append(f"{i + 1:>4}{cells}")
    return "\n".join([*lines, "", *data["notes"]])


def _find(
    folder: str | os.PathLike[str], report: dict[str, Any], probability: float
) -> dict[str, Any]:
    """The curve of one probability."""
    if "theta" not in report["sections"]:
        raise ReportError(f"the report in {folder} has no theta section to compare.")
    curves = report["sections"]["theta"]["curves"]
    for curve in curves:
        if abs(curve["probability"] - probability) < 1e-6:
            return curve
    known = ", ".join(show_scale(curve["probability"]) for curve in curves)
    raise ReportError(
        f"the report in {folder} has no curve for p = {show_scale(probability)}; it has {known}."
    )


def _parameters(values: Sequence[Any]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values])


def _titles(folders: Sequence[Any], reports: Sequence[dict[str, Any]]) -> list[str]:
    """Titles, with the folder where two models have the same."""
    titles = [str(report["title"]) for report in reports]
    return [
        f"{title} ({folder})" if titles.count(title) > 1 else title
        for title, folder in zip(titles, folders, strict=True)
    ]


def _measured_at_one(theta: dict[str, Any], curve: dict[str, Any]) -> Estimate:
    """The measured ratio at scale 1, where it was measured."""
    points, name = curve["points"], theta_plots.quantity(theta)
    for k, scale in enumerate(points["scale"]):
        if abs(scale - 1) < 1e-6 and points[name][k] is not None:
            ends = [points[f"{name}_{end}"][k] for end in ("low", "high")]
            return estimate(points[name][k], [np.nan if e is None else e for e in ends])
    return estimate(np.nan, reason="not measured at a noise level of 1")


def _reason(fit: dict[str, Any]) -> str | None:
    if fit["b"]["value"] is None:
        return fit["explanation"]
    return "some of the resampled curves, of this model or of the others, could not be fitted"


def _intervals(curves: Sequence[dict[str, Any]], confidence: float) -> tuple[Any, Any, Any]:
    """Percentile intervals of the pairwise and the overall index over the resampled fits."""
    k = len(curves)
    nothing = [[None] * k for _ in range(k)]
    num = min(len(curve["resamples"]["b"]) for curve in curves)
    if num == 0:
        return nothing, nothing, [None] * k
    b, c = (
        np.stack([_parameters(curve["resamples"][name][:num]) for curve in curves], axis=1)
        for name in "bc"
    )
    index = jax.vmap(robustness_index)(b, c)

    def ends(samples: np.ndarray) -> tuple[float, float] | None:
        finite = samples[np.isfinite(samples)]
        if len(finite) < (1 - MAX_FAILED) * num:
            return None
        tail = (1 - confidence) / 2
        low, high = np.quantile(finite.astype(float), [tail, 1 - tail])
        return round(float(low), 6), round(float(high), 6)

    pairwise = np.asarray(index.pairwise)
    found = [[ends(pairwise[:, i, j]) for j in range(k)] for i in range(k)]
    low = [[None if e is None else e[0] for e in row] for row in found]
    high = [[None if e is None else e[1] for e in row] for row in found]
    # A mean over fewer other models than usual is another quantity.
    fitted = np.isfinite(_parameters([curve["fit"]["b"]["value"] for curve in curves]))
    overall = np.asarray(index.overall)
    as_usual = (np.isfinite(overall) == fitted).all(axis=1)
    overall = np.where(as_usual[:, None], overall, np.nan)
    return low, high, [ends(overall[:, i]) for i in range(k)]


def _notes(
    models: Sequence[dict[str, Any]],
    thetas: Sequence[dict[str, Any]],
    reports: Sequence[dict[str, Any]],
) -> list[str]:
    """What must be known to read the comparison."""
    notes = []
    ranked = [i for i, m in enumerate(models) if m["overall"]["value"] is not None]
    scaled = [i for i in ranked if models[i]["normalised"] and models[i]["at_one"]["value"]]
    if len(ranked) > 1:
        by_index = sorted(ranked, key=lambda i: -models[i]["overall"]["value"])
        by_scale = sorted(scaled, key=lambda i: models[i]["at_one"]["value"])
        notes.append(
            f"Most robust first, by number in the table: by the index {_order(by_index)};"
            f" by f(1) {_order(by_scale)}."
        )
        unsettled = [
            f"{a + 1} and {b + 1}"
            for a, b in itertools.pairwise(by_index)
            if _overlap(models[a]["overall"]["interval"], models[b]["overall"]["interval"])
        ]
        if unsettled:
            notes.append(
                f"By the index the order of {', '.join(unsettled)} is not settled: their intervals"
                " overlap."
            )
        doubtful = [i for i in sorted(ranked) if not models[i]["converged"]]
        if doubtful:
            notes.append(
                "Do not rely on the order by the index: the data do not support the fit of"
                f" {_order(doubtful)} (marked *)."
            )
    notes += _differences(thetas, reports)
    notes += [_INDEX, _REVERSE]
    for i, m in enumerate(models):
        if not m["converged"]:
            found = "" if m["b"]["value"] is None else "fit not converged: "
            notes.append(f"* Model {i + 1}: {found}{m['explanation']}.")
        if not m["normalised"]:
            notes.append(
                f"Model {i + 1}: the loss without noise is zero, so its f(1) is θ itself and cannot"
                " be set beside the others."
            )
    return notes


def _differences(thetas: Sequence[dict[str, Any]], reports: Sequence[dict[str, Any]]) -> list[str]:
    """What was not the same when the reports were made."""
    notes = []
    for name, words in (
        ("loss", "losses"),
        ("alpha", "alphas"),
        ("num_replicates", "numbers of replicates"),
        ("scales", "noise levels"),
        ("confidence", "confidences"),
        ("noise_unit", "units of the noise"),
    ):
        if any(theta["config"].get(name) != thetas[0]["config"].get(name) for theta in thetas):
            notes.append(f"The reports were made with different {words}.")
    sources = {tuple(report["model"].get("input_shape", ())) for report in reports}
    if len(sources) > 1:
        notes.append(
            "The inputs are of different shapes, so these are different data: a difference is one"
            " of model and data together."
        )
    return notes


def _overlap(a: list[float | None] | None, b: list[float | None] | None) -> bool:
    """Whether two intervals share a point; one that is not known may share any."""
    if a is None or b is None or None in a or None in b:
        return True
    return a[0] <= b[1] and b[0] <= a[1]  # type: ignore[operator]


def _order(positions: Sequence[int]) -> str:
    return ", ".join(str(i + 1) for i in positions)


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _fixed(value: float | None) -> str:
    """An index always has three decimals."""
    return "–" if value is None else f"{value:.3f}"


def _fixed_interval(number: dict[str, Any]) -> str:
    ends = number["interval"]
    return "" if ends is None else f"{_fixed(ends[0])} to {_fixed(ends[1])}"


def _html(data: dict[str, Any], plots: Sequence[svg.Plot]) -> str:
    models = data["models"]
    names = [f"{i + 1}. {m['title']}{'' if m['converged'] else ' *'}" for i, m in enumerate(models)]
    rows: list[list[page.Cell]] = []
    for name, m in zip(names, models, strict=True):
        rows.append(
            [
                name,
                (_fixed(m["overall"]["value"]), _fixed_interval(m["overall"])),
                (show(m["at_one"]["value"]), show_interval(m["at_one"]["interval"])),
                (
                    show(m["measured_at_one"]["value"]),
                    show_interval(m["measured_at_one"]["interval"]),
                ),
                (show(m["baseline"]), m["loss"]),
            ]
        )
    pairs: list[list[page.Cell]] = []
    for i, row in enumerate(data["pairwise"]):
        cells: list[page.Cell] = []
        for j, value in enumerate(row):
            ends = {"interval": [data["pairwise_low"][i][j], data["pairwise_high"][i][j]]}
            small = "" if None in ends["interval"] else _fixed_interval(ends)
            cells.append("–" if i == j else (_fixed(value), small))
        pairs.append([str(i + 1), *cells])
    body = "<h2>Shape and scale</h2>" + page.table(
        f"Index and f(1), with {show_share(data['confidence'])} intervals",
        ["", "index", "f(1)", ("measured", "at σ = 1"), "clean loss"],
        rows,
    )
    body += page.grid(plots)
    body += "<h2>Pairwise index</h2>" + page.table(
        "Share of noise levels at which the row's normalised curve lies below the column's",
        ["", *(str(i + 1) for i in range(len(models)))],
        pairs,
    )
    body += page.paragraph(
        "Intervals come from the reports' resampled replicates. They are about the noise draws"
        " only, not about the choice of test examples.",
        "quiet",
    )
    folders = ", ".join(m["folder"] for m in models)
    body += page.paragraph(f"Compared: {folders}.", "quiet")
    return page.page(
        f"{len(models)} models compared",
        f"Robustness comparison · p = {show_scale(data['probability'])}",
        data["notes"],
        body,
    )


def _shape_plot(data: dict[str, Any]) -> svg.Plot:
    """The normalised curves, which the index compares."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        x = np.linspace(0, 1, 201)
        for i, m in enumerate(data["models"]):
            b, c = m["b"]["value"], m["c"]["value"]
            if b is None or c is None:
                continue
            y = np.exp(-np.exp(np.minimum(-b * (x - c), 50.0)))
            axes.plot(x, y, color=svg.series(i), linewidth=1.8, label=_legend(i, m))
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="noise level σ", ylabel="normalised fit")
        figure.legend(loc="outside lower left", fontsize=8.5)

    return svg.draw(
        "compare-shape",
        paint,
        alt="Normalised fitted curves, from 0 to 1: "
        + "; ".join(
            f"{_legend(i, m)}, overall index {_fixed(m['overall']['value'])}"
            for i, m in enumerate(data["models"])
        )
        + ".",
        caption="Shape: the normalised fits that the index compares. Lower is more robust.",
        size=(4.5, 3.4 + 0.2 * len(data["models"])),
    )


def _scale_plot(data: dict[str, Any]) -> svg.Plot:
    """f(1) of every model on one logarithmic axis."""
    models = data["models"]

    def paint(figure: Figure) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes = figure.add_subplot()
        for i, m in enumerate(models):
            value, ends = m["at_one"]["value"], m["at_one"]["interval"]
            if value is None or value <= 0 or not m["normalised"]:
                continue
            if ends is not None and None not in ends:
                axes.plot(ends, [i, i], color=svg.series(i), linewidth=5, alpha=0.4)
            axes.plot([value], [i], "o", color=svg.series(i), markersize=6)
            axes.annotate(
                show(value), (value, i), xytext=(0, 8), textcoords="offset points", ha="center"
            )
        axes.set_xscale("log")
        axes.set_yticks(range(len(models)), [str(i + 1) for i in range(len(models))])
        axes.set_ylim(len(models) - 0.4, -0.7)
        low, high = axes.get_xlim()
        axes.set_xlim(min(1.0, low / 1.3), high * 1.3)
        axes.set_xlabel("f(1): loss at σ = 1 / loss without noise (logarithmic)")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())

    return svg.draw(
        "compare-scale",
        paint,
        alt="f(1) on a logarithmic axis: "
        + "; ".join(f"{_legend(i, m)}, {show(m['at_one']['value'])}" for i, m in enumerate(models))
        + ".",
        caption="Scale: how many times the loss has grown at σ = 1, which the index discards.",
        size=(4.5, 1.4 + 0.45 * len(models)),
    )


def _legend(i: int, model: dict[str, Any]) -> str:
    return f"{i + 1} {_shorten(model['title'], 46)}"
