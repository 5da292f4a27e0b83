"""Where a model comes from: a data set of the zoo, or a function of the user's."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrobust.measures.theta import Loss

_OPTIONS = (
    "feature_scale", "where", "integer", "loss", "outputs", "bounds", "image_shape", "title",
)  # fmt: skip
# Data sets of flattened images: the shape of one, and the bounds of its values.
_IMAGES = {"digits": ((8, 8), (0.0, 16.0)), "mnist": ((28, 28), (0.0, 1.0))}
_WANTED = "(apply_fn, params, x, y), or with a dict of options as a fifth"


class SourceError(Exception):
    """A model that cannot be had; the message is for the user."""


class Subject(NamedTuple):
    """A model and the examples to measure it on; see ``robustness_curve`` for the first four.

    Attributes:
        apply_fn: the model.
        params: its parameters.
        x: inputs.
        y: labels or targets.
        feature_scale: units of the noise, or None.
        where: cells that may be perturbed, or None.
        integer: cells that hold whole numbers, or None.
        loss: of the user's, or None.
        outputs: of the user's, or None.
        noise_unit: as in ``ThetaConfig``.
        bounds: ``(lower, upper)`` of the inputs, or None.
        image_shape: of inputs that are flattened images, or None.
        title: for people.
        notes: sentences on the model and its data.
    """

    apply_fn: Callable[[Any, Any], Any]
    params: Any
    x: Any
    y: Any
    feature_scale: Any = None
    where: Any = None
    integer: Any = None
    loss: Loss | None = None
    outputs: str | None = None
    noise_unit: str | None = None
    bounds: Any = None
    image_shape: tuple[int, ...] | None = None
    title: str = "A model"
    notes: tuple[str, ...] = ()


def check_name(source: str) -> None:
    """Raises a SourceError for a name that is no data set and no module:function."""
    if ":" in source:
        _parts(source)
        return
    from jaxrobust.zoo import datasets

    if source not in datasets.names():
        close = difflib.get_close_matches(source.lower().replace("_", "-"), datasets.names(), n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise SourceError(
            f"unknown data set {source!r}.{hint} Known: {', '.join(datasets.names())};"
            " your own model is MODULE:FUNCTION."
        )


def load(source: str, key: jax.Array, data_dir: str | None = None) -> Subject:
    """Loads and trains a network of the zoo, or calls the user's function.

    Args:
        source: a data set's name, or ``module:function``; modules are looked for in the current
            directory too.
        key: typed PRNG key for training.
        data_dir: folder of data files.

    Raises:
        SourceError: if that fails; the message says why in a line.
    """
    check_name(source)
    return _from_function(source) if ":" in source else _from_zoo(source, key, data_dir)


def _from_zoo(name: str, key: jax.Array, data_dir: str | None) -> Subject:
    from jaxrobust.zoo import networks

    try:
        model = networks.load_model(name, key, data_dir=data_dir)
    except (OSError, ValueError) as error:
        raise SourceError(str(error).replace(" data_dir ", " --data-dir ")) from error
    if not model.converged:
        raise SourceError(f"training on {name} ran into infinities; try another --seed.")
    data = model.dataset
    widths = [data.x_train.shape[1], *networks.spec(name).hidden, data.num_classes or 1]
    in_sample = data.x_train.shape == data.x_test.shape and (data.x_train == data.x_test).all()
    where = "the same examples" if in_sample else f"{len(data.x_train):,} other examples"
    shape = "-".join(map(str, widths))
    return Subject(
        apply_fn=model.apply_fn,
        params=model.params,
        x=data.x_test,
        y=data.y_test,
        feature_scale=data.feature_scale,
        where=data.numeric,
        integer=data.integer if data.integer.any() else None,
        noise_unit="standard deviation",
        bounds=_IMAGES[name][1] if name in _IMAGES else None,
        image_shape=_IMAGES[name][0] if name in _IMAGES else None,
        title=data.title,
        notes=(
            f"A fully connected network of widths {shape}, trained on {where}.",
            "Noise is in units of each feature's standard deviation over the training examples.",
            f"Data: {data.source.rstrip('.')}.",
        ),
    )


def _parts(source: str) -> tuple[str, str]:
    module, _, function = source.partition(":")
    if module.endswith(".py") or "/" in module or os.sep in module:
        raise SourceError(
            f"{source!r} names a file; name the module as in an import, package.module:function,"
            " and run in the folder that holds it."
        )
    if not all(part.isidentifier() for part in [*module.split("."), *function.split(".")]):
        raise SourceError(f"{source!r} is not of the form module:function.")
    return module, function


def _from_function(source: str) -> Subject:
    module_name, function_name = _parts(source)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise SourceError(
                f"there is no module {missing!r} in {here} or on Python's path."
            ) from error
        raise SourceError(f"module {module_name!r} raised {describe(error)}") from error
    except (Exception, SystemExit) as error:
        raise SourceError(f"module {module_name!r} raised {describe(error)}") from error
    function: Any = module
    for name in function_name.split("."):
        if not hasattr(function, name):
            close = difflib.get_close_matches(name, dir(function), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise SourceError(f"module {module_name!r} has no function {name!r}.{hint}")
        function = getattr(function, name)
    if not callable(function):
        raise SourceError(f"{source} is not a function but {type(function).__name__}.")
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise SourceError(f"{source} raised {describe(error)}") from error
    return _subject(source, returned)


def _subject(source: str, returned: Any) -> Subject:
    """Checks what the user's function returned."""
    if not isinstance(returned, (tuple, list)) or len(returned) not in (4, 5):
        length = f" of {len(returned)}" if isinstance(returned, (tuple, list)) else ""
        raise SourceError(f"{source} must return {_WANTED}; got {type(returned).__name__}{length}.")
    apply_fn, params, x, y, *rest = returned
    if not callable(apply_fn):
        raise SourceError(
            f"{source} must return {_WANTED}; the first, apply_fn, is not callable but"
            f" {type(apply_fn).__name__}."
        )
    options = rest[0] if rest else {}
    if not isinstance(options, dict):
        raise SourceError(
            f"{source}: the fifth of what it returns must be a dict; got {type(options).__name__}."
        )
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise SourceError(
            f"{source}: unknown option {unknown[0]!r}; known are {', '.join(_OPTIONS)}."
        )
    options = {name: value for name, value in options.items() if value is not None}
    # Plain lists are welcome; whether they fit is for the measure to say.
    x, y = (a if hasattr(a, "dtype") else np.asarray(a) for a in (x, y))
    return Subject(apply_fn, params, x, y, **{"title": source, **options})


def describe(error: BaseException) -> str:
    """An exception on one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
