"""`warploom run TARGET …`: runs launch files, and launches of Python functions, and compares their outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from warploom.commands.console import complain, output, printable, table
from warploom.commands.errors import MISMATCH, NOT_COMPARED, OK, catalogued, error_document, status_of, worst
from warploom.commands.file_kinds import wrong_kind
from warploom.commands.functions import is_function, launches_of
from warploom.compare import Comparison, Mismatch
from warploom.diagnostics import Diag, WarploomError
from warploom.host.launch import Launch, Triple
from warploom.launch_file import DEFAULT_MAX_BYTES, LaunchFile, load
from warploom.launcher import Run, compared_with_eager, launch
from warploom.machine.core.schedule import Recorded, by_name

DEFAULT_LIMIT = 50_000_000
EXPLORED = 16
"""Schedules that `warploom run` tries by default."""
_VERDICTS = {OK: "ok", MISMATCH: "mismatch", NOT_COMPARED: "not compared"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run; the defaults bound what an untrusted file can use."""

    schedule: str = "eager"
    seed: int = 0
    limit: int = DEFAULT_LIMIT
    record: Path | None = None
    data_seed: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    budget: int = EXPLORED


@dataclass(frozen=True, slots=True)
class Called:
    """A launch that a Python function returned, in place of a launch file."""

    name: str
    made: Launch
    comparisons: tuple[Comparison, ...] = ()
    expect: str = ""
    seed: int | None = None
    ptx_path: Path = Path("<ptx>")

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def entry(self) -> str | None:
        return self.made.entry

    @property
    def grid(self) -> Triple:
        return self.made.grid

    @property
    def block(self) -> Triple:
        return self.made.block

    def allocate(self) -> dict[str, Any]:
        """Nothing: the arrays are those of the launch."""
        return {}

    def launch(self, _: dict[str, Any]) -> Launch:
        return self.made

    def check(self, _: dict[str, Any]) -> list[Mismatch]:
        return []


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run and the comparisons that did not hold after it."""

    file: LaunchFile | Called
    settings: Settings
    run: Run
    mismatches: tuple[Mismatch, ...]

    @property
    def ok(self) -> bool:
        """No comparison failed under any schedule that was tried; there may have been none."""
        return not self.mismatches and self.run.failure is None

    @property
    def status(self) -> int:
        if not self.ok:
            return MISMATCH
        return OK if self.file.comparisons else NOT_COMPARED


@dataclass(frozen=True, slots=True)
class Failure:
    """A launch that did not run to its end, and the error."""

    path: str
    settings: Settings
    error: WarploomError

    @property
    def status(self) -> int:
        return status_of(self.error)


def execute(file: LaunchFile | Called, settings: Settings) -> Outcome:
    """Run a launch file on fresh buffers; a recording is written even if the run ends in a fault.

    What is replayed from a recording is compared with an eager run, if the file compares nothing.
    """
    buffers = file.allocate()
    if settings.schedule == "explore":
        return _explore(file, settings, buffers)
    schedule = by_name(settings.schedule, settings.seed)
    replays = settings.schedule.endswith(".json") and not file.comparisons
    recorded = Recorded(schedule) if settings.record is not None or replays else None
    try:
        if recorded is not None and replays:
            run = compared_with_eager(file.launch(buffers), recorded, settings.schedule, settings.limit)
        else:
            run = launch(file.launch(buffers), schedule=recorded or schedule, limit=settings.limit)
    except WarploomError as error:
        raise _with_path(error, file.ptx_path) from None
    finally:
        if recorded is not None and settings.record is not None:
            _save(recorded, settings.record)
    return Outcome(file, settings, run, tuple(file.check(buffers)))


def _explore(file: LaunchFile | Called, settings: Settings, buffers: Any) -> Outcome:
    """Run a launch file under a portfolio of schedules; a failing one is written where a recording is wanted."""
    compare = (lambda: not tuple(file.check(buffers))) if file.comparisons else None
    budget, limit = settings.budget, settings.limit
    try:
        run = launch(file.launch(buffers), schedule="explore", budget=budget, compare=compare, limit=limit)
    except WarploomError as error:
        recorded = getattr(error, "schedule", None)
        if isinstance(recorded, Recorded) and settings.record is not None:
            _save(recorded, settings.record)
        raise _with_path(error, file.ptx_path) from None
    if run.failure is not None and settings.record is not None:
        _save(run.failure.schedule, settings.record)
    return Outcome(file, settings, run, tuple(file.check(buffers)))


def run(targets: Sequence[str], settings: Settings, *, as_json: bool) -> int:
    """Run every target, print the results, and return the worst exit status."""
    given = [each for target in targets for each in _expanded(target, settings)]
    if settings.record is not None and len(given) > 1:
        raise Diag.BAD_COMMAND.error(what="--record takes one launch file", command="warploom run")
    alone = len(given) == 1
    results = []
    for each in given:
        results.append(each if isinstance(each, Failure) else _run_one(each, settings))
        if not as_json:
            _show_one(results[-1], alone=alone)
        elif isinstance(results[-1], Failure):
            complain(results[-1].error)
    if as_json:
        documents = [as_document(result) for result in results]
        print(json.dumps(documents[0] if alone else {"files": documents}, indent=1))  # noqa: T201
    elif not alone:
        _show_summary(results)
    return worst(*(result.status for result in results))


def _expanded(target: str, settings: Settings) -> Iterator[str | Called | Failure]:
    """Yield the launch file that a target is, the launches that its function returns, or the error that it is."""
    if not is_function(target):
        yield target
        return
    try:
        found = launches_of(target, "run")
    except Exception as error:  # noqa: BLE001  the other targets are still run
        yield Failure(target, settings, catalogued(error))
        return
    yield from (Called(name, made) for name, made in found.items())


def _run_one(given: str | Called, settings: Settings) -> Outcome | Failure:
    name = given.name if isinstance(given, Called) else given
    if isinstance(given, str) and (other := wrong_kind(Path(given), "run")) is not None:
        return Failure(name, settings, other)
    try:
        load_ = partial(load, seed=settings.data_seed, max_bytes=settings.max_bytes)
        return execute(given if isinstance(given, Called) else load_(Path(given)), settings)
    except OSError:
        raise  # standard output or error: nothing of this file's
    except Exception as error:  # noqa: BLE001  the other files are still run
        return Failure(name, settings, catalogued(error))


def _show_one(result: Outcome | Failure, *, alone: bool) -> None:
    """Print one result: all of it where it is the only one, else only what is wrong."""
    if isinstance(result, Failure):
        if not alone:
            output().print(printable(f"{result.path}:"), markup=False)
        _show_printed(result.error.printed)
        complain(result.error)
    elif alone:
        show(result)
    elif result.status != OK:
        console = output()
        console.print(printable(f"{result.file.path}:"), markup=False)
        _show_printed(result.run.printed)
        for line in verdicts(result):
            console.print(printable(line), markup=False)


def _show_printed(text: str) -> None:
    """Show the output of a kernel's `printf`."""
    if text:
        output().print(printable(text), markup=False, highlight=False, soft_wrap=True, end="")


