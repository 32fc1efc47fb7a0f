"""`warploom triton SCRIPT …`, or `-m MODULE …`: runs an unmodified Triton or Gluon program on the emulator."""

from __future__ import annotations

import contextlib
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
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
        with _as_program(script, script.resolve().parent, arguments):
            status = _run(script, lambda: runpy.run_path(str(script), run_name="__main__"), timeout)
        return _concluded(session, status, options)


def run_module(name: str, arguments: Sequence[str], *, timeout: float | None = None, **options: Any) -> int:
    """Run a module as `python -m` does, or the `__main__` of a package, in a machine with these options."""
    with machine(**options) as session, started_on_machine(session):
        with _as_program(Path("-m"), Path.cwd(), arguments):
            file = _file_of(name)
            sys.argv[0] = str(file)
            status = _run(file, lambda: runpy.run_module(name, run_name="__main__", alter_sys=True), timeout)
        return _concluded(session, status, options)


def _file_of(name: str) -> Path:
    """The file of a module, as Python finds it. Packages that it is in are imported; if one raises an error, it does so
    again when the module is run.
    """
    what = f"is neither a module in {Path.cwd()} nor one of an installed package"
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            what, spec = "is a package without a module `__main__`", find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            return Path(name)
        spec = None
    except ValueError:  # an empty part, as in `a..b`
        spec = None
    except Exception:  # noqa: BLE001  the program's own
        return Path(name)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise Diag.BAD_COMMAND.error(what=f"argument -m: {name} {what}", command="warploom triton")
    return Path(spec.origin)


def _concluded(session: Any, status: int, options: Mapping[str, Any]) -> int:
    """Print what checks and schedules showed; the exit status."""
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


def _run(script: Path, program: Callable[[], object], timeout: float | None) -> int:
    status, threads = OK, set(threading.enumerate())
    with _reporting_threads(script) as failed, limited(timeout, "The script", "warploom triton"):
        try:
            program()
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
def _as_program(script: Path, directory: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Give the program its command line, and the directory in which it finds modules first, as Python does."""
    argv, path = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *arguments], [str(directory), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path
