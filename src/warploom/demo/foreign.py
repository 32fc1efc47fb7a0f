"""Triton matmuls on the emulator: right, with one line broken, and from a release with a real bug."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from warploom.checker.check import check
from warploom.checker.report import Verdict
from warploom.commands.console import printable, table
from warploom.commands.run import Settings, execute
from warploom.diagnostics import WarploomError
from warploom.launch_file import LaunchFile, load
from warploom.launcher import Run, launch

HOPPER, BLACKWELL = "matmul_tma_sm90.launch.json", "matmul_persistent_sm100.launch.json"
CASES = (("Hopper", HOPPER), ("Blackwell", BLACKWELL))
RELEASES = (("3.7.0", "matmul_triton370_sm100.launch.json"), ("3.7.1", "matmul_triton371_sm100.launch.json"))
"""One kernel, made by bench/triton_fence.py: 3.7.0 has no fence.proxy.async between cp.async and tcgen05.mma."""
SCHEDULES = (Settings("eager"), Settings("lazy"), Settings("random", seed=1))
COUNTED = {
    "mma": ("wgmma.mma_async", "tcgen05.mma"),
    "copies": ("cp.async.bulk.tensor",),
    "waits": ("mbarrier.try_wait", "bar.sync"),
}


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A planted bug: a change of one line, and the schedule that shows it."""

    title: str
    line: str
    becomes: str
    schedule: str


PLANTED = (
    PlantedBug("without its fence.proxy.async", "fence.proxy.async.shared::cta;", "", "lazy"),
    PlantedBug("expecting 16 bytes too many", "[%r6], 32768;", "[%r6], 32784;", "eager"),
)


def show_foreign(console: Console, folder: Path) -> bool:
    """Run both, compare them with NumPy, then break one and show a real bug; return True if the correct kernels are
    right.
    """
    right = _show_runs(console, folder)
    for bug in PLANTED:
        _show_bug(console, load(folder / HOPPER), bug)
    return _show_real_bug(console, folder) and right


def _show_real_bug(console: Console, folder: Path) -> bool:
    """Run one matmul as two releases of Triton compile it; return True if the later one is right."""
    console.print("\nReal bug: a Blackwell matmul as two releases of Triton compile it, schedule lazy:", style="bold")
    outcomes = {release: execute(load(folder / name), Settings("lazy")) for release, name in RELEASES}
    for release, outcome in outcomes.items():
        fences = outcome.run.counts.get("fence.proxy.async", 0)
        verdict = "right" if outcome.ok else f"MISMATCH  {outcome.mismatches[0]}"
        line = f"Triton {release}, {fences} proxy fences executed: {verdict}"
        console.print(printable(line), markup=False)
    return _show_checks(console, folder) and outcomes[RELEASES[-1][0]].ok


def _show_checks(console: Console, folder: Path) -> bool:
    """Check both for every interleaving; return True if the first is REFUTED and the later one PROVED."""
    console.print("\nThe same two kernels, checked for every interleaving (profile lenient):", style="bold")
    verdicts = []
    for release, name in RELEASES:
        file = load(folder / name)
        report = check(file.launch(file.allocate()), profile="lenient")
        verdicts.append(report.verdict)
        lines = [f"Triton {release}, {report.cost.seconds:.1f} s: {report.verdict}"]
        for finding in report.findings:
            lines += str(finding).splitlines()
        console.print(printable("\n".join(lines)), markup=False)
    return verdicts == [Verdict.REFUTED, Verdict.PROVED]


def _show_runs(console: Console, folder: Path) -> bool:
    counts = ("instructions", *COUNTED, "ms")
    title = "Two Triton matmuls, run from their PTX and compared with NumPy"
    rows = table(title, "kernel", "schedule", *counts, "result", right=counts)
    right = True
    for title, name in CASES:
        for settings in SCHEDULES:
            file = load(folder / name)
            outcome = execute(file, settings)
            right = right and outcome.ok
            _add(rows, title, settings.schedule, outcome.run, "right" if outcome.ok else str(outcome.mismatches[0]))
    console.print(rows)
    return right


def _add(rows: Table, title: str, schedule: str, run: Run, verdict: str) -> None:
    counts = [f"{_total(run.counts, prefixes):,}" for prefixes in COUNTED.values()]
    rows.add_row(title, schedule, f"{run.instructions:,}", *counts, f"{run.wall_seconds * 1e3:.0f}", verdict)


def _total(counts: Mapping[str, int], prefixes: tuple[str, ...]) -> int:
    return sum(count for family, count in counts.items() if family.startswith(prefixes))


def _show_bug(console: Console, file: LaunchFile, bug: PlantedBug) -> None:
    """Run the Hopper kernel with one line changed and print the report."""
    console.print(f"\nPlanted bug: the Hopper kernel {bug.title}, schedule {bug.schedule}:", style="bold")
    buffers = file.allocate()
    whole = file.launch(buffers)
    changed = replace(whole, program=str(whole.program).replace(bug.line, bug.becomes, 1))
    try:
        launch(changed, schedule=bug.schedule)
        for mismatch in file.check(buffers):
            console.print(printable(f"MISMATCH  {mismatch}"), markup=False)
    except WarploomError as error:
        console.print(printable(str(error)), markup=False)
