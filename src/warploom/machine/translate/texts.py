"""The texts of a program: compiled source with the table of native code, and both as they are on disk.

Bytes on disk must come from a trusted place: they hold code. A table names its kernels by their forms, and is valid for
the version of the engine that it was written for.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from warploom.machine.engine.addresses import address_of
from warploom.machine.translate.records import IN_TABLE, Record, Table
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine, Form, Kernel


@dataclass(frozen=True, slots=True)
class Text:
    """Compiled source, in parts, and for each of its lines the instruction that it came from."""

    parts: tuple[CodeType, ...]
    ops: tuple[Op | None, ...]
    source: str
    table: Table | None = None
    """The records of native code, for a text of the instructions that they do not execute."""

    @property
    def names(self) -> frozenset[str]:
        """The global names that its code uses."""
        return frozenset(name for part in self.parts for name in _names_of(part))


@lru_cache(maxsize=1 << 10)
def _names_of(code: CodeType) -> frozenset[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(code.co_names).union(*map(_names_of, inner))


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as it is on disk: addresses are distances from its first word, kernels are forms, instructions are
    numbers (-1 for none).
    """

    version: str
    """The version of the engine that it was written for."""
    forms: list[Form]
    kernels: npt.NDArray[np.uint32]
    """For each record the number of its form."""
    ops: npt.NDArray[np.int32]
    blocks: npt.NDArray[np.int32]
    functions: npt.NDArray[np.int32]
    words: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    entries: list[int]
    waiting: list[int]
    weights: list[int]
    repeated: frozenset[int]

    @staticmethod
    def of(table: Table, numbers: dict[int, int]) -> StoredTable:
        """A table, with the numbers of instructions by the identity of their `Op`."""
        numbered: dict[Kernel, int] = {}
        records = table.records
        kernels = [numbered.setdefault(record.kernel, len(numbered)) for record in records]
        starts = np.array(table.starts, np.int64) - table.starts[0]
        words = table.words.copy()
        words[starts[:-1] // 8] = 0
        return StoredTable(
            table.engine.version,
            [kernel.form for kernel in numbered],
            np.array(kernels, np.uint32),
            np.array([-1 if record.op is None else numbers[id(record.op)] for record in records], np.int32),
            np.array([record.block for record in records], np.int32),
            np.array([record.function for record in records], np.int32),
            words,
            starts,
            table.entries,
            table.waiting,
            table.weights,
            table.repeated,
        )

    def table(self, engine: Engine, ops: Sequence[Op]) -> Table | None:
        """The table in this process; None if it was written for another engine."""
        kernels = [engine.kernel(form) for form in self.forms] if engine.version == self.version else [None]
        known = [kernel for kernel in kernels if kernel is not None]
        if len(known) < len(kernels):
            return None
        engine.link_records(dict(zip(known, self.weights, strict=True)))
        words, escape = self.words.copy(), engine.escape
        addresses = np.array([kernel.address or escape for kernel in known], np.uint64)
        words[self.starts[:-1] // 8] = addresses[self.kernels]
        rows = zip(self.ops.tolist(), self.kernels.tolist(), self.blocks.tolist(), self.functions.tolist(), strict=True)
        records = [Record(ops[op] if op >= 0 else None, known[kernel], IN_TABLE, *place) for op, kernel, *place in rows]
        starts = (self.starts + address_of(words)).tolist()
        return Table(records, self.entries, words, starts, engine, self.waiting, self.weights, self.repeated)


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text as it is on disk; instructions are numbers (-1 for none)."""

    parts: bytes
    ops: npt.NDArray[np.int32]
    source: str
    table: StoredTable | None

    @staticmethod
    def of(text: Text, numbers: dict[int, int]) -> StoredText:
        """A text, with the numbers of instructions by the identity of their `Op`."""
        ops = np.array([-1 if op is None else numbers[id(op)] for op in text.ops], np.int32)
        table = None if text.table is None else StoredTable.of(text.table, numbers)
        return StoredText(marshal.dumps(text.parts), ops, text.source, table)

    def text(self, engine: Engine | None, ops: tuple[Op, ...]) -> Text | None:
        """The text in this process; None if it was written for another engine."""
        table = None
        if self.table is not None:
            table = None if engine is None else self.table.table(engine, ops)
            if table is None:
                return None
        lines = tuple([None if number < 0 else ops[number] for number in self.ops.tolist()])
        return Text(marshal.loads(self.parts), lines, self.source, table)  # noqa: S302  (private files of this user)
