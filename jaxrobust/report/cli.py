"""The command line: ``jaxrobust report``, ``jaxrobust compare`` and ``jaxrobust datasets``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import pathlib
import re
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from jaxrobust.version import __version__

T = TypeVar("T")

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]

INTERRUPTED = 130
NOT_READ = 141  # what a shell says of a program that wrote to a pipe that nobody reads
FAILED = 1

_EPILOG = """\
examples:
  jaxrobust report breast-cancer -o out/
  jaxrobust report mymodule:make --preset quick --probabilities 1
  jaxrobust compare out/ other/ -o comparison/

mymodule:make is a function in mymodule.py that returns (apply_fn, params, x, y), or with a dict of
options as a fifth: feature_scale, where, integer, loss, outputs, bounds, image_shape, title.
"""


class _UserError(Exception):
    """A mistake of the user's: one line, no traceback."""


class _StillRunning(KeyboardInterrupt):
    """Ctrl-C, while compiled code goes on: it cannot be stopped."""


class _NotRead(Exception):
    """Nobody reads standard output any more."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status.

    Args:
        argv: arguments without the program's name; None means those of the process.

    Returns:
        0, or 1 after an error (a line on standard error says which), 130 after Ctrl-C, or 141 if
        nobody reads what it prints. Wrong usage leaves through SystemExit with status 2, as
        argparse does.
    """
    arguments = _parser().parse_args(argv)
    # A terminal that cannot show a sigma should print a question mark, not fail.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return arguments.run(arguments)
    except _NotRead:
        _silence()
        return NOT_READ
    except KeyboardInterrupt as stop:
        print(f"\ninterrupted{_kept(arguments)}", file=sys.stderr)
        if isinstance(stop, _StillRunning):
            _leave_at_once()
        return INTERRUPTED
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"jaxrobust: error: {_one_line(error)}", file=sys.stderr)
        return FAILED


def _say(text: str = "") -> None:
    """Prints a line, and tells a reader that left early (``| head -1``) from other errors."""
    try:
        print(text, flush=True)
    except BrokenPipeError as error:
        raise _NotRead from error


