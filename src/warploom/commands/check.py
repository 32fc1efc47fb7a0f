"""`warploom check TARGET …`: judges kernels for every interleaving; targets are launch files and `module:function`."""

from __future__ import annotations

import functools
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from warploom.checker.check import DEFAULT_LIMIT, check
from warploom.checker.formats import FORMATS, Checked
from warploom.checker.report import Covers, Finding, Party, Report, Verdict
from warploom.checker.suppressions import Suppression, load_suppressions, suppressed_in
from warploom.checker.sweep import sweep
from warploom.commands.console import complain, output, printable
from warploom.commands.errors import INCOMPLETE, MISMATCH, OK, catalogued, status_of, worst
from warploom.commands.file_kinds import wrong_kind
from warploom.commands.functions import is_function, launches_of
from warploom.diagnostics import Diag, Loc, WarploomError
from warploom.host.launch import Launch
from warploom.launch_file import DEFAULT_MAX_BYTES, load
from warploom.progress import is_wanted

FAIL_ON: Mapping[str, Callable[[Finding], bool]] = {
    "any": lambda _: True,
    "lenient": lambda finding: not finding.excused_by,
    "confirmed": lambda finding: finding.witness is not None and finding.witness.confirmed,
    "never": lambda _: False,
}
"""The findings that count for the exit status, by the value of --fail-on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a check; the defaults bound what an untrusted file can use."""

    profile: str = "strict"
    limit: int = DEFAULT_LIMIT
    data_seed: int | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    allow_incomplete: bool = False
    fail_on: str = "any"
    suppress: Path | None = None
    format: str = "text"
    out: Path | None = None
    witness: Path | None = None
    jobs: int = 1
    all_sizes: bool = False
    all_pairs: bool = False
    redundant: bool = False


@dataclass(frozen=True, slots=True)
class _Target:
    """One kernel to check: how to make its launch, and the file that its PTX is in."""

    source: str
    make: Callable[[], Launch]
    ptx: Path | None = None


def run(targets: Sequence[str], settings: Settings) -> int:
    """Check every target, write the reports, and return the worst exit status."""
    suppressions = load_suppressions(settings.suppress) if settings.suppress is not None else ()
    used: set[Suppression] = set()
    results = []
    for checked in _results(targets, settings):
        result = checked
        if result.report is not None:
            matched = suppressed_in(result.report, suppressions)
            used |= set(matched.values())
            result = replace(result, suppressed={at: entry.reason for at, entry in matched.items()})
        results.append(result)
        if settings.format == "text" and settings.out is None:
            _show(result, settings)
        elif result.error is not None:
            complain(result.error)
    if settings.format != "text" or settings.out is not None:
        _write(results, settings)
    if settings.witness is not None:
        _save_witnesses(results, settings.witness, settings)
    for entry in suppressions:
        if entry not in used:
            place = f"{entry.file}:{entry.line}" if entry.line is not None else entry.file
            sys.stderr.write(f"warning: {settings.suppress}: nothing matches {entry.code} at {place}\n")
    return worst(*(status(result, settings) for result in results))


def _results(targets: Sequence[str], settings: Settings) -> Iterator[Checked]:
    """Yield a result for each kernel, in the order of the targets."""
    found: list[_Target | Checked] = [each for target in targets for each in _expanded(target, settings)]
    wanted = [each for each in found if isinstance(each, _Target)]
    reports = _reports(wanted, settings)
    with _progress(len(wanted)) as advance:
        for each in found:
            if isinstance(each, Checked):
                yield each
                continue
            advance(each.source)
            report = next(reports)
            if report.error is not None and report.verdict is Verdict.INCOMPLETE and not report.covers.runs:
                yield Checked(each.source, error=_with_path(report.error, each.ptx))
            else:
                yield Checked(each.source, report=_with_paths(report, each.ptx))


def _reports(wanted: Sequence[_Target], settings: Settings) -> Iterator[Report]:
    sizes = "pairs" if settings.all_pairs else "all" if settings.all_sizes else "launch"
    options = {"profile": settings.profile, "limit": settings.limit, "sizes": sizes, "redundant": settings.redundant}
    if settings.jobs > 1 and len(wanted) > 1:
        yield from sweep((each.make for each in wanted), workers=settings.jobs, **options)  # type: ignore[arg-type]
        return
    for each in wanted:
        try:
            yield check(each.make(), **options)  # type: ignore[arg-type]
        except OSError:
            raise  # standard output or error: nothing of this target's
        except Exception as error:  # noqa: BLE001  the other targets are still checked
            yield Report(Verdict.INCOMPLETE, covers=Covers(runs=0), error=catalogued(error))


def _expanded(target: str, settings: Settings) -> Iterator[_Target | Checked]:
    """Yield the kernels that a target names, or the error that it is."""
    try:
        if is_function(target):
            for name in launches_of(target, "check"):
                yield _Target(name, functools.partial(_made_by, target, name))
            return
        path = Path(target)
        if (other := wrong_kind(path, "check")) is not None:
            yield Checked(target, error=other)
            return
        file = load(path, seed=settings.data_seed, max_bytes=settings.max_bytes)
        make = functools.partial(_loaded, path, settings.data_seed, settings.max_bytes)
        yield _Target(str(path), make, file.ptx_path)
    except OSError as error:
        if not isinstance(error, WarploomError):
            raise
        yield Checked(target, error=error)
    except Exception as error:  # noqa: BLE001  the other targets are still checked
        yield Checked(target, error=catalogued(error))


