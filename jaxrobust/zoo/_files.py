"""Finding and reading the files of data sets that are not embedded."""

from __future__ import annotations

import csv
import gzip
import math
import os
import pathlib
from collections.abc import Sequence

import numpy as np

ENVIRONMENT_VARIABLE = "JAXROBUST_DATA"

# Sets of file names, best first; one complete set is enough.
Choices = Sequence[tuple[str, ...]]


def folder(data_dir: str | os.PathLike[str] | None) -> pathlib.Path | None:
    """The data folder: the argument, else the environment variable, else none."""
    if data_dir is None:
        data_dir = os.environ.get(ENVIRONMENT_VARIABLE) or None
    return None if data_dir is None else pathlib.Path(data_dir)


def find(choices: Choices, data_dir: str | os.PathLike[str] | None) -> list[pathlib.Path] | None:
    """The first complete set of files, or None. A file may also be gzipped, its name with .gz."""
    where = folder(data_dir)
    if where is None:
        return None
    for names in choices:
        paths = [_plain_or_gz(where / name) for name in names]
        found = [path for path in paths if path is not None]
        if len(found) == len(names):
            return found
    return None


def require(
    name: str,
    choices: Choices,
    layout: str,
    origin: str,
    data_dir: str | os.PathLike[str] | None,
) -> list[pathlib.Path]:
    """As ``find``, but what is missing raises an error that says how to get it."""
    paths = find(choices, data_dir)
    if paths is not None:
        return paths
    where = folder(data_dir)
    if where is None:
        problem = "and no data folder was given"
    elif not where.is_dir():
        problem = f"and the data folder {where} does not exist"
    else:
        problem = f"which the data folder {where} does not hold"
    files = ", or ".join(" + ".join(names) for names in choices)
    raise FileNotFoundError(
        f"The data set {name!r} needs {files}, {problem}. Expected: {layout}."
        f" Get it from {origin}. Then name the folder in data_dir or in the environment"
        f" variable {ENVIRONMENT_VARIABLE}."
    )


def _plain_or_gz(path: pathlib.Path) -> pathlib.Path | None:
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    return None


def read_bytes(path: pathlib.Path) -> bytes:
    """The contents of a file, decompressed where its name ends in .gz."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def read_csv(path: pathlib.Path) -> list[list[str]]:
    """The rows of a comma-separated file as stripped strings; empty lines are left out."""
    # utf-8-sig: files saved by statistics portals often begin with a byte order mark.
    lines = read_bytes(path).decode("utf-8-sig").splitlines()
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    return [row for row in rows if any(row)]


def check_rows(path: pathlib.Path, rows: Sequence[Sequence[str]], num: int, columns: int) -> None:
    """Checks the number of rows and of columns of a table that was read."""
    widths = {len(row) for row in rows}
    if len(rows) != num or widths != {columns}:
        found = " or ".join(map(str, sorted(widths))) or "0"
        raise ValueError(
            f"{path} must hold {num} rows of {columns} columns; got {len(rows)} rows of {found}."
        )


def numbers(path: pathlib.Path, rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Converts cells to float64; what is not a finite number is reported with its file."""
    try:
        table = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{path} must hold numbers only: {error}.") from error
    if not np.isfinite(table).all():
        raise ValueError(f"{path} must hold finite numbers only.")
    return table


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Reads an idx file of unsigned bytes (LeCun's MNIST format), gzipped or plain.

    The header is two zero bytes, a type code (8 for unsigned bytes), the number of dimensions
    and then each dimension as a big-endian 32-bit integer; the values follow in C order.
    """
    data = read_bytes(path)
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise ValueError(
            f"{path} must be an idx file of unsigned bytes (it begins 00 00 08);"
            f" got {data[:4].hex(' ') or 'an empty file'}."
        )
    header = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, header, 4))
    if len(data) < header or len(data) - header != math.prod(shape):
        raise ValueError(
            f"{path} must hold {math.prod(shape)} values for its shape {shape};"
            f" got {max(len(data) - header, 0)}."
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
