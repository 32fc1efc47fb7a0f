"""Exit statuses, and errors as a process reports them: as text on standard error, as JSON, as a status."""

from __future__ import annotations

import os

from warploom.diagnostics import CheckError, Diag, Fault, Stuck, UnsupportedError, WarploomError

OK, MISMATCH, FAULT, BAD_INPUT, INTERNAL, NOT_COMPARED, INCOMPLETE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
_SEVERITY = (OK, NOT_COMPARED, INCOMPLETE, MISMATCH, FAULT, BAD_INPUT, INTERNAL)


def worst(*statuses: int) -> int:
    """The status of a call that has several."""
    return max(statuses, key=_SEVERITY.index, default=OK)


def status_of(error: WarploomError) -> int:
    """The exit status of an error."""
    if isinstance(error, Fault | Stuck | UnsupportedError):
        return FAULT
    if isinstance(error, CheckError):
        return MISMATCH
    return INTERNAL if error.diag is Diag.INTERNAL else BAD_INPUT


def catalogued(error: Exception) -> WarploomError:
    """Any exception as an error of the catalogue; WARPLOOM_TRACEBACK=1 raises those that are not expected."""
    if isinstance(error, WarploomError):
        return error
    if isinstance(error, MemoryError):
        return Diag.OUT_OF_MEMORY.error(what=str(error).rstrip(".") or "an allocation failed")
    if os.environ.get("WARPLOOM_TRACEBACK"):
        raise error
    return Diag.INTERNAL.error(what=f"{type(error).__name__}: {error}".rstrip(" :."))


def error_document(error: WarploomError) -> dict[str, object]:
    """An error as JSON data; `where` has the whole path of its source file."""
    return {
        "code": error.code,
        "what": error.what,
        "where": f"{error.loc.file}:{error.loc.line}" if error.loc else None,
        "notes": list(error.notes),
        "do": error.advice,
    }
