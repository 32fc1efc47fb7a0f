"""Native kernels of mbarriers and of tensor copies that complete when they are issued.

They serve runs in which shared memory has one view; for observers they enter what they do in the log, from which
`observers/native_events.py` makes events. A kernel examines everything first; in any case but the usual one it returns
the number of its record without any effect, and Python executes the instruction: a wait that does not pass, a group
that must be woken, a box that is not wholly inside its tensor, a log that is full, every fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine import access_log, context
from warploom.machine.engine.kernels import (
    HEAD_WORDS,
    ROW_TYPES,
    Frame,
    Masks,
    Operand,
    Row,
    Scalar,
    begin_entry,
    end_entry,
    entry_row,
    next_record,
)
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.routines import mbarrier_rows as rows
from warploom.machine.routines import tensor_map_rows as maps
from warploom.machine.routines.granule_kernels import BoxCopy

RANK_SHIFT = 24
"""The bits of a shared address below the rank of its CTA."""
_OFFSET_MASK = (1 << RANK_SHIFT) - 1
_BARRIER = f"""
define internal ptr @barrier(ptr %context, i64 %address) {{
entry:
  %cluster_at = getelementptr i64, ptr %context, i64 {context.CLUSTER}
  %cluster = load ptr, ptr %cluster_at
  %count = load i64, ptr %cluster
  %rank = lshr i64 %address, {RANK_SHIFT}
  %known = icmp ult i64 %rank, %count
  br i1 %known, label %there, label %none
there:
  %peer_words = mul i64 %rank, {context.PEER_WORDS}
  %peer_at = add i64 %peer_words, 1
  %peer = getelementptr i64, ptr %cluster, i64 %peer_at
  %base_at = getelementptr i64, ptr %peer, i64 {context.PEER_BASE}
  %base = load i64, ptr %base_at
  %size_at = getelementptr i64, ptr %peer, i64 {context.PEER_SIZE}
  %size = load i64, ptr %size_at
  %distance = sub i64 %address, %base
  %end = add i64 %distance, 8
  %early = icmp ult i64 %distance, %size
  %late = icmp ule i64 %end, %size
  %inside = and i1 %early, %late
  %low = and i64 %address, 7
  %even = icmp eq i64 %low, 0
  %good = and i1 %inside, %even
  br i1 %good, label %examine, label %none
examine:
  %data = load ptr, ptr %peer
  %word_at = getelementptr i8, ptr %data, i64 %distance
  %word = load i64, ptr %word_at, align 8
  %marked = icmp eq i64 %word, {rows.MARK}
  br i1 %marked, label %search, label %none
search:
  %table_at = getelementptr i64, ptr %peer, i64 {context.PEER_BARRIERS}
  %table = load ptr, ptr %table_at
  %offset = and i64 %address, {_OFFSET_MASK}
  %key = add i64 %offset, 1
  %first = lshr i64 %offset, 3
  br label %look
look:
  %step = phi i64 [ 0, %search ], [ %step_next, %other ]
  %number = add i64 %first, %step
  %place = and i64 %number, {rows.ROWS - 1}
  %words = mul i64 %place, {rows.WORDS}
  %row = getelementptr i64, ptr %table, i64 %words
  %found = load i64, ptr %row
  %same = icmp eq i64 %found, %key
  br i1 %same, label %yes, label %next
next:
  %free = icmp eq i64 %found, 0
  br i1 %free, label %none, label %other
other:
  %step_next = add i64 %step, 1
  %more = icmp ult i64 %step_next, {rows.ROWS}
  br i1 %more, label %look, label %none
yes:
  ret ptr %row
none:
  ret ptr null
}}
"""


@dataclass(frozen=True, slots=True)
class Place:
    """An address in a register: the kind of its operand, and whether it has 32 bits."""

    operand: Operand
    narrow: bool


class Code:
    """The body of a kernel: a sequence of instructions, and of conditions without which Python executes it all."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.lines = frame, list[str]()
        self._count, self._idle = 0, False
        self.count = self.lane = self.lanes = ""

    def emit(self, text: str) -> str:
        """Write an instruction and name its result."""
        self._count += 1
        self.lines.append(f"  %x{self._count} = {text}")
        return f"%x{self._count}"

    def add(self, *lines: str) -> None:
        self.lines += lines

    def require(self, test: str, a: str, b: str, type_: str = "i64") -> None:
        """Go on only if a comparison of two values holds."""
        self.require_flag(self.emit(f"icmp {test} {type_} {a}, {b}"))

    def require_flag(self, flag: str) -> None:
        self._count += 1
        self.add(f"  br i1 {flag}, label %on{self._count}, label %stop", f"on{self._count}:")

    def word(self, row: str, number: int, type_: str = "i64") -> str:
        """A word of a row."""
        return self.emit(f"load {type_}, ptr {self.place(row, number)}")

    def place(self, row: str, number: int) -> str:
        return self.emit(f"getelementptr i64, ptr {row}, i64 {number}")

    def take_part(self, word: int, masks: Masks) -> None:
        """Find the lanes that take part: for which a guard holds (its row, 1 if it is negated), of the group's mask, or
        all. `count` is their number, `lane` the last of them, and `lanes` all as bits; without any the kernel does
        nothing.
        """
        frame, lanes = self.frame, self.frame.context(context.LANES)
        if not masks:
            self.count = lanes
            others = self.emit(f"sub i64 {access_log.MOST_LANES}, {lanes}")
            self.lanes = self.emit(f"lshr i128 -1, {self.emit(f'zext i64 {others} to i128')}")
            return
        vector, lines = f"<{WARP_LANES} x i8>", list[str]()
        takes = ""
        if masks.guard:
            row, flip = frame.row("p", word), frame.emit(f"trunc i64 {frame.word(word + 1)} to i8")
            flips = frame.emit(f"insertelement {vector} poison, i8 {flip}, i64 0")
            zeros = f"<{WARP_LANES} x i32> zeroinitializer"
            flips = frame.emit(f"shufflevector {vector} {flips}, {vector} poison, {zeros}")
            lines += [
                f"  %guard_at = getelementptr i8, ptr {row}, i64 %lane",
                f"  %held = load {vector}, ptr %guard_at, align 1",
                f"  %guarded = xor {vector} %held, {flips}",
            ]
            takes = "%guarded"
        if masks.group:
            lines += [
                f"  %mask_at = getelementptr i8, ptr {frame.context(context.MASK, 'ptr')}, i64 %lane",
                f"  %mask = load {vector}, ptr %mask_at, align 1",
            ]
            if takes:
                lines.append(f"  %both = and {vector} {takes}, %mask")
            takes = "%both" if takes else "%mask"
        self.add(
            "  br label %guard",
            "guard:",
            "  %lane = phi i64 [ 0, %entry ], [ %lane_next, %guard ]",
            "  %count = phi i32 [ 0, %entry ], [ %count_next, %guard ]",
            "  %last = phi i64 [ 0, %entry ], [ %last_next, %guard ]",
            "  %lanes = phi i128 [ 0, %entry ], [ %lanes_next, %guard ]",
            *lines,
            f"  %flags = trunc {vector} {takes} to <{WARP_LANES} x i1>",
            f"  %bits = bitcast <{WARP_LANES} x i1> %flags to i32",
            "  %bits_wide = zext i32 %bits to i128",
            "  %lane_wide = zext i64 %lane to i128",
            "  %bits_here = shl i128 %bits_wide, %lane_wide",
            "  %lanes_next = or i128 %lanes, %bits_here",
            "  %ones = call i32 @llvm.ctpop.i32(i32 %bits)",
            "  %count_next = add i32 %count, %ones",
            "  %zeros = call i32 @llvm.ctlz.i32(i32 %bits, i1 false)",
            "  %zeros_wide = zext i32 %zeros to i64",
            f"  %highest = sub i64 {WARP_LANES - 1}, %zeros_wide",
            "  %place = add i64 %lane, %highest",
            "  %some = icmp ne i32 %bits, 0",
            "  %last_next = select i1 %some, i64 %place, i64 %last",
            f"  %lane_next = add i64 %lane, {WARP_LANES}",
            f"  %more = icmp ult i64 %lane_next, {lanes}",
            "  br i1 %more, label %guard, label %counted",
            "counted:",
            "  %none = icmp eq i32 %count_next, 0",
            "  br i1 %none, label %idle, label %some_lane",
            "some_lane:",
        )
        self._idle = True
        self.count, self.lane = self.emit("zext i32 %count_next to i64"), "%last_next"
        self.lanes = "%lanes_next"

    def value(self, word: int, operand: Operand) -> str:
        """An operand of the only lane that takes part, or one that all lanes share, with all its bits."""
        if isinstance(operand, Scalar):
            return self.frame.scalar(word, "i64")
        type_ = ROW_TYPES[operand.file]
        place = self.emit(f"getelementptr {type_}, ptr {self.frame.row(operand.file, word)}, i64 {self.lane}")
        found = self.emit(f"load {type_}, ptr {place}")
        return found if type_ == "i64" else self.emit(f"zext {type_} {found} to i64")

    def address(self, word: int, place: Place) -> str:
        """An address: an operand and an offset, wrapped to 32 bits if its register has as many."""
        whole = self.emit(f"add i64 {self.value(word, place.operand)}, {self.frame.word(word + 1)}")
        return self.emit(f"and i64 {whole}, {(1 << 32) - 1}") if place.narrow else whole

    def barrier(self, address: str) -> str:
        """The row of the barrier at an address of shared memory of the cluster."""
        row = self.emit(f"call ptr @barrier(ptr %context, i64 {address})")
        self.require("ne", row, "null", "ptr")
        return row

    def own(self, address: str) -> None:
        """Require an address of the CTA's own shared memory."""
        base, size = self.frame.context(context.SHARED_BASE), self.frame.context(context.SHARED_SIZE)
        self.require("ult", self.emit(f"sub i64 {address}, {base}"), size)

    def bytes_arrive(self, row: str, bytes_: str) -> tuple[str, str]:
        """Find what is outstanding after bytes have arrived, and 1 if the phase is over then; nothing is done."""
        left = self.emit(f"sub i64 {self.word(row, rows.TX)}, {bytes_}")
        none, free = self.emit(f"icmp eq i64 {left}, 0"), self.emit(f"icmp eq i64 {self.word(row, rows.PENDING)}, 0")
        over = self.emit(f"and i1 {none}, {free}")
        self._require_no_waiter(row, over)
        return left, over

    def _require_no_waiter(self, row: str, over: str) -> None:
        """Go on only if the phase is not over, or no group waits for it."""
        waits = self.emit(f"icmp ne i64 {self.word(row, rows.WAITERS)}, 0")
        self.require_flag(self.emit(f"xor i1 {self.emit(f'and i1 {waits}, {over}')}, true"))

    def arrivals(self, row: str, count: str) -> tuple[str, str]:
        """Find what is pending after arrivals, and 1 if the phase is over then; nothing is done."""
        pending = self.emit(f"sub i64 {self.word(row, rows.PENDING)}, {count}")
        self.require("sge", pending, "0")
        none, free = self.emit(f"icmp eq i64 {pending}, 0"), self.emit(f"icmp eq i64 {self.word(row, rows.TX)}, 0")
        over = self.emit(f"and i1 {none}, {free}")
        self._require_no_waiter(row, over)
        return pending, over

    def end_phase(self, row: str, over: str, pending: str) -> None:
        """Store what is pending, or begin the next phase if this one is `over`."""
        step = self.emit(f"zext i1 {over} to i64")
        phase = self.emit(f"add i64 {self.word(row, rows.PHASE)}, {step}")
        left = self.emit(f"select i1 {over}, i64 {self.word(row, rows.EXPECTED)}, i64 {pending}")
        tests = self.emit(f"select i1 {over}, i64 0, i64 {self.word(row, rows.TESTS)}")
        for number, value in ((rows.PHASE, phase), (rows.PENDING, left), (rows.TESTS, tests)):
            self.add(f"  store i64 {value}, ptr {self.place(row, number)}")

    def enter(self, site: str, barrier: str, phase: str, bytes_: str = "0", over: str = "false") -> None:
        """Make an entry of the log, after everything was examined: the phase before, the bytes, and 1 if it ends."""
        self.add(*begin_entry(site, "stop", "0"))
        self.add(f"  store i64 {barrier}, ptr {self.place('%entry_at', access_log.ADDRESS)}")
        ends = self.emit(f"or i64 {self.emit(f'shl i64 {bytes_}, 1')}, {self.emit(f'zext i1 {over} to i64')}")
        high = self.emit(f"shl i128 {self.emit(f'zext i64 {ends} to i128')}, 64")
        both = self.emit(f"or i128 {high}, {self.emit(f'zext i64 {phase} to i128')}")
        self.add(*end_entry(self.lanes, both))

    def enter_copy(self, map_: str, target: str, coordinates: list[str]) -> None:
        """Give the entry the number of its operation and the operands of its copy."""
        count_at = self.place("%log", access_log.OPERATIONS)
        number = self.emit(f"add i64 {self.emit(f'load i64, ptr {count_at}')}, 1")
        self.add(f"  store i64 {number}, ptr {count_at}", f"  store i64 {number}, ptr %entry_step", *entry_row())
        words = {access_log.COPY_MAP: map_, access_log.COPY_TARGET: target}
        words |= {access_log.COPY_COORDINATES + axis: each for axis, each in enumerate(coordinates)}
        for word, value in words.items():
            self.add(f"  store i64 {value}, ptr {self.place('%log_addresses', word)}")

    def effects(self, count: int) -> None:
        """Count effects."""
        at = self.emit(f"getelementptr i64, ptr %context, i64 {context.EFFECTS}")
        before = self.emit(f"load i64, ptr {at}")
        self.add(f"  store i64 {self.emit(f'add i64 {before}, {count}')}, ptr {at}")

    def text(self, name: str, words: int, before: str = "") -> tuple[str, frozenset[str]]:
        """The kernel."""
        lines = [
            "declare i32 @llvm.ctpop.i32(i32)",
            "declare i32 @llvm.ctlz.i32(i32, i1)",
            before + _BARRIER,
            f"define i64 @{name}(ptr %context, ptr %record) {{",
            "entry:",
            *self.frame.entry,
            *self.lines,
            *(("  br label %idle", "idle:") if self._idle else ()),
            *next_record(words),
            "stop:",
            f"  %number_at = getelementptr i64, ptr %record, i64 {HEAD_WORDS - 1}",
            "  %number = load i64, ptr %number_at",
            "  ret i64 %number",
            "}",
        ]
        return "\n".join(lines) + "\n", frozenset()


