"""The page around the sections: one HTML file that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from jaxrobust.report import svg

_CSS = """
*, *::before, *::after { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif;
  overflow-wrap: break-word; }
main { max-width: 50rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.65rem; line-height: 1.25; margin: .25rem 0 .25rem; font-weight: 650; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .5rem; padding-top: .75rem;
  border-top: 1px solid var(--rule); font-weight: 650; }
h3 { font-size: 1rem; margin: 1.75rem 0 .4rem; font-weight: 650; }
p, li, dd { max-width: 46rem; }
p { margin: .5rem 0; }
.kicker, .quiet, figcaption { color: var(--muted); font-size: .875rem; }
.kicker { margin: 0; }
.summary { border-left: 3px solid var(--data); padding: .1rem 0 .1rem 1rem; margin: 1.25rem 0; }
.summary ul { padding-left: 1.1rem; margin: .25rem 0; }
.summary li { margin: .3rem 0; }
.flag { border-left: 3px solid var(--fit); padding-left: 1rem; margin: 1rem 0; }
.flag ul { padding-left: 1.1rem; margin: .25rem 0; }
figure { margin: 1rem 0; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { margin-top: .25rem; max-width: 42rem; }
.wide { max-width: 36rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
  gap: .5rem 2rem; }
.grid > figure { max-width: 32rem; }
.scroll { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
  line-height: 1.35; min-width: min(100%, 26rem); }
caption { text-align: left; color: var(--muted); padding-bottom: .4rem; }
th, td { padding: .4rem .75rem .4rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); font-weight: 400; }
thead th { font-weight: 650; border-bottom-color: var(--muted); white-space: nowrap; }
td { white-space: nowrap; }
td small, th small { display: block; color: var(--muted); font-size: .75rem; }
dl { margin: .5rem 0; }
dt { font-weight: 650; margin-top: .75rem; }
dd { margin: .1rem 0 0; }
code { font: .875em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 40rem) {
  main { padding: 1rem 1rem 3rem; }
  th, td { padding-right: .55rem; }
  table { font-size: .8125rem; }
  thead th { white-space: normal; overflow-wrap: normal; }
  caption { max-width: calc(100vw - 2rem); }
  td small, th small { font-size: .6875rem; white-space: normal;
    width: max-content; max-width: 3.7rem; }
}
@media print {
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  h2, h3 { break-after: avoid; }
  tr, .summary, .flag { break-inside: avoid; }
  .scroll { overflow: visible; }
  .grid { grid-template-columns: 1fr 1fr; }
}
"""


def escape(text: object) -> str:
    """Text as HTML."""
    return html.escape(str(text), quote=True)


def paragraph(text: str, css: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{f' class={css!r}' if css else ''}>{escape(text)}</p>"


def bullets(sentences: Iterable[str]) -> str:
    """A list of plain sentences."""
    return "<ul>" + "".join(f"<li>{escape(s)}</li>" for s in sentences) + "</ul>"


def definitions(entries: Iterable[tuple[str, str]]) -> str:
    """Terms and what they mean, as plain text."""
    parts = (f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in entries)
    return f"<dl>{''.join(parts)}</dl>"


def flags(sentences: Sequence[str]) -> str:
    """What the reader must know before trusting a number; nothing if there is nothing."""
    return f'<div class="flag" role="note">{bullets(sentences)}</div>' if sentences else ""


def figure(plot: svg.Plot, css: str = "") -> str:
    """A plot with its caption."""
    return (
        f"<figure{f' class={css!r}' if css else ''}>{svg.inline(plot)}"
        f"<figcaption>{escape(plot.caption)}</figcaption></figure>"
    )


def grid(plots: Iterable[svg.Plot]) -> str:
    """Plots side by side where there is room."""
    return f'<div class="grid">{"".join(map(figure, plots))}</div>'


Cell = str | tuple[str, str]


def table(caption: str, head: Sequence[Cell], rows: Iterable[Sequence[Cell]]) -> str:
    """A table of plain text; a cell is a text, or a text and small print below it."""

    def cell(content: Cell, tag: str) -> str:
        text, small = (content, "") if isinstance(content, str) else content
        below = f"<small>{escape(small)}</small>" if small else ""
        return f"{tag}{escape(text)}{below}</{tag[1:3]}>"

    top = "".join(cell(c, '<th scope="col">') for c in head)
    body = ""
    for first, *rest in rows:
        body += "<tr>" + cell(first, '<th scope="row">')
        body += "".join(cell(c, "<td>") for c in rest) + "</tr>"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def page(title: str, kicker: str, summary: Iterable[str], body: str) -> str:
    """A complete page.

    Args:
        title: plain text.
        kicker: a line of plain text above the title.
        summary: plain sentences that say what was found.
        body: HTML of the sections.
    """
    light, dark = svg.css_variables(dark=False), svg.css_variables(dark=True)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
:root {{ {light} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
{_CSS.strip()}
</style>
</head>
<body>
<main>
<header>
<p class="kicker">{escape(kicker)}</p>
<h1>{escape(title)}</h1>
</header>
<section class="summary" aria-label="Summary">{bullets(summary)}</section>
{body}
</main>
</body>
</html>
"""
