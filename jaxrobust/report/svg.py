"""Plots as SVG: drawn by Matplotlib without a display, in colours that follow a page's theme."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Each colour on light and on dark paper. Light ones must differ: the SVG is drawn with these, and
# they are what is looked for when it is put into a page.
COLOURS = {
    "ink": ("#1d2127", "#e7e9ec"),
    "muted": ("#5c6470", "#a2abb8"),
    "rule": ("#dfe3e8", "#343b45"),
    "paper": ("#fefefe", "#14171b"),
    "band": ("#7aa5d8", "#5f8fc9"),
    "fit": ("#b4471f", "#f2936b"),
    "data": ("#1f4e8c", "#8ab8f0"),
}
# Several curves: by hue and lightness; they are told apart by labels too.
SERIES = (
    ("#2e8b7f", "#63cdbf"),
    ("#2c7cb8", "#6cb9f2"),
    ("#5a4fb0", "#a99cf5"),
    ("#a23b78", "#f08cc3"),
    ("#8f5a14", "#e0ab5c"),
    ("#4d6b1f", "#a9c96f"),
)
for _number, _pair in enumerate(SERIES):
    COLOURS[f"series-{_number}"] = _pair

_FONT = "DejaVu Sans"
_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: readable by screen readers, and by search
    "svg.hashsalt": "jaxrobust",  # the same plot gives the same bytes
    "font.family": _FONT,
    "font.size": 9.0,
    "axes.edgecolor": COLOURS["muted"][0],
    "axes.labelcolor": COLOURS["ink"][0],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "grid.color": COLOURS["rule"][0],
    "grid.linewidth": 0.8,
    "text.color": COLOURS["ink"][0],
    "xtick.color": COLOURS["muted"][0],
    "ytick.color": COLOURS["muted"][0],
    "figure.facecolor": COLOURS["paper"][0],
    "axes.facecolor": COLOURS["paper"][0],
    "savefig.facecolor": COLOURS["paper"][0],
    "legend.frameon": False,
    "path.simplify": False,
}


class Plot(NamedTuple):
    """One picture.

    Attributes:
        name: file name without its ending; also its id in the page.
        svg: a complete SVG document, in light colours.
        alt: what is to be seen, in words, for those who cannot see it.
        caption: what stands below it.
    """

    name: str
    svg: str
    alt: str
    caption: str


def series(number: int) -> str:
    """The (light) colour of curve ``number``; they repeat after six."""
    return SERIES[number % len(SERIES)][0]


def colour(name: str) -> str:
    """The (light) colour of a role: "ink", "muted", "fit", ..."""
    return COLOURS[name][0]


def draw(
    name: str,
    paint: Callable[[Figure], None],
    *,
    alt: str,
    caption: str,
    size: tuple[float, float] = (4.5, 3.5),
) -> Plot:
    """Makes a figure, has it painted, and returns it as a plot.

    Args:
        name: file name without its ending.
        paint: draws on the figure it is given.
        alt: for screen readers.
        caption: for everyone.
        size: inches; small, so that its letters stay readable on a phone.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need Matplotlib: pip install 'jaxrobust[report]'") from error

    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        # Without a date, so that the same report gives the same file.
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Title": alt})
    return Plot(name, _tidy(buffer.getvalue()), alt, caption)


def _tidy(svg: str) -> str:
    """Lets the viewer's own font stand in for Matplotlib's."""
    return svg.replace(f"'{_FONT}'", "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial")


def inline(plot: Plot) -> str:
    """The plot as an ``<svg>`` element for a page: themed, labelled, its ids its own."""
    svg = plot.svg[plot.svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<title>.*?</title>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\s(?:width|height)=\"[\d.]+pt\"", "", svg, count=2)
    svg = re.sub(r"\sxmlns(?::\w+)?=\"[^\"]*\"", "", svg, count=2).replace("xlink:href", "href")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{plot.name}-", svg)
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    label = f' role="img" aria-label="{html.escape(plot.alt)}"'
    return svg.replace("<svg", f"<svg{label}", 1)


def css_variables(dark: bool) -> str:
    """The colours as CSS custom properties."""
    return " ".join(f"--{name}: {pair[int(dark)]};" for name, pair in COLOURS.items())
