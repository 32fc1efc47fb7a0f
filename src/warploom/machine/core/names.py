"""Names of places in shared memory and of warps in messages: from a note, or the enclosing symbol."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from warploom.ptx.syntax.annotations import barriers_in, notes_of, roles_in

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.grid import Grid

_ROLES: WeakKeyDictionary[Grid, dict[int, str]] = WeakKeyDictionary()


def name_of(cta: Cta, offset: int) -> str:
    """The name of the byte at an offset (reserved bytes included) of a CTA's shared memory."""
    start, grid = offset - cta.shared.reserved, cta.grid
    names = grid.names if grid.names is not None else _noted(grid)
    found = names.get(start)
    if found is None:
        found = names[start] = symbol_at(cta.grid.shared_symbols, start) or f"shared+{offset:#x}"
    return found


def symbol_at(symbols: dict[str, int], start: int) -> str:
    """The variable that a byte is in or after, with the bytes from its start; empty if there is none."""
    at, name = max(((at, name) for name, at in symbols.items() if at <= start), default=(0, ""))
    return f"{name}+{start - at:#x}" if start > at and name else name


def _noted(grid: Grid) -> dict[int, str]:
    """Names by bytes from the start of shared memory: those of the notes, read once per grid. Others are added."""
    names = dict[int, str]()
    for words in notes_of(grid.program.module, grid.program.kernel):
        names |= barriers_in(words, grid.shared_symbols)
    grid.names = names
    return names


def role_of(grid: Grid, warp: int) -> str:
    """The role of a warp, empty where no note names one."""
    if grid not in _ROLES:
        roles = dict[int, str]()
        for words in notes_of(grid.program.module, grid.program.kernel):
            roles |= roles_in(words)
        _ROLES[grid] = roles
    return _ROLES[grid].get(warp, "")
