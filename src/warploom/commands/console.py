"""What the commands print with: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from warploom.diagnostics import WarploomError

PIPE_WIDTH = 160


class OnProgress(Protocol):
    """Called with the number of finished CTAs and of all CTAs."""

    def __call__(self, done: int, total: int, /) -> None: ...


def output() -> Console:
    """The console for results; what goes to a file or a pipe is not folded to a terminal's width."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table in the house's look."""
    made = Table(
        title=Text(printable(title)), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def printable(text: str) -> str:
    """Text from a file, without characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def complain(error: WarploomError) -> None:
    """Prints an error's sentences on standard error."""
    print(printable(str(error)), file=sys.stderr)  # noqa: T201


@contextmanager
def progress_bar(title: str) -> Iterator[OnProgress]:
    """A bar that counts CTAs; it appears on a terminal only, and goes when they have run."""
    console = Console(file=sys.stderr)
    told = TextColumn("{task.description}", markup=False)
    columns = (told, BarColumn(), MofNCompleteColumn(), TextColumn("CTAs"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(printable(title), total=None)

        def on_progress(done: int, total: int, /) -> None:
            progress.update(task, completed=done, total=total)

        yield on_progress
