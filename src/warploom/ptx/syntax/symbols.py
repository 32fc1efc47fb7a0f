"""Names of kernels, as people write them."""

from __future__ import annotations

import re

_LENGTH = re.compile(r"\d+")
_TOO_LONG = 80


def readable(symbol: str) -> str:
    """A kernel's name for a report: of a C++ symbol its qualified name without arguments, `gemm::kernel<…>`.

    Follows the Itanium C++ ABI as far as names go that consist of plain identifiers; every other symbol is returned as
    it is, cut where it is long.
    """
    parts, at = [], 2
    if symbol.startswith("_Z"):
        nested = symbol.startswith("_ZN")
        at += nested
        while length := _LENGTH.match(symbol, at):
            end = length.end() + int(length[0])
            part = symbol[length.end() : end]
            parts.append("(anonymous)" if part.startswith("_GLOBAL__N_") else part)
            at = end
            if not nested:
                break
    if not parts or at > len(symbol):
        return symbol if len(symbol) <= _TOO_LONG else f"{symbol[:_TOO_LONG]}…"
    return "::".join(parts) + ("<…>" if symbol[at : at + 1] == "I" else "")
