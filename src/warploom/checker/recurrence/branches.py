"""Branches: copies of this process in which a run goes on with another answer, or in which other runs are made.

A copy has the state of the emulator and of the checker at the time when it is made, so that nothing is run again. A
process is copied where that is possible and it has one thread; elsewhere all runs are made here, one after the other.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, NoReturn, TypeVar

from warploom.checker.recurrence.variants import Refused

T = TypeVar("T")


class LostCopyError(Refused):
    """A copy of the process ended without a result, or with an error that it could not hand on."""


def can_branch() -> bool:
    """True if this process may be copied: other threads could hold locks that a copy needs."""
    return sys.platform == "linux" and threading.active_count() == 1


class _Copy(NamedTuple):
    """A copy of the process; its number is 0 in the copy itself."""

    process: int
    pipe: Connection
    """The end of a pipe that the result is sent to, or received from."""

    def received(self) -> Callable[[], Any]:
        """Wait for the result; the function returns it, or raises the error that the copy met."""
        try:
            is_result, value = self.pipe.recv()
        except EOFError:
            is_result, value = False, LostCopyError("a copy of the process ended without a result")
        finally:
            self.pipe.close()
            os.waitpid(self.process, 0)

        def result() -> Any:
            if not is_result:
                raise value
            return value

        return result

    def end(self, value: object, *, is_result: bool = True) -> NoReturn:
        """End the copy with a result, or with the error that it met."""
        try:
            self.pipe.send((is_result, value))
        except OSError:  # the original has ended
            pass
        except Exception:  # noqa: BLE001  (an error may hold what cannot be sent)
            self.pipe.send((False, LostCopyError(repr(value))))
        finally:
            os._exit(0)

    def give_up(self) -> None:
        """End a copy whose result is not needed."""
        os.kill(self.process, signal.SIGKILL)
        self.pipe.close()
        os.waitpid(self.process, 0)


def _copied() -> _Copy:
    """Copy this process."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, of which there are none
        process = os.fork()
    if process:
        sending.close()
        return _Copy(process, receiving)
    receiving.close()
    gc.disable()  # a collection would write to most of the memory that is shared
    return _Copy(0, sending)


class Branches:
    """Runs that part from one run, each in a copy of the process."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.events = 0
        """The events of the run before it parted; 0 in the original."""
        self._here: _Copy | None = None

    @property
    def is_copy(self) -> bool:
        """True in a copy."""
        return self._here is not None

    def part(self, events: int) -> bool:
        """Let the run go on in a copy as well: True there. The original waits for the result of the copy."""
        copy = _copied()
        if copy.process:
            self.results.append(copy.received()())
            return False
        self._here, self.events = copy, events
        return True

    def end(self, value: object, *, is_result: bool = True) -> NoReturn:
        """End a copy with its result, or with the error that it met."""
        assert self._here is not None
        self._here.end(value, is_result=is_result)


def in_copies(tasks: Iterable[Callable[[], T]], *, independent: bool = False) -> Generator[T, None, None]:
    """The results of tasks, in order. With several cores several run at once, each in a copy of the process.

    Independent tasks are begun as cores become free. Others may depend on the results so far: one is taken when the
    results of all but as many as there are cores have been taken, so that what it can depend on is the same in every
    run.
    """
    cores = len(os.sched_getaffinity(0)) if can_branch() and multiprocessing.parent_process() is None else 1
    if cores == 1:
        yield from (task() for task in tasks)
        return
    left, begun, running = iter(tasks), deque[_Copy](), list[_Copy]()
    ended: dict[_Copy, Callable[[], T]] = {}
    try:
        while True:
            while (
                len(running) < cores and (independent or len(begun) < cores) and (task := next(left, None)) is not None
            ):
                copy = _copied()
                if not copy.process:
                    _run(task, copy)
                begun.append(copy)
                running.append(copy)
            if not begun:
                return
            if begun[0] in ended:
                yield ended.pop(begun.popleft())()
                continue
            for pipe in wait([copy.pipe for copy in running]):
                (copy,) = (each for each in running if each.pipe is pipe)
                running.remove(copy)
                ended[copy] = copy.received()
    finally:
        for copy in running:
            copy.give_up()


def _run(task: Callable[[], object], here: _Copy) -> NoReturn:
    try:
        value = task()
    except BaseException as error:  # noqa: BLE001  (it is raised in the original)
        here.end(error, is_result=False)
    here.end(value)
