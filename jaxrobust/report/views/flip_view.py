"""Flip probabilities: will this one prediction change?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrobust.report import page, svg
from jaxrobust.report.formats import (
    EXAMPLES,
    show,
    show_count,
    show_interval,
    show_share,
    with_interval,
)
from jaxrobust.report.views import _common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Single predictions: flip probability"
_MOST_SHOWN = 10
_MUCH_UNMOVED = 0.05


def summary(data: dict[str, Any]) -> list[str]:
    """The mean, and how many never flipped."""
    if "left_out" in data:
        return []
    config = data["config"]
    mean = with_interval(data["mean"], config["confidence"], over=EXAMPLES)
    noise = _common.noise(config["sigma"], config["noise_unit"])
    words = []
    if data["mean"]["value"] is None:
        words.append(f"There is no mean flip probability: {data['mean']['reason']}.")
    else:
        words.append(
            f"Under {noise} a prediction flips with a probability of {mean} on average over"
            " examples of this kind."
        )
    words += _unmoved(data)
    columns = data["examples"]
    never = [
        high
        for p, high, invalid in zip(
            columns["probability"], columns["high"], columns["num_invalid"], strict=True
        )
        if p == 0 and not invalid
    ]
    if never:
        words.append(
            f"{len(never)} of {len(columns['index'])} predictions did not flip in"
            f" {show_count(config['num_samples'])} draws; that leaves room for a probability of up"
            f" to {show(max(never))} each (end of {show_share(config['confidence'])} intervals, one"
            " for each prediction by itself)."
        )
    return words


def _unmoved(data: dict[str, Any]) -> list[str]:
    """What to know where many draws change nothing."""
    if data["unmoved"] <= _MUCH_UNMOVED:
        return []
    return [
        f"{show_share(data['unmoved'])} of these draws leave the input as it is: there is no noise,"
        " or rounding takes the noise away from features that are whole numbers. Few flips say"
        " little here."
    ]


def draw(data: dict[str, Any]) -> list[svg.Plot]:
    """All examples, the least robust first."""
    if "left_out" in data:
        return []
    columns = {
        name: np.array([np.nan if v is None else v for v in data["examples"][name]], float)
        for name in ("probability", "low", "high")
    }
    order = np.argsort(-columns["probability"])
    p, low, high = (columns[name][order] for name in ("probability", "low", "high"))
    x = np.arange(1, len(p) + 1)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.vlines(x, low, high, color=svg.colour("band"), linewidth=2.5, alpha=0.6)
        axes.plot(x, p, "o", color=svg.colour("data"), markersize=3, markeredgewidth=0)
        axes.set(xlabel="examples, least robust first", ylabel="flip probability", ylim=(0, None))
        axes.set_xlim(0.5, len(p) + 0.5)

    return [
        svg.draw(
            "flip-examples",
            paint,
            alt=f"Flip probability of {len(p)} examples, sorted: from {show(p[0])} down to"
            f" {show(p[-1])}; median {show(float(np.median(p)))}.",
            caption="Flip probability of each example, the least robust first; bars are the"
            f" {show_share(data['config']['confidence'])} intervals.",
            size=(4.6, 3.0),
        )
    ]


def html(data: dict[str, Any], plots: Sequence[svg.Plot]) -> str:
    """The section's body."""
    missing = _common.left_out(TITLE, data)
    if missing:
        return missing
    config, columns = data["config"], data["examples"]
    intro = (
        f"{_common.noise(config['sigma'], config['noise_unit'])} is added"
        f" {show_count(config['num_samples'])} times to each of {len(columns['index'])} examples."
        " The flip probability is the share of draws whose label differs from that of the clean"
        " input, whether that was right or wrong."
    )
    flags = _unmoved(data)
    invalid = sum(n > 0 for n in columns["num_invalid"])
    if invalid:
        flags.append(f"{invalid} examples have draws for which the model gave no label.")
    flipped = [i for i, p in enumerate(columns["probability"]) if p]
    ranked = sorted(flipped, key=lambda i: -columns["probability"][i])[:_MOST_SHOWN]
    rows: list[list[page.Cell]] = []
    for i in ranked:
        wrong = columns["predicted"][i] != columns["label"][i]
        rows.append(
            [
                str(columns["index"][i]),
                (str(columns["predicted"][i]), f"truth {columns['label'][i]}" if wrong else ""),
                show(columns["certainty"][i]),
                (
                    show(columns["probability"][i]),
                    show_interval([columns["low"][i], columns["high"][i]]),
                ),
            ]
        )
    return (
        f"<h2>{TITLE}</h2>"
        + page.paragraph(intro)
        + page.flags(flags)
        + "".join(page.figure(plot, "wide") for plot in plots)
        + (
            page.table(
                f"The {len(rows)} least robust predictions (of {len(flipped)} that ever flipped)",
                ["example", "predicted", "confidence", "flip probability"],
                rows,
            )
            if rows
            else page.paragraph("No prediction flipped in any draw that gave a label.")
        )
        + page.paragraph(
            "Mean over these very examples (error of drawing noise only):"
            f" {with_interval(data['mean_monte_carlo'], config['confidence'])}.",
            "quiet",
        )
    )


def how_to_read(data: dict[str, Any]) -> str:
    """What a flip probability means."""
    if "left_out" in data:
        return ""
    return page.definitions(
        [
            (
                "Flip probability",
                "For one input: how often its predicted label changes under noise that can happen"
                " to it. A robust prediction may still be a wrong one.",
            ),
            (
                "No flips",
                "No flips among N draws are not no risk: the upper end of the interval is about"
                " 3.7/N. It can be made smaller by more draws only.",
            ),
        ]
    )
