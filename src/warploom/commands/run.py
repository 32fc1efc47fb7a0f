"""`warploom run FILE.launch.json`: runs a launch file on the machine and compares what came out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from warploom.commands.console import OnProgress, output, printable, progress_bar, table
from warploom.compare import Mismatch
from warploom.diagnostics import Diag
from warploom.launch_file import LaunchFile, load
from warploom.launcher import Run, launch
from warploom.machine.core.schedule import Recorded, by_name

DEFAULT_LIMIT = 50_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How a launch file is run; the defaults bound what a stranger's file can use."""

    schedule: str = "eager"
    seed: int = 0
    limit: int = DEFAULT_LIMIT
    record: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run and the comparisons that did not hold after it."""

    file: LaunchFile
    settings: Settings
    run: Run
    mismatches: tuple[Mismatch, ...]

    @property
    def ok(self) -> bool:
        return not self.mismatches


def execute(file: LaunchFile, settings: Settings, on_progress: OnProgress | None = None) -> Outcome:
    """Runs a launch file on fresh buffers; a recording is written even where the run ends in a fault."""
    buffers = file.allocate()
    schedule = by_name(settings.schedule, settings.seed)
    recorded = Recorded(schedule) if settings.record is not None else None
    try:
        run = launch(file.launch(buffers), schedule=recorded or schedule, limit=settings.limit, on_progress=on_progress)
    finally:
        if recorded is not None and settings.record is not None:
            _save(recorded, settings.record)
    return Outcome(file, settings, run, tuple(file.check(buffers)))


def run(path: Path, settings: Settings, *, as_json: bool, data_seed: int | None, max_bytes: int) -> bool:
    """The command; says whether every comparison held."""
    file = load(path, seed=data_seed, max_bytes=max_bytes)
    with progress_bar(path.name) as on_progress:
        outcome = execute(file, settings, on_progress)
    if as_json:
        print(json.dumps(as_document(outcome), indent=1))  # noqa: T201
    else:
        show(outcome)
    return outcome.ok


def show(outcome: Outcome) -> None:
    """Prints what was executed and whether the numbers are right."""
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
    console.print(rows)
    for line in verdicts(outcome):
        console.print(printable(line), markup=False)
    if not file.comparisons:
        console.print("nothing compared: the file has no `compare`", markup=False)
    if file.expect:
        console.print(printable(f"the file expects: {file.expect}"), markup=False)


def verdicts(outcome: Outcome) -> list[str]:
    """One line per comparison, in the file's order."""
    wrong = {mismatch.comparison: mismatch for mismatch in outcome.mismatches}
    return [
        f"MISMATCH  {wrong[comparison]}" if comparison in wrong else f"ok        {comparison.text}"
        for comparison in outcome.file.comparisons
    ]


def as_document(outcome: Outcome) -> dict[str, object]:
    """The outcome as JSON data."""
    file, run, settings = outcome.file, outcome.run, outcome.settings
    wrong = {mismatch.comparison: mismatch for mismatch in outcome.mismatches}
    return {
        "file": str(file.path),
        "entry": file.entry,
        "schedule": settings.schedule,
        "seed": settings.seed,
        "data_seed": file.seed,
        "outcome": "ok" if outcome.ok else "mismatch",
        "instructions": run.instructions,
        "counts": run.counts,
        "bytes_moved": run.bytes_moved,
        "wall_seconds": run.wall_seconds,
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
    """JSON has no NaN and no infinity, so that the two values are texts."""
    values = {"left": repr(mismatch.left), "right": repr(mismatch.right), "largest_error": repr(mismatch.largest_error)}
    return {"count": mismatch.count, "total": mismatch.total, "where": list(mismatch.where), **values}


def _title(outcome: Outcome) -> str:
    file = outcome.file
    entry = file.entry or "its kernel"
    seed = f", seed {outcome.settings.seed}" if outcome.settings.schedule == "random" else ""
    return f"{entry} from {file.path.name}: grid {file.grid}, block {file.block}, {outcome.settings.schedule}{seed}"


def _save(recorded: Recorded, path: Path) -> None:
    try:
        recorded.save(path)
    except OSError as error:
        raise Diag.UNWRITABLE_FILE.error(file=str(path), what=error.strerror) from None