def _silence() -> None:
    """Sends standard output nowhere: Python flushes once more when it exits, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxrobust",
        description="How robust is a trained network? Reports and comparisons.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxrobust {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    report = commands.add_parser(
        "report",
        help="measure a model and write its robustness card",
        description="Measures a model's robustness in four ways and writes its robustness card:"
        " report.json, report.html and plots.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.set_defaults(run=_report)
    report.add_argument("source", metavar="NAME_OR_MODULE:FUNCTION", help="a data set, or yours")
    report.add_argument("-o", "--output", metavar="DIR", help="default: report-NAME")
    report.add_argument(
        "--preset",
        choices=("quick", "standard", "paper"),
        default="standard",
        help="a first look, the usual card (default), or the papers' sizes throughout",
    )
    report.add_argument(
        "--resume", action="store_true", help="go on with what an interrupted run left in DIR"
    )
    report.add_argument(
        "--overwrite", action="store_true", help="replace the report of another run in DIR"
    )
    report.add_argument(
        "--sections",
        nargs="+",
        metavar="NAME",
        choices=("theta", "flip", "distance", "directional", "clever", "agreement"),
        help="only these: theta flip distance directional clever agreement",
    )
    report.add_argument("--seed", type=int, default=0)
    report.add_argument(
        "--data-dir", metavar="DIR", help="folder of data files (default: $JAXROBUST_DATA)"
    )
    report.add_argument("--quiet", action="store_true", help="no progress on standard error")
    model = report.add_argument_group("the model")
    model.add_argument(
        "--loss", choices=("mse", "brier"), help="default: brier for whole-number y, else mse"
    )
    model.add_argument(
        "--outputs",
        choices=("logits", "probabilities"),
        help="what the model gives (default: logits)",
    )
    model.add_argument(
        "--chunk-size", type=int, metavar="N", help="inputs for one call of the model"
    )
    numbers = report.add_argument_group("instead of the preset's settings")
    numbers.add_argument("--replicates", type=int, metavar="M", help="noise draws of theta")
    numbers.add_argument("--alpha", type=float, help="chance that the loss exceeds theta")
    numbers.add_argument("--confidence", type=float, help="of every interval")
    numbers.add_argument(
        "--scales",
        type=_scales,
        metavar="START:STOP:STEP|NUM",
        help="noise levels, both ends included; or so many from 0 to 1",
    )
    numbers.add_argument(
        "--probabilities",
        type=float,
        nargs="+",
        metavar="P",
        help="of a value being perturbed, one theta curve each",
    )
    numbers.add_argument(
        "--examples", type=int, metavar="N", help="examples of all sections but theta"
    )
    numbers.add_argument("--sigma", type=float, help="noise level of the flip probabilities")
    numbers.add_argument("--norm", choices=("l1", "l2", "linf"), help="of attacks and CLEVER")
    numbers.add_argument("--eps", type=float, help="budget of the attacks")

    compare = commands.add_parser(
        "compare",
        help="rank reports by the robustness index, beside f(1)",
        description="Compares reports by the robustness index (shape) beside f(1) (scale); prints"
        " both and writes compare.json, compare.html and plots.",
    )
    compare.set_defaults(run=_compare)
    compare.add_argument("folders", nargs="+", metavar="DIR", help="folders made by report")
    compare.add_argument("-o", "--output", metavar="DIR", default="comparison")
    compare.add_argument("--probability", type=float, default=1.0, metavar="P")

    datasets = commands.add_parser("datasets", help="list the data sets, and how to get them")
    datasets.set_defaults(run=_datasets)
    datasets.add_argument("--data-dir", metavar="DIR")

    for command in (report, compare, datasets):
        command.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def _report(arguments: argparse.Namespace) -> int:
    """Makes the robustness card of one model."""
    start = time.perf_counter()
    from jaxrobust.report import card, document, sources

    # All that can be wrong without running anything comes first.
    sources.check_name(arguments.source)
    with _named_by_option():
        config = card.preset(arguments.preset, **_settings(arguments))
    folder = _folder(arguments)
    _check_folder(folder)
    if not arguments.overwrite:
        _check_other_run(folder, arguments.source, arguments.seed, config.sections)

    mesh = _all_devices()
    import jax
    import numpy as np

    progress = not arguments.quiet

    def measure() -> card.RobustnessCard:
        train_key, key = jax.random.split(jax.random.key(arguments.seed))
        if progress:
            print(f"loading {arguments.source} ...", file=sys.stderr)
        subject = sources.load(arguments.source, train_key, arguments.data_dir)
        loaded = time.perf_counter() - start
        theta = dataclasses.replace(
            config.theta,
            loss=arguments.loss or subject.loss,
            outputs=arguments.outputs or subject.outputs or "logits",
            noise_unit=subject.noise_unit,
        )
        chosen = dataclasses.replace(
            config, theta=theta, bounds=subject.bounds, image_shape=subject.image_shape
        )
        context = document.Context(
            subject.title, arguments.source, arguments.seed, subject.notes, {"load": loaded}
        )
        with _named_by_option():
            if progress:
                x, y = np.asarray(subject.x), np.asarray(subject.y)
                cost = card.plan(subject.apply_fn, subject.params, x, y, chosen)
                print(cost, file=sys.stderr, flush=True)
            return card.robustness_card(
                subject.apply_fn,
                subject.params,
                key,
                subject.x,
                subject.y,
                config=chosen,
                feature_scale=subject.feature_scale,
                where=subject.where,
                integer=subject.integer,
                context=context,
                folder=folder,
                resume=arguments.resume,
                mesh=mesh,
                progress=progress,
            )

    found = _interruptible(measure)
    cost, seconds = found.data["cost"], time.perf_counter() - start
    path = pathlib.Path(folder) / "report.html"
    _say(f"wrote {path} and report.json ({cost['model_inputs']:,} model inputs, {seconds:.0f} s)")
    _say(str(found))
    return 0


def _folder(arguments: argparse.Namespace) -> str:
    """Where a report goes."""
    return arguments.output or "report-" + re.sub(r"[^\w.-]+", "-", arguments.source)


def _kept(arguments: argparse.Namespace) -> str:
    """What is said of the finished sections of an interrupted report, if there are any."""
    if arguments.run is not _report:
        return ""
    from jaxrobust.report.card.saved import FOLDER

    kept = (pathlib.Path(_folder(arguments)) / FOLDER).exists()
    return "; finished sections are kept, and --resume goes on with them" if kept else ""


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line changes; the others are the preset's."""
    asked = {
        "num_replicates": arguments.replicates,
        "alpha": arguments.alpha,
        "confidence": arguments.confidence,
        "chunk_size": arguments.chunk_size,
        "probabilities": arguments.probabilities and tuple(arguments.probabilities),
        "scales": arguments.scales,
        "sections": arguments.sections and tuple(arguments.sections),
        "num_examples": arguments.examples,
        "sigma": arguments.sigma,
        "eps": arguments.eps,
        "norm": arguments.norm,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _all_devices() -> Any:
    """A mesh of all devices, which share the draws; on a CPU every core counts as one.

    The draws do not depend on it, and counts agree bit for bit.
    """
    import jax

    # Heeded only before the first use of JAX in a process: later there is one CPU device.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    devices = jax.devices()
    return jax.sharding.Mesh(devices, ("replicates",)) if len(devices) > 1 else None


def _compare(arguments: argparse.Namespace) -> int:
    """Compares several reports."""
    if len(arguments.folders) < 2:
        raise _UserError("compare needs at least two folders; got 1.")
    _check_folder(arguments.output)
    from jaxrobust.report import compare

    data = compare.compare(arguments.folders, arguments.probability)
    path = compare.write(data, arguments.output)
    _say(compare.as_text(data))
    _say(f"\nwrote {path} and compare.json")
    return 0


def _datasets(arguments: argparse.Namespace) -> int:
    """Lists what ``report`` can load by name."""
    from jaxrobust.zoo import datasets

    ready = datasets.available(arguments.data_dir)
    missing = [name for name in datasets.names() if name not in ready]
    _say("Ready:")
    for name in ready:
        _say(f"  {name:15} {datasets.load(name, data_dir=arguments.data_dir).title}")
    if missing:
        _say("\nNot found:")
    for name in missing:
        try:
            datasets.load(name, data_dir=arguments.data_dir)
        except OSError as error:
            _say(textwrap.fill(f"{name:15} {error}", 96, initial_indent="  ",
                               subsequent_indent=" " * 18))  # fmt: skip
    return 0


def _scales(text: str) -> tuple[float, ...]:
    """Noise levels from START:STOP:STEP or their number."""
    parts = text.split(":")
    try:
        if len(parts) == 1:
            num = int(text)
            if num < 1:
                raise ValueError
            return tuple(i / max(1, num - 1) for i in range(num))
        start, stop, step = map(float, parts)
        num = round((stop - start) / step)
        if not (step > 0 and stop >= start >= 0 and abs(start + num * step - stop) < 1e-6 * step):
            raise ValueError
        # Ten significant digits: 0.29, not 0.29000000000000004.
        return tuple(float(f"{start + i * step:.10g}") for i in range(num + 1))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"expected START:STOP:STEP with whole steps, such as 0:1:0.01, or how many noise levels"
            f" from 0 to 1, such as 21; got {text!r}"
        ) from None


