"""Native kernels of `ldmatrix` and `stmatrix`: 8 × 8 matrices of 16-bit elements between shared memory and registers.

As in `memory_kernels`, all addresses are examined first; the record's number is returned where the reference must
execute the instruction. In a run with observers an entry of the log has the addresses of the rows, and the lanes whose
rows a store has changed: the rows are kept until all warps have stored, and compared then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warploom.machine.engine import context
from warploom.machine.engine.kernels import HEAD_WORDS, ROW_TYPES, Frame, begin_entry, end_entry, entry_row, next_record
from warploom.machine.engine.llvm_ops import Host

_MOST_LANES = 128
_WARP = 32
_ROWS = 8


@dataclass(frozen=True, slots=True)
class MatrixMove:
    """A kernel of `ldmatrix` or `stmatrix` (`store`) of `count` matrices by whole warps, without a guard.

    Words: the row of the addresses, the offset, and the rows of the matrices' registers; for a log, the instruction's
    number.
    """

    store: bool
    transposed: bool
    count: int
    address: str
    """The file of the addresses."""
    logged: bool = False

    @property
    def words(self) -> int:
        return HEAD_WORDS + 2 + self.count + self.logged

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, type_ = Frame(host), ROW_TYPES[self.address]
        row, offset = frame.row(self.address, HEAD_WORDS), frame.word(HEAD_WORDS + 1)
        registers = [frame.row("a", HEAD_WORDS + 2 + number) for number in range(self.count)]
        base, size = frame.context(context.SHARED_BASE), frame.context(context.SHARED_SIZE)
        data, lanes = frame.context(context.SHARED, "ptr"), frame.context(context.LANES)
        fits, holds = frame.emit(f"icmp ule i64 {lanes}, {_MOST_LANES}"), frame.emit(f"icmp uge i64 {size}, 16")
        last, ready = frame.emit(f"sub i64 {size}, 16"), frame.emit(f"and i1 {fits}, {holds}")
        number = frame.word(HEAD_WORDS + 2 + self.count) if self.logged else ""
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
            *([f"  %before = alloca [{_MOST_LANES} x i128], align 64"] if self._compares else ()),
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
            f"  br i1 %more, label %check, label %{'distinct' if self.logged else 'warp'}",
            *(self._entry(number, lanes, base, data) if self.logged else ()),
            "warp:",
            f"  %first = phi i64 [ 0, %{'noted' if self.logged else 'next'} ], [ %second, %end{self.count - 1} ]",
            "  br label %begin0",
        ]
        for at, register in enumerate(registers):
            lines += self._matrix(at, register, data)
        after = self._compared(lanes, data) if self.logged else ()
        return "\n".join([*lines, *_ending(name, self.words, self.count, lanes, after)]) + "\n", frozenset()

    @property
    def _compares(self) -> bool:
        return self.logged and self.store

    def _entry(self, site: str, lanes: str, base: str, data: str) -> list[str]:
        """The addresses of an entry; what a store finds is kept.

        Warps that begin at the same address may store the same rows: the reference finds out which of them change
        memory. It also executes a store of two rows of a warp to one address.
        """
        pairs = [(one, other) for other in range(_WARP, _MOST_LANES, _WARP) for one in range(0, other, _WARP)]
        lines = ["distinct:"]
        for lane in range(0, _MOST_LANES, _WARP):
            lines += [f"  %d{lane}_at = getelementptr i64, ptr %held, i64 {lane}"]
            lines += [f"  %d{lane} = load i64, ptr %d{lane}_at"]
        lines += ["  %equal_first = add i1 false, false"]
        equal = "%equal_first"
        for one, other in pairs if self.store else ():
            lines += [
                f"  %there{one}_{other} = icmp ugt i64 {lanes}, {other}",
                f"  %like{one}_{other} = icmp eq i64 %d{one}, %d{other}",
                f"  %both{one}_{other} = and i1 %there{one}_{other}, %like{one}_{other}",
                f"  %equal{one}_{other} = or i1 {equal}, %both{one}_{other}",
            ]
            equal = f"%equal{one}_{other}"
        return [
            *lines,
            f"  br i1 {equal}, label %bad, label %{'row' if self.store else 'begin_entry'}",
            *(self._distinct_rows(lanes) if self.store else ()),
            "begin_entry:",
            *begin_entry(site, "bad"),
            *entry_row(),
            "  br label %note",
            "note:",
            "  %n = phi i64 [ 0, %enter ], [ %n_next, %note_next ]",
            f"  %n_lane = and i64 %n, {_WARP - 1}",
            f"  %n_gives = icmp ult i64 %n_lane, {_ROWS * self.count}",
            "  br i1 %n_gives, label %keep, label %note_next",
            "keep:",
            "  %n_held = getelementptr i64, ptr %held, i64 %n",
            "  %n_distance = load i64, ptr %n_held",
            f"  %n_address = add i64 %n_distance, {base}",
            "  %n_slot = getelementptr i64, ptr %log_addresses, i64 %n",
            "  store i64 %n_address, ptr %n_slot",
            *(
                [
                    f"  %n_row = getelementptr i8, ptr {data}, i64 %n_distance",
                    "  %n_found = load i128, ptr %n_row, align 16",
                    "  %n_before = getelementptr i128, ptr %before, i64 %n",
                    "  store i128 %n_found, ptr %n_before, align 16",
                ]
                if self.store
                else ()
            ),
            "  br label %note_next",
            "note_next:",
            "  %n_next = add i64 %n, 1",
            f"  %n_more = icmp ult i64 %n_next, {lanes}",
            "  br i1 %n_more, label %note, label %noted",
            "noted:",
            "  br label %warp",
        ]

    def _distinct_rows(self, lanes: str) -> list[str]:
        """Compare the addresses of all pairs of rows of a warp."""
        rows = _ROWS * self.count
        return [
            "row:",
            "  %a = phi i64 [ 0, %distinct ], [ %a_next, %row_end ]",
            f"  %a_lane = and i64 %a, {_WARP - 1}",
            f"  %a_gives = icmp ult i64 %a_lane, {rows - 1}",
            "  br i1 %a_gives, label %row_begin, label %row_end",
            "row_begin:",
            "  %a_at = getelementptr i64, ptr %held, i64 %a",
            "  %a_place = load i64, ptr %a_at",
            "  %a_start = sub i64 %a, %a_lane",
            f"  %a_stop = add i64 %a_start, {rows}",
            "  %a_second = add i64 %a, 1",
            "  br label %row_pair",
            "row_pair:",
            "  %b = phi i64 [ %a_second, %row_begin ], [ %b_next, %row_on ]",
            "  %b_at = getelementptr i64, ptr %held, i64 %b",
            "  %b_place = load i64, ptr %b_at",
            "  %b_same = icmp eq i64 %a_place, %b_place",
            "  br i1 %b_same, label %bad, label %row_on",
            "row_on:",
            "  %b_next = add i64 %b, 1",
            "  %b_more = icmp ult i64 %b_next, %a_stop",
            "  br i1 %b_more, label %row_pair, label %row_end",
            "row_end:",
            "  %a_next = add i64 %a, 1",
            f"  %a_more = icmp ult i64 %a_next, {lanes}",
            "  br i1 %a_more, label %row, label %begin_entry",
        ]

    def _compared(self, lanes: str, data: str) -> list[str]:
        """The end of an entry: the lanes that give a row, and those whose rows have changed."""
        giving = sum(((1 << _ROWS * self.count) - 1) << first for first in range(0, _MOST_LANES, _WARP))
        lines = [
            f"  %absent = sub i64 {_MOST_LANES}, {lanes}",
            "  %absent_wide = zext i64 %absent to i128",
            "  %all_lanes = lshr i128 -1, %absent_wide",
            f"  %giving = and i128 %all_lanes, {giving}",
        ]
        if not self.store:
            return [*lines, *end_entry("%giving", "%giving")]
        return [
            *lines,
            "  br label %compare",
            "compare:",
            "  %c = phi i64 [ 0, %good ], [ %c_next, %compare_next ]",
            "  %changed = phi i128 [ 0, %good ], [ %changed_next, %compare_next ]",
            f"  %c_lane = and i64 %c, {_WARP - 1}",
            f"  %c_gives = icmp ult i64 %c_lane, {_ROWS * self.count}",
            "  br i1 %c_gives, label %look_again, label %compare_next",
            "look_again:",
            "  %c_held = getelementptr i64, ptr %held, i64 %c",
            "  %c_distance = load i64, ptr %c_held",
            f"  %c_row = getelementptr i8, ptr {data}, i64 %c_distance",
            "  %c_now = load i128, ptr %c_row, align 16",
            "  %c_before_at = getelementptr i128, ptr %before, i64 %c",
            "  %c_before = load i128, ptr %c_before_at, align 16",
            "  %c_differs = icmp ne i128 %c_now, %c_before",
            "  %c_bit = zext i1 %c_differs to i128",
            "  %c_wide = zext i64 %c to i128",
            "  %c_shifted = shl i128 %c_bit, %c_wide",
            "  %c_more_changed = or i128 %changed, %c_shifted",
            "  br label %compare_next",
            "compare_next:",
            "  %changed_next = phi i128 [ %changed, %compare ], [ %c_more_changed, %look_again ]",
            "  %c_next = add i64 %c, 1",
            f"  %c_more = icmp ult i64 %c_next, {lanes}",
            "  br i1 %c_more, label %compare, label %compared",
            "compared:",
            *end_entry("%giving", "%changed_next"),
        ]

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


def _ending(name: str, words: int, count: int, lanes: str, after: Sequence[str]) -> list[str]:
    """The end of the loop over warps, and the kernel around it: a jump may not pass the address of a variable."""
    return [
        f"end{count - 1}:",
        f"  %second = add i64 %first, {_WARP}",
        f"  %warps = icmp ult i64 %second, {lanes}",
        "  br i1 %warps, label %warp, label %good",
        "good:",
        *after,
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
