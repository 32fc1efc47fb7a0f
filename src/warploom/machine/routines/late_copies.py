"""`cp.async` where operations are late: native code notes the addresses of copies, and performs them when they are due.

A CTA whose threads run in lockstep has a ring of slots, one for each instruction. A kernel that finds anything but the
usual case, or the ring full, returns the number of its record without any effect, and Python executes the instruction.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.machine.engine import context
from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.kernels import HEAD_WORDS, ROW_TYPES, Frame, Operand, Row, next_record
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.routines.granule_kernels import LaneCopy

if TYPE_CHECKING:
    from warploom.machine.engine.context import Regions
    from warploom.machine.engine.native import Engine
    from warploom.machine.memory.byte_memory import FlatMemory

Array = npt.NDArray[Any]

ISSUED, DONE, COMMITS, MIXED, SLOTS_AT = range(5)
"""The words of a ring: the copies that were issued, those that are done, the commits, 1 while Python keeps copies of
the CTA elsewhere, and the host address of the slots."""
_WORDS = 5
_CLOSED = np.array([0, 0, 0, 1, 0], np.int64)
NO_RING = address_of(_CLOSED)
"""The host address of a ring that takes no copies."""
SLOTS = 64
GROUP, SIZE, LANES, COUNTED, SITE, LOW, HIGH = range(7)
"""The first words of a slot: the commits before the copy, the bytes for each lane, the lanes, 1 if lanes read less than
all, the number of the instruction, and the lowest and the highest target."""
_LANES = 128
_TARGETS = 8 * 8
_SOURCES = _TARGETS + 4 * _LANES
_COUNTS = _SOURCES + 8 * _LANES
_SLOT_BYTES = _COUNTS + 4 * _LANES
_STOP = [
    "stop:",
    f"  %number_at = getelementptr i64, ptr %record, i64 {HEAD_WORDS - 1}",
    "  %number = load i64, ptr %number_at",
    "  ret i64 %number",
    "}",
]


class Slot(NamedTuple):
    """A copy that was noted: its group, bytes for each lane, instruction, addresses, and the bytes that lanes read."""

    group: int
    size: int
    site: int
    targets: Array
    sources: Array
    counts: Array | None


def _ring(frame: Frame) -> dict[int, str]:
    """The words of the ring, and their addresses under the negative of their number, less one."""
    ring, found = frame.context(context.COPIES, "ptr"), {}
    for word in range(_WORDS):
        place = frame.emit(f"getelementptr i64, ptr {ring}, i64 {word}")
        found[word], found[-1 - word] = frame.emit(f"load i64, ptr {place}"), place
    return found


def _function(name: str, lines: list[str]) -> tuple[str, frozenset[str]]:
    return "\n".join([f"define i64 @{name}(ptr %context, ptr %record) {{", *lines, *_STOP]) + "\n", frozenset()


@dataclass(frozen=True, slots=True)
class LateCopy:
    """A kernel of `cp.async` by all threads of a CTA. Words: the row of the targets and an offset, the row of the
    sources and an offset, the bytes for each lane, the number of the instruction, and the bytes that lanes read.
    """

    target: str
    """The file of the targets."""
    count: Operand | None
    """None where every lane reads all bytes."""

    @property
    def words(self) -> int:
        return HEAD_WORDS + 6 + (self.count is not None)

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, at = Frame(host), HEAD_WORDS
        targets, sources = frame.row(self.target, at), frame.row("b", at + 2)
        first, second, size, site = (frame.word(at + number) for number in (1, 3, 4, 5))
        lanes, short = frame.context(context.LANES), frame.emit(f"trunc i64 {size} to i32")
        counts, given = "", short
        if isinstance(self.count, Row):
            counts = frame.row(self.count.file, at + 6)
        elif self.count is not None:
            given = frame.scalar(at + 6, "i32")
        ring, type_ = _ring(frame), ROW_TYPES[self.target]
        used = frame.emit(f"sub i64 {ring[ISSUED]}, {ring[DONE]}")
        usual = frame.emit(f"icmp eq i64 {ring[MIXED]}, 0")
        for test in (f"ult i64 {used}, {SLOTS}", f"ule i64 {lanes}, {_LANES}", f"ule i32 {given}, {short}"):
            usual = frame.emit(f"and i1 {usual}, {frame.emit(f'icmp {test}')}")
        number = frame.emit(f"and i64 {ring[ISSUED]}, {SLOTS - 1}")
        start = frame.emit(f"add i64 {ring[SLOTS_AT]}, {frame.emit(f'mul i64 {number}, {_SLOT_BYTES}')}")
        slot = frame.emit(f"inttoptr i64 {start} to ptr")
        part = frame.emit(f"icmp ne i32 {given}, {short}")
        counted = "1" if counts else frame.emit(f"zext i1 {part} to i64")
        offset = frame.emit(f"trunc i64 {first} to i32")
        places = {
            label: frame.emit(f"getelementptr i8, ptr {slot}, i64 {distance}")
            for label, distance in (("targets", _TARGETS), ("sources", _SOURCES), ("counts", _COUNTS))
        }
        narrow = [f"  %place = add i32 %target, {offset}"]
        if type_ == "i64":  # an address that does not fit into 32 bits is the reference's
            narrow = [
                f"  %wide = add i64 %target, {first}",
                "  %place = trunc i64 %wide to i32",
                "  %upper = lshr i64 %wide, 32",
                "  %far = icmp ne i64 %upper, 0",
                "  br i1 %far, label %stop, label %near",
                "near:",
            ]
        lines = [
            "entry:",
            *frame.entry,
            f"  br i1 {usual}, label %loop, label %stop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %j, %end ]",
            "  %low = phi i32 [ -1, %entry ], [ %low_next, %end ]",
            "  %high = phi i32 [ 0, %entry ], [ %high_next, %end ]",
            f"  %target_at = getelementptr {type_}, ptr {targets}, i64 %i",
            f"  %target = load {type_}, ptr %target_at",
            *narrow,
            "  %lower = icmp ult i32 %place, %low",
            "  %low_next = select i1 %lower, i32 %place, i32 %low",
            "  %higher = icmp ugt i32 %place, %high",
            "  %high_next = select i1 %higher, i32 %place, i32 %high",
            f"  %place_at = getelementptr i32, ptr {places['targets']}, i64 %i",
            "  store i32 %place, ptr %place_at",
            f"  %source_at = getelementptr i64, ptr {sources}, i64 %i",
            "  %source = load i64, ptr %source_at",
            f"  %origin = add i64 %source, {second}",
            f"  %origin_at = getelementptr i64, ptr {places['sources']}, i64 %i",
            "  store i64 %origin, ptr %origin_at",
            *self._counts(counts, given),
            f"  %count_at = getelementptr i32, ptr {places['counts']}, i64 %i",
            "  store i32 %count, ptr %count_at",
            f"  %beyond = icmp ugt i32 %count, {short}",
            "  br i1 %beyond, label %stop, label %end",
            "end:",
            "  %j = add i64 %i, 1",
            f"  %more = icmp ult i64 %j, {lanes}",
            "  br i1 %more, label %loop, label %done",
            "done:",
            "  %lowest = zext i32 %low_next to i64",
            "  %highest = zext i32 %high_next to i64",
        ]
        values = {GROUP: ring[COMMITS], SIZE: size, LANES: lanes, COUNTED: counted, SITE: site}
        values |= {LOW: "%lowest", HIGH: "%highest"}
        for word, value in values.items():
            lines += [f"  %w{word} = getelementptr i64, ptr {slot}, i64 {word}", f"  store i64 {value}, ptr %w{word}"]
        lines += [
            f"  %issued = add i64 {ring[ISSUED]}, 1",
            f"  store i64 %issued, ptr {ring[-1 - ISSUED]}",
            f"  %effects_at = getelementptr i64, ptr %context, i64 {context.EFFECTS}",
            "  %effects = load i64, ptr %effects_at",
            "  %effects_sum = add i64 %effects, 1",
            "  store i64 %effects_sum, ptr %effects_at",
            *next_record(self.words),
        ]
        return _function(name, lines)

    def _counts(self, counts: str, given: str) -> list[str]:
        if not counts:
            return [f"  %count = add i32 {given}, 0"]
        return [f"  %given_at = getelementptr i32, ptr {counts}, i64 %i", "  %count = load i32, ptr %given_at"]


@dataclass(frozen=True, slots=True)
class LateCommit:
    """A kernel of `cp.async.commit_group` by all threads of a CTA."""

    @property
    def words(self) -> int:
        return HEAD_WORDS

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame = Frame(host)
        ring = _ring(frame)
        lines = [
            "entry:",
            *frame.entry,
            f"  %usual = icmp eq i64 {ring[MIXED]}, 0",
            "  br i1 %usual, label %on, label %stop",
            "on:",
            f"  %commits = add i64 {ring[COMMITS]}, 1",
            f"  store i64 %commits, ptr {ring[-1 - COMMITS]}",
            *next_record(self.words),
        ]
        return _function(name, lines)


@dataclass(frozen=True, slots=True)
class LateWait:
    """A kernel of `cp.async.wait_group` that passes where nothing is under way that it waits for. Words: the groups
    that may be incomplete.
    """

    @property
    def words(self) -> int:
        return HEAD_WORDS + 1

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame = Frame(host)
        leave, ring = frame.word(HEAD_WORDS), _ring(frame)
        lines = [
            "entry:",
            *frame.entry,
            f"  %usual = icmp eq i64 {ring[MIXED]}, 0",
            "  br i1 %usual, label %look, label %stop",
            "look:",
            f"  %none = icmp eq i64 {ring[ISSUED]}, {ring[DONE]}",
            "  br i1 %none, label %on, label %oldest",
            "oldest:",
            f"  %slot_number = and i64 {ring[DONE]}, {SLOTS - 1}",
            f"  %distance = mul i64 %slot_number, {_SLOT_BYTES}",
            f"  %start = add i64 {ring[SLOTS_AT]}, %distance",
            "  %slot = inttoptr i64 %start to ptr",
            f"  %group_at = getelementptr i64, ptr %slot, i64 {GROUP}",
            "  %group = load i64, ptr %group_at",
            f"  %ahead = add i64 %group, {leave}",
            f"  %waits = icmp slt i64 %ahead, {ring[COMMITS]}",
            "  br i1 %waits, label %stop, label %on",
            "on:",
            *next_record(self.words),
        ]
        return _function(name, lines)


@dataclass(frozen=True, slots=True)
class Perform:
    """A routine that performs the copies of slots that lie next to each other and have one size. Arguments: the routine
    of a copy, the first slot, how many, and the memories as a context has them. It returns the number of those that it
    has performed, and adds the bytes to the last argument.
    """

    @property
    def words(self) -> int:
        return 0

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        names = ("routine", "slot", "count", "header", "base", "bytes", "data", "moved")
        types = dict.fromkeys(("routine", "moved"), "ptr")
        lines = [f"define i64 @{name}(ptr %arguments, ptr %unused) {{", "entry:", "  %given = alloca [9 x i64]"]
        for at, each in enumerate(names):
            lines += [
                f"  %{each}_at = getelementptr i64, ptr %arguments, i64 {at}",
                f"  %{each} = load {types.get(each, 'i64')}, ptr %{each}_at",
            ]
        given = ("targets", "sources", "mask", "counts", "lanes", "header", "base", "bytes", "data")
        lines += [f"  %g_{each} = getelementptr i64, ptr %given, i64 {at}" for at, each in enumerate(given)]
        lines += [f"  store i64 %{each}, ptr %g_{each}" for each in ("header", "base", "bytes", "data")]
        lines += [
            "  store i64 0, ptr %g_mask",
            "  br label %next",
            "next:",
            "  %n = phi i64 [ 0, %entry ], [ %n_next, %good ]",
            f"  %distance = mul i64 %n, {_SLOT_BYTES}",
            "  %start = add i64 %slot, %distance",
            "  %words = inttoptr i64 %start to ptr",
            f"  %targets = add i64 %start, {_TARGETS}",
            f"  %sources = add i64 %start, {_SOURCES}",
            f"  %some = add i64 %start, {_COUNTS}",
            f"  %counted_at = getelementptr i64, ptr %words, i64 {COUNTED}",
            "  %counted = load i64, ptr %counted_at",
            "  %whole = icmp eq i64 %counted, 0",
            "  %counts = select i1 %whole, i64 0, i64 %some",
            f"  %lanes_at = getelementptr i64, ptr %words, i64 {LANES}",
            "  %lanes = load i64, ptr %lanes_at",
            *(f"  store i64 %{each}, ptr %g_{each}" for each in ("targets", "sources", "counts", "lanes")),
            "  %result = call i64 %routine(ptr %given, ptr null)",
            "  %bad = icmp slt i64 %result, 0",
            "  br i1 %bad, label %stop, label %good",
            "good:",
            "  %before = load i64, ptr %moved",
            "  %sum = add i64 %before, %result",
            "  store i64 %sum, ptr %moved",
            "  %n_next = add i64 %n, 1",
            "  %more = icmp ult i64 %n_next, %count",
            "  br i1 %more, label %next, label %done",
            "done:",
            "  ret i64 %count",
            "stop:",
            "  ret i64 %n",
            "}",
        ]
        return "\n".join(lines) + "\n", frozenset()


class CopyRing:
    """The copies that a CTA in lockstep has issued, in the order of issue."""

    def __init__(self, engine: Engine, regions: Regions, shared: FlatMemory) -> None:
        self._engine, self._regions, self._shared = engine, regions, shared
        self._slots = np.zeros(SLOTS * _SLOT_BYTES, np.uint8)
        self._start, self._heads = address_of(self._slots), self._slots.view(np.int64).data
        words = np.zeros(_WORDS, np.int64)
        self.address = address_of(words)
        """The host address of the words."""
        self.words: Any = words.data
        self._kept = words
        self._run = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p)(engine.address(Perform()))
        self._pack = struct.Struct("=8Q").pack
        self._routines: dict[int, int] = {}
        self.begin()

    def begin(self, *, closed: bool = False) -> None:
        """Begin as the ring of another CTA; a `closed` one takes no copies."""
        for word in range(_WORDS):
            self.words[word] = 0
        self.words[SLOTS_AT], self.words[MIXED] = self._start, closed

    @property
    def issued(self) -> int:
        """The number of copies that were issued."""
        found: int = self.words[ISSUED]
        return found

    @property
    def is_mixed(self) -> bool:
        """True while Python keeps copies of the CTA elsewhere."""
        return bool(self.words[MIXED])

    @property
    def under_way(self) -> bool:
        """True if copies are not done."""
        return bool(self.words[ISSUED] != self.words[DONE])

    def commit(self) -> None:
        """Close the open group."""
        self.words[COMMITS] += 1

    def taken_over(self) -> list[Slot]:
        """The copies that are not done, in order, which Python keeps elsewhere from now on."""
        words = self.words
        found = [self.slot(copy) for copy in range(words[DONE], words[ISSUED])]
        words[DONE], words[MIXED] = words[ISSUED], 1
        return found

    def resume(self) -> None:
        """Note copies again: Python keeps none."""
        self.words[MIXED] = 0

    @property
    def commits(self) -> int:
        """The number of commits."""
        found: int = self.words[COMMITS]
        return found

    def _word(self, copy: int, word: int) -> int:
        found: int = self._heads[(copy & SLOTS - 1) * (_SLOT_BYTES // 8) + word]
        return found

    def due(self, leave: int) -> int:
        """The number of copies, from the first, that are not among the `leave` latest groups."""
        copy: int = self.words[DONE]
        issued, limit = self.words[ISSUED], self.words[COMMITS] - leave
        while copy < issued and self._word(copy, GROUP) < limit:
            copy += 1
        return copy

    def bounds(self, end: int) -> list[tuple[int, int, int]]:
        """The copies that are not done, up to a number: each with its first target and the end of its last."""
        copies = range(self.words[DONE], end)
        return [(copy, self._word(copy, LOW), self._word(copy, HIGH) + self._word(copy, SIZE)) for copy in copies]

    def slot(self, copy: int) -> Slot:
        """A copy as it was noted."""
        start = (copy & SLOTS - 1) * _SLOT_BYTES
        lanes = self._word(copy, LANES)
        targets = self._slots[start + _TARGETS :][: 4 * lanes].view(np.uint32).astype(np.uint64)
        sources = self._slots[start + _SOURCES :][: 8 * lanes].view(np.uint64).copy()
        counts = self._slots[start + _COUNTS :][: 4 * lanes].view(np.uint32).copy()
        counted = bool(self._word(copy, COUNTED))
        group, size, site = (self._word(copy, word) for word in (GROUP, SIZE, SITE))
        return Slot(group, size, site, targets, sources, counts if counted else None)

    def perform(self, end: int) -> tuple[int, Slot | None]:
        """Perform copies in order up to a number: the bytes moved, and one that the reference must do now, if there is
        such a one: it counts as done.
        """
        moved, words, regions, shared = ctypes.c_int64(0), self.words, self._regions, self._shared
        while (copy := words[DONE]) < end:
            size, count = self._word(copy, SIZE), 1
            last = min(end, copy + SLOTS - (copy & SLOTS - 1))
            while copy + count < last and self._word(copy + count, SIZE) == size:
                count += 1
            if size not in self._routines:
                self._routines[size] = self._engine.address(LaneCopy(size))
            given = self._pack(
                self._routines[size], self._start + (copy & SLOTS - 1) * _SLOT_BYTES, count,
                address_of(regions.header), shared.base, shared.size, address_of(shared.data), ctypes.addressof(moved),
            )  # fmt: skip
            done = self._run(given, None)
            words[DONE] = copy + done
            if done < count:
                words[DONE] += 1
                return moved.value, self.slot(copy + done)
        return moved.value, None

    def is_done(self, end: int) -> bool:
        """True if all copies up to a number are done."""
        return bool(self.words[DONE] >= end)
