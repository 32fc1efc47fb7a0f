"""Native kernels of `ldmatrix` and `stmatrix`: 8 × 8 matrices of 16-bit elements between shared memory and registers.

As in `memory_kernels`, all addresses are examined first; the record's number is returned where the reference must
execute the instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

from warploom.machine.engine import context
from warploom.machine.engine.kernels import HEAD_WORDS, ROW_TYPES, Frame, next_record
from warploom.machine.engine.llvm_ops import Host

_MOST_LANES = 128
_WARP = 32
_ROWS = 8


@dataclass(frozen=True, slots=True)
class MatrixMove:
    """A kernel of `ldmatrix` or `stmatrix` (`store`) of `count` matrices by whole warps, without a guard.

    Words: the row of the addresses, the offset, and the rows of the matrices' registers.
    """

    store: bool
    transposed: bool
    count: int
    address: str
    """The file of the addresses."""

    @property
    def words(self) -> int:
        return HEAD_WORDS + 2 + self.count

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, type_ = Frame(host), ROW_TYPES[self.address]
        row, offset = frame.row(self.address, HEAD_WORDS), frame.word(HEAD_WORDS + 1)
        registers = [frame.row("a", HEAD_WORDS + 2 + number) for number in range(self.count)]
        base, size = frame.context(context.SHARED_BASE), frame.context(context.SHARED_SIZE)
        data, lanes = frame.context(context.SHARED, "ptr"), frame.context(context.LANES)
        fits, holds = frame.emit(f"icmp ule i64 {lanes}, {_MOST_LANES}"), frame.emit(f"icmp uge i64 {size}, 16")
        last, ready = frame.emit(f"sub i64 {size}, 16"), frame.emit(f"and i1 {fits}, {holds}")
        moved = ["  %full = add i64 %value, %offset"]
        if type_ == "i32":
            moved = [
                "  %short = trunc i64 %offset to i32",
                "  %sum = add i32 %value, %short",
                "  %full = zext i32 %sum to i64",
            ]
        lines = [
            f"define internal i64 @{name}_lanes(ptr %context, ptr %record) {{",
            "entry:",
            f"  %held = alloca [{_MOST_LANES} x i64], align 64",
            *frame.entry,
            f"  %offset = add i64 {offset}, 0",
            f"  br i1 {ready}, label %check, label %bad",
            "check:",
            "  %i = phi i64 [ 0, %entry ], [ %j, %next ]",
            f"  %lane = and i64 %i, {_WARP - 1}",
            f"  %gives = icmp ult i64 %lane, {_ROWS * self.count}",
            "  br i1 %gives, label %look, label %next",
            "look:",
            f"  %place = getelementptr {type_}, ptr {row}, i64 %i",
            f"  %value = load {type_}, ptr %place",
            *moved,
            f"  %distance = sub i64 %full, {base}",
            "  %slot = getelementptr i64, ptr %held, i64 %i",
            "  store i64 %distance, ptr %slot",
            f"  %beyond = icmp ugt i64 %distance, {last}",
            "  %low = and i64 %distance, 15",
            "  %odd = icmp ne i64 %low, 0",
            "  %wrong = or i1 %beyond, %odd",
            "  br i1 %wrong, label %bad, label %next",
            "next:",
            "  %j = add i64 %i, 1",
            f"  %more = icmp ult i64 %j, {lanes}",
            "  br i1 %more, label %check, label %warp",
            "warp:",
            f"  %first = phi i64 [ 0, %next ], [ %second, %end{self.count - 1} ]",
            "  br label %begin0",
        ]
        for number, register in enumerate(registers):
            lines += self._matrix(number, register, data)
        return "\n".join([*lines, *_ending(name, self.words, self.count, lanes)]) + "\n", frozenset()

    def _matrix(self, number: int, register: str, data: str) -> list[str]:
        """The elements of one matrix: rows in order, so that of equal rows the last one stays."""
        n = number
        lines = [
            f"begin{n}:",
            f"  br label %move{n}",
            f"move{n}:",
            f"  %l{n} = phi i64 [ 0, %begin{n} ], [ %l{n}_next, %move{n} ]",
            f"  %k{n} = add i64 %first, %l{n}",
            f"  %r{n} = getelementptr i32, ptr {register}, i64 %k{n}",
            f"  %high{n} = lshr i64 %l{n}, 2",
            f"  %low{n} = and i64 %l{n}, 3",
            f"  %top{n} = add i64 %first, {_ROWS * n}",
        ]

        def element(label: str, matrix_row: str, byte: str) -> list[str]:
            """The host address of an element: a row's address and a byte of it."""
            return [
                f"  %at{label} = add i64 %top{n}, {matrix_row}",
                f"  %slot{label} = getelementptr i64, ptr %held, i64 %at{label}",
                f"  %distance{label} = load i64, ptr %slot{label}",
                f"  %byte{label} = add i64 %distance{label}, {byte}",
                f"  %p{label} = getelementptr i8, ptr {data}, i64 %byte{label}",
            ]

        if not self.transposed:
            lines += [f"  %column{n} = shl i64 %low{n}, 2", *element(f"{n}", f"%high{n}", f"%column{n}")]
            if self.store:
                lines += [f"  %v{n} = load i32, ptr %r{n}", f"  store i32 %v{n}, ptr %p{n}, align 4"]
            else:
                lines += [f"  %v{n} = load i32, ptr %p{n}, align 4", f"  store i32 %v{n}, ptr %r{n}"]
        else:
            lines += [
                f"  %column{n} = shl i64 %high{n}, 1",
                f"  %even{n} = shl i64 %low{n}, 1",
                f"  %uneven{n} = add i64 %even{n}, 1",
                *element(f"{n}a", f"%even{n}", f"%column{n}"),
                *element(f"{n}b", f"%uneven{n}", f"%column{n}"),
            ]
            if self.store:
                lines += [
                    f"  %v{n} = load i32, ptr %r{n}",
                    f"  %x{n} = trunc i32 %v{n} to i16",
                    f"  %w{n} = lshr i32 %v{n}, 16",
                    f"  %y{n} = trunc i32 %w{n} to i16",
                    f"  store i16 %x{n}, ptr %p{n}a, align 2",
                    f"  store i16 %y{n}, ptr %p{n}b, align 2",
                ]
            else:
                lines += [
                    f"  %x{n} = load i16, ptr %p{n}a, align 2",
                    f"  %y{n} = load i16, ptr %p{n}b, align 2",
                    f"  %xw{n} = zext i16 %x{n} to i32",
                    f"  %yw{n} = zext i16 %y{n} to i32",
                    f"  %up{n} = shl i32 %yw{n}, 16",
                    f"  %v{n} = or i32 %up{n}, %xw{n}",
                    f"  store i32 %v{n}, ptr %r{n}",
                ]
        after = f"begin{n + 1}" if n + 1 < self.count else f"end{n}"
        return [
            *lines,
            f"  %l{n}_next = add i64 %l{n}, 1",
            f"  %l{n}_more = icmp ult i64 %l{n}_next, {_WARP}",
            f"  br i1 %l{n}_more, label %move{n}, label %{after}",
        ]


def _ending(name: str, words: int, count: int, lanes: str) -> list[str]:
    """The end of the loop over warps, and the kernel around it: a jump may not pass the address of a variable."""
    return [
        f"end{count - 1}:",
        f"  %second = add i64 %first, {_WARP}",
        f"  %warps = icmp ult i64 %second, {lanes}",
        "  br i1 %warps, label %warp, label %good",
        "good:",
        "  ret i64 0",
        "bad:",
        f"  %number_at = getelementptr i64, ptr %record, i64 {HEAD_WORDS - 1}",
        "  %number = load i64, ptr %number_at",
        "  ret i64 %number",
        "}",
        f"define i64 @{name}(ptr %context, ptr %record) {{",
        f"  %fault = call i64 @{name}_lanes(ptr %context, ptr %record)",
        "  %fine = icmp eq i64 %fault, 0",
        "  br i1 %fine, label %on, label %back",
        "back:",
        "  ret i64 %fault",
        "on:",
        *next_record(words),
        "}",
    ]
