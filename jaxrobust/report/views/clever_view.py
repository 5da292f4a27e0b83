"""CLEVER scores, with what speaks against them."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrobust.report import page, svg
from jaxrobust.report.formats import EXAMPLES, show, show_count, with_interval
from jaxrobust.report.views import _common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Estimated distance to another label: CLEVER"
# What is said of a flag, after a number of examples; those not named here are no warning.
_MEANING = {
    "CENSORED": "the score is the radius: the distance may be larger",
    "ZERO_GRADIENTS": "many gradients are exactly zero: masked gradients inflate the score",
    "STEEPER": "the margin changes faster than the estimated slope: the score is too high",
    "REFUTED": "a sampled point closer than the score already has another label",
    "TIES": "too few different maxima for a fit",
    "POOR_FIT": "the extreme-value fit is rejected at 5%",
    "DIVERGED": "the fitted tail has no end: the score is probably too low",
    "NO_FIT": "too few batches for a fit: the largest gradient was taken",
    "PROBABILITIES": "the outputs look like probabilities, not logits",
    "MISCLASSIFIED": "misclassified: the score holds for the wrong label",
    "INVALID": "a logit or gradient is not finite: no score",
}


def summary(data: dict[str, Any]) -> list[str]:
    """The median score, and how often an attack refutes it."""
    if "left_out" in data:
        return []
    scores, config = _scores(data), data["config"]
    number = int((~np.isnan(scores)).sum())
    if not number:
        return ["CLEVER has no score for any example; see its section for the reasons."]
    text = (
        f"CLEVER estimates that half of the {number} inputs with a score keep their label up to an"
        f" {_common.NORMS[config['norm']]} distance of"
        f" {with_interval(data['median'], config['confidence'], over=EXAMPLES)} units or more"
    )
    if data["num_comparable"]:
        text += (
            f"; an attack came closer than that estimate for {data['num_refuted']} of"
            f" {data['num_comparable']} inputs"
        )
    flagged = sum(any(name in _MEANING for name in flags) for flags in data["examples"]["flags"])
    if flagged:
        text += f"; {flagged} of {len(scores)} scores carry a warning"
    return [text + ". It is an estimate, not a bound."]


def draw(data: dict[str, Any]) -> list[svg.Plot]:
    """Scores with their intervals, smallest first."""
    if "left_out" in data:
        return []
    columns = data["examples"]
    scores = _scores(data)
    low, high = (
        np.array([np.nan if v is None else v for v in columns[name]], float)
        for name in ("low", "high")
    )
    order = np.argsort(scores)
    x = np.arange(1, len(scores) + 1)
    refuted = np.array(columns["refuted"])[order]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.vlines(
            x, low[order], high[order], color=svg.colour("band"), linewidth=2.5, alpha=0.6,
            label="interval",
        )  # fmt: skip
        for chosen, colour, marker, label in (
            (~refuted, svg.colour("data"), "o", "score"),
            (refuted, svg.colour("fit"), "X", "refuted by an attack"),
        ):
            if chosen.any():
                axes.plot(
                    x[chosen], scores[order][chosen], marker, color=colour, markersize=3.5,
                    markeredgewidth=0, label=label,
                )  # fmt: skip
        axes.axhline(
            data["config"]["radius"], color=svg.colour("muted"), linewidth=0.8, linestyle=":"
        )
        axes.set(xlabel="examples, lowest score first", ylabel="CLEVER score")
        axes.set_ylim(0, None)
        figure.legend(loc="outside lower left", ncols=2, fontsize=8.5)

    return [
        svg.draw(
            "clever-scores",
            paint,
            alt=f"CLEVER scores of {len(scores)} examples, sorted: from"
            f" {show(float(np.nanmin(scores)) if (~np.isnan(scores)).any() else None)} to"
            f" {show(float(np.nanmax(scores)) if (~np.isnan(scores)).any() else None)};"
            f" {int(refuted.sum())} are refuted by an attack.",
            caption="CLEVER score of each example, lowest first, with its interval; the dotted line"
            " is the radius, where scores are capped.",
            size=(4.6, 3.3),
        )
    ]


def html(data: dict[str, Any], plots: Sequence[svg.Plot]) -> str:
    """The section's body."""
    missing = _common.left_out(TITLE, data)
    if missing:
        return missing
    config, columns = data["config"], data["examples"]
    origin = {
        "given": "as asked for",
        "distance": "1.25 times the distance that 90% of those found by DeepFool stay within",
        "default": "the default, as no distance is known",
    }[config["radius_from"]]
    which = "every other class" if config["targets"] == "all" else "the runner-up class"
    intro = (
        f"The slope of the margin to {which} is sampled at"
        f" {show_count(config['num_batches'] * config['batch_size'])} points in an"
        f" {_common.NORMS[config['norm']]} ball of radius {show(config['radius'])} units ({origin};"
        f" a unit is {config['unit']}) around each of {len(columns['index'])} examples, and its"
        " maximum is extrapolated by extreme value theory. The score is margin over slope."
    )
    counts = collections.Counter(flag for flags in columns["flags"] for flag in flags)
    said = [f"{counts[name]} examples: {text}." for name, text in _MEANING.items() if counts[name]]
    if data["num_refuted"]:
        said.insert(
            0,
            f"{data['num_refuted']} of {data['num_comparable']} scores are refuted: DeepFool found"
            " an adversarial example closer than the score.",
        )
    return (
        f"<h2>{TITLE}</h2>"
        + page.paragraph(intro)
        + page.flags(said)
        + "".join(page.figure(plot, "wide") for plot in plots)
    )


def how_to_read(data: dict[str, Any]) -> str:
    """What a score means and when it misleads."""
    if "left_out" in data:
        return ""
    return page.definitions(
        [
            (
                "CLEVER",
                "An estimate of how far an input can be moved before its label can change. It"
                " proves nothing: hidden gradients make it too large, and in many dimensions the"
                " steepest point is seldom sampled. Compare it with the distance of attacks: the"
                " truth lies below that. The slope is taken in every direction, also in those that"
                " lead out of the allowed range, where attacks may not go: inputs at the edge of"
                " their range (black pixels) can have a score far below any attack.",
            )
        ]
    )


def _scores(data: dict[str, Any]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in data["examples"]["score"]], float)
