"""Native kernels of instructions of all lanes of a warp together: `shfl` and `elect`."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine import context
from warploom.machine.engine.kernels import HEAD_WORDS, Frame, Operand, Row, next_record
from warploom.machine.engine.llvm_ops import Host, LlvmOps
from warploom.machine.semantics.vectors import Value

_MOST_LANES = 128
"""Lanes of a warpgroup, the most that execute together."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A kernel of `shfl` of a row: its mode, the kinds of the lane operand and of the bounds, and the predicate.

    Words: the row of the value, lane operand, bounds, the row of the result, the row of the predicate if it is written.
    """

    mode: str
    lane: Operand
    bounds: Operand
    predicate: bool

    @property
    def words(self) -> int:
        return HEAD_WORDS + 4 + self.predicate

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, before, copy, ops = Frame(host), LlvmOps(host), LlvmOps(host), LlvmOps(host)
        word = HEAD_WORDS
        source = frame.row("a", word)
        operands: list[str] = []
        for number, operand in enumerate((self.lane, self.bounds), 1):
            if isinstance(operand, Row):
                operands.append(frame.row(operand.file, word + number))
            else:
                operands.append(before.splat("i32", frame.scalar(word + number, "i32")).ref.replace("%v", "%b"))
        target = frame.row("a", word + 3)
        predicate = frame.row("p", word + 4) if self.predicate else ""
        lanes, count = frame.context(context.LANES), host.lanes
        # The result may replace the value: all lanes are read before one is written.
        vector = copy.vector("i32")
        value = copy.fresh(f"load {vector}, ptr {copy.fresh(f'getelementptr i32, ptr {source}, i64 %i')}, align 4")
        held = copy.fresh("getelementptr i32, ptr %held, i64 %i")
        copy.body.append(f"  store {vector} {value}, ptr {held}, align 4")
        own = ops.splat("i32", ops.fresh("trunc i64 %k to i32"))
        steps = ", ".join(f"i32 {lane}" for lane in range(count))
        own = own + Value(ops, "i32", f"<{steps}>")
        b, c = (
            ops.make("i32", f"load {vector}, ptr {ops.fresh(f'getelementptr i32, ptr {found}, i64 %k')}, align 4")
            if isinstance(operand, Row)
            else Value(ops, "i32", found)
            for operand, found in zip((self.lane, self.bounds), operands, strict=True)
        )
        place, inside = _route(self.mode, own & 31, b, c)
        index = (inside.where(place, own & 31) + (own & ~31)).zext("i64")
        places = ops.fresh(f"getelementptr i32, ptr %held, {ops.vector('i64')} {index.ref}")
        function = f"@llvm.masked.gather.v{count}i32.v{count}p0"
        declaration = f"declare {vector} {function}(<{count} x ptr>, i32, <{count} x i1>, {vector})"
        every = f"<{count} x i1> splat (i1 true)"
        found = ops.fresh(f"call {vector} {function}(<{count} x ptr> {places}, i32 4, {every}, {vector} poison)")
        ops.body.append(
            f"  store {vector} {found}, ptr {ops.fresh(f'getelementptr i32, ptr {target}, i64 %k')}, align 4"
        )
        if predicate:
            at = ops.fresh(f"getelementptr i8, ptr {predicate}, i64 %k")
            ops.body.append(f"  store {ops.vector('i8')} {inside.zext('i8').ref}, ptr {at}, align 1")
        lines = [
            declaration,
            f"define internal i64 @{name}_lanes(ptr %context, ptr %record) {{",
            "entry:",
            f"  %held = alloca [{_MOST_LANES} x i32], align 64",
            *frame.entry,
            *[line.replace("%v", "%b") for line in before.body],
            f"  %fits = icmp ule i64 {lanes}, {_MOST_LANES}",
            "  br i1 %fits, label %copy, label %done",
            "copy:",
            "  %i = phi i64 [ 0, %entry ], [ %j, %copy ]",
            *[line.replace("%v", "%c") for line in copy.body],
            f"  %j = add i64 %i, {count}",
            f"  %more = icmp ult i64 %j, {lanes}",
            "  br i1 %more, label %copy, label %loop",
            "loop:",
            "  %k = phi i64 [ 0, %copy ], [ %l, %loop ]",
            *ops.body,
            f"  %l = add i64 %k, {count}",
            f"  %again = icmp ult i64 %l, {lanes}",
            "  br i1 %again, label %loop, label %done",
            "done:",
            "  ret i64 0",
            "}",
            # A jump to the next kernel may not pass the address of this one's variables.
            f"define i64 @{name}(ptr %context, ptr %record) {{",
            f"  %ignored = call i64 @{name}_lanes(ptr %context, ptr %record)",
            *next_record(self.words),
            "}",
        ]
        return "\n".join(lines) + "\n", frozenset()


@dataclass(frozen=True, slots=True)
class Elect:
    """A kernel of `elect` by all lanes of each warp: lane 0 leads.

    Words: the row of the leader's number if it is written, the row of the predicate.
    """

    result: bool

    @property
    def words(self) -> int:
        return HEAD_WORDS + 1 + self.result

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame = Frame(host)
        target = frame.row("a", HEAD_WORDS) if self.result else ""
        predicate, lanes = frame.row("p", HEAD_WORDS + self.result), frame.context(context.LANES)
        leads = ", ".join(f"i8 {int(lane == 0)}" for lane in range(WARP_LANES))
        numbers = [
            f"  %to = getelementptr i32, ptr {target}, i64 %i",
            f"  store <{WARP_LANES} x i32> zeroinitializer, ptr %to, align 4",
        ]
        lines = [
            f"define i64 @{name}(ptr %context, ptr %record) {{",
            "entry:",
            *frame.entry,
            "  br label %warp",
            "warp:",
            "  %i = phi i64 [ 0, %entry ], [ %j, %warp ]",
            *(numbers if self.result else ()),
            f"  %leads = getelementptr i8, ptr {predicate}, i64 %i",
            f"  store <{WARP_LANES} x i8> <{leads}>, ptr %leads, align 1",
            f"  %j = add i64 %i, {WARP_LANES}",
            f"  %more = icmp ult i64 %j, {lanes}",
            "  br i1 %more, label %warp, label %done",
            "done:",
            *next_record(self.words),
            "}",
        ]
        return "\n".join(lines) + "\n", frozenset()


def _route(mode: str, lane: Value, b: Value, c: Value) -> tuple[Value, Value]:
    """The source lane of each lane, and whether it is in its segment (PTX ISA, shfl.sync, semantics)."""
    offset, clamp, segment = b & 31, c & 31, (c >> 8) & 31
    lowest = lane & segment
    bound = lowest | (clamp & ~segment)
    match mode:
        case "up":
            source = lane - offset
            return source, source.compare("sge", bound)
        case "down":
            source = lane + offset
        case "bfly":
            source = lane ^ offset
        case _:
            source = lowest | (offset & ~segment)
    return source, source.compare("sle", bound)
