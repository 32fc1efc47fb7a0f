"""`warploom triton SCRIPT …`: runs an unmodified Triton or Gluon script on the emulator."""

from __future__ import annotations

import contextlib
import runpy
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warploom.checker.report import Verdict, proved
from warploom.commands.console import complain
from warploom.commands.errors import INCOMPLETE, MISMATCH, OK, status_of, worst
from warploom.commands.file_kinds import wrong_kind
from warploom.commands.time_limit import limited
from warploom.diagnostics import Diag, WarploomError
from warploom.triton import machine
from warploom.triton.children.environment import started_on_machine


def run_script(script: Path, arguments: Sequence[str], *, timeout: float | None = None, **options: Any) -> int:
    """Run a script as `__main__` in a machine with these options; the exit status.

    An exception of the script prints its traceback and is a mismatch: mostly it is the script's own comparison.
    """
    if not script.is_file():
        raise Diag.UNREADABLE_FILE.error(file=str(script), what="does not exist, or is not a file")
    if (other := wrong_kind(script, "triton")) is not None:
        raise other
    with machine(**options) as session, started_on_machine(session):
        status = _run(script, arguments, timeout)
        if any(report.verdict is Verdict.INCOMPLETE for report in session.reports):
            status = worst(status, INCOMPLETE)
            for text in dict.fromkeys(str(each) for each in session.reports if each.verdict is Verdict.INCOMPLETE):
                sys.stderr.write(f"{text}\n")
        if session.reports and status == OK and all(report.ok for report in session.reports):
            count = len(session.reports)
            sys.stderr.write(f"{count} launch{'es' * (count > 1)} checked: {proved(session.reports)}\n")
        if options.get("schedule") == "explore" and session.launches and status == OK:
            _show_explored(session.launches)
    return status


def _show_explored(launches: Sequence[Any]) -> None:
    """Print that the launches give the same results under every schedule that was tried."""
    runs = sum(each.schedules for each in launches)
    for remark in dict.fromkeys(text for each in launches for text in each.remarks):
        sys.stderr.write(f"{remark}\n")
    count = len(launches)
    sys.stderr.write(f"the same under every schedule: {count} launch{'es' * (count > 1)}, {runs} runs\n")


def _run(script: Path, arguments: Sequence[str], timeout: float | None) -> int:
    status, threads = OK, set(threading.enumerate())
    with (
        _as_program(script, arguments),
        _reporting_threads(script) as failed,
        limited(timeout, "The script", "warploom triton"),
    ):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ending:
            status = _status(ending)
        except WarploomError as error:
            return _report(error, script)
        except KeyboardInterrupt as error:
            sys.stderr.write(_traceback(error, script, hidden={"warploom", "triton"}, ended=False))
            raise
        except Exception as error:  # noqa: BLE001  the script's own
            sys.stderr.write(_traceback(error, script, hidden={"warploom"}))
            return MISMATCH
        _join(threads)
    return status or worst(*failed)


def _join(before: set[threading.Thread]) -> None:
    """Wait for the threads of the script, as Python does before it ends; idle ones of a pool never end."""
    pool = "concurrent.futures.thread"
    for each in set(threading.enumerate()) - before:
        if not each.daemon and getattr(getattr(each, "_target", None), "__module__", "") != pool:
            each.join()


def _report(error: WarploomError, script: Path) -> int:
    """Print an error of the emulator with the script's own frames; the exit status."""
    sys.stderr.write(_traceback(error, script, hidden={"warploom", "triton"}, ended=False))
    complain(error)
    return status_of(error)


@contextmanager
def _reporting_threads(script: Path) -> Iterator[list[int]]:
    """Report errors of the emulator that end a thread of the script; the exit statuses of those."""
    before, failed = threading.excepthook, list[int]()

    def hook(ended: threading.ExceptHookArgs) -> None:
        if isinstance(ended.exc_value, WarploomError):
            failed.append(_report(ended.exc_value, script))
        else:
            before(ended)

    threading.excepthook = hook
    try:
        yield failed
    finally:
        threading.excepthook = before


def _status(ending: SystemExit) -> int:
    """The status of a script that calls `sys.exit`, as Python gives it."""
    if ending.code is None or isinstance(ending.code, int):
        return ending.code or OK
    sys.stderr.write(f"{ending.code}\n")
    return MISMATCH


def _traceback(error: BaseException, script: Path, *, hidden: set[str], ended: bool = True) -> str:
    """The traceback from the script on, with those of the exceptions that caused it, as Python prints them.

    Frames of the packages `hidden` are left out: those of warploom, and, where an error of the catalogue is raised,
    those of Triton, which lead from the launch to the emulator. If not `ended`, the last message is left out too.
    """
    text = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = text
    while each is not None:
        each.stack = traceback.StackSummary.from_list(list(_shown(each.stack, script, hidden)))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    if ended:
        return "".join(text.format())
    return "Traceback (most recent call last):\n" + "".join(text.stack.format())


def _shown(
    frames: Sequence[traceback.FrameSummary], script: Path, hidden: set[str]
) -> Iterator[traceback.FrameSummary]:
    """The frames from the script on that are not hidden; with a hidden one go those of its `with` statements."""
    files = [Path(frame.filename).name for frame in frames]
    is_inside = False
    for frame in frames[files.index(script.name) if script.name in files else 0 :]:
        file = Path(frame.filename)
        if hidden & _packages(file, script):
            is_inside = True
        elif frame.filename != "<frozen runpy>" and not (is_inside and _is_means(frame.filename)):
            is_inside = False
            yield frame


def _is_means(file: str) -> bool:
    """True for code without a file, such as a translated kernel, and for that of `with` statements."""
    return file.startswith("<") or file == contextlib.__file__


def _packages(file: Path, script: Path) -> set[str]:
    """The directories of a file of another package; none for files next to the script or below."""
    return set() if file.resolve().is_relative_to(script.resolve().parent) else set(file.parts)


@contextmanager
def _as_program(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Give the script its command line and its directory, as Python does."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *arguments], [str(script.resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path