def _check_folder(folder: str) -> None:
    from jaxrobust.report import files

    try:
        files.check_writable(folder)
    except OSError as error:
        raise _UserError(f"cannot write to {folder}: {error.strerror or error}") from error


def _check_other_run(folder: str, source: str, seed: int, sections: Sequence[str]) -> None:
    """Refuses to replace what a repetition of this run would not bring back."""
    from jaxrobust.report import schema

    try:
        there = schema.read_report(pathlib.Path(folder))
    except (OSError, schema.ReportError):
        return  # there is none, or none that could be read
    other = (there["model"].get("source"), there.get("seed"))
    lost = sorted(set(there["sections"]) - {"preflight", *sections})
    if other != (source, seed):
        reason = f"the report of another run ({other[0] or 'not from here'}, seed {other[1]})"
    elif lost:
        reason = f"a report with sections that this run does not make ({', '.join(lost)})"
    else:
        return
    raise _UserError(f"{folder} holds {reason}. Choose another folder, or give --overwrite.")


@contextlib.contextmanager
def _named_by_option() -> Iterator[None]:
    """Speaks of command-line options where the library names its arguments."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        for argument, option in (("num_replicates", "--replicates"), ("alpha", "--alpha"),
                                 ("confidence", "--confidence"), ("scales", "--scales"),
                                 ("probabilities", "--probabilities"),
                                 ("chunk_size", "--chunk-size"), ("num_examples", "--examples"),
                                 ("sigma", "--sigma"), ("eps", "--eps")):  # fmt: skip
            if text.startswith(f"{argument} "):
                raise _UserError(option + text[len(argument) :]) from error
        raise


def _one_line(error: Exception) -> str:
    """The message of an error: alone if it is one of ours, else with its kind."""
    from jaxrobust.report.sources import describe

    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    ours = frames and pathlib.Path(frames[-1].filename).is_relative_to(_PACKAGE)
    if lines and (ours or isinstance(error, OSError)):
        return lines[0]
    return f"{describe(error)} (--debug shows where)"


def _interruptible(work: Callable[[], T]) -> T:
    """Runs ``work`` in a thread, so that Ctrl-C is answered at once, also by compiled code.

    Python delivers Ctrl-C to the main thread between bytecodes. Waiting for XLA there would put it
    off until a curve is finished.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except KeyboardInterrupt as stop:
        raise _StillRunning from stop
    if failure:
        raise failure[0]
    return outcome[0]


def _leave_at_once() -> None:
    """Ends the process without the interpreter's own farewells, which may wait for compiled code.

    Finished sections are saved, so skipping them loses nothing.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
