"""The sink of a block format: C as elements of a few bits, and a scale factor for each run of columns of a row.

MXFP8: runs of 32 elements of e4m3 share a power of two. NVFP4: runs of 16 elements of e2m1 share a scale of e4m3, and
the tensor a float32 that is given. Elements are rounded to nearest even and saturate, as by `quantise_mxfp8` and
`quantise_nvfp4`. Scale factors are stored as the tensor core reads them, in chunks of 128 rows × 4 runs.

A row of a subtile is in the four lanes of a quad, each with two adjacent columns of every eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from warploom.hardware.tmem import QUADRANT, SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.structured.epilogue.epilogue import FORMATS
from warploom.structured.epilogue.staging import Values
from warploom.structured.epilogue.subtiles import Position, Subtile
from warploom.structured.epilogue.tile_store import store_inside
from warploom.trace import isa
from warploom.trace.language.operations import fma, max_
from warploom.trace.language.packing import merge, round_pair
from warploom.trace.language.types import Number
from warploom.trace.language.values import Value, compute, literal, select, valued
from warploom.trace.language.views import View
from warploom.trace.language.warps import lane, shuffle

_MAGNITUDE, _MANTISSA_BITS, _INFINITE = 0x7FFFFFFF, 23, 255
_E4M3_TOP = 8
"""The largest exponent of e4m3."""
_E8M0_NAN = 0xFF
_E2M1_LARGEST = 6.0
_QUAD = (1, 2)
"""Distances of the butterfly over the lanes that share a row."""


@dataclass
class QuantisedStore:
    """Quantises each run of a row, and stores its elements and its scale factor from registers."""

    target: View
    """The elements, those of NVFP4 two to a byte."""
    scales: View
    """The bytes of the chunks of scale factors: (row chunks, K chunks, 512)."""
    format: str
    scale: Number | Value = 1.0
    """The scale of the whole tensor."""
    shift: Value | None = field(default=None, init=False)
    """Rows from C to the rows of the scale factors, which are padded group by group; set for each tile."""

    def put(self, subtile: Subtile, values: Values, *auxiliary: Values) -> None:
        assert not auxiliary, "each output has its own store"
        run = FORMATS[self.format]
        parts: dict[tuple[int, int], dict[int, Value]] = {}
        for (row, column), value in values.items():
            parts.setdefault((row, column // run * run), {})[column] = value.to("f32")
        for (row, first), held in parts.items():
            at = subtile.at(row, first)
            code, elements = self._quantised(list(held.values()))
            self._store_scale(at, subtile, first, code)
            self._store(subtile, row, dict(zip(held, elements, strict=True)))

    def _quantised(self, values: Sequence[Value]) -> tuple[Value, list[Value]]:
        """Return the code of a run's scale factor, and its elements as float32 before they are rounded."""
        largest = literal(0, "u32")
        for value in values:  # as integers, so that a NaN or an infinity is the largest
            largest = max_(largest, value.bits("u32") & _MAGNITUDE)
        for distance in _QUAD:
            largest = max_(largest, shuffle(largest, "bfly", distance))
        return self._mxfp8(values, largest) if self.format == "mxfp8" else self._nvfp4(values, largest)

    @staticmethod
    def _mxfp8(values: Sequence[Value], largest: Value) -> tuple[Value, list[Value]]:
        """Scale by the power of two that brings the largest element to e4m3's largest exponent."""
        exponent = largest >> _MANTISSA_BITS
        is_finite = exponent < _INFINITE
        code = max_(exponent, _E4M3_TOP) - _E4M3_TOP
        inverse = ((literal(_INFINITE - 1, "u32") - code) << _MANTISSA_BITS).bits("f32")
        factor = select(is_finite, inverse, literal(float("nan"), "f32"))
        return select(is_finite, code, literal(_E8M0_NAN, "u32")), [value * factor for value in values]

    def _nvfp4(self, values: Sequence[Value], largest: Value) -> tuple[Value, list[Value]]:
        """Scale so that the largest element is e2m1's largest, by a scale that is rounded to e4m3."""
        whole = valued(self.scale, "f32")
        wanted = _divided(largest.bits("f32"), literal(_E2M1_LARGEST, "f32"), literal(1 / _E2M1_LARGEST, "f32"))
        wanted = _divided(wanted, whole, compute("rcp.rn.f32", "f32", whole))
        code = round_pair(wanted, literal(0.0, "f32"), "e4m3x2").bits("u16")
        factor = compute("cvt.rn.f16x2.e4m3x2", "f16x2", code).bits("u32")
        scale = factor.to("u16").bits("f16").to("f32") * whole
        inverse = compute("rcp.rn.f32", "f32", scale)
        nothing = literal(0.0, "f32")
        is_positive = scale > 0.0
        elements = [select(is_positive, _divided(value, scale, inverse), nothing) for value in values]
        return code.to("u32"), elements

    def _store_scale(self, at: Position, subtile: Subtile, first: int, code: Value) -> None:
        """Store the scale factor of a run, by one of the four lanes that have it."""
        assert self.shift is not None
        row = at.row + self.shift
        number = (subtile.spot.column + subtile.column + first) // FORMATS[self.format]
        chunk = (row // SCALE_CHUNK_ROWS, number // SCALE_CHUNK_FACTORS)
        offset = row % QUADRANT * (SCALE_CHUNK_ROWS // QUADRANT) + row % SCALE_CHUNK_ROWS // QUADRANT
        place = (*chunk, offset * SCALE_CHUNK_FACTORS + number % SCALE_CHUNK_FACTORS)
        store_inside(self.scales, place, code.to("u8"), at.inside & (lane() % 4 == 0))

    def _store(self, subtile: Subtile, row: int, elements: dict[int, Value]) -> None:
        """Store the elements of a run: pairs of adjacent columns, which are 16 or 8 bits."""
        pairs = [(column, elements[column], elements[column + 1]) for column in elements if column % 2 == 0]
        if self.format == "mxfp8":
            for column, low, high in pairs:
                at = subtile.at(row, column)
                place = self.target.at(at.row, at.column)
                pair = round_pair(low, high, "e4m3x2")
                isa.st(place, pair, space=self.target.space, type="b16", guard=at.inside)
            return
        bytes_ = [compute("cvt.rn.satfinite.e2m1x2.f32", "e2m1x2", high, low) for _, low, high in pairs]
        word = merge("u32", *bytes_, *bytes_)  # a register of bytes has four
        for number, (column, *_) in enumerate(pairs):
            at = subtile.at(row, column)
            byte = (word >> (8 * number)).to("u8")
            store_inside(self.target, (at.row, at.column // 2), byte, at.inside)


def _divided(value: Value, by: Value, inverse: Value) -> Value:
    """Return a quotient by the rounded inverse of its divisor, with one step of refinement: rounded as by division."""
    estimate = value * inverse
    return fma(fma(-estimate, by, value), inverse, estimate)
