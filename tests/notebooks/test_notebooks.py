"""The notebooks run, and what is committed shows pictures and nothing of the machine it ran on."""

import base64
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("flax")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "notebooks"
NAMES = (
    "01_quickstart",
    "02_theta_robustness",
    "03_clever",
    "04_directional_risk",
    "05_real_world_flips",
    "06_training_for_robustness",
    "07_many_devices",
)
PNG = b"\x89PNG\r\n\x1a\n"


def cells(name, kind="code"):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def source(name):
    """The code cells as one script; IPython's magics do nothing."""
    code = "\n\n".join("".join(cell["source"]) for cell in cells(name))
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", code, flags=re.MULTILINE)


def test_every_notebook_is_tested():
    assert tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_runs(name, tmp_path):
    # As a reader would run it, but smaller: no devices or data of the tests' own.
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAXROBUST_DATA")}
    script = tmp_path / f"{name}.py"
    script.write_text(source(name))
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        env=kept | {"JAXROBUST_REDUCED": "1", "MPLBACKEND": "Agg"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("name", NAMES)
def test_committed_outputs(name):
    outputs = [output for cell in cells(name) for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pictures = [
        base64.b64decode("".join(output["data"]["image/png"]))
        for output in outputs
        if "image/png" in output.get("data", {})
    ]
    assert pictures
    for picture in pictures:
        assert picture.startswith(PNG)
        assert 2_000 < len(picture) < 100_000
    text = "".join("".join(output.get("text", "")) for output in outputs)
    assert text
    assert not re.search(r"(?:^|[\s'\"(=])(?:/\w+/|[A-Z]:\\)", text)  # a path on a disk
    assert "nan" not in text.split()


@pytest.mark.parametrize("name", NAMES)
def test_is_tidy_and_explained(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    kinds = [cell["cell_type"] for cell in notebook["cells"]]
    for before, kind in zip([None, *kinds], kinds, strict=False):
        assert kind == "markdown" or before == "markdown"  # every cell of code is introduced
    assert all(cell["execution_count"] is None for cell in cells(name))
    first = "".join(cells(name)[0]["source"])
    assert 'if "google.colab" in sys.modules:\n    %pip install' in first
    assert "JAXROBUST_REDUCED" in first
