"""Lists of native routines that are called one after the other, with arguments that were prepared before.

A list is made once for a sequence of operations that a kernel repeats. An argument is a number, or a distance from a
base (a CTA's shared memory, its registers, its TMEM) that each call of the list gives. The caller that makes a list has
checked that all places are inside the memories; `reach` says how many bytes of each base it needs.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.engine.objects import OPTIMISED
from warploom.machine.routines.called import executions

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine, Kernel
    from warploom.machine.routines.called import Routine

Array = npt.NDArray[Any]

_MOST_ARGUMENTS = 15
_ENTRY = 1 + 2 * _MOST_ARGUMENTS
"""Words of an entry: the routine, then a number and its base for each argument."""
SCRATCH = 5
"""The base of the doubles that a list computes and uses; base 0 is the address 0, and each call gives 1 to 4."""


@dataclass(frozen=True, slots=True)
class CallList:
    """A routine that calls others. Arguments: the entries, how many, and the bases."""

    @property
    def words(self) -> int:
        return 0

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        lines = [
            f"define i64 @{name}(ptr %arguments, ptr %unused) {{",
            "entry:",
            f"  %given = alloca [{_MOST_ARGUMENTS} x i64]",
            "  %entries = load ptr, ptr %arguments",
            "  %count_at = getelementptr i64, ptr %arguments, i64 1",
            "  %count = load i64, ptr %count_at",
            "  %bases = getelementptr i64, ptr %arguments, i64 2",
            "  br label %call",
            "call:",
            "  %n = phi i64 [ 0, %entry ], [ %n_next, %made ]",
            f"  %at = mul i64 %n, {_ENTRY}",
            "  %one = getelementptr i64, ptr %entries, i64 %at",
            "  %routine = load ptr, ptr %one",
            "  br label %argument",
            "argument:",
            "  %i = phi i64 [ 0, %call ], [ %i_next, %argument ]",
            "  %i2 = shl i64 %i, 1",
            "  %v_at = add i64 %i2, 1",
            "  %v_p = getelementptr i64, ptr %one, i64 %v_at",
            "  %v = load i64, ptr %v_p",
            "  %b_p = getelementptr i64, ptr %v_p, i64 1",
            "  %b = load i64, ptr %b_p",
            "  %base_p = getelementptr i64, ptr %bases, i64 %b",
            "  %base = load i64, ptr %base_p",
            "  %sum = add i64 %v, %base",
            "  %to = getelementptr i64, ptr %given, i64 %i",
            "  store i64 %sum, ptr %to",
            "  %i_next = add i64 %i, 1",
            f"  %i_more = icmp ult i64 %i_next, {_MOST_ARGUMENTS}",
            "  br i1 %i_more, label %argument, label %made",
            "made:",
            "  %unread = call i64 %routine(ptr %given, ptr null)",
            "  %n_next = add i64 %n, 1",
            "  %more = icmp ult i64 %n_next, %count",
            "  br i1 %more, label %call, label %done",
            "done:",
            "  ret i64 0",
            "}",
        ]
        return "\n".join(lines) + "\n", frozenset()


Argument = int | tuple[int, int]
"""A number, or a distance and the number of its base."""
Base = tuple[int, int]
"""A host address, and the bytes there."""


def base_of(array: Array) -> Base:
    """An array as a base."""
    return address_of(array), array.nbytes


@dataclass(slots=True, eq=False, weakref_slot=True)
class Prepared:
    """A list that is ready: its entries, what they refer to, and the bytes that it needs of each base."""

    entries: Array
    address: int
    routines: list[Kernel]
    """The routine of each entry."""
    executions: dict[Kernel, int]
    """The executions that the calls of a routine count as."""
    kept: tuple[Array, ...]
    reach: tuple[int, ...]
    scratch: int
    """Doubles that it computes."""
    quick: int = 1
    """The executions that a run counts as, without those of routines that are optimised."""
    runs: int = 0
    """Those that are not counted."""

    def enter_addresses(self) -> None:
        """Call routines where they are now."""
        self.entries[:, 0] = [routine.address for routine in self.routines]
        self.quick = sum(count for routine, count in self.executions.items() if routine.level < OPTIMISED)


class Calls:
    """Makes lists of calls and executes them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine  # its code exists as long as it does
        # It holds the interpreter's lock, so that one scratch array serves all threads.
        self._run = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p)(
            engine.routine(CallList()).address  # not worth an optimisation of 2 ms
        )
        # Bases that a list does not use are 0.
        self._packs = [struct.Struct(f"={3 + count}Q{8 * (SCRATCH - 1 - count)}xQ").pack for count in range(SCRATCH)]
        self._scratch, self._room = np.empty(1 << 16), 1 << 16
        self._scratch_at = address_of(self._scratch)

    def run(self, prepared: Prepared, *bases: Base) -> bool:
        """Execute a list with the bases that it needs; False, and nothing is done, where one is too small."""
        addresses = []
        for (address, size), reach in zip(bases, prepared.reach, strict=True):
            if size < reach:
                return False
            addresses.append(address)
        if self._room < prepared.scratch:
            self._room = 2 * prepared.scratch
            self._scratch = np.empty(self._room)
            self._scratch_at = address_of(self._scratch)
        given = self._packs[len(bases)](prepared.address, len(prepared.routines), 0, *addresses, self._scratch_at)
        self._run(given, None)
        if prepared.quick:
            prepared.runs += 1
            if prepared.runs * prepared.quick >= self._engine.counted_together:
                self._count(prepared)
        return True

    def _count(self, prepared: Prepared) -> None:
        """Count the runs of a list whose routines may not be optimised yet."""
        prepared.enter_addresses()
        counts = [prepared.runs * count for count in prepared.executions.values()]
        prepared.runs = 0
        self._engine.count(list(prepared.executions), counts)


