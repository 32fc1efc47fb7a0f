"""Signals that come while a program's own code runs: Ctrl-C, and the alarm of a time limit."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def answered(is_in_python: Callable[[], bool], stop: Callable[[BaseException], None]) -> Iterator[None]:
    """Call `stop`, in another thread, with the exception of a signal that comes while compiled code runs.

    Python calls its handlers between its own instructions only, and compiled code may never return.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while number := os.read(reader, 1):
            handler = signal.getsignal(number[0])
            if callable(handler) and not is_in_python():
                try:
                    handler(number[0], None)
                except BaseException as error:  # noqa: BLE001  handlers raise what ends the program
                    stop(error)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        watching.join()
        os.close(reader)
