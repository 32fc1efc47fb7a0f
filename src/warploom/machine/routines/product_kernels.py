"""Native matrix products of the tensor cores, in the order of summation that `numerics/products.py` defines.

A routine takes one pointer, to its arguments as 64-bit words. It multiplies rows of A by columns of B, both in float64:
for each step of k columns the products are added from +0 on in ascending order, the sum is rounded to float32 (or is an
integer), and that is added to the float32 (or s32) accumulator; an f16 accumulator is then rounded, once for each step.
A product of two elements is exact in float64, so that a fused multiply-add rounds as a multiplication and an addition
do.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.routines.call_lists import Argument, Sequence
from warploom.machine.routines.called import Called
from warploom.machine.routines.tensor_elements import decoded_floats, half_codes, rounded_halves

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine

Array = npt.NDArray[Any]

_ROWS = 4
"""Rows of a tile; rows come in multiples of it."""
_COLUMNS = 8
"""Columns come in multiples of this."""
_ARGUMENTS = (
    "a", "a_stride", "b", "b_stride", "d", "d_stride", "rows", "columns", "k", "steps", "panel", "accumulate", "sign",
)  # fmt: skip
_POINTERS = ("a", "b", "d", "panel")
_MATRIX = _ARGUMENTS[:11]
_FRAGMENT_ROWS = 64
"""Rows of D of a `wgmma`: its registers have two lanes for each."""
_NAN = ELEMENT_TYPES["f32"].nan
_SIGN = 1 << 31


@dataclass(frozen=True, slots=True)
class Multiply:
    """A routine that adds products to a matrix, or (`fragments`) to the registers of a `wgmma`.

    Elements of D are words: f32, s32 (then those of A and B are integers, and no sign is changed), or f16 in the low
    half of a word; registers hold two f16 each.
    """

    fragments: bool = False
    d_type: str = "f32"

    @property
    def words(self) -> int:
        return 0

    @property
    def per_execution(self) -> int:
        """In products of two elements: 0.1 to 0.2 ns each, and 15 ms to compile."""
        return 1 << 10

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        return self._written(name, host, *_vectors(host))

    def quick_text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        """A text for code that is not optimised: f16 have the narrowest tiles alone, with the same results, which LLVM
        compiles in a third of 16 ms.
        """
        wide, most = _vectors(host)
        return self._written(name, host, wide, _COLUMNS // wide if self.d_type == "f16" else most)

    def _written(self, name: str, host: Host, wide: int, most: int) -> tuple[str, frozenset[str]]:
        vector = f"<{wide} x double>"
        lines = [f"declare {vector} @llvm.fma.v{wide}f64({vector}, {vector}, {vector})"] if host.fused else []
        for count in _counts(wide, most):
            lines += [*_pack(wide, count), *_tile(wide, count, host.fused, self.d_type)]
            move = (_half_fragment if self.fragments else _half_rows) if self.d_type == "f16" else _fragment
            if self.fragments or self.d_type == "f16":
                lines += [*move(wide, count, store=False), *move(wide, count, store=True)]
        lines += _matrix(wide, most, self.fragments, self.d_type == "f16")
        lines += _settle(wide)
        return "\n".join([*lines, *self._entry(name)]) + "\n", frozenset()

    def _entry(self, name: str) -> list[str]:
        """The routine itself: it reads its arguments and calls the parts."""
        lines = [f"define i64 @{name}(ptr %arguments, ptr %unused) {{", "entry:"]
        for number, argument in enumerate(_ARGUMENTS):
            type_ = "ptr" if argument in _POINTERS else "i64"
            lines.append(f"  %{argument}_at = getelementptr i64, ptr %arguments, i64 {number}")
            lines.append(f"  %{argument} = load {type_}, ptr %{argument}_at")
        lines += ["  %adds = icmp ne i64 %accumulate, 0", "  %signs = trunc i64 %sign to i32"]
        given = ", ".join(f"{'ptr' if each in _POINTERS else 'i64'} %{each}" for each in _MATRIX)
        lines.append(f"  call void @matrix({given}, i1 %adds, i32 %signs)")
        if self.d_type != "f32":
            return [*lines, "  ret i64 0", "}"]
        size = "i64 %rows, i64 %columns"
        if self.fragments:
            lines.append("  %registers = lshr i64 %columns, 1")
            size = f"i64 %registers, i64 {2 * _FRAGMENT_ROWS}"
        lines.append(f"  call void @settle(ptr %d, i64 %d_stride, {size})")
        return [*lines, "  ret i64 0", "}"]


def _vectors(host: Host) -> tuple[int, int]:
    """The doubles of a vector, and the vectors of a tile's row."""
    wide = host.lanes // 2
    return wide, 4 if wide == 8 else 2


