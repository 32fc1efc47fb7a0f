"""Tensor maps as the 128 bytes that a kernel can copy and `tensormap.replace` can change.

NVIDIA's encoding is opaque; this one holds the fields as `tensormap.replace` names them. A record that began as zeros
and got its fields one by one is as good as one from the host. A record is decoded once per run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware import tensormap_replace as codes
from warploom.hardware.tensor_maps import MAP_ALIGNMENT, MAP_BYTES, MAP_TYPES, MODES, RANK_LIMIT, WIDE_MODES
from warploom.host.tensor_map import BoxGeometry, TensorMap
from warploom.machine.memory.byte_memory import PARAM_WINDOW, GlobalMemory, Region

if TYPE_CHECKING:
    from warploom.machine.core.grid import Grid

_LAYOUT = struct.Struct("<I7B5xQ5Q4Q5H5B3h3h5x")
_CORNERS = 3
_MARK = 0x50414D54
_MOST_MAPS = 1024
"""Maps that a grid remembers: more than a kernel has, and few enough for one that makes new ones without end."""
_BYTE_FIELDS = ("rank", "elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode")
FIELDS: dict[str, tuple[int, int, int]] = {
    **{name: (4 + at, 1, 1) for at, name in enumerate(_BYTE_FIELDS)},
    "global_address": (16, 8, 1),
    "global_dim": (24, 8, RANK_LIMIT),
    "global_stride": (64, 8, RANK_LIMIT - 1),
    "box_dim": (96, 2, RANK_LIMIT),
    "element_stride": (106, 1, RANK_LIMIT),
}
"""Every field: its first byte, the bytes of one value, and how many values it has."""

assert _LAYOUT.size == MAP_BYTES


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """The content of a record: the shape of its boxes, the buffer, and the byte of the buffer where the tensor
    begins.
    """

    geometry: BoxGeometry
    region: Region
    origin: int


def encode(map_: TensorMap, address: int) -> bytes:
    """The record of a tensor map whose array lies at a global address."""
    shape = map_.geometry
    rank = len(shape.shape)
    mode, atomicity = next(code for code, name in codes.SWIZZLES.items() if name == shape.swizzle.name)
    spare = (0,) * (RANK_LIMIT - rank)
    if shape.mode == "tile":
        box = [(extent - 1) * step + 1 for extent, step in zip(shape.box, shape.element_strides, strict=True)]
    else:
        box = [*(0,) * (rank - 2), *shape.box]
    corners = [[*corner[::-1], *(0,) * (_CORNERS - len(corner))] for corner in (shape.lower_corner, shape.upper_corner)]
    return _LAYOUT.pack(
        _MARK,
        rank - 1,
        codes.ELEMENT_TYPES.index(shape.element.name),
        codes.INTERLEAVES.index(shape.interleave),
        mode,
        atomicity,
        codes.FILLS.index(shape.fill),
        MODES.index(shape.mode),
        address + map_.offset,
        *shape.shape[::-1],
        *spare,
        *shape.strides[::-1],
        *spare,
        *box[::-1],
        *spare,
        *shape.element_strides[::-1],
        *spare,
        *corners[0],
        *corners[1],
    )


def replaced(record: bytes, field: str, ordinal: int, value: int) -> bytes:
    """The record with one field changed."""
    start, width, count = FIELDS[field]
    if not 0 <= ordinal < count:
        raise Diag.BAD_SHAPE.error(text=f"tensormap.replace .{field}", what=f"ordinal {ordinal} is not below {count}")
    if value >> (8 * width):
        raise Diag.BAD_SHAPE.error(text=f"tensormap.replace .{field}", what=f"the value {value} is out of range")
    at = start + ordinal * width
    return _MARK.to_bytes(4, "little") + record[4:at] + value.to_bytes(width, "little") + record[at + width :]


def mapped(grid: Grid, address: int) -> MappedTensor:
    """The tensor map at a generic, parameter or global address."""
    record = _bytes_at(grid, address)
    known: MappedTensor | None = grid.tensor_maps.get(record)
    if known is None:
        if len(grid.tensor_maps) >= _MOST_MAPS:
            grid.tensor_maps.clear()
        known = grid.tensor_maps[record] = _decode(record, grid.memory, address)
    return known


def _bytes_at(grid: Grid, address: int) -> bytes:
    params = grid.params
    at = address - PARAM_WINDOW if address >= PARAM_WINDOW else address
    start = at - params.base
    if address % MAP_ALIGNMENT:
        raise Diag.MISALIGNED.error(what=f"The tensor map at {address:#x}", align=MAP_ALIGNMENT)
    if 0 <= start <= params.size - MAP_BYTES:
        return params.data[start : start + MAP_BYTES].tobytes()
    region = grid.memory.find(address, MAP_BYTES)
    if region is None:
        note = grid.memory.describe(address)
        raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what=f"The tensor map at {address:#x}", space="global")
    start = address - region.base
    return region.data[start : start + MAP_BYTES].tobytes()


def _decode(record: bytes, memory: GlobalMemory, where: int) -> MappedTensor:
    """Check a record against every rule of tensor maps."""
    mark, last, type_, interleave, swizzle, atomicity, fill, copies, address, *rest = _LAYOUT.unpack(record)
    if mark != _MARK:
        what = "there is no tensor map; pass a TensorMap, or build one with tensormap.replace"
        raise _illegal(where, what, record[:16].hex(" "))
    rank = last + 1
    dims, strides, box, steps, lower, upper = rest[:5], rest[5:9], rest[9:14], rest[14:19], rest[19:22], rest[22:]
    fields = (
        f"address {address:#x}, rank {rank}, elemtype {type_}, dims {dims[:rank]}, strides {strides[: rank - 1]}, "
        f"box {box[:rank]}, element strides {steps[:rank]}, swizzle {swizzle}/{atomicity}, "
        f"interleave {interleave}, fill {fill}, mode {copies}"
    )
    tables = (len(codes.ELEMENT_TYPES), len(codes.INTERLEAVES), len(codes.FILLS), len(MODES))
    values = (type_, interleave, fill, copies)
    region = memory.find(address, 1)
    if rank > RANK_LIMIT or any(value >= limit for value, limit in zip(values, tables, strict=True)):
        raise _illegal(where, "a field has a value that does not exist", fields)
    if (swizzle, atomicity) not in codes.SWIZZLES:
        raise Diag.NOT_MODELLED.error(
            what=f"A tensor map with swizzle_mode {swizzle} and swizzle_atomicity {atomicity}"
        )
    if region is None:
        raise _illegal(where, f"its tensor lies nowhere: {memory.describe(address)}", fields)
    element = MAP_TYPES[codes.ELEMENT_TYPES[type_]]
    inner = max(element.global_bytes // element.group, 1)
    mode = MODES[copies]
    axes = 0 if mode == "tile" else 1 if mode in WIDE_MODES else rank - 2
    try:
        map_ = TensorMap(
            region.data,
            dtype=element.name,
            shape=dims[:rank][::-1],
            strides=(*strides[: rank - 1][::-1], inner),
            box=box[: rank if mode == "tile" else 2][::-1],
            element_strides=steps[:rank][::-1],
            swizzle=codes.SWIZZLES[swizzle, atomicity],
            interleave=codes.INTERLEAVES[interleave],
            fill=codes.FILLS[fill],
            offset=address - region.base,
            mode=mode,
            lower_corner=lower[:axes][::-1],
            upper_corner=upper[:axes][::-1],
        )
    except WarploomError as error:
        raise _illegal(where, "; ".join(error.notes), fields) from None
    return MappedTensor(map_.geometry, region, address - region.base)


def _illegal(where: int, what: str, fields: str) -> WarploomError:
    return Diag.BAD_DESCRIPTOR.error(kind="tensor-map", value=where, what=what, fields=fields)
