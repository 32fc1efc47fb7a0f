"""The registry of the functions that implement the instruction families.

A meaning takes an `Op` (the instruction as its row reads it) once, at translation, and returns the function that the
translated code calls: `run(group, mask, *operands)`. `mask` is None when every lane of the group takes part, else a
boolean array. Operands come in the order of the form's slots, outputs left out:

    in, pred        a Python integer or bool where the value is uniform, else an unsigned or boolean array of the lanes
    address         the same, with the offset added (64 bits wide for 64-bit bases, else 32)
    tensor          (address, (coordinate, …))
    ins             a tuple of such values
    rows            `Rows`: the registers themselves, to be read or written now or later
    immediate       a Python integer
    (left out)      None

It returns the value of an `out` slot, a pair for `pair`, a sequence for `outs`, or nothing. Where the form `blocks`, it
returns None (False if it has no result) while the group must wait, after telling the group what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from warploom.ptx.isa.table import Op

Run = Callable[..., Any]
Meaning = Callable[[Op], Run]

MEANINGS: dict[str, Meaning] = {}


class Together(Protocol):
    """Instructions of one family that follow each other, with the same guard and operands that all lanes share, and
    perhaps their commit.

    Called with those operands, of all of them, and with the operands of the commit, it executes them as they were
    executed before; False, and nothing is done, where it cannot. `learn` is called after they were executed one by one,
    before the commit.
    """

    def __call__(self, group: Any, mask: Any, values: tuple[int, ...], commit: tuple[Any, ...], /) -> bool: ...

    def learn(self, group: Any, mask: Any, values: tuple[int, ...], /) -> None: ...


TOGETHER: dict[str, tuple[str, Callable[[int, Op | None], Together]]] = {}
"""The families that have such a function, each with the family of its commit. It gets the number of the instructions,
and the commit if that is one of those that it executes."""


def executes(*families: str) -> Callable[[Meaning], Meaning]:
    """Give instruction families their meaning."""

    def register(meaning: Meaning) -> Meaning:
        for family in families:
            if family in MEANINGS:
                raise ValueError(f"two meanings for {family}")
            MEANINGS[family] = meaning
        return meaning

    return register