def _counts(wide: int, most: int) -> list[int]:
    """The vectors of the rows of all tiles that there are."""
    return sorted({_COLUMNS // wide, most})


def panel_doubles(host: Host, k: int) -> int:
    """The size of a panel of B with so many rows."""
    wide, most = _vectors(host)
    return k * wide * most


def _pack(wide: int, count: int) -> list[str]:
    """Copy `count` vectors of columns of B to a panel."""
    vector = f"<{wide} x double>"
    lines = [
        f"define internal void @pack{count}(ptr %b, i64 %b_stride, ptr %panel, i64 %depth) {{",
        "entry:",
        "  br label %row",
        "row:",
        "  %i = phi i64 [ 0, %entry ], [ %i_next, %row ]",
        "  %from_at = mul i64 %i, %b_stride",
        "  %from = getelementptr double, ptr %b, i64 %from_at",
        f"  %to_at = mul i64 %i, {count * wide}",
        "  %to = getelementptr double, ptr %panel, i64 %to_at",
    ]
    for column in range(count):
        lines += [
            f"  %p{column} = getelementptr double, ptr %from, i64 {column * wide}",
            f"  %v{column} = load {vector}, ptr %p{column}, align 8",
            f"  %q{column} = getelementptr double, ptr %to, i64 {column * wide}",
            f"  store {vector} %v{column}, ptr %q{column}, align 8",
        ]
    return [
        *lines,
        "  %i_next = add i64 %i, 1",
        "  %more = icmp ult i64 %i_next, %depth",
        "  br i1 %more, label %row, label %done",
        "done:",
        "  ret void",
        "}",
    ]


def _tile(wide: int, count: int, fused: bool, d_type: str) -> list[str]:
    """Four rows of `count` vectors of columns, over all steps; B is a panel."""
    double, single, word = f"<{wide} x double>", f"<{wide} x float>", f"<{wide} x i32>"
    cells = [(row, column) for row in range(_ROWS) for column in range(count)]
    zeros = f"<{wide} x i32> zeroinitializer"
    places = "ptr %a, i64 %a_stride, ptr %b, ptr %d, i64 %d_stride"
    lines = [
        f"define internal void @tile{count}({places}, i64 %k, i64 %steps, i1 %accumulate, i32 %sign) {{",
        "entry:",
        f"  %sign0 = insertelement {word} poison, i32 %sign, i64 0",
        f"  %signs = shufflevector {word} %sign0, {word} poison, {zeros}",
    ]
    for row in range(_ROWS):
        for name, type_ in (("a", "double"), ("d", "float")):
            lines.append(f"  %{name}_at{row} = mul i64 %{name}_stride, {row}")
            lines.append(f"  %{name}{row} = getelementptr {type_}, ptr %{name}, i64 %{name}_at{row}")
    lines += [f"  %p{r}_{c} = getelementptr float, ptr %d{r}, i64 {c * wide}" for r, c in cells]
    # A first product is added to what is neutral: -0, or the integer 0.
    lines += ["  br i1 %accumulate, label %begin, label %fill", "fill:"]
    neutral = "0.0" if d_type == "s32" else "-0.0"
    lines += [f"  store {single} splat (float {neutral}), ptr %p{r}_{c}, align 4" for r, c in cells]
    lines += [
        "  br label %begin",
        "begin:",
        "  br label %step",
        "step:",
        "  %s = phi i64 [ 0, %begin ], [ %s_next, %add ]",
        "  %first = phi i64 [ 0, %begin ], [ %end, %add ]",
        "  %end = add i64 %first, %k",
        "  br label %inner",
        "inner:",
        "  %i = phi i64 [ %first, %step ], [ %i_next, %inner ]",
    ]
    lines += [f"  %t{r}_{c} = phi {double} [ zeroinitializer, %step ], [ %n{r}_{c}, %inner ]" for r, c in cells]
    lines += [f"  %b_at = mul i64 %i, {count * wide}", "  %b_row = getelementptr double, ptr %b, i64 %b_at"]
    for column in range(count):
        lines.append(f"  %b_p{column} = getelementptr double, ptr %b_row, i64 {column * wide}")
        lines.append(f"  %b{column} = load {double}, ptr %b_p{column}, align 8")
    for row in range(_ROWS):
        lines += [
            f"  %a_p{row} = getelementptr double, ptr %a{row}, i64 %i",
            f"  %a_v{row} = load double, ptr %a_p{row}, align 8",
            f"  %a_i{row} = insertelement {double} poison, double %a_v{row}, i64 0",
            f"  %a_s{row} = shufflevector {double} %a_i{row}, {double} poison, {zeros}",
        ]
        for c in range(count):
            if fused:
                given = f"{double} %a_s{row}, {double} %b{c}, {double} %t{row}_{c}"
                lines.append(f"  %n{row}_{c} = call {double} @llvm.fma.v{wide}f64({given})")
            else:
                lines.append(f"  %m{row}_{c} = fmul {double} %a_s{row}, %b{c}")
                lines.append(f"  %n{row}_{c} = fadd {double} %t{row}_{c}, %m{row}_{c}")
    lines += [
        "  %i_next = add i64 %i, 1",
        "  %i_more = icmp ult i64 %i_next, %end",
        "  br i1 %i_more, label %inner, label %add",
        "add:",
    ]
    for r, c in cells:
        lines.append(f"  %o{r}_{c} = load {single}, ptr %p{r}_{c}, align 4")
        new = f"%u{r}_{c}"
        if d_type == "s32":
            lines += [
                f"  %r{r}_{c} = fptosi {double} %n{r}_{c} to {word}",
                f"  %b{r}_{c} = bitcast {single} %o{r}_{c} to {word}",
                f"  %s{r}_{c} = add {word} %b{r}_{c}, %r{r}_{c}",
                f"  %u{r}_{c} = bitcast {word} %s{r}_{c} to {single}",
            ]
        else:
            # A zero is +0 before its sign is changed.
            lines += [
                f"  %r{r}_{c} = fptrunc {double} %n{r}_{c} to {single}",
                f"  %z{r}_{c} = fadd {single} %r{r}_{c}, zeroinitializer",
                f"  %w{r}_{c} = bitcast {single} %z{r}_{c} to {word}",
                f"  %x{r}_{c} = xor {word} %w{r}_{c}, %signs",
                f"  %y{r}_{c} = bitcast {word} %x{r}_{c} to {single}",
                f"  %u{r}_{c} = fadd {single} %o{r}_{c}, %y{r}_{c}",
            ]
        if d_type == "f16":
            rounding, new = rounded_halves(new, f"{r}_{c}", wide)
            lines += rounding
        lines.append(f"  store {single} {new}, ptr %p{r}_{c}, align 4")
    return [
        *lines,
        "  %s_next = add i64 %s, 1",
        "  %s_more = icmp ult i64 %s_next, %steps",
        "  br i1 %s_more, label %step, label %done",
        "done:",
        "  ret void",
        "}",
    ]


def _fragment(wide: int, count: int, *, store: bool) -> list[str]:
    """Copy a tile from the registers of a `wgmma` to rows of floats, or back.

    A register holds 16-byte granules of rows: row half * 32 + quad and column eight * 8 + parity * 4 of the matrix
    (`row_order` and `column_order` of `tensor/wgmma_registers.py`) are register eight * 4 + half * 2 + parity, lane
    quad * 4. `%d` is the place of the tile's first granule.
    """
    name, width = "back" if store else "there", count * wide
    lines = [f"define internal void @{name}{count}(ptr %d, i64 %d_stride, ptr %rows) {{", "entry:"]
    for first in range(0, width, 4):
        register = (first >> 3) * 4 + (first >> 2 & 1)
        lines += [
            f"  %at{first} = mul i64 %d_stride, {register}",
            f"  %register{first} = getelementptr float, ptr %d, i64 %at{first}",
        ]
        for row in range(_ROWS):
            n = f"{first}_{row}"
            places = f"%granule{n}", f"%row{n}"
            source, target = reversed(places) if store else places
            lines += [
                f"  %granule{n} = getelementptr float, ptr %register{first}, i64 {4 * row}",
                f"  %row{n} = getelementptr float, ptr %rows, i64 {row * width + first}",
                f"  %value{n} = load <4 x float>, ptr {source}, align 4",
                f"  store <4 x float> %value{n}, ptr {target}, align 4",
            ]
    return [*lines, "  ret void", "}"]


def _half_fragment(wide: int, count: int, *, store: bool) -> list[str]:
    """The same for registers of two f16 each: a granule has eight columns of a row, in their order."""
    name, width, each = "back" if store else "there", count * wide, _COLUMNS
    lines = [f"define internal void @{name}{count}(ptr %d, i64 %d_stride, ptr %rows) {{", "entry:"]
    for first in range(0, width, each):
        lines += [
            f"  %at{first} = mul i64 %d_stride, {first // each * 2}",
            f"  %register{first} = getelementptr float, ptr %d, i64 %at{first}",
        ]
        for row in range(_ROWS):
            n = f"{first}_{row}"
            lines += [
                f"  %granule{n} = getelementptr float, ptr %register{first}, i64 {4 * row}",
                f"  %row{n} = getelementptr float, ptr %rows, i64 {row * width + first}",
            ]
            if store:
                codes, found = half_codes(f"%value{n}", n, each)
                lines += [
                    f"  %value{n} = load <{each} x float>, ptr %row{n}, align 4",
                    *codes,
                    f"  %short{n} = trunc <{each} x i32> {found} to <{each} x i16>",
                    f"  store <{each} x i16> %short{n}, ptr %granule{n}, align 4",
                ]
            else:
                values, found = decoded_floats("f16", f"%code{n}", n, each)
                lines += [
                    f"  %short{n} = load <{each} x i16>, ptr %granule{n}, align 4",
                    f"  %code{n} = zext <{each} x i16> %short{n} to <{each} x i32>",
                    *values,
                    f"  store <{each} x float> {found}, ptr %row{n}, align 4",
                ]
    return [*lines, "  ret void", "}"]


def _half_rows(wide: int, count: int, *, store: bool) -> list[str]:
    """Copy a tile from words whose low halves are f16 to rows of floats, or back."""
    name, words = "back" if store else "there", f"<{wide} x i32>"
    lines = [f"define internal void @{name}{count}(ptr %d, i64 %d_stride, ptr %rows) {{", "entry:"]
    for row in range(_ROWS):
        lines += [
            f"  %at{row} = mul i64 %d_stride, {row}",
            f"  %line{row} = getelementptr float, ptr %d, i64 %at{row}",
        ]
        for column in range(0, count * wide, wide):
            n = f"{row}_{column}"
            lines += [
                f"  %word{n} = getelementptr float, ptr %line{row}, i64 {column}",
                f"  %row{n} = getelementptr float, ptr %rows, i64 {row * count * wide + column}",
            ]
            if store:
                codes, found = half_codes(f"%value{n}", n, wide)
                lines += [
                    f"  %value{n} = load <{wide} x float>, ptr %row{n}, align 4",
                    *codes,
                    f"  store {words} {found}, ptr %word{n}, align 4",
                ]
            else:
                values, found = decoded_floats("f16", f"%code{n}", n, wide)
                lines += [
                    f"  %whole{n} = load {words}, ptr %word{n}, align 4",
                    f"  %code{n} = and {words} %whole{n}, splat (i32 {0xFFFF})",
                    *values,
                    f"  store <{wide} x float> {found}, ptr %row{n}, align 4",
                ]
    return [*lines, "  ret void", "}"]


def _matrix(wide: int, most: int, fragments: bool, halves: bool) -> list[str]:
    """All tiles of a matrix: by columns first, so that a panel of B stays in the cache."""
    place = [
        "  %d_at = mul i64 %r, %d_stride",
        "  %d_column = getelementptr float, ptr %d, i64 %c",
        "  %d_tile = getelementptr float, ptr %d_column, i64 %d_at",
    ]
    if fragments:
        place = [
            "  %eights = lshr i64 %c, 3",
            f"  %fours = shl i64 %eights, {1 if halves else 2}",
            "  %half = lshr i64 %r, 5",
            f"  %twos = shl i64 %half, {0 if halves else 1}",
            "  %register = add i64 %fours, %twos",
            "  %register_at = mul i64 %register, %d_stride",
            "  %quad = and i64 %r, 31",
            "  %lane = shl i64 %quad, 2",
            "  %d_at = add i64 %register_at, %lane",
            "  %d_tile = getelementptr float, ptr %d, i64 %d_at",
        ]
    declared = ", ".join(f"{'ptr' if each in _POINTERS else 'i64'} %{each}" for each in _MATRIX)
    counts, moves = _counts(wide, most), fragments or halves
    lines = [
        f"define internal void @matrix({declared}, i1 %accumulate, i32 %sign) {{",
        "entry:",
        f"  %rows_of_tile = alloca [{_ROWS * most * wide} x float], align 64",
        "  %depth = mul i64 %k, %steps",
        "  br label %column",
        "column:",
        "  %c = phi i64 [ 0, %entry ], [ %c_next, %column_end ]",
        "  %left = sub i64 %columns, %c",
        f"  %many = icmp uge i64 %left, {most * wide}",
        f"  %width = select i1 %many, i64 {most * wide}, i64 {counts[0] * wide}",
        "  %b_column = getelementptr double, ptr %b, i64 %c",
        f"  br i1 %many, label %pack_{most}, label %pack_{counts[0]}",
    ]
    for count in counts:
        lines += [
            f"pack_{count}:",
            f"  call void @pack{count}(ptr %b_column, i64 %b_stride, ptr %panel, i64 %depth)",
            "  br label %row",
        ]
    packed = ", ".join(f"[ 0, %pack_{count} ]" for count in counts)
    lines += [
        "row:",
        f"  %r = phi i64 {packed}, [ %r_next, %row_end ]",
        "  %a_at = mul i64 %r, %a_stride",
        "  %a_row = getelementptr double, ptr %a, i64 %a_at",
        *place,
        f"  br i1 %many, label %tile_{most}, label %tile_{counts[0]}",
    ]
    for count in counts:
        target, stride = ("%rows_of_tile", str(count * wide)) if moves else ("%d_tile", "%d_stride")
        given = f"ptr %a_row, i64 %a_stride, ptr %panel, ptr {target}, i64 {stride}, i64 %k, i64 %steps"
        lines += [
            f"tile_{count}:",
            *([f"  call void @there{count}(ptr %d_tile, i64 %d_stride, ptr %rows_of_tile)"] if moves else ()),
            f"  call void @tile{count}({given}, i1 %accumulate, i32 %sign)",
            *([f"  call void @back{count}(ptr %d_tile, i64 %d_stride, ptr %rows_of_tile)"] if moves else ()),
            "  br label %row_end",
        ]
    return [
        *lines,
        "row_end:",
        f"  %r_next = add i64 %r, {_ROWS}",
        "  %r_more = icmp ult i64 %r_next, %rows",
        "  br i1 %r_more, label %row, label %column_end",
        "column_end:",
        "  %c_next = add i64 %c, %width",
        "  %c_more = icmp ult i64 %c_next, %columns",
        "  br i1 %c_more, label %column, label %done",
        "done:",
        "  ret void",
        "}",
    ]


def _settle(wide: int) -> list[str]:
    """The NaNs of a matrix."""
    return [
        "define internal void @settle(ptr %d, i64 %d_stride, i64 %rows, i64 %columns) {",
        "entry:",
        "  br label %row",
        "row:",
        "  %r = phi i64 [ 0, %entry ], [ %r_next, %row_end ]",
        "  %at = mul i64 %r, %d_stride",
        "  %line = getelementptr float, ptr %d, i64 %at",
        "  br label %cell",
        "cell:",
        "  %c = phi i64 [ 0, %row ], [ %c_next, %cell ]",
        "  %p = getelementptr float, ptr %line, i64 %c",
        f"  %v = load <{wide} x float>, ptr %p, align 4",
        f"  %bad = fcmp uno <{wide} x float> %v, %v",
        f"  %bits = bitcast <{wide} x float> %v to <{wide} x i32>",
        f"  %n = select <{wide} x i1> %bad, <{wide} x i32> splat (i32 {_NAN}), <{wide} x i32> %bits",
        f"  store <{wide} x i32> %n, ptr %p, align 4",
        f"  %c_next = add i64 %c, {wide}",
        "  %c_more = icmp ult i64 %c_next, %columns",
        "  br i1 %c_more, label %cell, label %row_end",
        "row_end:",
        "  %r_next = add i64 %r, 1",
        "  %r_more = icmp ult i64 %r_next, %rows",
        "  br i1 %r_more, label %row, label %done",
        "done:",
        "  ret void",
        "}",
    ]


class Products:
    """The routines of an engine, called with NumPy arrays whose shapes are checked here."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine  # its code exists as long as it does
        self._pack = struct.Struct(f"={len(_ARGUMENTS)}Q").pack
        self._routines: dict[Multiply, Called] = {}

    def _routine(self, form: Multiply) -> Called:
        if form not in self._routines:
            self._routines[form] = Called(self._engine, form)
        return self._routines[form]

    def multiply(
        self,
        sequence: Sequence,
        a: tuple[Argument, int],
        b: tuple[Argument, int],
        shape: tuple[int, int, int, int],
        d: tuple[Argument, int],
        *,
        accumulate: bool,
        negative: bool,
        d_type: str = "f32",
    ) -> None:
        """Add a call of `add` to a sequence: A, B and D with their strides in elements, and rows, columns, k, steps;
        nothing negative is added to D of s32.
        """
        rows, columns, k, steps = shape
        if not (self.fit(rows, columns) and min(shape) > 0) or (d_type == "s32" and negative):
            raise ValueError("matrices of another shape than the routine takes")
        sign = _SIGN if negative else 0
        form = Multiply(False, d_type)
        sequence.call(
            self._engine, form, math.prod(shape),
            *a, *b, *d, rows, columns, k, steps, sequence.passing_room(self._panel(k * steps)), int(accumulate), sign,
        )  # fmt: skip

    def multiply_fragments(
        self,
        sequence: Sequence,
        a: tuple[Argument, int],
        b: tuple[Argument, int],
        shape: tuple[int, int, int],
        words: tuple[Argument, int],
        *,
        accumulate: bool,
        negative: bool,
        d_type: str = "f32",
    ) -> None:
        """Add a call of `add_fragments` to a sequence: the shape is columns, k, steps."""
        columns, k, steps = shape
        fits = columns % _COLUMNS == 0 and 0 < columns <= 256 and k > 0 and steps > 0
        if not fits or (d_type == "s32" and negative):
            raise ValueError("matrices of another shape than the routine takes")
        sign = _SIGN if negative else 0
        form = Multiply(True, d_type)
        sequence.call(
            self._engine, form, 64 * math.prod(shape),
            *a, *b, *words, 64, columns, k, steps, sequence.passing_room(self._panel(k * steps)), int(accumulate), sign,
        )  # fmt: skip

    def _panel(self, k: int) -> int:
        """The doubles of a panel of B."""
        return panel_doubles(self._engine.host, k)

    @staticmethod
    def fit(rows: int, columns: int) -> bool:
        """True if the routines take a product of so many rows and columns."""
        return not rows % _ROWS and not columns % _COLUMNS

    def add(
        self,
        a: Array,
        b: Array,
        steps: int,
        d: Array,
        *,
        accumulate: bool,
        negative: bool = False,
        d_type: str = "f32",
    ) -> None:
        """Add the products of A [rows, k * steps] and B [k * steps, columns], float64, to the words of D, f32 or f16.

        Without `accumulate` the first one replaces what D holds; `negative` products are subtracted.
        """
        (rows, whole), (across, columns) = a.shape, b.shape
        fits = self.fit(rows, columns) and whole == across and d.shape == (rows, columns) and rows and columns
        unit = a.strides[1] == b.strides[1] == 8 and d.strides[1] == 4
        types = a.dtype == b.dtype == np.float64 and d.itemsize == 4 and d_type in ("f32", "f16")
        if not (fits and unit and types and steps > 0 and whole and whole % steps == 0):
            raise ValueError("matrices of another shape or layout than the routine takes")
        panel = np.empty(self._panel(whole))
        self._routine(Multiply(False, d_type))(
            self._pack(
                address_of(a), a.strides[0] >> 3, address_of(b), b.strides[0] >> 3, address_of(d), d.strides[0] >> 2,
                rows, columns, whole // steps, steps, address_of(panel), accumulate, _SIGN if negative else 0,
            ),
            rows * columns * whole,
        )  # fmt: skip

    def add_fragments(
        self, a: Array, b: Array, steps: int, words: Array, *, accumulate: bool, negative: bool = False
    ) -> None:
        """Add products to the registers [register, lane] of a warpgroup, their rows and columns in `wgmma`'s order."""
        (rows, whole), (across, columns) = a.shape, b.shape
        fits = rows == 64 and columns % _COLUMNS == 0 and 0 < columns <= 256 and whole == across
        unit = a.strides[1] == b.strides[1] == 8 and words.strides[1] == 4 and words.shape == (columns // 2, 128)
        types = a.dtype == b.dtype == np.float64 and words.dtype == np.uint32
        if not (fits and unit and types and steps > 0 and whole and whole % steps == 0):
            raise ValueError("matrices of another shape or layout than the routine takes")
        panel = np.empty(self._panel(whole))
        self._routine(Multiply(True))(
            self._pack(
                address_of(a), a.strides[0] >> 3, address_of(b), b.strides[0] >> 3, address_of(words),
                words.strides[0] >> 2, rows, columns, whole // steps, steps, address_of(panel), accumulate,
                _SIGN if negative else 0,
            ),
            rows * columns * whole,
        )  # fmt: skip
