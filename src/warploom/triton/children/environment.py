"""The environment of Python processes that a program starts: the emulator is their GPU too.

The options of `warploom.triton.machine` are in a variable. Python imports `startup/sitecustomize.py` when such a
process begins, and that calls `enter` once the process has imported Triton or PyTorch. A process that is forked has
everything already.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warploom.triton.options import Options
    from warploom.triton.session import Session

VARIABLE = "WARPLOOM_TRITON"
"""The options of `warploom.triton.machine` in the process that started this one, as JSON."""
STARTUP = Path(__file__).with_name("startup")

_inherited = ExitStack()
_sessions: list[Session] = []


def set_variable(name: str, value: str | None) -> None:
    """Set a variable of the environment, or remove it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


@contextmanager
def started_on_machine(session: Session) -> Iterator[None]:
    """Let the Python processes that are started in the block begin with a session of the same options."""
    values = {VARIABLE: _text(session.options), "PYTHONPATH": _path(os.environ.get("PYTHONPATH"))}
    before = {name: os.environ.get(name) for name in values}
    sessions = [session]
    os.register_at_fork(after_in_child=lambda: _record_apart(sessions))
    os.environ.update(values)
    try:
        yield
    finally:
        sessions.clear()  # Python cannot forget a function that it calls after a fork
        for name, value in before.items():
            set_variable(name, value)


def _text(options: Options) -> str:
    given = asdict(options)
    if options.record is not None:
        given["record"] = str(Path(options.record).absolute())
    return json.dumps(given)


def _path(present: str | None) -> str:
    return os.pathsep.join((str(STARTUP), *([present] if present else [])))


def _record_apart(sessions: list[Session]) -> None:
    """Let a forked process record into a folder of its own."""
    for session in sessions:
        if session.options.record is not None:
            session.options = replace(session.options, record=_own_folder(session.options.record))


def _own_folder(folder: str | Path) -> Path:
    return Path(folder) / f"process{os.getpid()}"


def enter() -> None:
    """Enter `warploom.triton.machine` with the inherited options; a launch that is REFUTED is an error at once."""
    from warploom.triton import machine

    given = json.loads(os.environ[VARIABLE])
    if given["record"] is not None:
        given["record"] = _own_folder(given["record"])
    session = _inherited.enter_context(machine(**given))
    session.raises_at_launch = True
    _sessions.append(session)
    atexit.register(leave)


def leave() -> None:
    """Leave what this process has inherited, or no longer wait for it: a session of its own takes its place."""
    sys.meta_path[:] = [each for each in sys.meta_path if not getattr(each, "awaits_import", False)]
    while _sessions:
        from warploom.checker.report import Verdict

        reports = _sessions.pop().reports
        for text in dict.fromkeys(str(each) for each in reports if each.verdict is Verdict.INCOMPLETE):
            sys.stderr.write(f"{text}\n")
    _inherited.close()
