"""Directional noisy risk: how broad the failures around an attack are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrobust.report import page, svg
from jaxrobust.report.formats import Estimate, show, show_count, show_share, with_interval
from jaxrobust.report.views import _common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours of a few curves, far apart.
_APART = (0, 3, 4, 1, 2)
TITLE = "From noise to attack: directional risk"


def summary(data: dict[str, Any]) -> list[str]:
    """The attack with the broadest failures."""
    if "left_out" in data or not data["num_correct"]:
        return []
    config = data["config"]
    worst = max(data["attacks"], key=lambda row: row["risk_at_kappa_star"]["value"] or 0.0)
    ends = [worst["low"][0], worst["high"][0]]
    numbers: tuple[Estimate, ...] = (
        {"value": worst["mean"][0], "interval": ends, "reason": None},
        worst["risk_at_kappa_star"],
        worst["success_rate"],
    )
    plain, leaning, success = (with_interval(n, config["confidence"]) for n in numbers)
    return [
        f"Noise as long as an attack of at most {show(config['eps'])} units"
        f" ({_common.NORMS[config['norm']]}) makes {plain} of the correct predictions"
        f" wrong when it has no direction, and {leaning} when it leans towards the"
        f" {_common.ATTACKS[worst['name']]} attack (κ* = {show(data['kappa_star'])}); the attack"
        f" itself succeeds on {success}."
    ]


def draw(data: dict[str, Any]) -> list[svg.Plot]:
    """Mean risk against kappa, a curve for each attack."""
    if "left_out" in data or not data["num_correct"]:
        return []
    star = data["kappa_star"]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        for number, row in enumerate(data["attacks"]):
            colour = svg.series(_APART[number])
            low, high, mean = (np.array(row[name], float) for name in ("low", "high", "mean"))
            kappa = np.array(row["kappa"], float)
            axes.fill_between(kappa, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(
                kappa, mean, "o-", color=colour, linewidth=1.6, markersize=3,
                label=_common.ATTACKS[row["name"]],
            )  # fmt: skip
        axes.axvline(star, color=svg.colour("muted"), linewidth=0.9, linestyle="--")
        axes.annotate(
            "κ*", (star, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -10),
            textcoords="offset points", color=svg.colour("muted"),
        )  # fmt: skip
        axes.axhline(
            data["config"]["level"], color=svg.colour("muted"), linewidth=0.8, linestyle=":"
        )
        axes.set_xscale("symlog", linthresh=1.0)
        top = data["attacks"][0]["kappa"][-1]
        ticks = [t for t in (0, 1, 2, 5, 10, 20, 50, 100) if t <= top]
        axes.set_xticks(ticks, [str(t) for t in ticks])
        axes.set_xticks([], minor=True)
        axes.set(xlabel="κ: how strongly noise leans towards the attack", ylabel="mean risk")
        axes.set_xlim(0, top)
        axes.set_ylim(0, None)
        figure.legend(loc="outside lower left", ncols=3, fontsize=8.5)

    told = "; ".join(
        f"{_common.ATTACKS[row['name']]} from {show(row['mean'][0])} to {show(row['mean'][-1])}"
        for row in data["attacks"]
    )
    return [
        svg.draw(
            "directional-risk",
            paint,
            alt=f"Mean risk against kappa for {len(data['attacks'])} attacks: {told}.",
            caption="Share of noise draws that make a correct prediction wrong, from noise without"
            " a direction (left) to the attack (right). Dashed: κ*; dotted: a risk of a quarter."
            f" Bands are {show_share(data['config']['confidence'])} intervals over examples.",
            size=(4.6, 3.6),
        )
    ]


def html(data: dict[str, Any], plots: Sequence[svg.Plot]) -> str:
    """The section's body."""
    missing = _common.left_out(TITLE, data)
    if missing:
        return missing
    config = data["config"]
    if not data["num_correct"]:
        reason = {"left_out": "no example was classified correctly"}
        return _common.left_out(TITLE, reason) or ""
    origin = {
        "given": "as asked for",
        "distance": "1.25 times the median of the distances found above",
        "default": "the default, as no distance is known",
    }[config["eps_from"]]
    intro = (
        f"Each attack may move an input by an {_common.NORMS[config['norm']]} distance of"
        f" {show(config['eps'])} units ({origin}; a unit is {config['unit']}). Then noise of the"
        f" attack's own length is drawn {show_count(config['num_samples'])} times, leaning towards"
        f" the attack with strength κ. Means are over the {data['num_correct']} of"
        f" {data['num_examples']} examples that are classified correctly; failed attacks stay in."
    )
    rows: list[list[page.Cell]] = []
    flags = []
    for row in data["attacks"]:
        name = _common.ATTACKS[row["name"]]
        rows.append(
            [
                name,
                _common.cell(row["kappa_at_level"], "never"),
                _common.cell(row["risk_at_kappa_star"]),
                _common.cell(row["success_rate"]),
            ]
        )
        if row["num_zero_direction"]:
            flags.append(
                f"{name} did not move {row['num_zero_direction']} correct examples at all (zero"
                " gradients?); their risk is that of the clean input."
            )
    return (
        f"<h2>{TITLE}</h2>"
        + page.paragraph(intro)
        + page.flags(flags)
        + "".join(page.figure(plot, "wide") for plot in plots)
        + page.table(
            f"κ* = {show(data['kappa_star'])}; small print:"
            f" {show_share(config['confidence'])} intervals over examples",
            ["attack", "κ at a risk of ¼", "risk at κ*", "attack success"],
            rows,
        )
    )


def how_to_read(data: dict[str, Any]) -> str:
    """What kappa and the risk mean."""
    if "left_out" in data:
        return ""
    return page.definitions(
        [
            (
                "κ and κ*",
                "At κ = 0 noise of the attack's length has no direction; as κ grows it becomes the"
                " attack. κ* is the fourth root of the number of features: about where noise begins"
                " to see the direction.",
            ),
            (
                "The attacks",
                "FGSM takes one step along the gradient's sign, PGD-20 twenty small ones from a"
                " random start, MI-FGSM ten with momentum; PGN looks for flat regions, and DN for"
                " broad ones, by averaging gradients over noise that leans along the attack.",
            ),
            (
                "Risk at κ*",
                "High: the attack found a broad region of failures that chance could hit. Low with"
                " a high attack success: a thin sliver that only an adversary finds.",
            ),
            (
                "Common draws",
                "All κ and all attacks see the same noise, so curves err together.",
            ),
        ]
    )