def _loaded(path: Path, seed: int | None, max_bytes: int) -> Launch:
    """Make the launch of a file, on fresh buffers."""
    file = load(path, seed=seed, max_bytes=max_bytes)
    made = file.launch(file.allocate())
    return replace(made, entry=made.entry or file.entry)


def _made_by(target: str, name: str) -> Launch:
    """Make one of the launches that a function returns."""
    return launches_of(target, "check")[name]


def status(result: Checked, settings: Settings) -> int:
    """The exit status of a result."""
    if result.report is None:
        return status_of(result.error) if result.error is not None else OK
    if any(FAIL_ON[settings.fail_on](finding) for finding in result.standing):
        return MISMATCH
    is_incomplete = result.report.verdict is Verdict.INCOMPLETE
    return INCOMPLETE if is_incomplete and not settings.allow_incomplete else OK


def _show(result: Checked, settings: Settings) -> None:
    if result.report is None:
        assert result.error is not None
        complain(result.error)
        return
    hidden = len(result.suppressed)
    report = replace(result.report, findings=result.standing)
    text = f"{result.source}: {report}"
    if hidden:
        text += f"\n  {hidden} finding{'s' * (hidden > 1)} suppressed by {settings.suppress}"
    output().print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _write(results: Sequence[Checked], settings: Settings) -> None:
    """Write all results in the chosen format, to a file or to standard output."""
    make = FORMATS.get(settings.format)
    text = (
        make(results)
        if make is not None
        else "\n".join(f"{each.source}: {each.report or each.error}" for each in results)
    )
    if settings.out is None:
        sys.stdout.write(f"{text}\n" if text else "")
        return
    try:
        settings.out.write_text(f"{text}\n", "utf-8")
    except OSError as error:
        raise Diag.UNWRITABLE_FILE.error(file=str(settings.out), what=error.strerror) from None


def _save_witnesses(results: Sequence[Checked], folder: Path, settings: Settings) -> None:
    """Write the recorded schedules of confirmed findings, and say how to replay them."""
    options = [] if settings.data_seed is None else ["--data-seed", str(settings.data_seed)]
    options += [] if settings.limit == DEFAULT_LIMIT else ["--limit", str(settings.limit)]
    options += [] if settings.max_bytes == DEFAULT_MAX_BYTES else ["--max-bytes", str(settings.max_bytes)]
    written = Counter[str]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for result in results:
            for number, finding in enumerate(result.standing, 1):
                witness = finding.witness
                if witness is None or witness.schedule is None or not witness.confirmed:
                    continue
                stem = re.sub(r"[^\w.-]+", "_", Path(result.source).name.removesuffix(".launch.json"))
                name = f"{stem}-{number}-{finding.code.lower()}"
                written[name] += 1  # files of one name in two folders
                path = folder / f"{name}{f'-{written[name]}' * (written[name] > 1)}.schedule.json"
                witness.schedule.save(path)
                command = shlex.join(["warploom", "run", result.source, "--schedule", str(path), *options])
                sys.stderr.write(f"witness: {command}\n")
    except OSError as error:
        raise Diag.UNWRITABLE_FILE.error(file=str(folder), what=error.strerror) from None


@contextmanager
def _progress(count: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error of a terminal, for several kernels."""
    if count < 2 or not is_wanted(None):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as bar:
        task = bar.add_task("check", total=count)
        done = -1

        def advance(name: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, completed=done, description=printable(f"check {Path(name).name}"))

        yield advance


def _with_paths(report: Report, ptx: Path | None) -> Report:
    """Return a report whose lines of PTX name the file that they are in."""
    if ptx is None:
        return report

    def with_file(text: str) -> str:
        return text.replace("<ptx>:", f"{ptx}:")

    def placed(finding: Finding) -> Finding:
        parties = tuple(_with_file(party, ptx) for party in finding.parties)
        notes = tuple(with_file(note) for note in finding.notes)
        return replace(
            finding, parties=parties, sentence=with_file(finding.sentence), path=with_file(finding.path), notes=notes
        )

    findings, lints = (tuple(placed(each) for each in group) for group in (report.findings, report.lints))
    reasons, assumptions = (tuple(with_file(each) for each in group) for group in (report.reasons, report.assumptions))
    return replace(report, findings=findings, lints=lints, reasons=reasons, assumptions=assumptions)


def _with_file(party: Party, ptx: Path) -> Party:
    return replace(party, loc=replace(party.loc, file=str(ptx))) if party.loc.file == "<ptx>" else party


def _with_path(error: WarploomError, ptx: Path | None) -> WarploomError:
    if ptx is None or error.loc is None or error.loc.file != "<ptx>":
        return error
    return error.diag.error(Loc(str(ptx), error.loc.line, error.loc.column), error.notes, **error.fields)
