"""Bounds on time that hold on slow and busy machines: CPU time in units of what Python does on this one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def _seconds(work: Callable[[], object]) -> float:
    """CPU time of this thread without the garbage collector, which visits the objects of all tests before this one."""
    collects = gc.isenabled()
    gc.disable()
    try:
        begin = time.thread_time()
        work()
        return time.thread_time() - begin
    finally:
        if collects:
            gc.enable()


def _piece() -> None:
    """About 10 ms of dictionaries, strings and numbers on a fast core."""
    found: dict[str, int] = {}
    for number in range(40_000):
        word = str(number % 997)
        found[word] = found.get(word, 0) + len(word)


def cost(work: Callable[[], object], repeats: int = 3) -> float:
    """The CPU time of some work as a multiple of a fixed piece of Python that runs next to it; the least of some runs."""
    return min(_seconds(work) / max(_seconds(_piece), 1e-3) for _ in range(repeats))