def _show_summary(results: Sequence[Outcome | Failure]) -> None:
    numbers = ("instructions", "seconds")
    failed = sum(result.status != OK for result in results)
    files = all(not isinstance(result, Outcome) or isinstance(result.file, LaunchFile) for result in results)
    count = f"{len(results)} launch{' files' if files else 'es'}"
    title = f"{count}, {failed} not ok" if failed else f"{count}, all ok"
    rows = table(title, "file", "result", *numbers, right=numbers)
    for result in results:
        if isinstance(result, Failure):
            cells = (result.path, result.error.code, "", "")
        else:
            cells = (
                str(result.file.path),
                _VERDICTS[result.status],
                f"{result.run.instructions:,}",
                f"{result.run.wall_seconds:.3f}",
            )
        rows.add_row(*(Text(printable(cell)) for cell in cells))
    output().print(rows)


def show(outcome: Outcome) -> None:
    """Print the instruction counts and the comparisons of one run."""
    file, run = outcome.file, outcome.run
    rows = table(_title(outcome), "executed", "count", right=("count",))
    for family, count in sorted(run.counts.items(), key=lambda item: -item[1]):
        rows.add_row(family, f"{count:,}")
    rows.add_section()
    rows.add_row("warp instructions", f"{run.instructions:,}")
    for kind, count in run.bytes_moved.items():
        rows.add_row(f"bytes, {kind}", f"{count:,}")
    rows.add_row("seconds", f"{run.wall_seconds:.3f}")
    console = output()
    _show_printed(run.printed)
    console.print(rows)
    for line in verdicts(outcome):
        console.print(printable(line), markup=False)
    if file.expect:
        console.print(printable(f"the file expects: {file.expect}"), markup=False)


