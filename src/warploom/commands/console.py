"""Output of the commands: results on standard output, errors on standard error."""

from __future__ import annotations

import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from warploom.diagnostics import WarploomError

PIPE_WIDTH = 160


def output() -> Console:
    """The console for results; in a file or a pipe, lines are not folded to a terminal's width."""
    return Console(file=sys.stdout, highlight=False, emoji=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def table(title: str, *columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table in the style of all commands."""
    made = Table(
        title=Text(printable(title)), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def printable(text: str) -> str:
    """Text from a file, without control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def complain(error: WarploomError) -> None:
    """Print an error on standard error."""
    print(printable(str(error)), file=sys.stderr)  # noqa: T201


def interrupted(error: KeyboardInterrupt) -> None:
    """Print on standard error that the user stopped the command, and what was running."""
    print(printable("\n  ".join(("interrupted", *getattr(error, "__notes__", ())))), file=sys.stderr)  # noqa: T201
