"""`warploom explain CODE`: what an error of the catalogue says and advises."""

from __future__ import annotations

from difflib import get_close_matches

from rich.text import Text

from warploom.commands.console import output, table
from warploom.diagnostics import Diag


def explain(code: str | None) -> None:
    """Prints one entry, or the list of all."""
    console = output()
    if code is None:
        rows = table("", "code", "meaning")
        for entry in Diag:
            rows.add_row(entry.name, Text(entry.meaning))
        console.print(rows)
        return
    name = code.upper()
    if name not in Diag.__members__:
        close = get_close_matches(name, Diag.__members__, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise Diag.NO_SUCH_CODE.error(name=code, hint=hint)
    entry = Diag[name]
    console.print(f"{name}: {entry.meaning}\n  {entry.kind}\n  do: {entry.advice}", markup=False)
