"""Mutate executed lines of valid PTX, and check that each mutant runs or raises an error of the catalogue.

    python bench/mutations.py --count 10000
    python bench/mutations.py --show 4711      # one mutant and its outcome

Mutants run with an instruction limit in workers of 2 GB; one without progress for 20 seconds counts as a hang. For every
ten mutants of executed lines there is one of a declaration (negative numbers).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
sys.path[:0] = [str(Path(__file__).parents[1])]

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: E402
from rich.table import Table  # noqa: E402
from tests.fuzz.bases import KINDS, Plan, trial  # noqa: E402
from tests.fuzz.harness import Outcome, Summary, attempt, run  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="how many mutants of executed lines (10000)")
    parser.add_argument("--first", type=int, default=0, help="the first number (0)")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--kernels", nargs="+", choices=KINDS, default=Plan().kinds, help="kernels to mutate")
    parser.add_argument("--depth", type=int, default=1, help="changes in each mutant (1)")
    parser.add_argument("--show", type=int, help="run one mutant here, and print what was changed")
    options = parser.parse_args()
    plan = Plan(tuple(options.kernels), options.depth)
    if options.show is not None:
        return show(options.show, plan)
    console = Console()
    numbers = [*range(options.first, options.first + options.count)]
    numbers += [-1 - number for number in range(options.first // 10, (options.first + options.count) // 10)]
    columns = (TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} failed"))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=len(numbers), failed=0)
        failed = 0

        def on_outcome(outcome: Outcome) -> None:
            nonlocal failed
            failed += bool(outcome.failure)
            progress.update(task, advance=1, failed=failed)
            if outcome.failure:
                progress.console.print(f"FAILED {outcome.number}: {outcome.code}\n{outcome.failure}", markup=False)

        summary = run(numbers, workers=options.workers, plan=plan, on_outcome=on_outcome)
    report(summary, console)
    return 1 if summary.failures else 0


def report(summary: Summary, console: Console) -> None:
    """Return outcomes by code, and the numbers of the failures."""
    table = Table(title=f"{summary.total:,} mutants")
    table.add_column("outcome")
    table.add_column("count", justify="right")
    for code, count in summary.codes.most_common():
        table.add_row(code, f"{count:,}")
    console.print(table)
    console.print(f"slowest: {summary.slowest.number} ({summary.slowest.code}), {summary.slowest.seconds:.2f} s")
    console.print(f"most memory of a worker: {summary.memory >> 20:,} MiB")
    numbers = " ".join(str(outcome.number) for outcome in summary.failures)
    console.print(f"failures: {numbers or 'none'}", markup=False)


def show(number: int, plan: Plan) -> int:
    """Run one mutant in this process."""
    kernels = plan.bases()
    made = trial(kernels, number, plan.depth)
    outcome = attempt(kernels, number, plan.depth)
    print(made)
    print(f"{outcome.code}, {outcome.seconds:.2f} s")
    print(outcome.failure, end="")
    return 1 if outcome.failure else 0


if __name__ == "__main__":
    sys.exit(main())
