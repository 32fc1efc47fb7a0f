"""`warploom tune`: measure candidates on the GPU and remember the winner; `--fit` fits the heuristics."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from warploom.commands.console import output, printable, table
from warploom.commands.sizes import sizes_of
from warploom.diagnostics import Diag
from warploom.heuristics import Device, source_of
from warploom.heuristics.sm90.cost_model import DENSE_16BIT, is_dense_16bit
from warploom.heuristics.sm90.device_data import data_for
from warploom.runtime.cache.winners import SWITCH
from warploom.runtime.gpu.driver import device
from warploom.tuning.contest import OnProgress
from warploom.tuning.data_file import data_text
from warploom.tuning.fitting import device_of, fit_models, load, measured_in, read_document
from warploom.tuning.inputs import Inputs, Wanted
from warploom.tuning.measurements import document
from warploom.tuning.report import Report
from warploom.tuning.tree_fitting import Regrets, cross_validate, fit_trees, import_problem
from warploom.tuning.tuner import tune

_STEPS = {"build": "building", "check": "checking", "measure": "measuring"}
_BATCHED = "BMNK"
_K_MAJOR = ("f32", "e4m3", "e5m2")
"""Types that the tensor core reads along K only."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of the command."""

    sizes: tuple[str, ...]
    most: int | None
    grouped: int = 0
    blockwise: bool = False
    dtype: str | None = None
    majors: str = "k,k"
    out_dtype: str | None = None
    bias: bool = False
    residual: bool = False
    activation: str | None = None


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of the fit."""

    data: Path | None = None
    """The heuristics data file to write."""
    keep_constants: bool = False
    """Fit only trees and table, with the constants that are shipped."""
    cross_validate: bool = False


def tune_all(request: Request, *, as_json: bool, file: Path | None, fit: FitOptions) -> bool:
    """Tune every problem and print its table; return True if the results of all candidates were right.

    With a data file to write, the heuristics are fitted to the measurements.
    """
    wanted = [_wanted(text, request) for text in request.sizes]
    gpu = device(0)
    inputs, reports = Inputs(gpu), []
    if not as_json:
        output().print(f"default: {source_of(Device.of(gpu.gpu))}", markup=False, soft_wrap=True)
    for text, each in zip(request.sizes, wanted, strict=True):
        operation, arguments = inputs.call(each)
        with _bar(text) as on_progress:
            report = tune(operation, **arguments, most=request.most, on_progress=on_progress)
        reports.append(report)
        if not as_json:
            _show(report)
    measurements = document(reports, gpu.gpu, time.time())
    text = json.dumps(measurements, indent=1) + "\n"
    if as_json:
        print(text, end="")  # noqa: T201
    if file is not None:
        _write(file, text)
    if fit.data is not None:
        fit_documents([measurements], fit)
    return not any(row.failure.startswith("wrong") for report in reports for row in report.rows)


def fit_files(files: Sequence[Path], options: FitOptions) -> None:
    """Fit the heuristics to measurements, print the result, and write the data file if there is one."""
    load(files)  # rejects files of different GPUs
    fit_documents([read_document(file) for file in files], options)


def fit_documents(documents: Sequence[dict[str, Any]], options: FitOptions) -> None:
    """Fit constants and trees to measurements of one GPU, and write the data file if there is one."""
    console = output()
    measured = [each for document in documents for each in measured_in(document)]
    on = device_of(documents[0])
    models = dict(data_for(on).models)
    for name, found in () if options.keep_constants else fit_models(measured, models, sms=on.sms):
        models[name] = found.model
        console.print(
            f"{name}, {found.problems} problems; regret of the model's choice, mean and largest:", markup=False
        )
        for when, (mean, most) in (("before", found.before), ("after", found.after)):
            console.print(f"  {when:6}  {mean:7.2%}  {most:7.2%}", markup=False)
        for constant, value in asdict(found.model).items():
            console.print(f"    {constant}: {value:.3g}", markup=False)
    trees, has_dense = dict[str, Any](), any(is_dense_16bit(each.problem) for each in measured)
    problem = import_problem() if options.data or options.cross_validate else ""
    if problem and has_dense:
        console.print(f"no decision trees, which need scikit-learn: {problem}", markup=False, soft_wrap=True)
    elif options.cross_validate and has_dense:
        _show_regrets(cross_validate(measured, models[DENSE_16BIT], on.sms))
    if options.data is not None:
        if has_dense and not problem:
            trees = fit_trees(measured, models[DENSE_16BIT], on.sms)
        _write(options.data, data_text(documents, models, trees))
        console.print(f"{options.data}: data of {on.name}", markup=False, soft_wrap=True)


def _show_regrets(found: Regrets) -> None:
    for name, regrets in (("model", found.model), ("model and trees", found.trees)):
        if len(regrets):
            shares = "  ".join(f"above {limit:.0%}: {(regrets > limit).mean():.1%}" for limit in (0.05, 0.1, 0.15))
            mean, most = f"mean regret {regrets.mean():.2%}", f"largest {regrets.max():.0%}"
            output().print(f"{name:16} {len(regrets)} problems, {mean}; {shares}; {most}", markup=False, soft_wrap=True)


def _wanted(text: str, request: Request) -> Wanted:
    """The problem that one size describes: MxNxK, or BxMxNxK."""
    sizes, problem = sizes_of(text), ""
    if not sizes:
        problem = f"`{text:.60}` is not a size: write MxNxK, or BxMxNxK for batches"
    elif len(sizes) == len(_BATCHED) and (request.grouped or request.blockwise):
        problem = f"`{text}`: grouped and blockwise GEMMs have no batch dimension"
    elif request.grouped and request.blockwise:
        problem = "--grouped and --blockwise cannot be combined"
    elif request.grouped and request.majors.startswith("mn"):
        problem = f"--majors {request.majors}: groups are rows of A, which must be K-major"
    elif request.majors != Request.majors and (request.blockwise or request.dtype in _K_MAJOR):
        problem = f"--majors {request.majors}: only 16-bit types can be MN-major"
    if problem:
        raise Diag.BAD_COMMAND.error(what=problem, command="warploom tune")
    *batch, m, n, k = sizes
    a_major, b_major = request.majors.split(",")
    return Wanted(
        m=m,
        n=n,
        k=k,
        batch=batch[0] if batch else 0,
        groups=request.grouped,
        blockwise=request.blockwise,
        dtype=request.dtype or ("e4m3" if request.blockwise else "bf16"),
        majors=(a_major, b_major),
        out_dtype=request.out_dtype,
        bias=request.bias,
        residual=request.residual,
        activation=request.activation,
    )


def _show(report: Report) -> None:
    numbers = ("µs", "TFLOP/s", "vs default")
    rows = table("", "configuration", *numbers, "", right=numbers)
    for row in report.rows:
        mark = "best" if row.config == report.best else "default" if row.config == report.default else ""
        if row.us is None:
            rows.add_row(Text(printable(row.label)), "–", "–", "–", Text(printable(row.failure), "red"))
            continue
        speed = "" if row.tflops is None else f"{row.tflops:.1f}"
        rows.add_row(Text(printable(row.label)), f"{row.us:.2f}", speed, f"{row.ratio:.3f}", mark)
    console = output()
    console.print(f"{report.problem} on {report.gpu}", markup=False, style="bold", soft_wrap=True)
    console.print(rows)
    kept = "remembered" if report.is_remembered else f"not remembered ({SWITCH}=0, or the cache cannot be written)"
    console.print(f"{kept}: {report.gain:.3f} times as fast as the default", markup=False)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise Diag.UNWRITABLE_FILE.error(file=file, what=error.strerror or str(error)) from None


@contextmanager
def _bar(title: str) -> Iterator[OnProgress]:
    """A progress bar that names the step; shown on a terminal only, and removed at the end."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=None)

        def on_progress(step: str, done: int, total: int, /) -> None:
            progress.update(task, description=f"{title}: {_STEPS[step]}", completed=done, total=total)

        yield on_progress
