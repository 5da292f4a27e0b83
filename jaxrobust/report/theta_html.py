"""The theta section in words and tables, from its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrobust.report import page, svg, theta_plots
from jaxrobust.report.formats import (
    Estimate,
    show,
    show_count,
    show_interval,
    show_scale,
    show_share,
    with_interval,
)

TITLE = "Random noise: θ-robustness"
_LOSSES = {"brier": "Brier score", "mse": "mean squared error"}
_SHOWN_SCALES = (0.1, 0.25, 0.5, 0.75, 1.0)
# A fitted curve that starts farther from 1 than this, with certainty, does not follow the data.
_STARTS_OFF = 0.01


def loss_words(data: dict[str, Any]) -> str:
    """The loss in words."""
    name = data["config"]["loss"]
    return _LOSSES.get(name, f"loss {name}")


def theta_summary(data: dict[str, Any]) -> list[str]:
    """What was found, in plain sentences that claim no more than was measured."""
    config = data["config"]
    if data["baseline"] is None:
        return ["The loss without noise is not a finite number, so nothing could be measured."]
    curve = max(data["curves"], key=lambda curve: curve["probability"])
    points = curve["points"]
    quota = show_share(1 - config["alpha"])
    who = "every numeric value" if curve["probability"] == 1 else theta_plots.caption(curve)[:-1]
    given = config["noise_unit"] == "feature_scale"
    sentences = []
    for position in _two_positions(points["scale"]):
        bound, sigma = points["theta"][position], points["scale"][position]
        if bound is None:
            continue
        times = points["ratio"][position]
        sentences.append(
            f"With noise of {_amount(sigma, given)} on {who}, the {loss_words(data)} over these"
            f" examples is estimated to stay at or below {show(bound)}"
            f"{_parenthesis(config, points, position)} in {quota} of noise draws"
            + (f": {show(times)} times its value without noise." if times is not None else ".")
        )
    invalid = sum(n > 0 for n in points["num_invalid"])
    if invalid:
        sentences.append(
            f"At {invalid} of {len(points['scale'])} noise levels the model gave losses that are"
            " not finite numbers; no bound is given there and no curve is fitted."
        )
    if curve["fit"]["a"]["value"] is not None and curve["fit"]["converged"]:
        sentences.append(_shape_sentence(data, curve))
    return sentences


def _shape_sentence(data: dict[str, Any], curve: dict[str, Any]) -> str:
    """Where the fitted curve doubles and takes off."""
    marks, scales = curve["landmarks"], curve["points"]["scale"]
    top, confidence = scales[-1], data["config"]["confidence"]
    text = "On the fitted curve θ "
    if data["normalised"]:
        crossing, value = marks["threshold"]["value"], marks["threshold_value"]["value"]
        if value is None or crossing is None:
            text += "has no point of doubling, and it "
        elif value < data["level"]:
            text += f"stays below twice the loss without noise up to σ = {show_scale(top)}, and it "
        else:
            where = with_interval(marks["threshold"], confidence)
            text += f"reaches twice the loss without noise at σ = {where}, and it "
    knee, signed = marks["knee"]["value"], marks["knee_signed"]["value"]
    if signed is not None and signed < 0:
        text += "rises from the first bit of noise (its knee is at 0)."
    elif knee is not None and knee <= top:
        text += f"takes off (its knee) at σ = {with_interval(marks['knee'], confidence)}."
        first = next(scale for scale in scales if scale > 0)
        if knee < first:
            text = f"{text[:-1]}, below the first noise level measured, {show_scale(first)}."
    else:
        text += f"has no knee up to σ = {show_scale(top)}."
    return text


def theta_flags(data: dict[str, Any]) -> list[str]:
    """What must be known before a number is used."""
    config, found = data["config"], []
    if not data["normalised"]:
        found.append(
            "The loss without noise is zero, so θ divided by it is undefined. The curves show θ"
            " itself and the fits are of θ; there is no threshold, and f(0) should be 0, not 1."
            if data["baseline"] == 0
            else "The loss without noise is not a finite number, so ratios are undefined."
        )
    groups: dict[str, list[str]] = {}
    for curve in data["curves"]:
        if not curve["fit"]["converged"]:
            groups.setdefault(curve["fit"]["explanation"], []).append(f"{curve['probability']:g}")
    for explanation, which in groups.items():
        kind = "" if explanation.startswith("not fitted") else "fit not converged, "
        found.append(f"p = {', '.join(which)}: {kind}{explanation}.")
    for curve in data["curves"]:
        found += _misfits(data, curve)
    ends = {n["field"].rpartition("_")[2] for c in data["curves"] for n in c["nulls"]
            if "too few" in n["reason"]}  # fmt: skip
    for end, words in (("high", "upper"), ("low", "lower")):
        if end in ends:
            found.append(
                f"{show_count(config['num_replicates'])} replicates are too few for the {words} end"
                f" of a {show_share(config['confidence'])} interval of θ: it is left open."
            )
    return found


def _misfits(data: dict[str, Any], curve: dict[str, Any]) -> list[str]:
    """What is wrong with a fit that the data support."""
    fit, found = curve["fit"], []
    if not fit["converged"]:
        return []
    start = fit["at_zero"]
    low, high = start["interval"] or (None, None)
    surely_off = low is not None and high is not None and not low <= 1 <= high
    if data["normalised"] and surely_off and abs(start["value"] - 1) > _STARTS_OFF:
        found.append(
            f"p = {curve['probability']:g}: the fitted curve starts at f(0) ="
            f" {with_interval(start, data['config']['confidence'])} instead of 1, so near σ = 0 it"
            " does not follow the measurements."
        )
    if fit["d"]["value"] == 0:
        found.append(
            f"p = {curve['probability']:g}: the fitted lower plateau d would be negative and is"
            " held at 0."
        )
    return found


def theta_html(data: dict[str, Any], plots: Sequence[svg.Plot]) -> str:
    """The section's body."""
    by_name = {plot.name: plot for plot in plots}
    overview = by_name.pop("theta-overview", None)
    pictures = by_name.pop("theta-pictures", None)
    config = data["config"]
    num_curves = len(data["curves"])
    intro = (
        f"Gaussian noise of σ times {_spread(data)} is added to the inputs"
        f" {show_count(config['num_replicates'])} times. θ is the loss that"
        f" {show_share(1 - config['alpha'])} of these draws stay at or below, estimated by an order"
        f" statistic. The loss is the {loss_words(data)}; without noise it is"
        f" {show(data['baseline'])}."
    )
    html = f"<h2>{TITLE}</h2>" + page.paragraph(intro) + page.flags(theta_flags(data))
    if pictures:
        html += page.figure(pictures, "wide")
    if overview:
        html += page.figure(overview, "wide")
    html += "<h3>In numbers</h3>" + measured_table(data) + fit_table(data)
    html += page.paragraph(
        "Small print below a number is its"
        f" {show_share(config['confidence'])} interval. That of θ comes from order statistics, that"
        f" of a fitted number from {config['num_resamples']} bootstrap resamples of the replicates."
        " Both are about the noise draws only.",
        "quiet",
    )
    html += f"<h3>{'Each curve with its fit' if num_curves > 1 else 'The curve with its fit'}</h3>"
    return html + page.grid(by_name.values())


