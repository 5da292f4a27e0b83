"""report.html and the plots: one file, nothing loaded from elsewhere, readable without seeing."""

import copy
import html.parser
import re
import xml.etree.ElementTree as ElementTree

import pytest

from jaxrobust.report import compare, svg, theta_html
from jaxrobust.report.formats import estimate

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """Every tag with its attributes; fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def comparison(breast_cancer, tmp_path_factory):
    folder, _ = breast_cancer
    target = tmp_path_factory.mktemp("comparison")
    compare.write(compare.compare([folder, folder]), target)
    return target


def pages(breast_cancer, comparison):
    return [breast_cancer[0] / "report.html", comparison / "compare.html"]


def test_self_contained(breast_cancer, comparison):
    for path in pages(breast_cancer, comparison):
        text = path.read_text()
        page = Page(text)
        for tag, attributes in page.tags:
            assert tag not in ("link", "script", "img", "iframe", "object", "embed", "base")
            for name in ("src", "href", "data", "srcset", "xlink:href"):
                assert attributes.get(name, "#").startswith("#"), (tag, attributes)
            assert not any(name.startswith("on") for name in attributes)
        assert "@import" not in text
        assert set(re.findall(r"url\((.)", text)) <= {"#"}


def test_accessible(breast_cancer, comparison):
    for path in pages(breast_cancer, comparison):
        page = Page(path.read_text())
        assert page.all("html")[0]["lang"] == "en"
        assert len(page.all("title")) == 1
        assert len(page.all("h1")) == 1
        assert page.all("meta")[1]["content"].startswith("width=device-width")
        pictures = page.all("svg")
        assert pictures
        for picture in pictures:
            assert picture["role"] == "img"
            assert len(picture["aria-label"]) > 40
        labels = [picture["aria-label"] for picture in pictures]
        assert len(set(labels)) == len(labels)
        assert len(page.all("figcaption")) == len(pictures)
        for head in page.all("th"):
            assert head["scope"] in ("row", "col")
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        assert len(ids) == len(set(ids)), "ids of different plots must not clash"
        targets = {a["href"][1:] for _, a in page.tags if a.get("href", "").startswith("#")}
        clips = set(re.findall(r"url\(#([^)]+)\)", path.read_text()))
        assert targets | clips <= set(ids)


def test_follows_the_readers_colours(breast_cancer, comparison):
    for path in pages(breast_cancer, comparison):
        text = path.read_text()
        assert "prefers-color-scheme: dark" in text
        assert "@media print" in text
        body = text.partition("<body>")[2]
        assert "var(--ink)" in body
        # A colour that is not a variable would stay as it is on dark paper.
        assert re.findall(r"(?:fill|stroke): #[0-9a-f]{6}", body) == []
    lights = [light for light, _ in svg.COLOURS.values()]
    assert len(set(lights)) == len(lights)


def test_says_what_was_found(breast_cancer):
    folder, data = breast_cancer
    text = " ".join(Page((folder / "report.html").read_text()).text)
    assert f"{data['model']['num_correct']} of 143 examples" in text
    assert "Monte Carlo" in text
    assert "discards scale" in text
    for word in ("certified", "guaranteed", "proves"):
        assert word not in text
    for curve in data["sections"]["theta"]["curves"]:
        assert ("†" in text) or curve["fit"]["converged"]


def test_a_fit_that_misses_the_start_is_flagged(breast_cancer):
    data = copy.deepcopy(breast_cancer[1]["sections"]["theta"])
    curve = data["curves"][-1]
    curve["fit"].update(converged=True, at_zero=estimate(1.0, (0.9, 1.1)), d=estimate(0.5))
    assert not any("p = 1" in flag for flag in theta_html.theta_flags(data))
    curve["fit"].update(at_zero=estimate(1.05, (1.01, 1.2)), d=estimate(0.0))
    off, bound = (flag for flag in theta_html.theta_flags(data) if "p = 1" in flag)
    assert "f(0) = 1.05 (95% interval 1.01 to 1.20) instead of 1" in off
    assert "held at 0" in bound


def test_the_landmarks_in_the_summary_have_intervals(breast_cancer):
    data = copy.deepcopy(breast_cancer[1]["sections"]["theta"])
    curve = data["curves"][-1]
    curve["fit"].update(converged=True)
    curve["landmarks"].update(
        threshold=estimate(0.3, (0.2, 0.4)),
        threshold_value=estimate(2.0),
        knee=estimate(0.04, (0.0, 0.1)),
        knee_signed=estimate(0.04, (-0.05, 0.1)),
    )
    said = theta_html.theta_summary(data)[-1]
    assert "at σ = 0.300 (95% interval 0.200 to 0.400), and it takes off" in said
    assert "0.0400 (95% interval 0 to 0.100), below the first noise level measured, 0.1." in said


def test_titles_are_escaped(make):
    folder, _ = make("classifier")
    text = (folder / "report.html").read_text()
    assert "<b>bold</b>" not in text
    assert "A &lt;b&gt;bold&lt;/b&gt; &amp; linear model" in text


def test_plots_are_svg_on_their_own(breast_cancer):
    folder, data = breast_cancer
    names = [name for name in data["files"] if name.endswith(".svg")]
    assert sorted(names) == [f"plots/theta-{n}.svg" for n in ("overview", "p0.5", "p1")]
    for name in names:
        root = ElementTree.parse(folder / name).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        text = (folder / name).read_text()
        assert "var(" not in text, "other programs know no CSS variables"
        assert "<title>" in text


def test_the_same_plot_has_the_same_bytes():
    def paint(figure):
        figure.add_subplot().plot([0, 1], [0, 1], clip_on=True)

    one, other = (svg.draw("name", paint, alt="a", caption="c") for _ in range(2))
    assert one == other
