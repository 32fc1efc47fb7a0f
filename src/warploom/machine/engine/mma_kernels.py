"""Native kernels of `mma.sync`: each warp multiplies matrices of 16 rows that lie in its registers.

The order of summation is that of `numerics/products.py`: the products of a row and a column are added in float64 from
+0 on, in ascending order of k, and the sum is rounded to float32 before C is added; D of f16 is then rounded once more.
Sums of integers are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine import context
from warploom.machine.engine.kernels import HEAD_WORDS, Frame, next_record
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.routines.tensor_elements import WHOLE, decoded, decoded_floats, half_codes, rounded_halves

_COLUMNS = 8
"""Columns of D, and lanes of a vector."""
_HALF_ROWS, _QUAD = 8, 4
"""Rows of D that lie in one register, and lanes that share a row."""
_TOGETHER = 4
"""Rows of each half that are computed at once, so that the processor need not wait for a sum."""
_D_REGISTERS = 4
_NAN = ELEMENT_TYPES["f32"].nan
ELEMENTS = frozenset(WHOLE)
"""The types of A and B."""


@dataclass(frozen=True, slots=True)
class WarpMma:
    """A kernel of `mma.sync` with 16 rows by whole warps, without a guard. Words: the rows of A, B, C and D.

    The elements of A and B have the same size; `registers` is the number of B's, of which A has twice as many. D is
    f32, f16 (two to a register) or s32, which may saturate. C may be scalars.
    """

    a: str
    b: str
    registers: int
    d_type: str = "f32"
    saturates: bool = False
    scalars: bool = False

    @property
    def words(self) -> int:
        return HEAD_WORDS + 3 * self.registers + 2 * self._d_registers

    @property
    def _d_registers(self) -> int:
        return _D_REGISTERS // 2 if self.d_type == "f16" else _D_REGISTERS

    @property
    def _per_word(self) -> int:
        return 32 // WHOLE[self.a]

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        frame, count = Frame(host), self.registers
        first, third = HEAD_WORDS, HEAD_WORDS + 3 * count
        left = [frame.row("a", first + number) for number in range(2 * count)]
        right = [frame.row("a", first + 2 * count + number) for number in range(count)]
        added = [
            frame.scalar(first + 3 * count + number, "i32")
            if self.scalars
            else frame.row("a", first + 3 * count + number)
            for number in range(self._d_registers)
        ]
        targets = [frame.row("a", third + self._d_registers + number) for number in range(self._d_registers)]
        lanes = frame.context(context.LANES)
        right_lines, b = self._right(right)
        doubles = 2 * count * self._per_word * WARP_LANES
        lines = [
            *self._declarations(host),
            f"define internal void @{name}_warps(ptr %context, ptr %record) {{",
            "entry:",
            f"  %a = alloca [{doubles} x double], align 64",
            f"  %d = alloca [{_D_REGISTERS * WARP_LANES} x i32], align 64",
            *frame.entry,
            "  br label %warp",
            "warp:",
            "  %lane = phi i64 [ 0, %entry ], [ %lane_next, %done ]",
            *self._left(left),
            *right_lines,
            "  br label %rows",
            "rows:",
            "  %row = phi i64 [ 0, %warp ], [ %row_next, %rows ]",
            f"  %quad = mul i64 %row, {_QUAD}",
            "  %lanes_at = add i64 %lane, %quad",
            "  %line = getelementptr double, ptr %a, i64 %quad",
        ]
        for at in range(_TOGETHER):
            for half in range(2):
                lines += self._row(at, half, b, added, host)
        lines += [
            f"  %row_next = add i64 %row, {_TOGETHER}",
            f"  %row_more = icmp ult i64 %row_next, {_HALF_ROWS}",
            "  br i1 %row_more, label %rows, label %done",
            "done:",
        ]
        # D may replace A, B and C: it is written when all of them were read.
        whole = f"<{WARP_LANES} x i32>"
        for number, target in enumerate(targets):
            lines += [
                f"  %d_from{number} = getelementptr i32, ptr %d, i64 {number * WARP_LANES}",
                f"  %d_value{number} = load {whole}, ptr %d_from{number}, align 4",
                f"  %d_to{number} = getelementptr i32, ptr {target}, i64 %lane",
                f"  store {whole} %d_value{number}, ptr %d_to{number}, align 4",
            ]
        lines += [
            f"  %lane_next = add i64 %lane, {WARP_LANES}",
            f"  %lane_more = icmp ult i64 %lane_next, {lanes}",
            "  br i1 %lane_more, label %warp, label %end",
            "end:",
            "  ret void",
            "}",
            # A jump to the next kernel may not pass the address of this one's variables.
            f"define i64 @{name}(ptr %context, ptr %record) {{",
            f"  call void @{name}_warps(ptr %context, ptr %record)",
            *next_record(self.words),
            "}",
        ]
        return "\n".join(lines) + "\n", frozenset()

    def _declarations(self, host: Host) -> list[str]:
        vector, found = f"<{_COLUMNS} x double>", list[str]()
        if host.fused:
            found.append(f"declare {vector} @llvm.fma.v{_COLUMNS}f64({vector}, {vector}, {vector})")
        if self.saturates:
            words = f"<{_COLUMNS} x i32>"
            found.append(f"declare {words} @llvm.sadd.sat.v{_COLUMNS}i32({words}, {words})")
        return found

    def _part(self, element: str, words: str, part: int, label: str, count: int) -> tuple[list[str], str]:
        """One element of each word as doubles."""
        bits, type_ = WHOLE[element], f"<{count} x i32>"
        lines = [
            f"  %q{label} = lshr {type_} {words}, splat (i32 {part * bits})",
            f"  %t{label} = and {type_} %q{label}, splat (i32 {(1 << bits) - 1})",
        ]
        found, result = decoded(element, f"%t{label}", label, count)
        return [*lines, *found], result

    def _left(self, rows: list[str]) -> list[str]:
        """The lines that write A to %a as [element of a word, register, lane]."""
        lines, step = list[str](), _COLUMNS
        for number, row in enumerate(rows):
            for first in range(0, WARP_LANES, step):
                n = f"a{number}_{first}"
                lines += [
                    f"  %at{n} = add i64 %lane, {first}",
                    f"  %p{n} = getelementptr i32, ptr {row}, i64 %at{n}",
                    f"  %w{n} = load <{step} x i32>, ptr %p{n}, align 4",
                ]
                for part in range(self._per_word):
                    found, value = self._part(self.a, f"%w{n}", part, f"{n}_{part}", step)
                    place = (part * len(rows) + number) * WARP_LANES + first
                    lines += [
                        *found,
                        f"  %e{n}_{part} = getelementptr double, ptr %a, i64 {place}",
                        f"  store <{step} x double> {value}, ptr %e{n}_{part}, align 8",
                    ]
        return lines

    def _right(self, rows: list[str]) -> tuple[list[str], dict[int, str]]:
        """The lines that read B, and for each k the vector of all columns, which lie in every fourth lane."""
        lines, values = list[str](), dict[int, str]()
        for number, row in enumerate(rows):
            n = f"b{number}"
            lines += [
                f"  %p{n} = getelementptr i32, ptr {row}, i64 %lane",
                f"  %w{n} = load <{WARP_LANES} x i32>, ptr %p{n}, align 4",
            ]
            for quad in range(_QUAD):
                places = ", ".join(f"i32 {_QUAD * column + quad}" for column in range(_COLUMNS))
                whole = f"<{WARP_LANES} x i32>"
                lines.append(
                    f"  %s{n}_{quad} = shufflevector {whole} %w{n}, {whole} poison, <{_COLUMNS} x i32> <{places}>"
                )
                for part in range(self._per_word):
                    k = (number * _QUAD + quad) * self._per_word + part
                    found, value = self._part(self.b, f"%s{n}_{quad}", part, f"{n}_{quad}_{part}", _COLUMNS)
                    lines += found
                    values[k] = value
        return lines, values

    def _row(self, at: int, half: int, b: dict[int, str], added: list[str], host: Host) -> list[str]:
        """The lines that compute row `at` after %row of a half, and write it to %d."""
        n, vector, words = f"{at}_{half}", f"<{_COLUMNS} x double>", f"<{_COLUMNS} x i32>"
        floats, quarter = f"<{_COLUMNS} x float>", f"<{_QUAD} x i32>"
        lines, total = list[str](), "zeroinitializer"
        for k in range(len(b)):
            word, part = divmod(k, self._per_word)
            register = word // _QUAD * 2 + half
            place = (part * 2 * self.registers + register) * WARP_LANES + at * _QUAD + word % _QUAD
            m = f"{n}_{k}"
            lines += [
                f"  %lp{m} = getelementptr double, ptr %line, i64 {place}",
                f"  %lv{m} = load double, ptr %lp{m}, align 8",
                f"  %li{m} = insertelement {vector} poison, double %lv{m}, i64 0",
                f"  %ls{m} = shufflevector {vector} %li{m}, {vector} poison, {words} zeroinitializer",
            ]
            if host.fused:
                given = f"{vector} %ls{m}, {vector} {b[k]}, {vector} {total}"
                lines.append(f"  %n{m} = call {vector} @llvm.fma.v{_COLUMNS}f64({given})")
            else:
                lines += [f"  %lm{m} = fmul {vector} %ls{m}, {b[k]}", f"  %n{m} = fadd {vector} {total}, %lm{m}"]
            total = f"%n{m}"
        for each in range(self._d_registers // 2):
            register, one = self._d_registers // 2 * half + each, f"{n}_{each}"
            if self.scalars:
                lines += [
                    f"  %ci{one} = insertelement {quarter} poison, i32 {added[register]}, i64 0",
                    f"  %c{one} = shufflevector {quarter} %ci{one}, {quarter} poison, {quarter} zeroinitializer",
                ]
            else:
                lines += [
                    f"  %cl{one} = getelementptr i32, ptr {added[register]}, i64 %lanes_at",
                    f"  %cp{one} = getelementptr i32, ptr %cl{one}, i64 {at * _QUAD}",
                    f"  %c{one} = load {quarter}, ptr %cp{one}, align 4",
                ]
        first = f"%c{n}_0"
        if self.d_type == "f16":
            first = f"%clow{n}"
            lines += [
                f"  %clow{n} = and {quarter} %c{n}_0, splat (i32 {0xFFFF})",
                f"  %c{n}_1 = lshr {quarter} %c{n}_0, splat (i32 16)",
            ]
        joined = ", ".join(f"i32 {column // 2 + column % 2 * _QUAD}" for column in range(_COLUMNS))
        lines.append(f"  %c{n} = shufflevector {quarter} {first}, {quarter} %c{n}_1, {words} <{joined}>")
        if self.d_type == "s32":
            lines.append(f"  %product{n} = fptosi {vector} {total} to {words}")
            if self.saturates:
                lines.append(
                    f"  %sum{n} = call {words} @llvm.sadd.sat.v{_COLUMNS}i32({words} %product{n}, {words} %c{n})"
                )
            else:
                lines.append(f"  %sum{n} = add {words} %product{n}, %c{n}")
        else:
            found, c = [f"  %cf{n} = bitcast {words} %c{n} to {floats}"], f"%cf{n}"
            if self.d_type == "f16":
                found, c = decoded_floats("f16", f"%c{n}", f"c{n}", _COLUMNS)
            lines += [
                f"  %r{n} = fptrunc {vector} {total} to {floats}",
                f"  %product{n} = fadd {floats} %r{n}, zeroinitializer",  # a zero is +0
                *found,
                f"  %y{n} = fadd {floats} %product{n}, {c}",
            ]
            if self.d_type == "f16":
                rounding, rounded = rounded_halves(f"%y{n}", f"r{n}", _COLUMNS)
                codes, halves = half_codes(rounded, f"d{n}", _COLUMNS)
                return [*lines, *rounding, *codes, *self._store_halves(halves, n, half * WARP_LANES + at * _QUAD)]
            lines += [
                f"  %bad{n} = fcmp uno {floats} %y{n}, %y{n}",
                f"  %bits{n} = bitcast {floats} %y{n} to {words}",
                f"  %sum{n} = select <{_COLUMNS} x i1> %bad{n}, {words} splat (i32 {_NAN}), {words} %bits{n}",
            ]
        for parity in range(2):
            places = ", ".join(f"i32 {2 * quad + parity}" for quad in range(_QUAD))
            place, side = (2 * half + parity) * WARP_LANES + at * _QUAD, f"{n}_{parity}"
            lines += [
                f"  %o{side} = shufflevector {words} %sum{n}, {words} poison, {quarter} <{places}>",
                f"  %op{side} = getelementptr i32, ptr %d, i64 %quad",
                f"  %oq{side} = getelementptr i32, ptr %op{side}, i64 {place}",
                f"  store {quarter} %o{side}, ptr %oq{side}, align 4",
            ]
        return lines

    def _store_halves(self, codes: str, label: str, place: int) -> list[str]:
        """The lines that write a row of f16 codes to %d, two to a word."""
        n, words, quarter = label, f"<{_COLUMNS} x i32>", f"<{_QUAD} x i32>"
        lines = []
        for parity, name in enumerate(("even", "odd")):
            places = ", ".join(f"i32 {2 * quad + parity}" for quad in range(_QUAD))
            lines.append(f"  %{name}{n} = shufflevector {words} {codes}, {words} poison, {quarter} <{places}>")
        return [
            *lines,
            f"  %high{n} = shl {quarter} %odd{n}, splat (i32 16)",
            f"  %both{n} = or {quarter} %even{n}, %high{n}",
            f"  %op{n} = getelementptr i32, ptr %d, i64 %quad",
            f"  %oq{n} = getelementptr i32, ptr %op{n}, i64 {place}",
            f"  store {quarter} %both{n}, ptr %oq{n}, align 4",
        ]
