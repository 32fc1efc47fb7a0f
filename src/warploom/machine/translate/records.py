"""Records of native code, and the table of a program: what a record calls, and where it is in memory."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.control_kernels import Goto
from warploom.machine.routines.turn_loop import barrier_of, barrier_word
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Immediate

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine, Kernel


@dataclass(frozen=True, slots=True)
class Constant:
    """A scalar operand."""

    value: int


@dataclass(frozen=True, slots=True)
class BlockAt:
    """The distance to the first record of a block."""

    block: int


@dataclass(slots=True)
class RecordAt:
    """The distance to a record whose number is known later."""

    number: int = -1


NAMED_BARRIERS = 16
"""The barriers of a CTA that native code knows."""
Word = int | Constant | BlockAt | RecordAt
"""A word of a record: a number, a scalar operand that is placed after the records, or the distance to a record."""


IN_TABLE: list[Word] = []
"""The words of a record that has been entered in its table."""


@dataclass(slots=True)
class Record:
    """One instruction, or a part of one: its kernel, the words of its operands, its block, and for Python's the number
    of its function.
    """

    op: Op | None
    kernel: Kernel
    words: list[Word]
    block: int = -1
    function: int = -1


def _barrier_of(record: Record) -> int:
    """The word of a barrier that Python executes, for all lanes of a warp and with operands that are known; else 0."""
    op = record.op
    if op is None or op.family != "bar.sync" or record.function < 0 or op.instruction.guard is not None:
        return 0
    index, count = op.operands["a"], op.operands["b"]
    if not isinstance(index, Immediate) or not 0 <= index.value < NAMED_BARRIERS:
        return 0
    if count is None:
        return barrier_word(int(index.value), None)
    if not isinstance(count, Immediate) or count.value <= 0 or count.value % WARP_LANES:
        return 0
    return barrier_word(int(index.value), int(count.value))


_IN_LOOP = 16
"""Records outside of loops that are executed as often as one inside, more or less."""


def weights_of(records: Iterable[Record], repeated: Container[int]) -> dict[Kernel, int]:
    """The kernels of records in the order of their first use, each with an estimate of its executions by a group."""
    found: dict[Kernel, int] = {}
    for record in records:
        found[record.kernel] = found.get(record.kernel, 0) + (_IN_LOOP if record.block in repeated else 1)
    return found


@dataclass(slots=True, eq=False, weakref_slot=True)
class Table:
    """A program as records, the first record of each block, and where they are in memory."""

    records: list[Record]
    entries: list[int]
    words: npt.NDArray[np.uint64]
    starts: list[int]
    """The host addresses of all records, and of the end."""
    engine: Engine
    """Kernels exist as long as it does."""
    waiting: list[int]
    """For each block the record that begins with its first instruction, if Python executes that; -1 if not."""
    weights: list[int]
    """For each kernel, in the order of its first use, an estimate of its executions by a group."""
    repeated: frozenset[int]
    """The blocks of loops."""
    addresses: list[int] = field(init=False)
    """The host addresses of the blocks."""
    blocks_at: int = field(init=False)
    """The host address of these."""
    _blocks: npt.NDArray[np.int64] = field(init=False)
    after: list[int] = field(init=False)
    """For each record the host address of the next instruction's."""
    _calls: tuple[list[Kernel], npt.NDArray[np.int64]] | None = field(init=False, default=None)
    _barriers: npt.NDArray[np.int64] | None = field(init=False, default=None)
    _barriers_held: Any = field(init=False, default=None)
    _has_run: bool = field(init=False, default=False)
    _rare: set[Kernel] | None = field(init=False, default=None)
    """Kernels that the reference executes for a while."""
    _is_complete: bool = field(init=False)
    """True if all kernels are compiled."""

    def __post_init__(self) -> None:
        self.engine.callers.add(self)
        self._is_complete = all(record.kernel.address for record in self.records)
        self.addresses = [self.starts[entry] for entry in self.entries]
        self._blocks = np.array(self.addresses, np.int64)
        self.blocks_at = address_of(self._blocks)
        self.after, records = [0] * len(self.records), self.records
        for number in range(len(records) - 1, -1, -1):
            same = number + 1 < len(records) and records[number].op is records[number + 1].op is not None
            same = same and records[number].block == records[number + 1].block
            self.after[number] = self.after[number + 1] if same else self.starts[number + 1]

    @property
    def barriers_at(self) -> int:
        """The host address of a word for each record: the barrier at which a warp waits there, or 0."""
        if self._barriers is None:
            self._barriers = np.array([_barrier_of(record) for record in self.records], np.int64)
            self._barriers_held = self._barriers.data
        return address_of(self._barriers)

    def barrier(self, number: int) -> tuple[int, int | None]:
        """The barrier of a record, by its number, and the threads that complete it."""
        return barrier_of(self._barriers_held[number - 1])

    def enter_addresses(self) -> None:
        """Call kernels where they are now."""
        places, escape = (np.array(self.starts[:-1]) - self.starts[0]) // 8, self.engine.escape
        self.words[places] = [record.kernel.address or escape for record in self.records]

    def begin_run(self) -> None:
        """Compile the forms that the reference has executed, in the runs after the first: there may be many."""
        if self._is_complete:
            return
        if self._has_run:
            kernels = self.uncompiled()
            self.engine.link(kernel for kernel in kernels if kernel.executions)
            self.enter_addresses()
            self._is_complete = all(kernel.address or not kernel.has_code for kernel in kernels)
        self._has_run = True

    def uncompiled(self) -> list[Kernel]:
        """The kernels without an address."""
        return list(dict.fromkeys(record.kernel for record in self.records if not record.kernel.address))

    def reaches(self, record: Record) -> bool:
        """Compile the form of a record that a group has come to, with those of the blocks that are executed with it, if
        it is not one that the reference executes for a while; True if it has an address now.
        """
        if self._rare is None:
            weights = zip(dict.fromkeys(each.kernel for each in self.records), self.weights, strict=True)
            self._rare = {kernel for kernel, weight in weights if self.engine.waits(kernel, weight)}
        if record.kernel in self._rare or not record.kernel.has_code:
            return False
        first = end = record.block
        while first and self._falls(first - 1):
            first -= 1
        while end < len(self.entries) and self._falls(end):
            end += 1
        records = self.records[self.entries[first] : self.entries[end + 1] if end + 1 < len(self.entries) else None]
        found = dict.fromkeys(each.kernel for each in records if not each.kernel.address)
        self.engine.link([kernel for kernel in found if kernel not in self._rare])
        self.enter_addresses()
        return record.kernel.address != 0

    def _falls(self, block: int) -> bool:
        """True if the block after one follows it in any case, or is in a loop like it."""
        after = block + 1
        if block in self.repeated and after in self.repeated:
            return True
        return after < len(self.entries) and isinstance(self.records[self.entries[after] - 1].kernel.form, Goto)

    def is_stale(self, number: int) -> bool:
        """True if a record still lets Python execute its instruction, though its kernel is compiled by now."""
        word = self.words[(self.starts[number] - self.starts[0]) // 8]
        return int(word) == self.engine.escape and self.records[number].kernel.address not in (0, self.engine.escape)

    def replaced(self, block: int) -> list[Op]:
        """The instructions of a block whose kernels are not compiled."""
        found = (each for each in self.records if each.block == block and not each.kernel.address)
        return [each.op for each in found if each.op is not None and each.function < 0]

    def count(self, blocks: npt.NDArray[np.int64]) -> None:
        """Count executions of blocks by warps, so that the engine optimises the kernels for which it pays."""
        if self._calls is None:
            kernels: dict[Kernel, int] = {}
            rows = [(kernels.setdefault(each.kernel, len(kernels)), each.block) for each in self.records]
            self._calls = list(kernels), np.array(rows, np.int64).T
        called, (numbers, of_blocks) = self._calls
        self.engine.count(called, np.bincount(numbers, blocks[of_blocks], len(called)).tolist())
