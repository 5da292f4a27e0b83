"""Sections saved as they finish, so that an interrupted card goes on where it stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrobust.report import schema
from jaxrobust.version import __version__

FOLDER = ".card-sections"
_MARK = "fingerprint"


class SavedSections:
    """The finished sections of one card, in a hidden folder until the card is written.

    Args:
        folder: where the card goes; None keeps nothing.
        fingerprint: of everything that the numbers depend on.
        resume: use what an interrupted run of the same fingerprint left.

    Raises:
        FileExistsError: without resuming, if an interrupted run left finished sections.
        ValueError: on resuming what was another run.
        OSError: if the folder cannot be written.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None, fingerprint: str, resume: bool
    ) -> None:
        self._folder = None if folder is None else pathlib.Path(folder) / FOLDER
        self._fingerprint = fingerprint
        if self._folder is None or not self._folder.exists():
            return
        mark = self._folder / _MARK
        finished = sorted(path.stem for path in self._folder.glob("*.json"))
        if not finished:
            shutil.rmtree(self._folder)
        elif not resume:
            raise FileExistsError(
                f"{self._folder.parent} holds finished sections ({', '.join(finished)}) of an"
                " interrupted run. Go on with them by resume=True or --resume, choose another"
                f" folder, or remove {self._folder} to start anew."
            )
        elif not mark.exists() or mark.read_text(encoding="utf-8") != fingerprint:
            raise ValueError(
                f"cannot resume: {self._folder.parent} holds the sections of another run (another"
                " model, data, seed, settings or version). Choose another folder, or remove"
                f" {self._folder} to start anew."
            )

    def get(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A section's JSON: as saved, or computed now and saved."""
        if self._folder is None:
            return json.loads(schema.dumps(compute()))
        path = self._folder / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        text = schema.dumps(compute())
        self._folder.mkdir(parents=True, exist_ok=True)
        _write(self._folder / _MARK, self._fingerprint)
        _write(path, text)
        return json.loads(text)

    def has(self, name: str) -> bool:
        """Whether a section is finished."""
        return self._folder is not None and (self._folder / f"{name}.json").exists()

    def discard(self) -> None:
        """Removes what was saved: the card itself is written."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def fingerprint(config: Any, *arrays: Any) -> str:
    """A digest of settings and of pytrees of arrays."""
    digest = hashlib.sha256(__version__.encode())
    digest.update(repr(_settings(config)).encode())
    for tree in arrays:
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            host = np.asarray(leaf)
            digest.update(f"{jax.tree_util.keystr(path)} {host.shape} {host.dtype}".encode())
            digest.update(np.ascontiguousarray(host).tobytes())
    return digest.hexdigest()


def _settings(value: Any) -> Any:
    """Settings whose text says all: arrays in full, functions by name, not by address."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            (field.name, _settings(getattr(value, field.name)))
            for field in dataclasses.fields(value)
        ]
    if isinstance(value, (tuple, list)):
        return [_settings(part) for part in value]
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def _write(path: pathlib.Path, text: str) -> None:
    """All or nothing, also when the process is killed."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
