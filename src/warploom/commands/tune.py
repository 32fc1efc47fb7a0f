"""`warploom tune 4096x4096x4096`: measures candidates on the GPU, remembers the winner; `--fit` fits the model anew."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from warploom.commands.console import output, printable, table
from warploom.commands.sizes import sizes_of
from warploom.diagnostics import Diag
from warploom.runtime.cache.winners import SWITCH
from warploom.runtime.gpu.driver import device
from warploom.tuning.contest import OnProgress
from warploom.tuning.fitting import fit_kinds, load
from warploom.tuning.inputs import Inputs, Wanted
from warploom.tuning.measurements import document
from warploom.tuning.report import Report
from warploom.tuning.tuner import tune

_STEPS = {"build": "building", "check": "checking", "measure": "measuring"}
_BATCHED = "BMNK"
_K_MAJOR = ("f32", "e4m3", "e5m2")
"""Types of which the tensor core reads rows along K only; others are copied."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command was asked for."""

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


def tune_all(asked: Asked, *, as_json: bool, file: Path | None) -> bool:
    """Tunes every problem and prints its table; says whether every candidate was right."""
    wanted = [_wanted(text, asked) for text in asked.sizes]
    gpu = device(0)
    inputs, reports = Inputs(gpu), []
    for text, each in zip(asked.sizes, wanted, strict=True):
        operation, arguments = inputs.call(each)
        with _bar(text) as on_progress:
            report = tune(operation, **arguments, most=asked.most, on_progress=on_progress)
        reports.append(report)
        if not as_json:
            _show(report)
    if file is not None or as_json:
        told = json.dumps(document(reports, gpu.gpu, time.time()), indent=1)
        if as_json:
            print(told)  # noqa: T201
        if file is not None:
            _write(file, told)
    return not any(row.failure.startswith("wrong") for report in reports for row in report.rows)


def fit_model(files: Sequence[Path]) -> None:
    """Fits the constants of the model to measurements, and prints them."""
    measured, sms = load(files)
    console = output()
    for name, found in fit_kinds(measured, sms=sms):
        told = f"{name}, {found.problems} problems; what a choice by the model costs, on average and at most:"
        console.print(told, markup=False)
        for when, (mean, most) in (("before", found.before), ("after", found.after)):
            console.print(f"  {when:6}  {mean:7.2%}  {most:7.2%}", markup=False)
        for constant, value in asdict(found.model).items():
            console.print(f"    {constant}: float = {value:.3g}", markup=False)


def _wanted(text: str, asked: Asked) -> Wanted:
    """The problem of one text: MxNxK, or BxMxNxK."""
    sizes, problem = sizes_of(text), ""
    if not sizes:
        problem = f"`{text:.60}` are no sizes: MxNxK, or BxMxNxK for batches"
    elif len(sizes) == len(_BATCHED) and (asked.grouped or asked.blockwise):
        problem = f"`{text}`: grouped and blockwise products have no batches"
    elif asked.grouped and asked.blockwise:
        problem = "--grouped and --blockwise do not go together"
    elif asked.grouped and asked.majors.startswith("mn"):
        problem = f"--majors {asked.majors}: groups are rows of A, of which K is contiguous"
    elif asked.majors != Asked.majors and (asked.blockwise or asked.dtype in _K_MAJOR):
        problem = f"--majors {asked.majors}: the tensor core reads 16-bit elements only so"
    if problem:
        raise Diag.BAD_COMMAND.error(what=problem, command="warploom tune")
    *batch, m, n, k = sizes
    a_major, b_major = asked.majors.split(",")
    return Wanted(
        m=m,
        n=n,
        k=k,
        batch=batch[0] if batch else 0,
        groups=asked.grouped,
        blockwise=asked.blockwise,
        dtype=asked.dtype or ("e4m3" if asked.blockwise else "bf16"),
        majors=(a_major, b_major),
        out_dtype=asked.out_dtype,
        bias=asked.bias,
        residual=asked.residual,
        activation=asked.activation,
    )


def _show(report: Report) -> None:
    numbers = ("µs", "TFLOP/s", "to the default")
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
        file.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise Diag.UNWRITABLE_FILE.error(file=file, what=error.strerror or str(error)) from None


@contextmanager
def _bar(title: str) -> Iterator[OnProgress]:
    """A bar that tells the step; it appears on a terminal only, and goes when all are measured."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=None)

        def on_progress(step: str, done: int, total: int, /) -> None:
            progress.update(task, description=f"{title}: {_STEPS[step]}", completed=done, total=total)

        yield on_progress
