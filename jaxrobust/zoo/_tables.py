"""Each data set as a plain table, read from scikit-learn or from its files."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sklearn.datasets

from jaxrobust.zoo import _files

Paths = Sequence[pathlib.Path]


class Table(NamedTuple):
    """A data set before it is split.

    Attributes:
      x: ``[n, d]`` inputs in raw units.
      y: ``[n]`` labels or targets.
      feature_names: ``d`` names.
      categorical: The names of columns that noise must not touch.
      integer: The names of numeric columns whose raw units are whole numbers.
      test: The evaluation set ``(x, y)`` where it is given; None asks for a 75/25 split.
    """

    x: np.ndarray
    y: np.ndarray
    feature_names: Sequence[str]
    categorical: Iterable[str] = ()
    integer: Iterable[str] = ()
    test: tuple[np.ndarray, np.ndarray] | None = None


def _embedded(bunch: Any, **kinds: Any) -> Table:
    return Table(bunch.data, bunch.target, [str(name) for name in bunch.feature_names], **kinds)


def breast_cancer(paths: Paths) -> Table:
    """Wisconsin diagnostic breast cancer, from scikit-learn."""
    return _embedded(sklearn.datasets.load_breast_cancer())


def iris(paths: Paths) -> Table:
    """Fisher's iris, from scikit-learn."""
    return _embedded(sklearn.datasets.load_iris())


def wine(paths: Paths) -> Table:
    """Wine, from scikit-learn; two of its measurements were noted in whole numbers."""
    return _embedded(sklearn.datasets.load_wine(), integer=("magnesium", "proline"))


def digits(paths: Paths) -> Table:
    """Digits of 8x8, from scikit-learn; each value counts the inked pixels of a 4x4 block."""
    bunch = sklearn.datasets.load_digits()
    return _embedded(bunch, integer=bunch.feature_names)


_HEART_NUMERIC = ("age", "trestbps", "chol", "thalach", "oldpeak")
_HEART_CATEGORIES = {
    "sex": (0, 1),
    "cp": (1, 2, 3, 4),
    "fbs": (0, 1),
    "restecg": (0, 1, 2),
    "exang": (0, 1),
    "slope": (1, 2, 3),
    "ca": (0, 1, 2, 3),
    "thal": (3, 6, 7),
}
HEART_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)


def heart(paths: Paths) -> Table:
    """Cleveland heart disease: complete rows, 5 numeric columns, then 8 categories one-hot."""
    (path,) = paths
    rows = _files.read_csv(path)
    _files.check_rows(path, rows, 303, len(HEART_COLUMNS))
    table = _files.numbers(path, [row for row in rows if "?" not in row])
    column = dict(zip(HEART_COLUMNS, table.T, strict=True))
    parts = [column[feature] for feature in _HEART_NUMERIC]
    one_hot = []
    for feature, categories in _HEART_CATEGORIES.items():
        if not np.isin(column[feature], categories).all():
            raise ValueError(f"{path}: column {feature} must hold only the values {categories}.")
        for category in categories:
            one_hot.append(f"{feature}={category}")
            parts.append(column[feature] == category)
    return Table(
        np.stack(parts, axis=1),
        column["num"] > 0,
        (*_HEART_NUMERIC, *one_hot),
        categorical=one_hot,
        integer=("age", "trestbps", "chol", "thalach"),
    )


def ionosphere(paths: Paths) -> Table:
    """Radar returns; label 1 is good. The first column says yes or no."""
    (path,) = paths
    rows = _files.read_csv(path)
    if rows and rows[0][-1] not in ("g", "b"):
        rows = rows[1:]
    _files.check_rows(path, rows, 351, 35)
    unknown = {row[-1] for row in rows} - {"g", "b"}
    if unknown:
        raise ValueError(f"{path} must hold the labels g and b only; got {sorted(unknown)}.")
    good = np.array([row[-1] == "g" for row in rows])
    x = _files.numbers(path, [row[:-1] for row in rows])
    return Table(x, good, [f"a{j + 1}" for j in range(34)], categorical=("a1",))


