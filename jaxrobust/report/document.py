"""A whole report: sections, where they come from, and the three forms they are written in."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import pathlib
import platform
from typing import Any, NamedTuple

import jax

from jaxrobust.report import files, page, schema, sections, svg, theta_json
from jaxrobust.report.formats import estimate, show, show_count, show_interval, show_share
from jaxrobust.report.theta import Clean, ThetaReport
from jaxrobust.version import __version__

_PACKAGES = (
    "jaxrobust",
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "optax",
    "optimistix",
    "flax",
    "scikit-learn",
    "matplotlib",
)


class Context(NamedTuple):
    """Where a report comes from; all of it is for the reader.

    Attributes:
        title: of the model.
        source: data set, or ``module:function``.
        seed: of the command line.
        notes: sentences on the model and its data.
        seconds: time spent before measuring: ``{"load": ...}``.
    """

    title: str = "A model"
    source: str | None = None
    seed: int | None = None
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = {}  # noqa: RUF012 (never changed)


def to_json(report: ThetaReport, context: Context | None = None) -> dict[str, Any]:
    """A theta report as JSON, of the schema in :mod:`jaxrobust.report.schema`.

    Args:
        report: what :func:`jaxrobust.report.theta_report` found.
        context: where it comes from; None means an unnamed model.

    Returns:
        An object of strings, numbers, lists and None: no NaN, no infinity.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxrobust.report import ThetaConfig, theta_report, to_json
        >>> config = ThetaConfig(scales=(0.0, 1.0), num_replicates=60, num_resamples=0)
        >>> x = jnp.arange(6.0).reshape(6, 1)
        >>> found = theta_report(
        ...     lambda w, x: x @ w, jnp.ones((1, 1)), jax.random.key(0), x, x + 1.0, config=config
        ... )
        >>> to_json(found)["sections"]["theta"]["baseline"]
        1.0
    """
    context = context or Context()
    return assemble(
        {"theta": theta_json.theta_data(report)},
        {
            **model_json(report.clean, report.config.confidence),
            "source": context.source,
            "notes": list(context.notes),
        },
        context,
        model_inputs=report.num_inputs,
        seconds=report.seconds,
    )


def write(
    report: ThetaReport, folder: str | os.PathLike[str], context: Context | None = None
) -> pathlib.Path:
    """Writes report.json, report.html and plots/*.svg of a theta report into a folder.

    A new folder appears complete or not at all; in an existing one only files of earlier reports
    are replaced.

    Args:
        report: what :func:`jaxrobust.report.theta_report` found.
        folder: made if need be.
        context: where it comes from.

    Returns:
        The path of report.html.

    Raises:
        OSError: if the folder cannot be written.
        ImportError: without Matplotlib.

    Example:
        >>> import tempfile, jax, jax.numpy as jnp
        >>> from jaxrobust.report import ThetaConfig, theta_report, write
        >>> config = ThetaConfig(scales=(0.0, 1.0), num_replicates=60, num_resamples=0)
        >>> x = jnp.arange(6.0).reshape(6, 1)
        >>> found = theta_report(
        ...     lambda w, x: x @ w, jnp.ones((1, 1)), jax.random.key(0), x, x + 1.0, config=config
        ... )
        >>> write(found, tempfile.mkdtemp()).name
        'report.html'
    """
    return write_data(to_json(report, context), folder)


def write_data(data: dict[str, Any], folder: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a report that is JSON already; see :func:`write`."""
    files.write_folder(folder, render(data), manifest="report.json")
    return pathlib.Path(folder) / "report.html"


def render(data: dict[str, Any]) -> dict[str, str]:
    """The files of a report: names relative to its folder, and their contents."""
    shown = _shown(data)
    drawn = {name: renderer.draw(data["sections"][name]) for name, renderer in shown.items()}
    out = {f"plots/{plot.name}.svg": plot.svg for plots in drawn.values() for plot in plots}
    out["report.html"] = _html(data, drawn)
    out["report.json"] = schema.dumps({**data, "files": sorted(out)})
    return out


def summary_of(data: dict[str, Any]) -> list[str]:
    """The plain sentences at the top of the page."""
    sentences = [_model_sentence(data["model"], data)]
    left_out: dict[str, list[str]] = {}
    for name, renderer in _shown(data).items():
        section = data["sections"][name]
        sentences += renderer.summary(section)
        if "left_out" in section:
            left_out.setdefault(section["left_out"], []).append(sections.IN_WORDS[name])
    for reason, names in left_out.items():
        sentences.append(f"Not measured: {', '.join(names)}, as {reason}.")
    return sentences


def _shown(data: dict[str, Any]) -> dict[str, sections.Renderer]:
    """The sections this version knows, in the order of the page."""
    return {name: r for name, r in sections.RENDERERS.items() if name in data["sections"]}


def environment() -> dict[str, Any]:
    """Versions and machine, without anything that names the user or the host."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    packages["jaxrobust"] = __version__
    devices = jax.devices()
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "num_cpus": os.cpu_count(),
        "devices": [f"{d.platform}: {d.device_kind}" for d in devices],
        "x64": jax.numpy.result_type(float) == "float64",
        "packages": packages,
    }


def assemble(
    parts: dict[str, dict[str, Any]],
    model: dict[str, Any],
    context: Context,
    *,
    model_inputs: int,
    seconds: dict[str, float],
    gradients: int = 0,
) -> dict[str, Any]:
    """A whole report as JSON, from the JSON of its sections and of its model."""
    seconds = {**context.seconds, **seconds}
    return {
        "schema": schema.REPORT,
        "version": schema.VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "title": context.title,
        "model": model,
        "seed": context.seed,
        "environment": environment(),
        "cost": {
            "model_inputs": model_inputs,
            "gradients": gradients,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        },
        "sections": parts,
        "files": [],
    }


def model_json(clean: Clean, confidence: float) -> dict[str, Any]:
    """The model without noise."""
    regression = clean.num_correct is None
    return {
        "task": "regression" if regression else "classification",
        "num_examples": clean.num_examples,
        "input_shape": list(clean.input_shape),
        "num_features": clean.num_features,
        "num_perturbed": clean.num_perturbed,
        "num_outputs": clean.num_outputs,
        "num_correct": clean.num_correct,
        "confidence": confidence,
        "accuracy": estimate(float("nan"), reason="a regression has no accuracy")
        if clean.num_correct is None
        else estimate(clean.num_correct / clean.num_examples, clean.accuracy_interval),
    }


def _html(data: dict[str, Any], drawn: dict[str, list[svg.Plot]]) -> str:
    model, cost, shown = data["model"], data["cost"], _shown(data)
    parts = data["sections"]
    body = "".join(r.html(parts[name], drawn[name]) for name, r in shown.items())
    body += "<h2>How to read this</h2>"
    body += "".join(r.how_to_read(parts[name]) for name, r in shown.items())
    body += "<h2>How this was made</h2>"
    packages = data["environment"]["packages"]
    machine = data["environment"]
    made = [
        ("Source", model["source"] or "a Python call"),
        (
            "Data",
            f"{show_count(model['num_examples'])} examples of {show_count(model['num_features'])}"
            f" features, of which {show_count(model['num_perturbed'])} get noise.",
        ),
        *([("Notes", " ".join(model["notes"]))] if model["notes"] else []),
        ("Seed", "none given" if data["seed"] is None else str(data["seed"])),
        (
            "Cost",
            f"{show_count(cost['model_inputs'])} model inputs and"
            f" {show_count(cost['gradients'])} gradients;"
            f" {', '.join(f'{k} {v:.1f} s' for k, v in cost['seconds'].items())}.",
        ),
        (
            "Environment",
            f"Python {machine['python']} on {machine['platform']} {machine['machine']},"
            f" {machine['num_cpus']} CPUs, {', '.join(sorted(set(machine['devices'])))},"
            f" {'double' if machine['x64'] else 'single'} precision;"
            f" {', '.join(f'{name} {version}' for name, version in packages.items())}.",
        ),
        ("Data file", "All numbers, with full precision: report.json, in the same folder."),
    ]
    kicker = f"Robustness report · {data['created'][:10]} · jaxrobust {packages['jaxrobust']}"
    return page.page(data["title"], kicker, summary_of(data), body + page.definitions(made))


def _model_sentence(model: dict[str, Any], data: dict[str, Any]) -> str:
    """How good the model is without noise."""
    baseline = data["sections"].get("theta", {}).get("baseline")
    n = show_count(model["num_examples"])
    if model["num_correct"] is None:
        return f"Measured on {n} examples" + (
            f"; the loss without noise is {show(baseline)}." if baseline is not None else "."
        )
    accuracy = model["accuracy"]
    return (
        f"Without noise the model labels {show_count(model['num_correct'])} of {n} examples"
        f" correctly ({show_share(round(accuracy['value'], 4))};"
        f" {show_share(model['confidence'])} interval over the choice of examples"
        f" {show_interval(accuracy['interval'])})."
    )
