"""`warploom cuda PROGRAM.cu …`: compiles a CUDA C++ program with nvcc and runs it on the emulator."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from warploom.checker.report import Verdict, proved
from warploom.commands.console import complain, interrupted
from warploom.commands.errors import INCOMPLETE, INTERRUPTED, catalogued, status_of, worst
from warploom.commands.file_kinds import wrong_kind
from warploom.commands.time_limit import limited
from warploom.cuda.build import build
from warploom.cuda.options import Options
from warploom.cuda.session import Session


def run_program(
    source: Path, arguments: Sequence[str], *, nvcc: str = "", folder: Path | None = None,
    timeout: float | None = None, **options: Any,
) -> int:  # fmt: skip
    """Compile and run a program; the exit status: the program's own, unless a launch failed or was refuted."""
    if (other := wrong_kind(source, "cuda")) is not None:
        raise other
    checked = Options.checked(**options)
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warploom-cuda-")))
        built = build(source, folder, target=checked.target, flags=shlex.split(nvcc))
        session = Session(checked, built)
        with limited(timeout, "The program", "warploom cuda"):
            status = session.run([str(source), *arguments], lambda status: _concluded(session, status))
        return _concluded(session, status)


def _concluded(session: Session, status: int) -> int:
    """Report what the launches showed; the exit status."""
    for text in dict.fromkeys(text for each in session.launches.ran for text in each.remarks):
        sys.stderr.write(f"{text}\n")
    for text in dict.fromkeys(str(each) for each in session.launches.reports if each.verdict is Verdict.INCOMPLETE):
        sys.stderr.write(f"{text}\n")
        status = status or INCOMPLETE
    if isinstance(session.error, KeyboardInterrupt):
        interrupted(session.error)
        return INTERRUPTED
    for error in filter(None, (session.launches.refuted(), session.error)):
        known = catalogued(error) if isinstance(error, Exception) else None
        if known is None:
            raise error
        complain(known)
        status = worst(status_of(known), status if status in range(7) else 1)
    sys.stderr.write(f"{_summary(session)}\n")
    return status


def _summary(session: Session) -> str:
    """One line: what ran, and what the checks and schedules showed."""
    count, runs = len(session.launches.ran), sum(each.schedules for each in session.launches.ran)
    said = [
        f"{count} launch{'es' * (count != 1)}",
        f"{sum(each.instructions for each in session.launches.ran):,} warp instructions",
    ]
    if runs > count:
        said.append(f"{runs} runs, the same under every schedule" if session.error is None else f"{runs} runs")
    if session.skipped:
        said.append(f"{session.skipped} repeated launches skipped")
    if session.launches.reports and all(report.ok for report in session.launches.reports):
        said.append(f"{len(session.launches.reports)} checked: {proved(session.launches.reports)}")
    return ", ".join(said)