def verdicts(outcome: Outcome) -> list[str]:
    """One line per comparison, in the file's order, or one that says that there are none."""
    wrong = {mismatch.comparison: mismatch for mismatch in outcome.mismatches}
    lines = [
        f"MISMATCH  {wrong[comparison]}" if comparison in wrong else f"ok        {comparison.text}"
        for comparison in outcome.file.comparisons
    ]
    run = outcome.run
    if not lines and (run.failure is None or run.schedules > 1):
        whose = "the file" if isinstance(outcome.file, LaunchFile) else "a function"
        lines = [f"nothing compared: {whose} has no `compare`; it ran without a fault (exit status {NOT_COMPARED})"]
    if run.failure is not None and not outcome.mismatches:
        lines.append(f"MISMATCH  {run.failure}")
    elif run.schedules > 1:
        lines.append(f"the same under {run.schedules} schedules")
    return [*lines, *run.remarks]


def as_document(result: Outcome | Failure) -> dict[str, object]:
    """A result as JSON data."""
    settings = result.settings
    if isinstance(result, Failure):
        return {
            "file": result.path,
            "schedule": settings.schedule,
            "seed": settings.seed,
            "data_seed": settings.data_seed,
            "outcome": "error",
            "printed": result.error.printed,
            "error": error_document(result.error),
        }
    file, run = result.file, result.run
    wrong = {mismatch.comparison: mismatch for mismatch in result.mismatches}
    return {
        "file": str(file.path),
        "entry": file.entry,
        "schedule": settings.schedule,
        "seed": settings.seed,
        "data_seed": file.seed,
        "outcome": _VERDICTS[result.status],
        "instructions": run.instructions,
        "counts": run.counts,
        "bytes_moved": run.bytes_moved,
        "wall_seconds": run.wall_seconds,
        "printed": run.printed,
        "schedules": run.schedules,
        "failure": None if run.failure is None else str(run.failure),
        "remarks": list(run.remarks),
        "comparisons": [
            {
                "expr": comparison.text,
                "rtol": comparison.rtol,
                "atol": comparison.atol,
                "ok": comparison not in wrong,
                "mismatch": _mismatch(wrong[comparison]) if comparison in wrong else None,
            }
            for comparison in file.comparisons
        ],
    }


def _mismatch(mismatch: Mismatch) -> dict[str, object]:
    """A mismatch as JSON data; the values are texts, because JSON has neither NaN nor infinity."""
    values = {"left": repr(mismatch.left), "right": repr(mismatch.right), "largest_error": repr(mismatch.largest_error)}
    return {"count": mismatch.count, "total": mismatch.total, "where": list(mismatch.where), **values}


def _title(outcome: Outcome) -> str:
    file = outcome.file
    entry = file.entry or "its kernel"
    seed = f", seed {outcome.settings.seed}" if outcome.settings.schedule == "random" else ""
    return f"{entry} from {file.path.name}: grid {file.grid}, block {file.block}, {outcome.settings.schedule}{seed}"


def _with_path(error: WarploomError, path: Path) -> WarploomError:
    """The error with the PTX file's path for `<ptx>`, which is all that a launch knows of a text."""
    loc = error.loc
    if loc is not None and loc.file == "<ptx>":
        loc = replace(loc, file=str(path))
    notes = tuple(note.replace("<ptx>:", f"{path.name}:") for note in error.notes)
    placed = error.diag.error(loc, notes, **error.fields)
    placed.printed = error.printed
    return placed


def _save(recorded: Recorded, path: Path) -> None:
    try:
        recorded.save(path)
    except OSError as error:
        raise Diag.UNWRITABLE_FILE.error(file=str(path), what=error.strerror) from None
