"""Native routines that move 16-byte granules: TMA boxes to their swizzled places, and operands of the tensor cores.

A routine takes one pointer, to its arguments as 64-bit words. Places are lists of granule numbers that the caller has
made from a layout and checked against the memory: nothing is decoded here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.context import Regions
from warploom.machine.engine.llvm_ops import Host
from warploom.machine.engine.memory_kernels import FIND
from warploom.machine.memory.byte_memory import FlatMemory
from warploom.machine.routines.call_lists import Argument, Sequence
from warploom.machine.routines.called import Called
from warploom.machine.routines.tensor_elements import BITS, PACKED, decoded, unpacked

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine

Array = npt.NDArray[Any]

GRANULE = 16
PER_GRANULE = {element: 8 * GRANULE // bits for element, bits in BITS.items()}
"""Elements that a granule holds, of the types that native code converts."""
_ROWS_AHEAD = 16
"""Rows of a box after the present one that are fetched into the cache."""
_TRANSPOSED = 8
"""Lists of granules that a transposing routine takes at once."""
PAIRED = (0, 2, 4, 6, 1, 3, 5, 7)
"""The order within eight columns in which `wgmma` keeps an accumulator: the even ones, then the odd ones."""


def _arguments(name: str, declared: dict[str, str]) -> list[str]:
    """The head of a routine: it reads its arguments."""
    lines = [f"define i64 @{name}(ptr %arguments, ptr %unused) {{", "entry:"]
    for number, (argument, type_) in enumerate(declared.items()):
        lines.append(f"  %{argument}_at = getelementptr i64, ptr %arguments, i64 {number}")
        lines.append(f"  %{argument} = load {type_}, ptr %{argument}_at")
    return lines


@dataclass(frozen=True, slots=True)
class BoxCopy:
    """A routine that copies rows of whole granules to scattered places, or (`stores`) back.

    Arguments: where the rows begin, the distance of each row from there, rows, granules of a row, the target, and the
    granule of the target for each granule of the rows.
    """

    stores: bool = False

    @property
    def words(self) -> int:
        return 0

    @property
    def per_execution(self) -> int:
        """In granules: 0.5 to 3 ns each, and 2 ms to compile."""
        return 1 << 3

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        declared = dict.fromkeys(("source", "offsets", "rows", "granules", "target", "places"), "ptr")
        declared |= {"rows": "i64", "granules": "i64"}
        write = int(self.stores)
        lines = [
            "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
            *_arguments(name, declared),
            "  %last = sub i64 %rows, 1",
            "  br label %row",
            "row:",
            "  %r = phi i64 [ 0, %entry ], [ %r_next, %row_end ]",
            "  %n = phi i64 [ 0, %entry ], [ %n_next, %row_end ]",
            "  %offset_at = getelementptr i64, ptr %offsets, i64 %r",
            "  %offset = load i64, ptr %offset_at",
            "  %line = getelementptr i8, ptr %source, i64 %offset",
            # Rows lie far apart, where the processor does not foresee them.
            f"  %later = add i64 %r, {_ROWS_AHEAD}",
            "  %is_row = icmp ult i64 %later, %last",
            "  %ahead = select i1 %is_row, i64 %later, i64 %last",
            "  %ahead_at = getelementptr i64, ptr %offsets, i64 %ahead",
            "  %ahead_offset = load i64, ptr %ahead_at",
            "  %ahead_line = getelementptr i8, ptr %source, i64 %ahead_offset",
            f"  call void @llvm.prefetch.p0(ptr %ahead_line, i32 {write}, i32 3, i32 1)",
            "  %ahead_next = getelementptr i8, ptr %ahead_line, i64 64",
            f"  call void @llvm.prefetch.p0(ptr %ahead_next, i32 {write}, i32 3, i32 1)",
            "  br label %granule",
            "granule:",
            "  %g = phi i64 [ 0, %row ], [ %g_next, %granule ]",
            "  %m = phi i64 [ %n, %row ], [ %n_next, %granule ]",
            "  %from = getelementptr <4 x i32>, ptr %line, i64 %g",
            "  %place_at = getelementptr i64, ptr %places, i64 %m",
            "  %place = load i64, ptr %place_at",
            "  %to = getelementptr <4 x i32>, ptr %target, i64 %place",
            f"  %v = load <4 x i32>, ptr %{'to' if self.stores else 'from'}, align 1",
            f"  store <4 x i32> %v, ptr %{'from' if self.stores else 'to'}, align 1",
            "  %g_next = add i64 %g, 1",
            "  %n_next = add i64 %m, 1",
            "  %more = icmp ult i64 %g_next, %granules",
            "  br i1 %more, label %granule, label %row_end",
            "row_end:",
            "  %r_next = add i64 %r, 1",
            "  %r_more = icmp ult i64 %r_next, %rows",
            "  br i1 %r_more, label %row, label %done",
            "done:",
            "  ret i64 0",
            "}",
        ]
        return "\n".join(lines) + "\n", frozenset()


@dataclass(frozen=True, slots=True)
class LaneCopy:
    """A routine of `cp.async`: `size` bytes for each lane from global to shared memory, or as many zeros.

    Arguments: the lanes' shared addresses (32 bits), their global ones (64 bits), a byte for each lane that takes part
    (or null: all), the bytes that each reads, 0 or `size` (or null: `size`), the lanes, and the memories as a context
    has them. It returns the bytes that it has written; -1, and nothing is done, where an address or a count is another
    than these.
    """

    size: int

    @property
    def words(self) -> int:
        return 0

    @property
    def per_execution(self) -> int:
        """In lanes: 14 to 33 ns each, and 5 ms to compile."""
        return 1 << 1

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        declared = dict.fromkeys(("targets", "sources", "mask", "counts"), "ptr")
        declared |= {"lanes": "i64", "header": "ptr", "base": "i64", "bytes": "i64", "data": "ptr"}
        value, size = f"i{8 * self.size}", self.size
        lines = [
            FIND,
            *_arguments(name, declared),
            "  %every = icmp eq ptr %mask, null",
            "  %whole = icmp eq ptr %counts, null",
            f"  %holds = icmp uge i64 %bytes, {size}",
            f"  %last = sub i64 %bytes, {size}",
            "  br i1 %holds, label %check, label %bad",
        ]
        for label, before, after in (("check", "entry", "move"), ("move", "check_end", "done")):
            n = label
            lines += [
                f"{n}:",
                f"  %{n}_i = phi i64 [ 0, %{before} ], [ %{n}_next, %{n}_end ]",
            ]
            if label == "move":
                lines.append("  %total = phi i64 [ 0, %check_end ], [ %total_next, %move_end ]")
            lines += [
                f"  br i1 %every, label %{n}_live, label %{n}_look",
                f"{n}_look:",
                f"  %{n}_flag_at = getelementptr i8, ptr %mask, i64 %{n}_i",
                f"  %{n}_flag = load i8, ptr %{n}_flag_at",
                f"  %{n}_takes = icmp ne i8 %{n}_flag, 0",
                f"  br i1 %{n}_takes, label %{n}_live, label %{n}_end",
                f"{n}_live:",
                f"  %{n}_target_at = getelementptr i32, ptr %targets, i64 %{n}_i",
                f"  %{n}_target = load i32, ptr %{n}_target_at",
                f"  %{n}_wide = zext i32 %{n}_target to i64",
                f"  %{n}_offset = sub i64 %{n}_wide, %base",
                f"  br i1 %whole, label %{n}_read, label %{n}_count",
                f"{n}_count:",
                f"  %{n}_count_at = getelementptr i32, ptr %counts, i64 %{n}_i",
                f"  %{n}_given = load i32, ptr %{n}_count_at",
                f"  %{n}_none = icmp eq i32 %{n}_given, 0",
                f"  br i1 %{n}_none, label %{n}_zero, label %{n}_some",
                f"{n}_some:",
            ]
            if label == "check":
                lines += [
                    f"  %all = icmp eq i32 %check_given, {size}",
                    "  br i1 %all, label %check_read, label %bad",
                    "check_zero:",
                    "  br label %check_place",
                ]
            else:
                lines.append("  br label %move_read")
            lines += [
                f"{n}_read:",
                f"  %{n}_source_at = getelementptr i64, ptr %sources, i64 %{n}_i",
                f"  %{n}_source = load i64, ptr %{n}_source_at",
                f"  %{n}_from = call ptr @find(ptr %header, i64 %{n}_source, i64 {size}, i64 {size - 1}, i64 0)",
            ]
            if label == "check":
                lines += [
                    "  %lost = icmp eq ptr %check_from, null",
                    "  br i1 %lost, label %bad, label %check_place",
                    "check_place:",
                    "  %beyond = icmp ugt i64 %check_offset, %last",
                    f"  %low = and i64 %check_wide, {size - 1}",
                    "  %uneven = icmp ne i64 %low, 0",
                    "  %wrong = or i1 %beyond, %uneven",
                    "  br i1 %wrong, label %bad, label %check_end",
                ]
            else:
                lines += [
                    f"  %loaded = load {value}, ptr %move_from, align 1",
                    "  br label %move_put",
                    "move_zero:",
                    "  br label %move_put",
                    "move_put:",
                    f"  %value = phi {value} [ %loaded, %move_read ], [ 0, %move_zero ]",
                    "  %place = getelementptr i8, ptr %data, i64 %move_offset",
                    f"  store {value} %value, ptr %place, align 1",
                    f"  %more_bytes = add i64 %total, {size}",
                    "  br label %move_end",
                ]
            lines.append(f"{n}_end:")
            if label == "move":
                lines.append("  %total_next = phi i64 [ %total, %move_look ], [ %more_bytes, %move_put ]")
            lines += [
                f"  %{n}_next = add i64 %{n}_i, 1",
                f"  %{n}_more = icmp ult i64 %{n}_next, %lanes",
                f"  br i1 %{n}_more, label %{n}, label %{after}",
            ]
        lines += ["done:", "  ret i64 %total_next", "bad:", "  ret i64 -1", "}"]
        return "\n".join(lines) + "\n", frozenset()


@dataclass(frozen=True, slots=True)
class Gather:
    """A routine that reads an operand's granules [outer, inner] as float64.

    The result is [outer, elements], with each granule's elements in the `order`, or (`transposed`) [elements, outer].
    Arguments: the granules, their numbers, outer, inner, the result.
    """

    element: str
    transposed: bool
    order: tuple[int, ...] = ()

    @property
    def words(self) -> int:
        return 0

    @property
    def per_execution(self) -> int:
        """In granules: 0.4 ns each, and 2 ms to compile, or if `transposed` 5 to 11 ns, and 8 to 22 ms."""
        return 1 << 3 if self.transposed else 1 << 5

    def text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        return self._written(name, self._block() if self.transposed else self._row())

    def quick_text(self, name: str, host: Host) -> tuple[str, frozenset[str]]:
        """A text with the same results that LLVM compiles in a tenth of the time, for code that is not optimised."""
        return self._written(name, self._elements() if self.transposed else self._row())

    def _written(self, name: str, body: list[str]) -> tuple[str, frozenset[str]]:
        declared = {"granules": "ptr", "places": "ptr", "outer": "i64", "inner": "i64", "result": "ptr"}
        return "\n".join([*_arguments(name, declared), *body, "done:", "  ret i64 0", "}"]) + "\n", frozenset()

    @property
    def _bits(self) -> int:
        """The bits of a code."""
        return 8 if self.element in PACKED else BITS[self.element]

    @property
    def _raw(self) -> str:
        return f"<{8 * GRANULE // self._bits} x i{self._bits}>"

    def _codes(self, raw: str, label: str) -> tuple[list[str], str]:
        """The codes of a granule: the lines, and the name of the vector."""
        return unpacked(self.element, raw, label) if self.element in PACKED else ([], raw)

    @property
    def is_possible(self) -> bool:
        """True if there is such a routine."""
        return self.element in PER_GRANULE and len(self.order) in (0, PER_GRANULE[self.element])

    def _decoded(self, raw: str, label: str, count: int) -> tuple[list[str], str]:
        """Elements as doubles: the lines, and the name of the vector."""
        if self.element == "tf32":
            return decoded(self.element, raw, label, count)
        lines, found = decoded(self.element, f"%z{label}", label, count)
        return [f"  %z{label} = zext <{count} x i{self._bits}> {raw} to <{count} x i32>", *lines], found

    def _row(self) -> list[str]:
        """All granules one after the other."""
        count, raw = PER_GRANULE[self.element], self._raw
        codes, name = self._codes("%v", "")
        lines, found = self._decoded(name, "", count)
        if self.order:
            places = ", ".join(f"i32 {place}" for place in self.order)
            vector = f"<{count} x double>"
            lines.append(f"  %ordered = shufflevector {vector} {found}, {vector} poison, <{count} x i32> <{places}>")
            found = "%ordered"
        return [
            "  %all = mul i64 %outer, %inner",
            "  br label %granule",
            "granule:",
            "  %n = phi i64 [ 0, %entry ], [ %n_next, %granule ]",
            "  %place_at = getelementptr i64, ptr %places, i64 %n",
            "  %place = load i64, ptr %place_at",
            f"  %from = getelementptr {raw}, ptr %granules, i64 %place",
            f"  %v = load {raw}, ptr %from, align 16",
            *codes,
            *lines,
            f"  %to = getelementptr <{count} x double>, ptr %result, i64 %n",
            f"  store <{count} x double> {found}, ptr %to, align 8",
            "  %n_next = add i64 %n, 1",
            "  %more = icmp ult i64 %n_next, %all",
            "  br i1 %more, label %granule, label %done",
        ]

    def _elements(self) -> list[str]:
        """All granules one after the other, and then each element of one."""
        count, raw = PER_GRANULE[self.element], self._raw
        codes, name = self._codes("%v", "_d")
        lines, found = self._decoded(name, "_d", count)
        return [
            f"  %held = alloca <{count} x double>, align 64",
            "  br label %outer_loop",
            "outer_loop:",
            "  %o = phi i64 [ 0, %entry ], [ %o_next, %outer_end ]",
            "  %first = mul i64 %o, %inner",
            "  br label %granule",
            "granule:",
            "  %g = phi i64 [ 0, %outer_loop ], [ %g_next, %granule_end ]",
            "  %n = add i64 %first, %g",
            "  %place_at = getelementptr i64, ptr %places, i64 %n",
            "  %place = load i64, ptr %place_at",
            f"  %from = getelementptr {raw}, ptr %granules, i64 %place",
            f"  %v = load {raw}, ptr %from, align 16",
            *codes,
            *lines,
            f"  store <{count} x double> {found}, ptr %held, align 64",
            f"  %element0 = mul i64 %g, {count}",
            "  br label %each",
            "each:",
            "  %e = phi i64 [ 0, %granule ], [ %e_next, %each ]",
            "  %value_at = getelementptr double, ptr %held, i64 %e",
            "  %value = load double, ptr %value_at",
            "  %element = add i64 %element0, %e",
            "  %row = mul i64 %element, %outer",
            "  %cell = add i64 %row, %o",
            "  %to = getelementptr double, ptr %result, i64 %cell",
            "  store double %value, ptr %to",
            "  %e_next = add i64 %e, 1",
            f"  %e_more = icmp ult i64 %e_next, {count}",
            "  br i1 %e_more, label %each, label %granule_end",
            "granule_end:",
            "  %g_next = add i64 %g, 1",
            "  %more = icmp ult i64 %g_next, %inner",
            "  br i1 %more, label %granule, label %outer_end",
            "outer_end:",
            "  %o_next = add i64 %o, 1",
            "  %o_more = icmp ult i64 %o_next, %outer",
            "  br i1 %o_more, label %outer_loop, label %done",
        ]

    def _block(self) -> list[str]:
        """Eight lists of granules at once: vectors of one element of each."""
        count, raw = PER_GRANULE[self.element], self._raw
        item, rows, names = f"i{self._bits}", _TRANSPOSED, list[str]()
        lines = [
            "  br label %outer_loop",
            "outer_loop:",
            "  %o = phi i64 [ 0, %entry ], [ %o_next, %outer_end ]",
            "  %first = mul i64 %o, %inner",
            "  br label %granule",
            "granule:",
            "  %g = phi i64 [ 0, %outer_loop ], [ %g_next, %granule ]",
            "  %n0 = add i64 %first, %g",
        ]
        for row in range(rows):
            if row:
                lines.append(f"  %n{row} = add i64 %n{row - 1}, %inner")
            lines += [
                f"  %place_at{row} = getelementptr i64, ptr %places, i64 %n{row}",
                f"  %place{row} = load i64, ptr %place_at{row}",
                f"  %from{row} = getelementptr {raw}, ptr %granules, i64 %place{row}",
                f"  %v{row} = load {raw}, ptr %from{row}, align 16",
            ]
            codes, name = self._codes(f"%v{row}", f"_r{row}")
            lines += codes
            names.append(name)
        # Vectors are joined by pairs until one holds all; then each element's vector is a selection of it.
        width, level = count, 0
        while len(names) > 1:
            joined = []
            places = ", ".join(f"i32 {place}" for place in range(2 * width))
            for at in range(0, len(names), 2):
                target = f"%w{level}_{at}"
                vector = f"<{width} x {item}>"
                lines.append(
                    f"  {target} = shufflevector {vector} {names[at]}, {vector} {names[at + 1]}, "
                    f"<{2 * width} x i32> <{places}>"
                )
                joined.append(target)
            names, width, level = joined, 2 * width, level + 1
        lines += [f"  %element0 = mul i64 %g, {count}"]
        for e in range(count):
            places = ", ".join(f"i32 {row * count + e}" for row in range(rows))
            vector = f"<{width} x {item}>"
            lines.append(f"  %t{e} = shufflevector {vector} {names[0]}, {vector} poison, <{rows} x i32> <{places}>")
            decoded, found = self._decoded(f"%t{e}", f"e{e}", rows)
            lines += [
                *decoded,
                f"  %element{e}x = add i64 %element0, {e}",
                f"  %at{e} = mul i64 %element{e}x, %outer",
                f"  %cell{e} = add i64 %at{e}, %o",
                f"  %to{e} = getelementptr double, ptr %result, i64 %cell{e}",
                f"  store <{rows} x double> {found}, ptr %to{e}, align 8",
            ]
        return [
            *lines,
            "  %g_next = add i64 %g, 1",
            "  %more = icmp ult i64 %g_next, %inner",
            "  br i1 %more, label %granule, label %outer_end",
            "outer_end:",
            f"  %o_next = add i64 %o, {rows}",
            "  %o_more = icmp ult i64 %o_next, %outer",
            "  br i1 %o_more, label %outer_loop, label %done",
        ]


def _is_row(value: Any, dtype: Any, lanes: int | None = None) -> bool:
    """True for an array of one value for each lane."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.strides != (value.itemsize,):
        return False
    return lanes is None or len(value) == lanes


