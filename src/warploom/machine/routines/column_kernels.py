"""A native routine that reads operand A of an MMA from TMEM, where elements are packed along the columns of a lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warploom.machine.engine.llvm_ops import Host
from warploom.machine.routines.call_lists import Argument, Sequence
from warploom.machine.routines.tensor_elements import BITS, decoded

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine

_LANES = 8
"""Lanes that are read at once; blocks of lanes are multiples of it."""
_ARGUMENTS = ("words", "columns", "stride", "blocks", "height", "pitch", "result")


@dataclass(frozen=True, slots=True)
class Unpack:
    """A routine that writes words [column, lane] as float64 [element of a row, row].

    Arguments: the first word, columns, words from a column to the next, blocks of lanes, lanes of a block, words from a
    block to the next, the result.
    """

    element: str

    @property
    def words(self) -> int:
        return 0

    @property
    def per_execution(self) -> int:
        """In words: 0.04 ns each, and 3 ms to compile."""
        return 1 << 9

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        bits, type_ = BITS[self.element], f"<{_LANES} x i32>"
        lines = [f"define i64 @{name}(ptr %arguments, ptr %unused) {{", "entry:"]
        for number, argument in enumerate(_ARGUMENTS):
            lines += [
                f"  %{argument}_at = getelementptr i64, ptr %arguments, i64 {number}",
                f"  %{argument} = load {'ptr' if argument in ('words', 'result') else 'i64'}, ptr %{argument}_at",
            ]
        lines += [
            "  %rows = mul i64 %blocks, %height",
            "  br label %column",
            "column:",
            "  %c = phi i64 [ 0, %entry ], [ %c_next, %column_end ]",
            "  %c_words = mul i64 %c, %stride",
            f"  %c_elements = mul i64 %c, {32 // bits}",
            "  %c_results = mul i64 %c_elements, %rows",
            "  br label %block",
            "block:",
            "  %b = phi i64 [ 0, %column ], [ %b_next, %block_end ]",
            "  %b_words = mul i64 %b, %pitch",
            "  %b_rows = mul i64 %b, %height",
            "  %from_words = add i64 %c_words, %b_words",
            "  %to_results = add i64 %c_results, %b_rows",
            "  br label %lane",
            "lane:",
            "  %l = phi i64 [ 0, %block ], [ %l_next, %lane ]",
            "  %from_at = add i64 %from_words, %l",
            "  %from = getelementptr i32, ptr %words, i64 %from_at",
            f"  %v = load {type_}, ptr %from, align 4",
            "  %to_at0 = add i64 %to_results, %l",
        ]
        for part in range(32 // bits):
            codes, value = decoded(self.element, f"%t{part}", f"p{part}", _LANES)
            lines += [
                f"  %q{part} = lshr {type_} %v, splat (i32 {part * bits})",
                f"  %t{part} = and {type_} %q{part}, splat (i32 {(1 << bits) - 1})",
                *codes,
                f"  %to{part} = getelementptr double, ptr %result, i64 %to_at{part}",
                f"  store <{_LANES} x double> {value}, ptr %to{part}, align 8",
                f"  %to_at{part + 1} = add i64 %to_at{part}, %rows",
            ]
        for letter, step, bound, label, after in (
            ("l", _LANES, "height", "lane", "block_end"),
            ("b", 1, "blocks", "block", "column_end"),
            ("c", 1, "columns", "column", "done"),
        ):
            lines += [
                f"  %{letter}_next = add i64 %{letter}, {step}",
                f"  %{letter}_more = icmp ult i64 %{letter}_next, %{bound}",
                f"  br i1 %{letter}_more, label %{label}, label %{after}",
                f"{after}:",
            ]
        return "\n".join([*lines, "  ret i64 0", "}"]) + "\n", frozenset()


@dataclass(frozen=True, slots=True)
class LaneBlocks:
    """The lanes of TMEM that hold the rows of a matrix: blocks of them, so many lanes apart."""

    blocks: int
    height: int
    pitch: int

    @property
    def rows(self) -> int:
        return self.blocks * self.height


class Columns:
    """The routine of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def convert(
        self, sequence: Sequence, words: Argument, stride: int, columns: int, lanes: LaneBlocks, element: str
    ) -> tuple[Argument, int] | None:
        """Add a call to a sequence: the matrix [elements, rows] and its stride, or None where it is not taken. The
        caller has checked the place; a column's words are `stride` apart.
        """
        if element not in BITS or lanes.height % _LANES or min(columns, lanes.rows) < 1:
            return None
        result = sequence.room(columns * 32 // BITS[element] * lanes.rows)
        given = words, columns, stride, lanes.blocks, lanes.height, lanes.pitch, result
        form = Unpack(element)
        sequence.call(self._engine, form, columns * lanes.rows, *given)
        return result, lanes.rows