def measured_table(data: dict[str, Any]) -> str:
    """θ at a few noise levels, for every probability."""
    scales = data["curves"][0]["points"]["scale"]
    name = theta_plots.quantity(data)
    rows = []
    for position in _positions(scales):
        cells = []
        for curve in data["curves"]:
            points = curve["points"]
            bound = points["theta"][position]
            ends = [points[f"theta_{side}"][position] for side in ("low", "high")]
            cells.append((show(bound), show_interval(ends) if bound is not None else ""))
        rows.append([(f"σ = {show_scale(scales[position])}", "θ"), *cells])
        if name == "ratio":
            cells = []
            for curve in data["curves"]:
                points = curve["points"]
                ends = [points[f"ratio_{side}"][position] for side in ("low", "high")]
                ratio = points["ratio"][position]
                cells.append((show(ratio), show_interval(ends) if ratio is not None else ""))
            rows.append([("", "θ / clean loss"), *cells])
    return page.table(f"Measured: {loss_words(data)} under noise", _head(data), rows)


def fit_table(data: dict[str, Any]) -> str:
    """The Gompertz parameters and landmarks, for every probability."""

    def row(label: page.Cell, group: str, name: str) -> list[page.Cell]:
        numbers: list[Estimate] = [curve[group][name] for curve in data["curves"]]
        return [label, *((show(n["value"]), show_interval(n["interval"])) for n in numbers)]

    rows: list[list[page.Cell]] = [
        ["R²", *(show(curve["fit"]["r_squared"], 4) for curve in data["curves"])],
        row("knee", "landmarks", "knee"),
        row("half slope", "landmarks", "half_slope"),
        row("inflection (c)", "landmarks", "inflection"),
    ]
    if data["normalised"]:
        rows.append([("threshold", "loss doubled"), *(_threshold(data, c) for c in data["curves"])])
    beyond = any(curve["fit"]["at_one_extrapolated"] for curve in data["curves"])
    rows += [
        row(("f(0)", f"should be {int(data['normalised'])}"), "fit", "at_zero"),
        row(("f(1)", "extrapolated" if beyond else ""), "fit", "at_one"),
        row(("a", "upper plateau"), "fit", "a"),
        row(("b", "rate"), "fit", "b"),
        row(("d", "lower plateau"), "fit", "d"),
    ]
    caption = "Fitted: f(σ) = d + (a − d) exp(−exp(−b (σ − c)))"
    if not all(curve["fit"]["converged"] for curve in data["curves"]):
        caption += "; † fit not converged, see above"
    return page.table(caption, _head(data, flagged=True), rows)