class Granules:
    """The routines of an engine, called with NumPy arrays."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pack_copy, self._pack_gather = struct.Struct("=6Q").pack, struct.Struct("=5Q").pack
        self._pack_lanes = struct.Struct("=9Q").pack
        self._boxes: dict[bool, Called] = {}
        """The copies of boxes, and their stores."""
        self._gathers: dict[Gather, Called] = {}
        self._lane_copies: dict[int, Called] = {}

    def copy_box(
        self, source: int, offsets: int, rows: int, granules: int, target: int, places: int, *, stores: bool
    ) -> None:
        """Copy rows of granules at offsets from a source to places from a target, or back: all are host addresses that
        the caller has checked.
        """
        given = self._pack_copy(source, offsets, rows, granules, target, places)
        if stores not in self._boxes:
            self._boxes[stores] = Called(self._engine, BoxCopy(stores))
        self._boxes[stores](given, rows * granules)

    def load_box(self, source: int, offsets: int, rows: int, granules: int, target: int, places: int) -> None:
        """`copy_box` to the target."""
        self.copy_box(source, offsets, rows, granules, target, places, stores=False)

    def copy_lanes(
        self,
        size: int,
        targets: Any,
        sources: Any,
        mask: Array | None,
        counts: Any,
        regions: Regions,
        shared: FlatMemory,
    ) -> int:
        """`cp.async` by some lanes of a group: the bytes written, or -1, and nothing is done, where the reference must
        execute it.
        """
        lanes = len(targets) if _is_row(targets, np.uint32) else 0
        fit = lanes and _is_row(sources, np.uint64, lanes)
        if not fit or not (mask is None or _is_row(mask, np.bool_, lanes)):
            return -1
        if not (counts is None or _is_row(counts, np.uint32, lanes)):
            return -1
        if size not in self._lane_copies:
            self._lane_copies[size] = Called(self._engine, LaneCopy(size))
        given = self._pack_lanes(
            address_of(targets), address_of(sources), 0 if mask is None else address_of(mask),
            0 if counts is None else address_of(counts), len(targets), address_of(regions.header), shared.base,
            shared.size, address_of(shared.data),
        )  # fmt: skip
        return self._lane_copies[size](given, lanes)

    def convert(
        self, sequence: Sequence, base: int, first: int, places: Array, form: Gather, result: Argument | None = None
    ) -> tuple[Argument, int] | None:
        """Add a call of `gather` to a sequence: its result and the stride of that, or None where it is not taken.

        Granules are counted from the `first` one of a base; the sequence notes how many the base must have. The result
        gets room of its own unless a place for it is given.
        """
        outer, inner = places.shape
        if not form.is_possible or (form.transposed and outer % _TRANSPOSED):
            return None
        count = inner * PER_GRANULE[form.element]
        stride = outer if form.transposed else count
        if result is None:
            result = sequence.room(outer * count)
        sequence.needs(base, (first + int(places.max()) + 1) * GRANULE)
        given = (first * GRANULE, base), sequence.keep(places), outer, inner, result
        sequence.call(self._engine, form, outer * inner, *given)
        return result, stride

    def gather(
        self, granules: Array, first: int, places: Array, form: Gather, out: Array | None = None
    ) -> Array | None:
        """An operand's granules [outer, inner], counted from the `first` one, as float64; None where a routine does
        not take them. The caller has checked the places.
        """
        outer, inner = places.shape
        if not form.is_possible or (form.transposed and outer % _TRANSPOSED):
            return None
        if form not in self._gathers:
            self._gathers[form] = Called(self._engine, form)
        count = inner * PER_GRANULE[form.element]
        if out is None:
            out = np.empty((count, outer) if form.transposed else (outer, count))
        given = self._pack_gather(
            address_of(granules) + first * GRANULE, address_of(places), outer, inner, address_of(out)
        )
        self._gathers[form](given, outer * inner)
        return out
