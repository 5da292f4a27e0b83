"""Writing a folder of results so that nobody ever finds half of it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping

# Files of ours that may be replaced, or removed when a new report no longer has them.
_OURS = re.compile(r"(?:report|compare)\.(?:json|html)|plots/[\w.+-]+\.svg")


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Raises an OSError unless a folder could be made or written now. Leaves nothing behind."""
    target = pathlib.Path(folder).absolute()
    for place in (target, *target.parents):
        if place.is_dir():
            # Asking beats looking at permission bits: read-only disks and quotas count too.
            with tempfile.TemporaryFile(dir=place):
                pass
            break
        if place.exists() or place.is_symlink():
            raise NotADirectoryError(f"{place} exists and is not a folder")
    plots = target / "plots"
    if (plots.exists() or plots.is_symlink()) and not plots.is_dir():
        raise NotADirectoryError(f"{plots} exists and is not a folder")


def write_folder(folder: str | os.PathLike[str], files: Mapping[str, str], manifest: str) -> None:
    """Writes text files into a folder, all or nothing as far as a file system allows.

    Everything is first written into a hidden folder and then moved by ``os.replace``. A new folder
    appears complete. In an existing one, files of earlier results with these names are replaced,
    those named by the earlier manifest and gone from the new one are removed, and all else stays.

    Args:
        folder: the target; made if need be, with its parents.
        files: relative names (with ``/``) and their contents.
        manifest: which of them is the JSON whose "files" lists the others; it is moved last.

    Raises:
        OSError: if the folder cannot be written.
    """
    target = pathlib.Path(folder).absolute()
    exists = target.is_dir()
    made = _missing_parents(target)
    # Beside the target if that is new, so that one rename does it; inside it otherwise, since the
    # target may be the root of another file system.
    place = target if exists else target.parent
    staging = None
    try:
        place.mkdir(parents=True, exist_ok=True)
        staging = pathlib.Path(tempfile.mkdtemp(prefix=".jaxrobust-", dir=place))
        for name, text in files.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
        with _uninterrupted():
            if exists:
                _move_into(staging, target, files, manifest)
            else:
                staging.chmod(0o777 & ~_umask())
                os.replace(staging, target)
        made = []
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()


def _move_into(
    staging: pathlib.Path, target: pathlib.Path, files: Mapping[str, str], manifest: str
) -> None:
    stale = _listed(target / manifest) - set(files)
    for name in sorted(files, key=lambda name: name == manifest):
        (target / name).parent.mkdir(exist_ok=True)
        os.replace(staging / name, target / name)
    for name in stale:
        (target / name).unlink(missing_ok=True)


def _listed(manifest: pathlib.Path) -> set[str]:
    """The files that an earlier manifest says are ours; only names that we could have written."""
    try:
        names = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        return {name for name in names if _OURS.fullmatch(name)}
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _missing_parents(target: pathlib.Path) -> list[pathlib.Path]:
    """Parents that do not exist yet, the innermost first."""
    return [parent for parent in target.parents if not parent.exists()]


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignores Ctrl-C for the moment that the files take to move: by then the work is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
