"""compare: the numbers of robustness_index, always beside f(1), and clear about its limits."""

import json

import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust.report import compare, read_report
from jaxrobust.report.cli import main

# The paper's fits for p = 1: Deaths, Flu, Heart, Breast, MNIST.
PAPER = [
    (241.8389, 1.7122, 0.9701, 0.0),
    (93.1385, 2.042, 0.7317, 0.0),
    (2.1674, 2.8214, 0.5018, 1.1031),
    (10.1129, 1.2998, 0.7045, 0.1536),
    (31.3285, 4.5410, 0.3991, 0.5594),
]


def write_fake(folder, title, parameters, spread=0.0, **changes):
    """A report that holds just what compare reads."""
    rng = np.random.default_rng(len(title))
    values = dict(zip("abcd", parameters or [None] * 4, strict=True))
    fit = {k: {"value": v, "interval": None, "reason": "x"} for k, v in values.items()}
    at_one = None if parameters is None else float(jr.fits.gompertz(1.0, *parameters))
    fit["at_one"] = {"value": at_one, "interval": [at_one, at_one], "reason": None}
    fit |= {"converged": parameters is not None, "explanation": "not fitted: it is a test"}
    samples = {
        k: [None if v is None else v + spread * e for e in rng.normal(size=50)]
        for k, v in values.items()
    }
    ratio = [1.0, at_one]
    columns = {
        f"{name}{end}": ratio for name in ("theta", "ratio") for end in ("", "_low", "_high")
    }
    curve = {
        "probability": 1.0,
        "points": {"scale": [0.0, 1.0], **columns},
        "fit": fit,
        "resamples": samples,
    }
    config = {"loss": "mse", "alpha": 0.05, "num_replicates": 10, "scales": [0.0, 1.0],
              "confidence": 0.95}  # fmt: skip
    theta = {"config": config, "baseline": 1.0, "normalised": True, "curves": [curve], **changes}
    folder.mkdir()
    data = {"schema": "jaxrobust.report", "version": 1, "title": title, "model": {},
            "sections": {"theta": theta}}  # fmt: skip
    (folder / "report.json").write_text(json.dumps(data))
    return str(folder)


@pytest.fixture
def paper(tmp_path):
    names = ("Deaths", "Flu", "Heart", "Breast", "MNIST")
    return [
        write_fake(tmp_path / name, name, parameters, spread=1e-3)
        for name, parameters in zip(names, PAPER, strict=True)
    ]


def test_the_papers_table(paper, tmp_path, capsys):
    assert main(["compare", *paper, "-o", str(tmp_path / "out")]) == 0
    data = json.loads((tmp_path / "out" / "compare.json").read_text(), parse_constant=pytest.fail)
    b, c = (np.array([p[k] for p in PAPER]) for k in (1, 2))
    index = jr.fits.robustness_index(b, c)
    np.testing.assert_allclose(data["pairwise"], index.pairwise, atol=1e-6)
    overall = [m["overall"]["value"] for m in data["models"]]
    np.testing.assert_allclose(overall, index.overall, atol=1e-6)
    np.testing.assert_allclose(overall, [0.98663, 0.66300, 0.27451, 0.40385, 0.17201], atol=2e-4)
    at_one = [m["at_one"]["value"] for m in data["models"]]
    np.testing.assert_allclose(at_one, [93.5203, 52.2430, 1.93595, 5.19376, 29.3833], rtol=1e-4)
    for m in data["models"]:
        low, high = m["overall"]["interval"]
        assert low <= m["overall"]["value"] <= high
        assert high - low < 0.05

    out = capsys.readouterr().out
    for number in ("0.987", "0.663", "0.275", "0.404", "0.172", "93.5", "52.2", "1.94", "0.947"):
        assert number in out
    assert "by the index 1, 2, 4, 3, 5; by f(1) 3, 4, 5, 2, 1." in out
    assert "discards scale" in out
    assert "nearly the reverse" in out
    page = (tmp_path / "out" / "compare.html").read_text()
    for number in ("0.987", "93.5", "discards scale"):
        assert number in page
    assert sorted(data["files"]) == data["files"]
    for name in data["files"]:
        assert (tmp_path / "out" / name).is_file()


