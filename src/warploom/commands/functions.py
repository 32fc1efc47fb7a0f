"""`MODULE:FUNCTION` on the command line: the launches that a Python function returns."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from warploom.diagnostics import Diag, WarploomError
from warploom.host.launch import Launch

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*(\[.*\])?", re.DOTALL)


def is_function(target: str) -> bool:
    """True for `MODULE:FUNCTION`, and for `MODULE:FUNCTION[NAME]`, one of the launches that it returns."""
    return _FUNCTION.fullmatch(target) is not None and not Path(target).exists()


def launches_of(target: str, command: str) -> dict[str, Launch]:
    """Return the launches of `MODULE:FUNCTION` by name: one launch, several, or a mapping of names."""
    whole, bracket, _ = target.partition("[")
    function, path = _imported(whole, command), whole.partition(":")[2]
    try:
        found = function() if callable(function) else function
    except WarploomError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(whole, f"{path}()", error, command) from error
    if isinstance(found, Launch):
        launches: dict[str, Any] = {whole: found}
    elif isinstance(found, Mapping):
        launches = {f"{whole}[{name}]": each for name, each in found.items()}
    elif isinstance(found, Iterable):
        launches = {f"{whole}[{at}]": each for at, each in enumerate(found)}
    else:
        launches = {whole: found}
    wrong = [type(each).__name__ for each in launches.values() if not isinstance(each, Launch)]
    if wrong or not launches:
        returned = wrong[0] if wrong else "no launch"
        what = f"it returned {returned}; it must return a Launch, several, or a dict of them"
        raise _wrong(whole, what, command)
    if not bracket:
        return launches
    if target not in launches:
        raise _wrong(target, f"{path}() returned {', '.join(launches) or 'no launch'}", command)
    return {target: launches[target]}


def _imported(target: str, command: str) -> Any:
    """The object that `MODULE:FUNCTION` names; modules are looked for in the working directory too."""
    module, _, path = target.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function: Any = importlib.import_module(module)
    except WarploomError:
        raise
    except (Exception, SystemExit) as error:
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        if name is None or not f"{module}.".startswith(f"{name}."):
            raise _raised(target, f"importing {module}", error, command) from error
        what = f"there is no module `{name}` in {Path.cwd()} or among installed packages"
        raise _wrong(target, what, command) from None
    try:
        for each in path.split("."):
            function = getattr(function, each)
    except AttributeError as error:
        raise _wrong(target, str(error), command) from None
    return function


def _raised(target: str, what: str, error: BaseException, command: str) -> WarploomError:
    """The caller's own error, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_file() and frame.filename != __file__]
    place = f" at {own[-1].filename}:{own[-1].lineno}" if own and not isinstance(error, SyntaxError) else ""
    return _wrong(target, f"{what} raised {type(error).__name__}: {error}{place}", command)


def _wrong(target: str, what: str, command: str) -> WarploomError:
    return Diag.BAD_COMMAND.error(what=f"{target}: {what}", command=f"warploom {command}")
