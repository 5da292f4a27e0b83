"""The command line: what it prints, how it fails, and that it leaves nothing half-written."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import jaxrobust
from jaxrobust.report import cli, document, files, read_report, theta
from jaxrobust.report.cli import main

QUICK = ["--sections", "theta", "--scales", "3", "--replicates", "60", "--quiet"]


def outside(tmp_path_factory, arguments, cwd):
    """Starts the command line in a process of its own, without the tests' eight devices.

    It answers Ctrl-C even where the tests run in the background, whose children ignore it.
    """
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    said = tmp_path_factory.mktemp("said")
    out, err = said / "out", said / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        start = (
            "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
            " runpy.run_module('jaxrobust', run_name='__main__', alter_sys=True)"
        )
        command = [sys.executable, "-c", start, *arguments]
        process = subprocess.Popen(command, env=environment, cwd=cwd, stdout=stdout, stderr=stderr)
    return process, out, err


def fails(capsys, arguments):
    """The one line that a failing call prints."""
    assert main([*arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("jaxrobust: error: ")
    return lines[0]


def test_report_prints_what_it_found(breast_cancer, capsys):
    folder, data = breast_cancer
    assert data["title"].startswith("Breast Cancer")
    assert (folder / "report.html").stat().st_size < 1_000_000


def test_subprocess_report(tmp_path, tmp_path_factory):
    """From the outside, with progress on standard error and the default folder."""
    arguments = ["report", "iris", "--scales", "3", "--replicates", "60", "--probabilities", "1"]
    process, out, err = outside(tmp_path_factory, arguments, tmp_path)
    assert process.wait(timeout=300) == 0, err.read_text()
    assert "wrote report-iris/report.html" in out.read_text()
    assert "curve, p = 1" in err.read_text()
    assert read_report(tmp_path / "report-iris")["model"]["source"] == "iris"
    assert os.listdir(tmp_path) == ["report-iris"]


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_ctrl_c_is_answered_while_compiled_code_runs(models, tmp_path, tmp_path_factory):
    arguments = ["report", "toys:classifier", "-o", str(tmp_path / "out")]
    many = ["--replicates", "400000", "--scales", "21"]
    process, _, err = outside(tmp_path_factory, [*arguments, *many], models)
    deadline = time.monotonic() + 240
    # The bar of the draws appears once compiled code runs.
    while "theta:" not in err.read_text() and time.monotonic() < deadline:
        assert process.poll() is None, err.read_text()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert err.read_text().rstrip().endswith("interrupted")
    assert "Traceback" not in err.read_text()
    assert list(tmp_path.iterdir()) == []


def test_interrupted_while_measuring(in_models, tmp_path, monkeypatch, capsys):
    """The second curve never comes: nothing new, and an older report stays whole."""
    old = tmp_path / "old"
    assert main(["report", "toys:classifier", "-o", str(old), *QUICK]) == 0
    before = read_report(old)
    capsys.readouterr()
    calls = []
    real = theta._curve

    def interrupted(*args):
        calls.append(args)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(theta, "_curve", interrupted)
    for folder in (tmp_path / "new" / "deep", old):
        calls.clear()
        assert main(["report", "toys:classifier", "-o", str(folder), *QUICK]) == 130
        out, err = capsys.readouterr()
        assert (out, err.strip()) == ("", "interrupted")
    assert not (tmp_path / "new").exists()
    assert read_report(old) == before


@pytest.mark.parametrize("existing", [False, True])
def test_interrupted_while_writing(in_models, tmp_path, monkeypatch, capsys, existing):
    folder = tmp_path / "out"
    if existing:
        folder.mkdir()
        (folder / "mine.txt").write_text("kept")
    real = pathlib.Path.write_text

    def interrupted(self, *args, **kwargs):
        if self.name == "report.json":
            raise KeyboardInterrupt
        return real(self, *args, **kwargs)

    monkeypatch.setattr(files.pathlib.Path, "write_text", interrupted)
    assert main(["report", "toys:classifier", "-o", str(folder), *QUICK]) == 130
    assert capsys.readouterr().err.strip().endswith("--resume goes on with them")
    # Nothing of the report; but what was computed is not lost.
    kept = {".card-sections", "fingerprint", "theta.json"}
    assert {p.name for p in tmp_path.rglob("*")} == kept | {"out"} | (
        {"mine.txt"} if existing else set()
    )
    monkeypatch.undo()
    monkeypatch.chdir(in_models)
    monkeypatch.syspath_prepend(in_models)
    monkeypatch.setattr(theta, "theta_report", pytest.fail)  # it is not made again
    assert main(["report", "toys:classifier", "-o", str(folder), "--resume", *QUICK]) == 0
    names = {p.name for p in folder.iterdir()}
    assert names == {"plots", "report.html", "report.json"} | ({"mine.txt"} if existing else set())


def test_the_report_of_another_run_is_not_replaced_unasked(
    in_models, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "out"
    arguments = ["report", "toys:classifier", "-o", str(folder)]
    assert main([*arguments, *QUICK]) == 0
    capsys.readouterr()
    before = read_report(folder)
    with monkeypatch.context() as patch:
        patch.setattr(theta, "theta_report", pytest.fail)
        for other, said in (
            (["report", "toys:regression", "-o", str(folder), *QUICK], "(toys:classifier, seed 0)"),
            ([*arguments, "--seed", "1", *QUICK], "(toys:classifier, seed 0)"),
            ([*arguments, "--sections", "flip"], "sections that this run does not make (theta)"),
        ):
            line = fails(capsys, other)
            assert said in line
            assert "--overwrite" in line
    assert read_report(folder) == before
    assert main([*arguments, *QUICK]) == 0  # the same run may be repeated
    assert main([*arguments, "--seed", "1", "--overwrite", *QUICK]) == 0
    assert read_report(folder)["seed"] == 1


def test_the_folder_is_checked_before_the_work(in_models, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(theta, "theta_report", pytest.fail)
    blocked = tmp_path / "file"
    blocked.write_text("")
    plots = tmp_path / "folder"
    plots.mkdir()
    (plots / "plots").write_text("")
    for target in (blocked, blocked / "below", plots):
        line = fails(capsys, ["report", "toys:classifier", "-o", str(target)])
        assert "cannot write to" in line
        assert "not a folder" in line
    if pathlib.Path("/proc/self").exists():
        assert "cannot write" in fails(capsys, ["report", "toys:classifier", "-o", "/proc/nowhere"])


def test_a_disk_that_fills_up(in_models, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        document, "write_data", lambda *_: (_ for _ in ()).throw(OSError(28, "No space"))
    )
    assert "No space" in fails(capsys, ["report", "toys:classifier", "-o", str(tmp_path), *QUICK])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("breast-cancr", "unknown data set 'breast-cancr'. Did you mean breast-cancer?"),
        ("Breast_Cancer", "Did you mean breast-cancer?"),
        ("nothing-like-it", "your own model is MODULE:FUNCTION"),
        ("heart", "heart_cleveland.csv"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("no.such.module:f", "there is no module 'no'"),
        ("toys:regresion", "module 'toys' has no function 'regresion'. Did you mean 'regression'?"),
        ("toys:constant", "toys:constant is not a function but int"),
        ("toys.py:regression", "name the module as in an import"),
        ("toys:", "not of the form module:function"),
        (":regression", "not of the form module:function"),
        ("raising:f", "module 'raising' raised RuntimeError: the disk is full"),
        ("importing:f", "raised ModuleNotFoundError: No module named 'no_such_package_at_all'"),
        ("toys:raises", "toys:raises raised KeyError: 'no such thing'"),
        ("toys:leaves", "toys:leaves raised SystemExit: bye"),
        ("toys:three", "must return (apply_fn, params, x, y), or with a dict of options"),
        ("toys:number", "got int"),
        ("toys:not_callable", "apply_fn, is not callable but ndarray"),
        ("toys:bad_options", "unknown option 'colour'; known are feature_scale"),
        ("toys:no_dict", "must be a dict; got int"),
        ("toys:wrong_shape", "TypeError: dot_general"),
        ("toys:short", "y must have the shape"),
        ("toys:bad_labels", "y must be labels from 0 to 1"),
        ("toys:probabilities", "look like probabilities"),
    ],
)
def test_a_source_that_cannot_be_had(in_models, tmp_path, monkeypatch, capsys, source, message):
    monkeypatch.delenv("JAXROBUST_DATA", raising=False)
    line = fails(capsys, ["report", source, "-o", str(tmp_path / "out"), *QUICK])
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_data_dir_that_does_not_exist(tmp_path, capsys):
    arguments = ["report", "heart", "-o", str(tmp_path / "out"), "--data-dir", str(tmp_path / "no")]
    line = fails(capsys, [*arguments, "--quiet"])
    assert "does not exist" in line
    assert "name the folder in --data-dir or" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replicates", "0"], "--replicates must be at least 1; got 0"),
        (["--alpha", "0"], "--alpha must be above 0"),
        (["--alpha", "nan"], "--alpha must be above 0"),
        (["--confidence", "95"], "--confidence must be between 0 and 1; got 95.0"),
        (["--probabilities", "0.5", "2"], "--probabilities must be above 0 and at most 1; got 2.0"),
        (["--chunk-size", "0"], "--chunk-size must be at least 1"),
    ],
)
def test_values_out_of_range_name_the_option(tmp_path, capsys, options, message):
    arguments = ["report", "breast-cancer", "-o", str(tmp_path / "out"), *options]
    assert message in fails(capsys, arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "iris", "--scales", "0:1:0.3"], "expected START:STOP:STEP with whole steps"),
        (["report", "iris", "--scales", "1:0:0.1"], "expected START:STOP:STEP"),
        (["report", "iris", "--scales", "0:1:0"], "expected START:STOP:STEP"),
        (["report", "iris", "--scales=-1:1:1"], "expected START:STOP:STEP"),
        (["report", "iris", "--scales", "0"], "expected START:STOP:STEP"),
        (["report", "iris", "--scales", "0:inf:1"], "expected START:STOP:STEP"),
        (["report", "iris", "--loss", "hinge"], "invalid choice: 'hinge'"),
        (["report", "iris", "--outputs", "logit"], "invalid choice: 'logit'"),
        (["report", "iris", "--replicates", "many"], "invalid int value"),
        (["report"], "required"),
        (["rapport"], "invalid choice"),
        ([], "required"),
    ],
)
def test_wrong_usage(capsys, arguments, message):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_scales():
    assert cli._scales("0:1:0.01") == tuple(i / 100 for i in range(101))
    assert cli._scales("0.1:0.5:0.2") == (0.1, 0.3, 0.5)
    assert cli._scales("5") == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert cli._scales("1") == (0.0,)


def test_version_and_datasets(capsys, monkeypatch):
    with pytest.raises(SystemExit) as leaving:
        main(["--version"])
    assert leaving.value.code == 0
    assert capsys.readouterr().out == f"jaxrobust {jaxrobust.__version__}\n"

    monkeypatch.delenv("JAXROBUST_DATA", raising=False)
    assert main(["datasets"]) == 0
    ready, _, missing = capsys.readouterr().out.partition("Not found:")
    assert "breast-cancer" in ready
    assert "mnist" not in ready
    for name, file in (("heart", "heart_cleveland.csv"), ("oecd-flu", "oecd_influenza")):
        assert name in missing
        assert file in missing
    assert "JAXROBUST_DATA" in missing


@pytest.mark.skipif(os.name == "nt", reason="pipes break otherwise")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_leaves_early(tmp_path, buffered):
    """As in ``jaxrobust datasets | head -1``: no complaint, whenever it is found out."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": buffered}
    done = subprocess.run(
        [sys.executable, "-m", "jaxrobust", "datasets", "--data-dir", str(tmp_path)],
        env=environment, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120,
    )  # fmt: skip
    os.close(writing)
    assert done.stderr == ""
    assert done.returncode == cli.NOT_READ


def test_a_broken_pipe_of_the_models_own_is_an_error(tmp_path, monkeypatch, capsys):
    def broken(arguments):
        raise BrokenPipeError(32, "the model's server hung up")

    monkeypatch.setattr(cli, "_datasets", broken)
    assert "the model's server hung up" in fails(capsys, ["datasets"])


def test_options_of_the_function_and_of_the_command_line(make):
    _, data = make("classifier")
    assert data["title"] == "A <b>bold</b> & linear model"
    assert data["sections"]["theta"]["config"]["loss"] == "brier"
    assert data["model"]["num_correct"] == 40


def test_noise_is_called_a_standard_deviation_only_where_it_is_one(make):
    for name, unit, words in (
        ("classifier", "standard deviation", "1 standard deviation on"),
        ("scaled", "feature_scale", "1 times the given scale on"),
    ):
        folder, data = make(name)
        assert data["sections"]["theta"]["config"]["noise_unit"] == unit
        text = (folder / "report.html").read_text()
        assert words in text
        assert ("standard deviation" in text) == (name == "classifier")


def test_debug_shows_where(in_models, tmp_path, capsys):
    arguments = ["report", "toys:raises", "-o", str(tmp_path / "out"), "--debug"]
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "toys.py" in err
