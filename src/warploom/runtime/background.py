"""Work that no call waits for: one thread builds the kernels that later calls will run.

A process that forks starts anew in the child; at exit no new work begins, and the work in progress is waited for. While
the thread works, Python switches between threads more often than usual, so that calls are not held up by it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable

from warploom.diagnostics import Diag

SWITCH = "WARPLOOM_BACKGROUND"
_SWITCH_SECONDS = 1e-4
"""Longest time that a thread keeps Python's lock while another waits for it."""
_EXIT_SECONDS = 10.0


class Worker:
    """A thread that is started by the first job and ends when there are none left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._is_open = True
        self._reported: set[str] = set()
        self.done = 0
        """Jobs that were finished."""

    def submit(self, job: Callable[[], object]) -> bool:
        """Run a job later, in the thread; return False if the process is about to exit."""
        with self._changed:
            if not self._is_open:
                return False
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="warploom background", daemon=True)
                self._thread.start()
            return True

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until no job is left; return False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def close(self) -> None:
        """Begin no further job, and wait for the current one."""
        with self._changed:
            self._is_open = False
            self._jobs.clear()
        self.wait(_EXIT_SECONDS)

    def _work(self) -> None:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(min(usual, _SWITCH_SECONDS))
        shorter = sys.getswitchinterval()  # a little less: it is a whole number of microseconds
        while True:
            with self._changed:
                if not self._jobs:
                    if sys.getswitchinterval() == shorter:
                        sys.setswitchinterval(usual)
                    self._thread = None
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception as error:  # noqa: BLE001  no caller is there to get it
                self._report(error)
            self.done += 1

    def _report(self, error: Exception) -> None:
        """Warn of an error, once for each message; calls keep the kernels that they have."""
        message = f"a kernel could not be built in the background: {str(error).partition(chr(10))[0]}"
        if message in self._reported:
            return
        self._reported.add(message)
        try:
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        except RuntimeWarning:  # the process treats warnings as errors, and this thread has no caller
            print(f"warploom: {message}", file=sys.stderr)  # noqa: T201


_worker = Worker()


def worker() -> Worker:
    """Return the worker of this process."""
    return _worker


def is_enabled() -> bool:
    """Return whether calls may run with a loaded kernel while a better one is built; the environment decides."""
    value = os.environ.get(SWITCH, "1")
    if value not in ("0", "1"):
        what = "1 lets calls run with a loaded kernel while a better one is built, 0 makes them wait for it"
        raise Diag.BAD_SETTING.error(variable=SWITCH, value=value, what=what)
    return value == "1"


def _start_anew() -> None:
    """Replace the worker in the child of a fork, where its thread does not exist."""
    global _worker  # noqa: PLW0603
    _worker = Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


@atexit.register
def _close() -> None:
    _worker.close()
