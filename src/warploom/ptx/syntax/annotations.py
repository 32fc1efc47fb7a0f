"""The contents of `//!wl …` lines as data.

`barrier NAME address stride count` names `count` barriers, `stride` bytes apart; the address is a shared symbol, a
symbol plus bytes (`smem+64`), or the bytes from the start of the CTA's shared memory. `role NAME WARPS` names warps, as
in `0-3,6`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from warploom.ptx.syntax.model import Kernel, Module, Note

_MOST_WARPS, _MOST_BARRIERS = 1 << 8, 1 << 16


def notes_of(module: Module, kernel: Kernel) -> Iterator[list[str]]:
    """The words of each note of a module and of one of its kernels."""
    own = (statement for statement in kernel.body or () if isinstance(statement, Note))
    for note in (*module.notes, *own):
        yield note.text.split()


def roles_in(words: list[str]) -> dict[int, str]:
    """Role names by warp; empty for a note of another kind."""
    if len(words) != 3 or words[0] != "role":
        return {}
    try:
        ends = [[int(end) for end in part.split("-")] for part in words[2].split(",")]
    except ValueError:
        return {}
    return {warp: words[1] for run in ends for warp in range(run[0], min(run[-1], _MOST_WARPS) + 1)}


def barriers_in(words: list[str], symbols: Mapping[str, int]) -> dict[int, str]:
    """Barrier names by byte offset in shared memory; empty for a note of another kind. `symbols` has offsets."""
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
    return {base + i * stride: f"{name}[{i}]" for i in range(min(count, _MOST_BARRIERS))}