def _in_sample(x: np.ndarray, y: np.ndarray, name: str) -> Table:
    return Table(x[:, None], y, (name,), integer=(name,), test=(x[:, None], y))


def oecd_cancer(paths: Paths) -> Table:
    """Deaths from cancer in the USA, by year."""
    (path,) = paths
    header, *rows = _files.read_csv(path) or [[]]
    missing = [key for key in ("TIME", "Value") if key not in header]
    if missing:
        raise ValueError(f"{path} must have the columns TIME and Value; got {header}.")
    years = {str(year) for year in range(1990, 2021)}
    # A download may hold other countries, sexes and years than the 31 of the paper.
    pairs = [
        [record["TIME"], record["Value"]]
        for record in (dict(zip(header, row, strict=False)) for row in rows)
        if record.get("LOCATION", "USA") == "USA"
        and record.get("SUBJECT", "TOT") == "TOT"
        and record["TIME"] in years
    ]
    _files.check_rows(path, pairs, 31, 2)
    year, deaths = _files.numbers(path, sorted(pairs)).T
    return _in_sample(year, deaths, "year")


def oecd_flu(paths: Paths) -> Table:
    """Influenza vaccination of the over-65s in 31 countries, by rank."""
    (path,) = paths
    rows = _files.read_csv(path)[1:]
    _files.check_rows(path, rows, 31, 3)
    (percentage,) = _files.numbers(path, [row[-1:] for row in rows]).T
    # The paper's input is the row's index in a table it does not show. With countries in
    # alphabetical order the target is noise in that index, and the robustness curve is two thirds
    # of the way to its ceiling by sigma = 0.1. In order of the percentage, a network of the
    # published error has Gompertz parameters within about a tenth of the published ones.
    return _in_sample(np.arange(31.0), np.sort(percentage), "rank")


def mnist(paths: Paths) -> Table:
    """MNIST from one npz archive or four idx files, flattened, in [0, 1]."""
    keys = ("x_train", "y_train", "x_test", "y_test")
    if len(paths) == 1:
        with np.load(io.BytesIO(_files.read_bytes(paths[0]))) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise ValueError(
                    f"{paths[0]} must hold the arrays {', '.join(keys)}; no {missing}."
                )
            arrays = [archive[key] for key in keys]
    else:
        arrays = [_files.read_idx(path) for path in paths]
    x_train, y_train, x_test, y_test = arrays
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if x.ndim != 3 or y.shape != x.shape[:1] or x.shape[1:] != x_train.shape[1:]:
            raise ValueError(
                f"{paths[0].parent}: images must have shape [n, height, width], alike in both"
                f" parts, and labels [n]; got {x.shape} and {y.shape}."
            )
        if x.dtype != np.uint8:
            raise ValueError(f"{paths[0]} must hold images of uint8, 0 to 255; got {x.dtype}.")
    chosen = _balanced(y_test)
    height, width = x_train.shape[1:]
    return Table(
        _pixels(x_train),
        y_train,
        [f"pixel_{row}_{column}" for row in range(height) for column in range(width)],
        test=(_pixels(x_test[chosen]), y_test[chosen]),
    )


def _pixels(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def _balanced(labels: np.ndarray, num_classes: int = 10, per_class: int = 100) -> np.ndarray:
    """Indices of ``per_class`` examples of each class, evenly spaced through the file.

    Evenly spaced, because the halves of MNIST's test set come from different groups of writers,
    and one is easier than the other.
    """
    chosen = []
    for label in range(num_classes):
        members = np.flatnonzero(labels == label)
        if len(members) < per_class:
            raise ValueError(
                f"MNIST's test labels must hold each digit {per_class} times;"
                f" got digit {label} {len(members)} times."
            )
        chosen.append(members[np.arange(per_class) * len(members) // per_class])
    return np.sort(np.concatenate(chosen))
