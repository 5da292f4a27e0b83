"""Writing: all or nothing, and only our own files."""

import json
import os
import pathlib

import pytest

from jaxrobust.report import files

FIRST = {
    "report.json": json.dumps({"files": ["report.html", "plots/old.svg", "../outside.svg"]}),
    "report.html": "first",
    "plots/old.svg": "first",
}
SECOND = {
    "report.json": json.dumps({"files": ["report.html", "plots/new.svg"]}),
    "report.html": "second",
    "plots/new.svg": "second",
}


def contents(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()
    }


def test_new_folder_with_its_parents(tmp_path):
    files.write_folder(tmp_path / "a" / "b", FIRST, "report.json")
    assert contents(tmp_path / "a" / "b") == FIRST
    assert os.listdir(tmp_path / "a") == ["b"]
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o777 & ~mask


def test_only_our_own_files_are_replaced_or_removed(tmp_path):
    folder = tmp_path / "out"
    (tmp_path / "outside.svg").write_text("not ours")
    files.write_folder(folder, FIRST, "report.json")
    (folder / "mine.txt").write_text("kept")
    (folder / "plots" / "mine.svg").write_text("kept")
    files.write_folder(folder, SECOND, "report.json")
    assert contents(folder) == {**SECOND, "mine.txt": "kept", "plots/mine.svg": "kept"}
    assert (tmp_path / "outside.svg").exists()


@pytest.mark.parametrize("manifest", ["", "[]", '{"files": 3}', '{"files": [null]}'])
def test_a_broken_manifest_removes_nothing(tmp_path, manifest):
    (tmp_path / "report.json").write_text(manifest)
    (tmp_path / "report.html").write_text("old")
    files.write_folder(tmp_path, {"report.json": "{}"}, "report.json")
    assert contents(tmp_path) == {"report.json": "{}", "report.html": "old"}


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("failure", [OSError(28, "full"), KeyboardInterrupt()])
def test_failure_leaves_nothing(tmp_path, monkeypatch, existing, failure):
    folder = tmp_path / "a" / "out"
    if existing:
        files.write_folder(folder, FIRST, "report.json")
    before = contents(tmp_path)
    real = pathlib.Path.write_text

    def fail(self, *args, **kwargs):
        if self.name == "new.svg":
            raise failure
        return real(self, *args, **kwargs)

    monkeypatch.setattr(pathlib.Path, "write_text", fail)
    with pytest.raises(type(failure)):
        files.write_folder(folder, SECOND, "report.json")
    assert contents(tmp_path) == before
    assert [p.name for p in tmp_path.iterdir()] == (["a"] if existing else [])


def test_check_writable_leaves_nothing(tmp_path):
    files.check_writable(tmp_path)
    files.check_writable(tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for target in ("file", "file/below", "file/below/more"):
        with pytest.raises(NotADirectoryError, match="not a folder"):
            files.check_writable(tmp_path / target)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError):
        files.check_writable(tmp_path / "dangling")


def test_results_on_a_symbolic_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files.write_folder(tmp_path / "link", FIRST, "report.json")
    assert contents(tmp_path / "real") == FIRST
    assert (tmp_path / "link").is_symlink()