@dataclass(frozen=True, slots=True)
class MbarrierWait:
    """A kernel of `mbarrier.try_wait.parity` or `test_wait.parity` whose phase is complete.

    Words: address and offset, parity, the uniform of the result, and (`logged`) the number of the instruction.
    """

    place: Place
    logged: bool

    @property
    def words(self) -> int:
        return HEAD_WORDS + 4 + self.logged

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame = Frame(host)
        code = Code(frame)
        address = code.address(HEAD_WORDS, self.place)
        code.own(address)
        parity, target = frame.scalar(HEAD_WORDS + 2, "i64"), frame.uniform(HEAD_WORDS + 3)
        row = code.barrier(address)
        phase = code.word(row, rows.PHASE)
        behind = code.emit(f"xor i64 {phase}, {parity}")
        code.require("ne", code.emit(f"and i64 {behind}, 1"), "0")
        if self.logged:
            code.take_part(HEAD_WORDS, Masks())
            code.enter(frame.word(HEAD_WORDS + 4), address, phase)
        code.add(f"  store i64 1, ptr {target}")
        return code.text(name, self.words)


@dataclass(frozen=True, slots=True)
class MbarrierArrive:
    """A kernel of `mbarrier.arrive` by lanes of a group, or with `bytes` of `mbarrier.arrive.expect_tx` by one of them,
    which are then outstanding. `own`: the barrier must be the CTA's own.

    Words: address and offset, the bytes and their limit, the guard, and (`logged`) the number of the instruction.
    """

    place: Place
    bytes: Operand | None
    own: bool
    masks: Masks
    logged: bool

    @property
    def words(self) -> int:
        return HEAD_WORDS + 2 + 2 * (self.bytes is not None) + self.masks.words + self.logged

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, expects = Frame(host), self.bytes is not None
        code, word = Code(frame), HEAD_WORDS + 2
        code.take_part(word + 2 * expects, self.masks)
        if expects or isinstance(self.place.operand, Row):
            code.require("eq", code.count, "1")
        address = code.address(HEAD_WORDS, self.place)
        bytes_, limit = ("", "") if self.bytes is None else (code.value(word, self.bytes), frame.word(word + 1))
        if self.own:
            code.own(address)
        row, site = code.barrier(address), frame.word(self.words - 1) if self.logged else ""
        if expects:
            total = code.emit(f"add i64 {code.word(row, rows.TX)}, {bytes_}")
            code.require("sgt", total, "0")
            code.require("sle", total, limit)
            pending = code.emit(f"sub i64 {code.word(row, rows.PENDING)}, 1")
            code.require("sge", pending, "0")
            if self.logged:
                code.enter(site, address, code.word(row, rows.PHASE), bytes_)
            code.add(f"  store i64 {total}, ptr {code.place(row, rows.TX)}")
            code.add(f"  store i64 {pending}, ptr {code.place(row, rows.PENDING)}")
        else:
            pending, over = code.arrivals(row, code.count)
            if self.logged:
                code.enter(site, address, code.word(row, rows.PHASE), over=over)
            code.end_phase(row, over, pending)
        code.effects(1)
        return code.text(name, self.words)


