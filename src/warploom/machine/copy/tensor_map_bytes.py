"""Tensor maps as the 128 bytes that a kernel can copy and `tensormap.replace` can change.

A tiled map has the hardware's own format (`hardware/tensormap_replace.py`), so maps from the host, maps that a kernel
builds from zeros, and maps that another compiler's runtime wrote are decoded alike. The hardware's format of an im2col
map is unknown: such a map has our own fields in the second half. A record is decoded once per run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware import tensormap_replace as codes
from warploom.hardware.tensor_maps import (
    BOX_LIMIT,
    ELEMENT_STRIDE_LIMIT,
    MAP_ALIGNMENT,
    MAP_BYTES,
    MAP_TYPES,
    MODES,
    RANK_LIMIT,
    STRIDE_LIMIT,
    WIDE_MODES,
)
from warploom.hardware.tensormap_replace import FIELDS, STRIDE_SHIFT
from warploom.host.tensor_map import BoxGeometry, TensorMap, extent_bytes
from warploom.machine.copy.boxes import map_row
from warploom.machine.engine.addresses import address_of
from warploom.machine.memory.byte_memory import PARAM_WINDOW, GlobalMemory, Region
from warploom.machine.observers.layouts import Layout, layout_of_map

if TYPE_CHECKING:
    from warploom.machine.core.grid import Grid

_MOST_MAPS = 1024
"""Maps that a grid remembers: more than a kernel has, and few enough for one that makes new ones without end."""
_PIXELS = struct.Struct("<IH2H3h3h")
"""The second half of an im2col map: a mark, the mode, pixels and channels, the corners innermost first."""
_PIXELS_AT = 64
_MARK = 0x50414D54
_CORNERS = 3
_TYPES = {encoded: number for number, encoded in codes.ENCODED_TYPES.items()}
_RANGES = {
    "rank": range(RANK_LIMIT),
    "box_dim": range(1, BOX_LIMIT + 1),
    "element_stride": range(1, ELEMENT_STRIDE_LIMIT + 1),
    "global_stride": range(0, STRIDE_LIMIT, 1 << STRIDE_SHIFT),
    "elemtype": range(len(codes.ELEMENT_TYPES)),
    "interleave_layout": range(len(codes.INTERLEAVES)),
    "swizzle_mode": range(4),
    "swizzle_atomicity": range(4),
    "fill_mode": range(len(codes.FILLS)),
}
"""The values that `tensormap.replace` may give to a field; others are undefined."""


@dataclass(frozen=True)
class MappedTensor:
    """The content of a record: the shape of its boxes, the buffer, and the byte of the buffer where the tensor
    begins.
    """

    geometry: BoxGeometry
    region: Region
    origin: int

    @cached_property
    def memory(self) -> tuple[int, int]:
        """The host address of the buffer, and its bytes."""
        return address_of(self.region.data), self.region.data.nbytes

    @cached_property
    def is_whole(self) -> bool:
        """True if all of the tensor is in the buffer."""
        geometry = self.geometry
        end = self.origin + extent_bytes(geometry.element, geometry.shape, geometry.strides)
        return geometry.mode != "tile" or end <= self.region.data.nbytes

    @cached_property
    def layout(self) -> Layout:
        """The layout of its boxes in shared memory, for observers."""
        return layout_of_map(self.geometry)


def encode(map_: TensorMap, address: int) -> bytes:
    """The record of a tensor map whose array lies at a global address."""
    shape = map_.geometry
    mode, atomicity = next(code for code, name in codes.SWIZZLES.items() if name == shape.swizzle.name)
    tiled = shape.mode == "tile"
    box = (
        [(extent - 1) * step + 1 for extent, step in zip(shape.box, shape.element_strides, strict=True)]
        if tiled
        else []
    )
    record = 0
    for field, values in (
        ("global_address", (address + map_.offset,)),
        ("rank", (shape.rank - 1,)),
        ("elemtype", (codes.ELEMENT_TYPES.index(shape.element.name),)),
        ("interleave_layout", (codes.INTERLEAVES.index(shape.interleave),)),
        ("swizzle_mode", (mode,)),
        ("swizzle_atomicity", (atomicity,)),
        ("fill_mode", (codes.FILLS.index(shape.fill),)),
        ("global_dim", shape.shape[::-1]),
        ("global_stride", shape.strides[::-1]),
        ("box_dim", box[::-1]),
        ("element_stride", shape.element_strides[::-1]),
    ):
        for ordinal, value in enumerate(values):
            record = _written(record, field, ordinal, value)
    raw = record.to_bytes(MAP_BYTES, "little")
    if tiled:
        return raw
    corners = [[*corner[::-1], *(0,) * (_CORNERS - len(corner))] for corner in (shape.lower_corner, shape.upper_corner)]
    pixels = _PIXELS.pack(_MARK, MODES.index(shape.mode), *shape.box, *corners[0], *corners[1])
    return raw[:_PIXELS_AT] + pixels.ljust(MAP_BYTES - _PIXELS_AT, b"\0")


def _written(record: int, field: str, ordinal: int, value: int) -> int:
    """The record, as one number, with another value of a field."""
    if field == "global_stride":
        units = value >> STRIDE_SHIFT
        record = FIELDS["stride_low"].write(record, units, ordinal)
        return FIELDS["stride_high"].write(record, units >> FIELDS["stride_low"].width, ordinal)
    if field == "elemtype":
        code, rounds = codes.ENCODED_TYPES[value]
        record = FIELDS["rounds_to_tf32"].write(record, 1) if rounds else record
        return FIELDS["elemtype"].write(record, code)
    if field == "swizzle_mode":
        record = FIELDS["swizzle_96"].write(record, 0)
    return FIELDS[field].write(record, value, ordinal)


def replaced(record: bytes, field: str, ordinal: int, value: int) -> bytes:
    """The record with one field changed."""
    count = FIELDS["stride_low" if field == "global_stride" else field].count
    if not 0 <= ordinal < count:
        raise Diag.BAD_SHAPE.error(text=f"tensormap.replace .{field}", what=f"ordinal {ordinal} is not below {count}")
    if field in _RANGES and value not in _RANGES[field]:
        legal = _RANGES[field]
        multiple = f", a multiple of {legal.step}" if legal.step > 1 else ""
        what = f"the value {value} is not {legal.start} to {legal[-1]}{multiple}"
        raise Diag.BAD_SHAPE.error(text=f"tensormap.replace .{field}", what=what)
    return _written(int.from_bytes(record, "little"), field, ordinal, value).to_bytes(MAP_BYTES, "little")


def mapped(grid: Grid, address: int) -> MappedTensor:
    """The tensor map at a generic, parameter or global address."""
    known: MappedTensor | None = grid.maps_at.get(address)
    if known is not None:
        return known
    record = _bytes_at(grid, address)
    known = grid.tensor_maps.get(record)
    if known is None:
        if len(grid.tensor_maps) >= _MOST_MAPS:
            grid.tensor_maps.clear()
        known = grid.tensor_maps[record] = _decode(record, grid.memory, address)
    if PARAM_WINDOW <= address < PARAM_WINDOW + grid.params.base + grid.params.size:
        grid.maps_at[address] = known  # parameters do not change
        if grid.has_at_once and grid.regions is not None:
            row = map_row(known.geometry, known.memory, known.origin, grid.machine.barrier_tx_limit)
            if row is not None:
                grid.regions.maps.add(address, row)
    return known


def place_in_parameters(grid: Grid, address: int) -> int | None:
    """The place of a tensor map among the bytes of the parameters; None for one that is elsewhere."""
    params = grid.params
    start = (address - PARAM_WINDOW if address >= PARAM_WINDOW else address) - params.base
    return start if 0 <= start <= params.size - MAP_BYTES else None


def _bytes_at(grid: Grid, address: int) -> bytes:
    if address % MAP_ALIGNMENT:
        raise Diag.MISALIGNED.error(what=f"The tensor map at {address:#x}", align=MAP_ALIGNMENT)
    place = place_in_parameters(grid, address)
    if place is not None:
        return grid.params.data[place : place + MAP_BYTES].tobytes()
    region = grid.memory.find(address, MAP_BYTES)
    if region is None:
        note = grid.memory.describe(address)
        raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what=f"The tensor map at {address:#x}", space="global")
    start = address - region.base
    return region.data[start : start + MAP_BYTES].tobytes()


def _decode(record: bytes, memory: GlobalMemory, where: int) -> MappedTensor:
    """Check a record against every rule of tensor maps."""
    if not any(record):
        what = "there is no tensor map; pass a TensorMap, or build one with tensormap.replace"
        raise _illegal(where, what, "all bytes are 0")
    number = int.from_bytes(record, "little")
    found = {name: [field.read(number, at) for at in range(field.count)] for name, field in FIELDS.items()}
    (address,), rank = found["global_address"], found["rank"][0] + 1
    dims, box, steps = found["global_dim"][:rank], found["box_dim"][:rank], found["element_stride"][:rank]
    halves = zip(found["stride_low"], found["stride_high"], strict=True)
    strides = [(low | high << FIELDS["stride_low"].width) << STRIDE_SHIFT for low, high in halves][: rank - 1]
    mark, copies, pixels, channels, *corners = _PIXELS.unpack_from(record, _PIXELS_AT)
    mode = MODES[copies] if mark == _MARK else "tile"
    axes = 0 if mode == "tile" else 1 if mode in WIDE_MODES else rank - 2
    type_ = _TYPES.get((found["elemtype"][0], found["rounds_to_tf32"][0]))
    swizzle, atomicity = found["swizzle_mode"][0] | found["swizzle_96"][0] << 2, found["swizzle_atomicity"][0]
    interleave, fill = found["interleave_layout"][0], found["fill_mode"][0]
    fields = (
        f"address {address:#x}, rank {rank}, elemtype {found['elemtype'][0]}, dims {dims}, strides {strides}, "
        f"box {box}, element strides {steps}, swizzle {swizzle}/{atomicity}, "
        f"interleave {interleave}, fill {fill}, mode {mode}"
    )
    if rank > RANK_LIMIT or type_ is None or interleave >= len(codes.INTERLEAVES):
        raise _illegal(where, "a field has a value that does not exist", fields)
    if (swizzle, atomicity) not in codes.SWIZZLES:
        raise Diag.NOT_MODELLED.error(
            what=f"A tensor map with swizzle_mode {swizzle} and swizzle_atomicity {atomicity}"
        )
    region = memory.find(address, 1)
    if region is None:
        raise _illegal(where, f"its tensor lies nowhere: {memory.describe(address)}", fields)
    element = MAP_TYPES[codes.ELEMENT_TYPES[type_]]
    try:
        map_ = TensorMap(
            region.data,
            dtype=element.name,
            shape=dims[::-1],
            strides=(*strides[::-1], max(element.global_bytes // element.group, 1)),
            box=box[::-1] if mode == "tile" else (pixels, channels),
            element_strides=steps[::-1],
            swizzle=codes.SWIZZLES[swizzle, atomicity],
            interleave=codes.INTERLEAVES[interleave],
            fill=codes.FILLS[fill],
            offset=address - region.base,
            mode=mode,
            lower_corner=corners[:_CORNERS][:axes][::-1],
            upper_corner=corners[_CORNERS:][:axes][::-1],
            beyond=True,
        )
    except WarploomError as error:
        raise _illegal(where, "; ".join(error.notes), fields) from None
    return MappedTensor(map_.geometry, region, address - region.base)


def _illegal(where: int, what: str, fields: str) -> WarploomError:
    return Diag.BAD_DESCRIPTOR.error(kind="tensor-map", value=where, what=what, fields=fields)