def _threshold(data: dict[str, Any], curve: dict[str, Any]) -> page.Cell:
    """Where the loss has doubled, or that it does not."""
    number, value = (curve["landmarks"][name] for name in ("threshold", "threshold_value"))
    if number["value"] is None or theta_plots.doubles(data, curve):
        return (show(number["value"]), show_interval(number["interval"]))
    return ("not reached", f"f = {show(value['value'])} at the end")


def _head(data: dict[str, Any], flagged: bool = False) -> list[page.Cell]:
    head: list[page.Cell] = [""]
    for curve in data["curves"]:
        bad = flagged and not curve["fit"]["converged"]
        head.append(f"p = {curve['probability']:g}{' †' if bad else ''}")
    return head


def how_to_read(data: dict[str, Any]) -> str:
    """What the numbers of this section mean and when they mislead."""
    quota = show_share(1 - data["config"]["alpha"])
    return page.definitions(
        [
            (
                "θ",
                f"The loss over this whole set of examples stays at or below θ in {quota} of noise"
                " draws. It is not a bound for a single example, and not one for an adversary.",
            ),
            (
                "θ divided by the clean loss",
                "How many times worse than without noise. A model with a tiny clean loss can have a"
                " large ratio and still be the better one: look at θ too.",
            ),
            (
                "σ and p",
                f"σ = 0.1 is noise of a tenth of {_spread(data)}. p is the probability that any"
                " one numeric value is perturbed. Categorical features are left as they are, whole"
                " numbers are rounded.",
            ),
            (
                "Knee, half slope, inflection",
                "On the fitted curve: where it bends upwards most, where its slope first reaches"
                " half of its maximum, and where it is steepest. The knee is shown as 0 when it"
                " would be negative. They describe a shape, not a size.",
            ),
            (
                "Threshold",
                "Where the fitted curve reaches twice the clean loss; if it never does, the end of"
                " the range, with the curve's value there.",
            ),
            (
                "Intervals of θ and its fit",
                "Each is for one number by itself and covers only the error of drawing finitely"
                " many noises (Monte Carlo). It says nothing about another choice of test examples,"
                " another training run, or noise of another kind.",
            ),
            (
                "Smooth curves",
                "All noise levels of a curve, and all curves, share the same draws. Neighbouring"
                " points therefore err together, and smoothness is no sign of precision. For the"
                " same reason R² is close to 1 even where the parameters are loose.",
            ),
            (
                "Comparing models",
                "The robustness index compares shapes only and discards scale: ordered by f(1)"
                " models often come out nearly in reverse. The command jaxrobust compare shows"
                " both.",
            ),
        ]
    )


def _spread(data: dict[str, Any]) -> str:
    """What the noise is a multiple of."""
    given = data["config"]["noise_unit"] == "feature_scale"
    return f"each feature's {'given scale' if given else 'standard deviation'}"


def _amount(sigma: float, given: bool) -> str:
    """A noise level in words."""
    if given:
        return f"{show_scale(sigma)} times the given scale"
    return f"{show_scale(sigma)} standard deviation{'' if sigma == 1 else 's'}"


def _positions(scales: Sequence[float]) -> list[int]:
    """The measured noise levels nearest to a few round ones of the range."""
    top = scales[-1]
    nearest = {
        min(range(len(scales)), key=lambda k: abs(scales[k] - share * top))
        for share in _SHOWN_SCALES
    }
    return sorted(nearest)


def _two_positions(scales: Sequence[float]) -> list[int]:
    """One level of noise in the middle, and the largest."""
    top = scales[-1]
    noisy = [k for k, scale in enumerate(scales) if scale > 0] or [0]
    middle = min(noisy, key=lambda k: abs(scales[k] - 0.25 * top))
    return sorted({middle, len(scales) - 1})


def _parenthesis(config: dict[str, Any], points: dict[str, Any], position: int) -> str:
    inner = show_interval([points["theta_low"][position], points["theta_high"][position]])
    return f" ({show_share(config['confidence'])} interval {inner})" if inner else ""
