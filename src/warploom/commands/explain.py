"""`warploom explain CODE`: what an error of the catalogue says and advises."""

from __future__ import annotations

from difflib import get_close_matches

from warploom.commands.console import output
from warploom.diagnostics import Diag


def explain(code: str | None) -> None:
    """Prints one entry, or the list of all codes."""
    console = output()
    if code is None:
        for entry in Diag:
            console.print(entry.name, markup=False)
        return
    name = code.upper()
    if name not in Diag.__members__:
        close = get_close_matches(name, Diag.__members__, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise Diag.NO_SUCH_CODE.error(name=code, hint=hint)
    sentence, advice = Diag[name].value
    console.print(f"{name}\n  {sentence}\n  do: {advice}", markup=False)
