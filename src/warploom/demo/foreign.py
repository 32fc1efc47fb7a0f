"""Two matmuls of another compiler on this CPU, and what is said when one of their lines is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from warploom.commands.console import printable, progress_bar, table
from warploom.commands.run import Settings, execute
from warploom.diagnostics import WarploomError
from warploom.launch_file import LaunchFile, load
from warploom.launcher import Run, launch

HOPPER, BLACKWELL = "matmul_tma_sm90.launch.json", "matmul_persistent_sm100.launch.json"
CASES = (("Hopper", HOPPER), ("Blackwell", BLACKWELL))
SCHEDULES = (Settings("eager"), Settings("lazy"), Settings("random", seed=1))
COUNTED = {
    "mma": ("wgmma.mma_async", "tcgen05.mma"),
    "copies": ("cp.async.bulk.tensor",),
    "waits": ("mbarrier.try_wait", "bar.sync"),
}


@dataclass(frozen=True, slots=True)
class Slip:
    """A change of one line, the schedule that shows it, and what it is."""

    title: str
    line: str
    becomes: str
    schedule: str


SLIPS = (
    Slip("without its fence.proxy.async", "fence.proxy.async.shared::cta;", "", "lazy"),
    Slip("expecting 16 bytes too many", "[%r6], 32768;", "[%r6], 32784;", "eager"),
)


def show_foreign(console: Console, folder: Path) -> bool:
    """Run both, compare them with NumPy, then break one; says whether the numbers were right."""
    right = _show_runs(console, folder)
    for slip in SLIPS:
        _show_slip(console, load(folder / HOPPER), slip)
    return right


def _show_runs(console: Console, folder: Path) -> bool:
    counts = ("instructions", *COUNTED, "ms")
    title = "Two matmuls compiled by Triton, executed from their PTX; c == a @ b.T?"
    rows = table(title, "kernel", "schedule", *counts, "result", right=counts)
    right = True
    for title, name in CASES:
        for settings in SCHEDULES:
            file = load(folder / name)
            with progress_bar(f"{title}, {settings.schedule}") as on_progress:
                outcome = execute(file, settings, on_progress)
            right = right and outcome.ok
            _add(rows, title, settings.schedule, outcome.run, "right" if outcome.ok else str(outcome.mismatches[0]))
    console.print(rows)
    return right


def _add(rows: Table, title: str, schedule: str, run: Run, verdict: str) -> None:
    counts = [f"{_total(run.counts, prefixes):,}" for prefixes in COUNTED.values()]
    rows.add_row(title, schedule, f"{run.instructions:,}", *counts, f"{run.wall_seconds * 1e3:.0f}", verdict)


def _total(counts: Mapping[str, int], prefixes: tuple[str, ...]) -> int:
    return sum(count for family, count in counts.items() if family.startswith(prefixes))


def _show_slip(console: Console, file: LaunchFile, slip: Slip) -> None:
    """Run the Hopper kernel with one line changed and print what warploom says."""
    console.print(f"\nOn purpose, the Hopper kernel {slip.title}, schedule {slip.schedule}:", style="bold")
    buffers = file.allocate()
    whole = file.launch(buffers)
    changed = replace(whole, program=str(whole.program).replace(slip.line, slip.becomes, 1))
    try:
        launch(changed, schedule=slip.schedule)
        for mismatch in file.check(buffers):
            console.print(printable(f"MISMATCH  {mismatch}"), markup=False)
    except WarploomError as error:
        console.print(printable(str(error)), markup=False)
