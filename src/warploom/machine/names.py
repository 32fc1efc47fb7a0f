"""What messages call a place in shared memory: the name a note gives it, or the symbol it lies in.

A note `//!wl barrier NAME address stride count` names `count` barriers, `stride` bytes apart; the address is a shared
symbol, a symbol plus bytes (`smem+64`), or the bytes from the start of the CTA's shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from warploom.ptx.model import Note

if TYPE_CHECKING:
    from warploom.machine.cta import Cta
    from warploom.machine.grid import Grid

_NAMES: WeakKeyDictionary[Grid, dict[int, str]] = WeakKeyDictionary()


def name_of(cta: Cta, offset: int) -> str:
    """The name of the byte at an offset (reserved bytes included) of a CTA's shared memory."""
    start = offset - cta.shared.reserved
    noted = _noted(cta.grid).get(start)
    if noted is not None:
        return noted
    inside = [(at, name) for name, at in cta.grid.shared_symbols.items() if at <= start]
    if not inside:
        return f"shared+{offset:#x}"
    at, name = max(inside)
    return f"{name}+{start - at:#x}" if start > at else name


def _noted(grid: Grid) -> dict[int, str]:
    """Names by bytes from the start of shared memory, read once per grid."""
    if grid not in _NAMES:
        program, names = grid.program, dict[int, str]()
        notes = [statement for statement in program.kernel.body or () if isinstance(statement, Note)]
        for note in (*program.module.notes, *notes):
            names |= _barriers(note.text.split(), grid.shared_symbols)
        _NAMES[grid] = names
    return _NAMES[grid]


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
