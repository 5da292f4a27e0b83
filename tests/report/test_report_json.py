"""report.json: strict, complete, and equal to what was measured."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrobust as jr
from jaxrobust.report import ReportError, cli, read_report, sources
from jaxrobust.report.schema import dumps


def numbers(data):
    """Every estimate in a tree of JSON."""
    if isinstance(data, dict):
        if set(data) == {"value", "interval", "reason"}:
            yield data
        for value in data.values():
            yield from numbers(value)
    elif isinstance(data, list):
        for value in data:
            yield from numbers(value)


def check_nulls(data):
    """Nothing is null without a reason."""
    estimates = list(numbers(data))
    assert len(estimates) > 20
    for estimate in estimates:
        if estimate["value"] is None or estimate["interval"] is None:
            assert estimate["reason"], estimate
        else:
            assert estimate["interval"][0] <= estimate["interval"][1]
    for curve in data["sections"]["theta"]["curves"]:
        found = {
            (name, k)
            for name, column in curve["points"].items()
            for k, value in enumerate(column)
            if value is None
        }
        said = {(n["field"], k) for n in curve["nulls"] for k in n["index"]}
        assert found == said
        assert all(n["reason"] for n in curve["nulls"])


def test_equals_a_direct_call(breast_cancer):
    _, data = breast_cancer
    train_key, key = jax.random.split(jax.random.key(3))
    subject = sources.load("breast-cancer", train_key)
    theta = data["sections"]["theta"]
    assert [curve["probability"] for curve in theta["curves"]] == [0.5, 1.0]
    for curve in theta["curves"]:
        direct = jr.robustness_curve(
            subject.apply_fn,
            subject.params,
            key,
            subject.x,
            subject.y,
            perturbation=lambda s, p=curve["probability"]: jr.perturbations.gaussian(
                s,
                feature_scale=jnp.asarray(subject.feature_scale),
                where=subject.where,
                probability=jnp.float32(p),
            ),
            scales=jnp.linspace(0, 1, 11),
            num_replicates=80,
            loss="brier",
            mesh=cli._all_devices(),  # the command line's, so that nothing is compiled anew
        )
        points = {name: np.array(column, np.float32) for name, column in curve["points"].items()}
        np.testing.assert_allclose(points["scale"], direct.scale, rtol=1e-6)
        np.testing.assert_allclose(points["theta"], direct.theta, rtol=1e-5)
        np.testing.assert_allclose(points["theta_low"], direct.interval[:, 0], rtol=1e-5)
        np.testing.assert_allclose(points["theta_high"], direct.interval[:, 1], rtol=1e-5)
        np.testing.assert_allclose(points["ratio"], direct.ratio, rtol=1e-5)
        assert (points["num_invalid"] == 0).all()
        fit = jr.fits.fit_gompertz(direct.scale, direct.ratio)
        for name in "abcd":
            np.testing.assert_allclose(curve["fit"][name]["value"], getattr(fit, name), rtol=5e-2)
    np.testing.assert_allclose(theta["baseline"], direct.baseline, rtol=1e-5)


def test_fields(breast_cancer):
    folder, data = breast_cancer
    assert (data["schema"], data["version"], data["seed"]) == ("jaxrobust.report", 1, 3)
    assert set(data) == {
        *("schema", "version", "created", "title", "model", "seed", "environment", "cost"),
        *("sections", "files"),
    }
    model = data["model"]
    assert model["source"] == "breast-cancer"
    assert (model["num_examples"], model["input_shape"], model["num_outputs"]) == (143, [30], 2)
    assert model["accuracy"]["value"] == model["num_correct"] / 143
    assert {"jax", "jaxrobust", "numpy"} <= set(data["environment"]["packages"])
    assert data["cost"]["model_inputs"] == 2 * (11 * 80 + 1) * 143
    assert set(data["cost"]["seconds"]) == {"load", "preflight", "theta"}
    theta = data["sections"]["theta"]
    assert theta["config"]["num_replicates"] == 80
    assert theta["config"]["scales"] == [round(0.1 * i, 10) for i in range(11)]
    for curve in theta["curves"]:
        assert len(curve["resamples"]["b"]) == theta["config"]["num_resamples"] == 200
        low, high = curve["fit"]["at_one"]["interval"]
        assert low < curve["fit"]["at_one"]["value"] < high
        points = curve["points"]
        assert all(
            lo <= mid <= hi
            for lo, mid, hi in zip(
                points["ratio_low"], points["ratio"], points["ratio_high"], strict=True
            )
        )
    check_nulls(data)
    for name in data["files"]:
        assert (folder / name).is_file()
    written = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert written == {*data["files"], "report.json"}
    assert read_report(folder) == data


def test_model_that_breaks_down(make):
    """NaN losses: shown as null with a reason, and no fit."""
    folder, data = make("breaks_down")
    curve = data["sections"]["theta"]["curves"][-1]
    assert any(curve["points"]["num_invalid"])
    assert curve["fit"]["a"]["value"] is None
    assert "not finite" in curve["fit"]["explanation"]
    assert not curve["fit"]["converged"]
    check_nulls(data)
    page = (folder / "report.html").read_text()
    assert "not finite numbers" in page
    assert "NaN" not in page
    assert "nan" not in page.replace("finance", "")


def test_zero_baseline_and_too_few_replicates(make):
    folder, data = make("perfect", "--replicates", "30")
    theta = data["sections"]["theta"]
    assert theta["baseline"] == 0
    assert theta["normalised"] is False
    curve = theta["curves"][-1]
    assert curve["fit"]["of"] == "theta"
    assert curve["fit"]["a"]["value"] > 0
    assert curve["landmarks"]["threshold"]["value"] is None
    assert "zero" in curve["landmarks"]["threshold"]["reason"]
    assert set(curve["points"]["ratio"]) == {None}
    assert set(curve["points"]["theta_high"]) == {None}, "30 are too few for an upper end"
    assert None not in curve["points"]["theta"]
    check_nulls(data)
    assert "loss without noise is zero" in (folder / "report.html").read_text()


def test_dumps_is_strict():
    with pytest.raises(ValueError, match="JSON"):
        dumps({"a": float("nan")})
    tricky = {"a": [1, 2.5, None], "b": "[ \n 1,\n 2 ]", "c": ["[", "]\n"], "d": {"e": []}}
    assert json.loads(dumps(tricky)) == tricky


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no report.json"),
        ("{", "not valid JSON"),
        ('{"a": NaN}', "NaN is not allowed"),
        ("[]", "not a report"),
        ('{"schema": "other"}', "not a report"),
        ('{"schema": "jaxrobust.report", "version": 99}', "version 99"),
        ('{"schema": "jaxrobust.report", "version": 1}', "lacks 'title'"),
        (
            '{"schema": "jaxrobust.report", "version": 1, "title": "", "model": {},'
            ' "sections": {"theta": {}}}',
            "lacks 'config'",
        ),
        (
            '{"schema": "jaxrobust.report", "version": 1, "title": "", "model": {}, "sections":'
            ' {"theta": {"config": {}, "baseline": 1, "normalised": true, "curves": [3]}}}',
            "lacks 'probability'",
        ),
    ],
)
def test_unreadable_reports_say_why(tmp_path, text, message):
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    with pytest.raises(ReportError, match=message):
        read_report(tmp_path)