@dataclass(frozen=True, slots=True)
class TensorLoad:
    """A kernel of a TMA load of a box by one lane into its own CTA's shared memory, whose bytes count there or (`pair`)
    perhaps in the other CTA of a pair.

    Words: the target's address and offset, the tensor map's, the barrier's, the coordinates, the guard, and (`logged`)
    the number of the instruction.
    """

    places: tuple[Place, Place, Place]
    coordinates: tuple[Operand, ...]
    pair: bool
    masks: Masks
    logged: bool

    @property
    def words(self) -> int:
        return HEAD_WORDS + 6 + len(self.coordinates) + self.masks.words + self.logged

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, rank = Frame(host), len(self.coordinates)
        code, copy = Code(frame), f"{name}_copy"
        code.take_part(HEAD_WORDS + 6 + rank, self.masks)
        code.require("eq", code.count, "1")
        in_flight = frame.emit(f"load i64, ptr {frame.context(context.IN_FLIGHT, 'ptr')}")
        code.require("eq", in_flight, "0")
        target, map_, barrier = (code.address(HEAD_WORDS + 2 * at, place) for at, place in enumerate(self.places))
        coordinates = [code.value(HEAD_WORDS + 6 + axis, each) for axis, each in enumerate(self.coordinates)]
        if self.pair:
            other = code.emit(f"lshr i64 {code.emit(f'xor i64 {barrier}, {target}')}, {RANK_SHIFT}")
            code.require("ule", other, "1")
        else:
            code.own(barrier)
        row = code.barrier(barrier)
        box = code.emit(f"call ptr @{name}_map(ptr {frame.context(context.MAPS, 'ptr')}, i64 {map_})")
        code.require("ne", box, "null", "ptr")
        code.require("eq", code.word(box, maps.RANK), str(rank))
        source = code.word(box, maps.ORIGIN)
        for axis, given in enumerate(coordinates):
            first = code.emit(f"sext i32 {code.emit(f'trunc i64 {given} to i32')} to i64")
            last = code.word(box, maps.AXES + 2 * axis)
            code.require("sge", first, "0")
            code.require("sle", first, last)
            distance = code.emit(f"mul i64 {first}, {code.word(box, maps.AXES + 2 * axis + 1)}")
            if not axis:
                unit = code.emit(f"and i64 {first}, {code.word(box, maps.UNIT_MASK)}")
                code.require("eq", unit, "0")
                distance = code.emit(f"lshr i64 {distance}, 3")
            source = code.emit(f"add i64 {source}, {distance}")
        end = code.emit(f"add i64 {source}, {code.word(box, maps.SOURCE_END)}")
        code.require("sge", source, "0")
        code.require("ule", end, code.word(box, maps.MEMORY_BYTES))
        base, size = frame.context(context.SHARED_BASE), frame.context(context.SHARED_SIZE)
        to = code.emit(f"sub i64 {target}, {base}")
        code.require("ult", to, size)
        code.require("ule", code.emit(f"add i64 {to}, {code.word(box, maps.TARGET_END)}"), size)
        # The address inside the pattern of the swizzle must be that of the places.
        place = code.emit(f"and i64 {target}, {_OFFSET_MASK}")
        phase = code.emit(f"and i64 {place}, {code.word(box, maps.PHASE_MASK)}")
        code.require("eq", phase, "0")
        bytes_ = code.word(box, maps.BOX_BYTES)
        left, over = code.bytes_arrive(row, bytes_)
        low, limit = code.emit(f"sub i64 0, {code.word(box, maps.TX_LIMIT)}"), code.word(box, maps.TX_LIMIT)
        code.require("sge", left, low)
        code.require("sle", left, limit)
        memory, data = code.word(box, maps.MEMORY, "ptr"), frame.context(context.SHARED, "ptr")
        from_, there = code.emit(f"getelementptr i8, ptr {memory}, i64 {source}"), ""
        there = code.emit(f"getelementptr i8, ptr {data}, i64 {to}")
        if self.logged:
            code.enter(frame.word(self.words - 1), barrier, code.word(row, rows.PHASE), bytes_, over)
            code.enter_copy(map_, target, coordinates)
        code.add(f"  call void @{name}_box(ptr {box}, ptr {from_}, ptr {there})")
        code.add(f"  store i64 {left}, ptr {code.place(row, rows.TX)}")
        code.end_phase(row, over, code.word(row, rows.PENDING))
        code.effects(2)
        moved = frame.context(context.MOVED, "ptr")
        sum_ = code.emit(f"add i64 {code.emit(f'load i64, ptr {moved}')}, {bytes_}")
        code.add(f"  store i64 {sum_}, ptr {moved}")
        text, _ = BoxCopy().text(copy, host)
        helpers = text.replace(f"define i64 @{copy}", f"define internal i64 @{copy}")
        return code.text(name, self.words, helpers + _map_search(f"{name}_map") + _box(f"{name}_box", copy))


