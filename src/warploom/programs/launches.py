"""The launches that a program makes on the emulator: run, checked and recorded as its options ask."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warploom.checker.check import DEFAULT_LIMIT, check
from warploom.checker.report import Report, Verdict
from warploom.diagnostics import Diag, WarploomError
from warploom.host.launch import Launch, Triple
from warploom.launch_file.writing import save_schedule
from warploom.launcher import launch
from warploom.programs.options import ProgramOptions
from warploom.ptx.syntax.symbols import readable


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch that ran to its end."""

    kernel: str
    grid: Triple
    instructions: int
    seconds: float
    schedules: int = 1
    """The schedules under which it ran: more than one if they are explored."""
    remarks: tuple[str, ...] = ()
    """Results that differ between schedules and are not wrong: sums whose rounding depends on the order."""


class Launches:
    """The launches that ran so far, and the reports of those that were checked."""

    def __init__(self, options: ProgramOptions) -> None:
        self._options = options
        self.ran: list[Launched] = []
        self.reports: list[Report] = []

    def check(self, whole: Launch) -> None:
        """Check a launch, if the options ask for it; it changes nothing."""
        if self._options.profile is not None:
            options = self._options
            limit = DEFAULT_LIMIT if options.limit is None else options.limit
            self.reports.append(check(whole, profile=self._options.profile, sms=options.sms, limit=limit))

    def run(
        self, whole: Launch, *, recording: AbstractContextManager[Any] | None = None, file: Path | None = None
    ) -> None:
        """Run a launch in the block that records it to a file, and print what the kernel printed.

        A schedule under which it fails is saved next to the file.
        """
        options, name = self._options, readable(whole.entry or "")
        try:
            with recording or nullcontext():
                run = launch(
                    whole, schedule=options.schedule, seed=options.seed, sms=options.sms, limit=options.limit,
                    budget=options.budget,
                )  # fmt: skip
        except WarploomError as error:
            _print(error.printed)
            schedule = getattr(error, "schedule", None)
            if file is not None and schedule is not None:
                error.notes += (_replayed(file, save_schedule(schedule, file)),)
            raise
        self.ran.append(Launched(name, whole.grid, run.instructions, run.wall_seconds, run.schedules, run.remarks))
        _print(run.printed)
        if run.failure is not None:
            notes = [] if file is None else [_replayed(file, save_schedule(run.failure.schedule, file))]
            raise Diag.SCHEDULE_DEPENDENT.error(notes=notes, kernel=name, what=run.failure)

    def refuted(self) -> WarploomError | None:
        """The error with the reports that are REFUTED, each once."""
        texts = dict.fromkeys(str(each) for each in self.reports if each.verdict is Verdict.REFUTED)
        if not texts:
            return None
        count = sum(each.verdict is Verdict.REFUTED for each in self.reports)
        what = f"{count} of {len(self.reports)} checked launches are REFUTED:\n" + "\n".join(texts)
        return Diag.NOT_PROVED.error(what=what)


def _replayed(file: Path, schedule: Path) -> str:
    return f"replayed by `warploom run {file} --schedule {schedule}`"


def _print(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