class Sequence:
    """Collects the calls of a list."""

    def __init__(self, bases: int) -> None:
        self._calls: list[tuple[Kernel, tuple[Argument, ...]]] = []
        self._executions: dict[Kernel, int] = {}
        self._engine: Engine | None = None
        self._kept: list[Array] = []
        self._reach = [0] * bases
        self._scratch = 0
        self._passing = (0, SCRATCH), 0

    def room(self, count: int) -> tuple[int, int]:
        """Room for so many doubles, as an argument."""
        at, self._scratch = self._scratch, self._scratch + count
        return 8 * at, SCRATCH

    def passing_room(self, count: int) -> tuple[int, int]:
        """Room for so many doubles that a call uses while it runs, the same for all calls."""
        place, size = self._passing
        if size < count:
            place = self.room(count)
            self._passing = place, count
        return place

    def keep(self, array: Array) -> int:
        """The address of an array that exists as long as the list."""
        self._kept.append(array)
        return address_of(array)

    def needs(self, base: int, end: int) -> None:
        """Note that the list uses so many bytes of a base."""
        self._reach[base - 1] = max(self._reach[base - 1], end)

    def call(self, engine: Engine, form: Routine, size: int, *given: Argument) -> None:
        """Add a routine with its arguments; `executions` says what the size is."""
        if len(given) > _MOST_ARGUMENTS:
            raise ValueError(f"a routine with {len(given)} arguments")
        routine, self._engine = engine.required(form), engine
        self._calls.append((routine, given))
        self._executions[routine] = self._executions.get(routine, 0) + executions(form, size)

    def prepared(self) -> Prepared:
        """The list; routines that no process has compiled before are compiled together."""
        if self._engine is not None:
            self._engine.link(self._executions)
        entries = np.zeros((len(self._calls), _ENTRY), np.int64)
        for entry, (_, given) in zip(entries, self._calls, strict=True):
            pairs = [(each, 0) if isinstance(each, int) else each for each in given]
            entry[1 : 1 + 2 * len(pairs)] = np.array(pairs, np.int64).reshape(-1)
        routines = [routine for routine, _ in self._calls]
        kept, reach = tuple(self._kept), tuple(self._reach)
        made = Prepared(entries, address_of(entries), routines, self._executions, kept, reach, self._scratch)
        made.enter_addresses()
        if self._engine is not None:
            self._engine.callers.add(made)
        return made
