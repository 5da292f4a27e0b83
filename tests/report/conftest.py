"""Shared reports: each is made once, since compiling the fit takes most of a test's time."""

import json
import textwrap

import pytest

from jaxrobust.report.cli import main

# Every report of the tests has these, so that the fit is compiled once for all of them.
SHAPE = ["--sections", "theta", "--scales", "11", "--probabilities", "0.5", "1", "--quiet"]

MODELS = textwrap.dedent(
    """
    import jax, jax.numpy as jnp, numpy as np

    x = np.asarray(jax.random.normal(jax.random.key(0), (40, 3)))
    w = np.array([1.0, -2.0, 0.5], np.float32)

    def linear(w, x):
        return x @ w

    def regression():
        return linear, w, x, x @ w + 1.0

    def classifier():
        v = np.stack([w, -w], axis=1)
        return linear, v, x, (x @ v).argmax(1), {"title": "A <b>bold</b> & linear model"}

    def scaled():
        v = np.stack([w, -w], axis=1)
        return linear, v, x, (x @ v).argmax(1), {"feature_scale": np.ones(3), "loss": "brier"}

    def perfect():
        return lambda w, x: jnp.tanh(x @ w), w, x, jnp.tanh(x @ w)

    def breaks_down():
        return lambda w, x: jnp.log(x @ w + 8), w, x, jnp.log(x @ w + 8) + 0.1

    def probabilities():
        v = np.stack([w, -w], axis=1)
        return lambda w, x: jax.nn.softmax(x @ w), v, x, (x @ v).argmax(1)

    def three(): return linear, w, x
    def number(): return 3
    def not_callable(): return w, w, x, x @ w
    def bad_options(): return linear, w, x, x @ w, {"colour": "red"}
    def no_dict(): return linear, w, x, x @ w, 3
    def raises(): raise KeyError("no such thing")
    def leaves(): raise SystemExit("bye")
    def wrong_shape(): return linear, w[:2], x, x @ w
    def short(): return linear, w, x, (x @ w)[:7]
    def bad_labels(): return linear, np.stack([w, -w], 1), x, np.full(40, 5)
    constant = 3
    """
)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with the module ``toys`` and others that fail."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "toys.py").write_text(MODELS)
    (folder / "raising.py").write_text("raise RuntimeError('the disk is full\\nof cats')")
    (folder / "importing.py").write_text("import no_such_package_at_all")
    return folder


@pytest.fixture
def in_models(models, monkeypatch):
    """Runs the test in the folder of the modules, as a user would."""
    monkeypatch.chdir(models)
    monkeypatch.syspath_prepend(models)
    return models


@pytest.fixture(scope="session")
def breast_cancer(tmp_path_factory):
    """The folder of a report made by the command line, and its JSON."""
    folder = tmp_path_factory.mktemp("reports") / "new" / "breast-cancer"
    arguments = ["report", "breast-cancer", "-o", str(folder), "--replicates", "80", "--seed", "3"]
    assert main([*arguments, *SHAPE]) == 0
    return folder, json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)


@pytest.fixture
def make(in_models, tmp_path):
    """``make("classifier") -> (folder, JSON)``: the report of a toy model."""

    def run(name, *options):
        folder = tmp_path / name
        assert (
            main(
                [
                    "report",
                    f"toys:{name}",
                    "-o",
                    str(folder),
                    "--replicates",
                    "60",
                    *SHAPE,
                    *options,
                ]
            )
            == 0
        )
        return folder, json.loads((folder / "report.json").read_text(), parse_constant=pytest.fail)

    return run
