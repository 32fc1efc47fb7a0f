"""What messages call a place in shared memory, and a warp: the name a note gives it, or the symbol it lies in.

A note `//!wl barrier NAME address stride count` names `count` barriers, `stride` bytes apart; the address is a shared
symbol, a symbol plus bytes (`smem+64`), or the bytes from the start of the CTA's shared memory. A note `//!wl role NAME
WARPS` names warps, as in `0-3,6`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from warploom.ptx.model import Note

if TYPE_CHECKING:
    from warploom.machine.cta import Cta
    from warploom.machine.grid import Grid

_NAMES: WeakKeyDictionary[Grid, dict[int, str]] = WeakKeyDictionary()
_ROLES: WeakKeyDictionary[Grid, dict[int, str]] = WeakKeyDictionary()


def name_of(cta: Cta, offset: int) -> str:
    """The name of the byte at an offset (reserved bytes included) of a CTA's shared memory."""
    start = offset - cta.shared.reserved
    noted = _noted(cta.grid).get(start)
    if noted is not None:
        return noted
    return symbol_at(cta.grid.shared_symbols, start) or f"shared+{offset:#x}"


def symbol_at(symbols: dict[str, int], start: int) -> str:
    """The variable that a byte lies in or behind, with the bytes from its start; empty if there is none."""
    at, name = max(((at, name) for name, at in symbols.items() if at <= start), default=(0, ""))
    return f"{name}+{start - at:#x}" if start > at and name else name


def _noted(grid: Grid) -> dict[int, str]:
    """Names by bytes from the start of shared memory, read once per grid."""
    if grid not in _NAMES:
        names = dict[int, str]()
        for words in _notes(grid):
            names |= _barriers(words, grid.shared_symbols)
        _NAMES[grid] = names
    return _NAMES[grid]


def role_of(grid: Grid, warp: int) -> str:
    """The role of a warp, empty where no note names one."""
    if grid not in _ROLES:
        roles = dict[int, str]()
        for words in _notes(grid):
            roles |= _warps(words)
        _ROLES[grid] = roles
    return _ROLES[grid].get(warp, "")


def _notes(grid: Grid) -> list[list[str]]:
    program = grid.program
    own = [statement for statement in program.kernel.body or () if isinstance(statement, Note)]
    return [note.text.split() for note in (*program.module.notes, *own)]


def _warps(words: list[str]) -> dict[int, str]:
    if len(words) != 3 or words[0] != "role":
        return {}
    try:
        ends = [[int(end) for end in part.split("-")] for part in words[2].split(",")]
    except ValueError:
        return {}
    return {warp: words[1] for run in ends for warp in range(run[0], min(run[-1], 1 << 8) + 1)}


def _barriers(words: list[str], symbols: dict[str, int]) -> dict[int, str]:
    if len(words) != 5 or words[0] != "barrier":
        return {}
    _, name, address, *numbers = words
    symbol, _, plus = address.partition("+")
    try:
        stride, count = (int(number, 0) for number in numbers)
        base = symbols[symbol] + int(plus or "0", 0) if symbol in symbols else int(address, 0)
    except ValueError:
        return {}
    if count == 1:
        return {base: name}
    return {base + i * stride: f"{name}[{i}]" for i in range(min(count, 1 << 16))}
