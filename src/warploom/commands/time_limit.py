"""A limit on the time that another program takes inside this process."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from warploom.diagnostics import Diag


@contextmanager
def limited(seconds: float | None, what: str, command: str) -> Iterator[None]:
    """End a block that takes longer than so many seconds with an error at the line where it is."""
    if seconds is None:
        yield
        return
    if not hasattr(signal, "setitimer"):
        raise Diag.BAD_COMMAND.error(what="--timeout needs a POSIX system", command=command)

    def expire(number: int, frame: FrameType | None) -> None:
        raise Diag.TIMEOUT.error(what=what, seconds=seconds)

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