def _map_search(name: str) -> str:
    """A function that finds the row of a tensor map by its address: pairs of both, after their number."""
    return f"""
define internal ptr @{name}(ptr %table, i64 %address) {{
entry:
  %count = load i64, ptr %table
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %other ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %test, label %none
test:
  %twice = shl i64 %i, 1
  %at = add i64 %twice, 1
  %key_at = getelementptr i64, ptr %table, i64 %at
  %key = load i64, ptr %key_at
  %same = icmp eq i64 %key, %address
  br i1 %same, label %yes, label %other
other:
  %j = add i64 %i, 1
  br label %look
yes:
  %row_at = getelementptr i64, ptr %key_at, i64 1
  %row = load ptr, ptr %row_at
  ret ptr %row
none:
  ret ptr null
}}
"""


def _box(name: str, copy: str) -> str:
    """A function that copies a box, by the routine; its arguments must not outlive it, so it is not the kernel."""
    lines = [
        f"define internal void @{name}(ptr %box, ptr %source, ptr %target) noinline {{",
        "  %given = alloca [6 x i64], align 8",
        "  store ptr %source, ptr %given",
    ]
    for number, word in enumerate((maps.OFFSETS, maps.ROWS, maps.GRANULES), 1):
        lines += [
            f"  %from{number} = getelementptr i64, ptr %box, i64 {word}",
            f"  %value{number} = load i64, ptr %from{number}",
            f"  %to{number} = getelementptr i64, ptr %given, i64 {number}",
            f"  store i64 %value{number}, ptr %to{number}",
        ]
    lines += [
        "  %target_at = getelementptr i64, ptr %given, i64 4",
        "  store ptr %target, ptr %target_at",
        f"  %places_from = getelementptr i64, ptr %box, i64 {maps.PLACES}",
        "  %places = load i64, ptr %places_from",
        "  %places_at = getelementptr i64, ptr %given, i64 5",
        "  store i64 %places, ptr %places_at",
        f"  %unread = call i64 @{copy}(ptr %given, ptr null)",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"
