"""`warploom check FILE.launch.json …`: judges the kernels of launch files for every interleaving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from warploom.checker.check import DEFAULT_LIMIT, check
from warploom.checker.report import Report, Verdict
from warploom.commands.console import complain, output, printable
from warploom.commands.errors import INCOMPLETE, MISMATCH, OK, catalogued, status_of, worst
from warploom.diagnostics import Diag, WarploomError
from warploom.launch_file import DEFAULT_MAX_BYTES, load

_STATUS = {Verdict.PROVED: OK, Verdict.REFUTED: MISMATCH, Verdict.INCOMPLETE: INCOMPLETE}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a check; the defaults bound what an untrusted file can use."""

    profile: str = "strict"
    limit: int = DEFAULT_LIMIT
    data_seed: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    allow_incomplete: bool = False


def run(paths: Sequence[Path], settings: Settings) -> int:
    """Check every file, print the reports, and return the worst exit status."""
    statuses = []
    for path in paths:
        try:
            report = checked(path, settings)
        except OSError:
            raise  # standard output or error: nothing of this file's
        except Exception as error:  # noqa: BLE001  the other files are still checked
            found = catalogued(error)
            complain(found)
            statuses.append(status_of(found))
            continue
        output().print(printable(f"{path.name}: {report}"), markup=False, highlight=False, soft_wrap=True)
        statuses.append(status(report, settings))
    return worst(*statuses)


def status(report: Report, settings: Settings) -> int:
    """The exit status of a report."""
    if report.verdict is Verdict.INCOMPLETE and settings.allow_incomplete:
        return OK
    return _STATUS[report.verdict]


def checked(path: Path, settings: Settings) -> Report:
    """Check the launch of one file."""
    if path.suffix == ".ptx" and path.is_file():
        raise Diag.NOT_A_LAUNCH_FILE.error(file=str(path))
    file = load(path, seed=settings.data_seed, max_bytes=settings.max_bytes)
    try:
        report = check(file.launch(file.allocate()), profile=settings.profile, limit=settings.limit)
    except WarploomError as error:
        if error.loc is not None and error.loc.file == "<ptx>":
            raise error.diag.error(replace(error.loc, file=str(file.ptx_path)), error.notes, **error.fields) from None
        raise
    return replace(report, name=report.name or file.entry or "")
