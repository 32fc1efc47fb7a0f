"""A progress bar for long emulations: on standard error of a terminal or in a notebook, after two seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 2.0
"""Seconds before the bar appears: most launches end sooner and show nothing."""

_TERMINAL = Lock()
"""Held by the bar that is on the screen: threads may launch at the same time, and one bar is readable."""


def is_wanted(progress: bool | None) -> bool:
    """Resolve `progress=`: by default a bar in a notebook and on a terminal, and none in CI (`CI` is set)."""
    if progress is not None:
        return progress
    if os.environ.get("CI"):
        return False
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class Bar:
    """Counts finished clusters and executed instructions; `with` starts its clock and removes it from the screen.

    The launch runs in the caller's thread and calls `update` when a cluster ends, which may be never for a minute. So a
    timer starts the display, and rich's own thread redraws it with the instructions executed so far.
    """

    def __init__(self, title: str, instructions: Callable[[], int]) -> None:
        self._title, self._instructions = title, instructions
        self._done, self._total = 0, 0
        self._display: Progress | None = None
        self._ended = False
        self._change = Lock()
        self._timer = Timer(DELAY, self._show)
        self._timer.daemon = True

    @property
    def shown(self) -> bool:
        return self._display is not None

    def update(self, done: int, total: int, /) -> None:
        """Take the number of finished clusters and of all clusters."""
        self._done, self._total = done, total
        if self._display is not None:
            self._display.update(self._display.task_ids[0], completed=done, total=total)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.text import Text

        class Instructions(ProgressColumn):
            def render(column, task: Task) -> Text:  # noqa: N805  `self` is the bar
                return Text(f"{self._instructions():,} warp instructions")

        with self._change:
            if self._ended or not _TERMINAL.acquire(blocking=False):
                return
            title = TextColumn("{task.description}", markup=False)
            columns = (title, BarColumn(), MofNCompleteColumn(), TextColumn("clusters"), Instructions())
            console = Console(file=sys.stderr)
            self._display = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            self._display.add_task(self._title, completed=self._done, total=self._total or None)
            self._display.start()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._change:
            self._ended = True
            if self._display is not None:
                self._display.stop()
                _TERMINAL.release()
