"""A limit on the time that another program takes inside this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from warploom.diagnostics import Diag

_AGAIN = 5.0
"""Seconds until a block is ended again that went on: code that expects errors of launches goes on after any of them."""


@contextmanager
def limited(seconds: float | None, what: str, command: str) -> Iterator[None]:
    """End a block that takes longer than so many seconds with an error at the line where it is."""
    if seconds is None:
        yield
        return
    if not hasattr(signal, "setitimer"):
        raise Diag.BAD_COMMAND.error(what="--timeout needs a POSIX system", command=command)

    def expire(number: int, frame: FrameType | None) -> None:
        raise Diag.TIMEOUT.error(notes=_place(frame), what=what, seconds=seconds)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place(frame: FrameType | None) -> list[str]:
    """The function of another package that was running; nothing inside a launch, which names its warps."""
    innermost = frame
    while frame is not None:
        if frame.f_globals.get("__name__") == "warploom.launcher":
            return []
        frame = frame.f_back
    while innermost is not None and str(innermost.f_globals.get("__name__")).startswith("warploom"):
        innermost = innermost.f_back
    if innermost is None:
        return []
    code = innermost.f_code
    return [f"in {innermost.f_globals.get('__name__')}.{code.co_qualname}, line {innermost.f_lineno}"]
