"""Promises about the package as a whole: what is exported, documented and shown in the README."""

import inspect
import pathlib
import re
import types

import jax
import numpy as np
import pytest

import jaxrobust as jr

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
MODULES = {
    "jaxrobust": jr,
    "jaxrobust.perturbations": jr.perturbations,
    "jaxrobust.fits": jr.fits,
    "jaxrobust.intervals": jr.intervals,
    "jaxrobust.exact": jr.exact,
    "jaxrobust.models": jr.models,
    "jaxrobust.attacks": jr.attacks,
}


def public_functions():
    for name, module in MODULES.items():
        exported = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
        for function in exported:
            value = getattr(module, function)
            if inspect.isfunction(value) and value.__module__.startswith("jaxrobust"):
                yield pytest.param(value, id=f"{name}.{function}")


@pytest.mark.parametrize("function", list(public_functions()))
def test_every_public_function_is_documented(function):
    assert function.__doc__
    assert len(function.__doc__.splitlines()[0]) > 10


@pytest.mark.parametrize("name", [n for n in jr.__all__ if inspect.isfunction(getattr(jr, n))])
def test_measures_obey_the_law_of_arguments(name):
    parameters = list(inspect.signature(getattr(jr, name)).parameters.values())
    names = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
    assert names[:3] in (
        ["apply_fn", "params", "key"],
        ["perturbation", "key", "x"],
        ["directional_risk", "level"],
        ["apply_fn", "params", "x"],  # draws nothing
        ["clever"],
    )
    rest = parameters[len(names) :]
    assert not any(p.kind == p.POSITIONAL_ONLY for p in parameters)
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in rest)
    assert ">>>" in getattr(jr, name).__doc__
    assert "Raises:" in getattr(jr, name).__doc__


def test_all_is_what_can_be_imported():
    for name in jr.__all__:
        assert hasattr(jr, name)
    assert jr.zoo.__name__ == "jaxrobust.zoo"
    assert jr.report.__name__ == "jaxrobust.report"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = jr.nonsense


def test_every_measure_is_in_the_readme():
    functions = {n for n in jr.__all__ if inspect.isfunction(getattr(jr, n))}
    assert not {n for n in functions if f"`{n}`" not in README}


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", README)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []
    # A link named after something of ours leads to the file that defines it.
    for name, path in re.findall(r"\[`(?:\w+\.)*(\w+)`\]\(([^)]+\.py)\)", README):
        assert f"def {name}(" in (ROOT / path).read_text(), (name, path)


def test_the_card_of_the_readme_is_made(capsys, tmp_path, monkeypatch):
    (code,) = (block for block in BLOCKS if "robustness_card" in block)
    monkeypatch.chdir(tmp_path)
    x = np.asarray(jax.random.normal(jax.random.key(0), (40, 3)))
    w = np.array([[1.0, -1.0], [0.5, 2.0], [-1.0, 0.3]], np.float32)
    model = types.SimpleNamespace(apply_fn=lambda w, x: x @ w, params=w)
    data = types.SimpleNamespace(x_test=x, y_test=(x @ w).argmax(axis=1))
    with jax.numpy_rank_promotion("allow"):
        exec(code, {"model": model, "data": data})
    printed = capsys.readouterr().out
    assert printed.startswith("ready\n- Without noise the model labels 40 of 40")
    assert (tmp_path / "card" / "report.html").exists()


def test_the_example_of_the_readme_prints_what_it_says(capsys):
    code, expected = re.search(
        r"```python\n(.*?)```\n+```text\n(.*?)```", README, re.DOTALL
    ).groups()
    # In the README the reader's machine has no strict settings.
    with jax.numpy_rank_promotion("allow"):
        exec(code, {})
    printed = capsys.readouterr().out
    number = r"\d+\.\d+"
    assert re.sub(number, "#", printed) == re.sub(number, "#", expected)
    for got, want in zip(re.findall(number, printed), re.findall(number, expected), strict=True):
        assert float(got) == pytest.approx(float(want), rel=0.1)