def test_of_real_reports(breast_cancer, make, tmp_path, capsys):
    folder, data = breast_cancer
    other, _ = make("classifier")
    assert main(["compare", str(folder), str(other), "-o", str(tmp_path / "out"),
                 "--probability", "0.5"]) == 0  # fmt: skip
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    fits = [read_report(f)["sections"]["theta"]["curves"][0]["fit"] for f in (folder, other)]
    b, c = (np.array([fit[name]["value"] for fit in fits]) for name in "bc")
    np.testing.assert_allclose(found["pairwise"], jr.fits.robustness_index(b, c).pairwise)
    assert found["probability"] == 0.5
    assert found["models"][0]["at_one"] == fits[0]["at_one"]
    assert f"{data['title'][:40]}" in capsys.readouterr().out


def test_intervals_are_percentiles_of_the_index(tmp_path):
    folders = [
        write_fake(tmp_path / str(i), str(i) * (i + 1), PAPER[i], spread=0.1) for i in range(3)
    ]
    found = compare.compare(folders)
    samples = [read_report(f)["sections"]["theta"]["curves"][0]["resamples"] for f in folders]
    slow = []
    for k in range(50):
        b, c = (np.array([s[name][k] for s in samples]) for name in "bc")
        slow.append(jr.fits.robustness_index(b, c))
    expected = np.quantile([np.asarray(s.overall) for s in slow], [0.025, 0.975], axis=0)
    for i, m in enumerate(found["models"]):
        np.testing.assert_allclose(m["overall"]["interval"], expected[:, i], atol=1e-5)
    expected = np.quantile([np.asarray(s.pairwise) for s in slow], [0.025, 0.975], axis=0)
    np.testing.assert_allclose(found["pairwise_low"], expected[0], atol=1e-5)
    np.testing.assert_allclose(found["pairwise_high"], expected[1], atol=1e-5)


def test_failed_fits_and_differences_are_said(tmp_path):
    config = {"loss": "brier", "alpha": 0.1, "num_replicates": 10, "scales": [0.0, 1.0],
              "confidence": 0.95}  # fmt: skip
    folders = [
        write_fake(tmp_path / "a", "same", PAPER[0]),
        write_fake(tmp_path / "b", "same", PAPER[1], config=config, baseline=0, normalised=False),
        write_fake(tmp_path / "c", "c", None),
    ]
    data = compare.compare(folders)
    assert data["models"][2]["overall"]["value"] is None
    assert data["models"][2]["overall"]["reason"] == "not fitted: it is a test"
    assert data["pairwise"][0][2] is None
    assert data["models"][0]["overall"]["value"] == data["pairwise"][0][1] == 1.0
    notes = " ".join(data["notes"])
    assert "Model 3: not fitted: it is a test." in notes
    assert "Model 2: the loss without noise is zero" in notes
    assert "different losses" in notes
    assert "different alphas" in notes
    assert "different noise levels" not in notes
    assert "do not rely" not in notes.lower()  # the one that did not converge is not ranked
    assert data["models"][0]["title"] == f"same ({folders[0]})"
    assert "–" in compare.as_text(data)


def test_an_order_by_unsupported_fits_is_doubted(tmp_path):
    folders = [write_fake(tmp_path / name, name, p) for name, p in zip("ab", PAPER, strict=False)]
    path = tmp_path / "b" / "report.json"
    report = json.loads(path.read_text())
    report["sections"]["theta"]["curves"][0]["fit"]["converged"] = False
    path.write_text(json.dumps(report))
    notes = compare.compare(folders)["notes"]
    assert "Most robust first" in notes[0]
    assert notes[1].startswith("Do not rely on the order by the index")
    assert "the fit of 2 " in notes[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one"], "at least two folders; got 1"),
        (["one", "none"], "none is not a folder"),
        (["one", "empty"], "empty holds no report.json; make one with report"),
        (["one", "broken"], "is not valid JSON"),
        (["one", "newer"], "has version 2 of the schema; this program reads version 1"),
        (["one", "one", "--probability", "0.3"], "no curve for p = 0.3; it has 1."),
        (["one", "other"], "has no theta section"),
        (["one", "one", "-o", "file"], "cannot write to file"),
    ],
)
def test_errors(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_fake(tmp_path / "one", "one", PAPER[0])
    for name, text in (
        ("empty", None),
        ("broken", '{"schema": '),
        ("newer", '{"schema": "jaxrobust.report", "version": 2}'),
        ("other", '{"schema": "jaxrobust.report", "version": 1, "title": "", "model": {},'
                  ' "sections": {}}'),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "report.json").write_text(text)
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert main(["compare", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("jaxrobust: error: ")
    assert len(err.strip().splitlines()) == 1
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before
