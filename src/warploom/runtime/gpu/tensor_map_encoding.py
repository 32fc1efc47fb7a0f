"""Tensor maps as the 128 bytes that TMA reads, encoded by the driver and cached by address."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from warploom.hardware import tensor_maps as facts
from warploom.host.tensor_map import BoxGeometry, TensorMap
from warploom.runtime.gpu.driver import Driver

_MOST_ADDRESSES = 4096
_MOST_TEMPLATES = 1024
_FUNCTIONS = {
    "tile": "cuTensorMapEncodeTiled",
    "im2col": "cuTensorMapEncodeIm2col",
    **dict.fromkeys(facts.WIDE_MODES, "cuTensorMapEncodeIm2colWide"),
}
"""The encoder of each mode."""
_TEMPLATES: dict[tuple[BoxGeometry, str], MapTemplate] = {}


class MapTemplate:
    """A tensor map without its address: the encoder's arguments are made once, and each result is cached."""

    def __init__(self, geometry: BoxGeometry, l2_promotion: str) -> None:
        self._geometry, self._l2_promotion = geometry, l2_promotion
        self._shape = geometry.shape
        self._function = _FUNCTIONS[geometry.mode]
        wide: list[Any] = []
        extents: list[Any]
        if geometry.mode == "tile":
            box = [(extent - 1) * step + 1 for extent, step in zip(geometry.box, geometry.element_strides, strict=True)]
            extents = [_integers(ctypes.c_uint32, box)]
        else:
            corners = (geometry.lower_corner, geometry.upper_corner)
            if geometry.mode in facts.WIDE_MODES:
                extents = [ctypes.c_int(corner[-1]) for corner in corners]
                wide = [ctypes.c_int(facts.WIDE_MODES[geometry.mode])]
            else:
                extents = [_integers(ctypes.c_int, corner) for corner in corners]
            extents += [ctypes.c_uint32(extent) for extent in reversed(geometry.box)]
        self._before = (ctypes.c_int(geometry.element.code), ctypes.c_uint32(geometry.rank))
        self._after = (
            _integers(ctypes.c_uint64, geometry.shape),
            _integers(ctypes.c_uint64, geometry.strides or (0,)),
            *extents,
            _integers(ctypes.c_uint32, geometry.element_strides),
            ctypes.c_int(facts.INTERLEAVES[geometry.interleave]),
            *wide,
            ctypes.c_int(geometry.swizzle.tensor_map_code),
            ctypes.c_int(facts.L2_PROMOTIONS[l2_promotion]),
            ctypes.c_int(facts.FILLS[geometry.fill]),
        )
        self._encoded: dict[int, bytes] = {}

    def resized(self, rows: int) -> MapTemplate:
        """Return the template of a map with another number of rows, its outermost axis."""
        made = copy(self)
        made.set_rows(rows)
        return made

    def set_rows(self, rows: int) -> None:
        """Change the number of rows, before the first address; only the shape is made anew, since calls wait for it."""
        self._shape = (rows, *self._shape[1:])
        self._after = (_integers(ctypes.c_uint64, self._shape), *self._after[1:])
        self._encoded = {}

    def __eq__(self, other: object) -> bool:
        """Return True for a template of the same maps."""
        if not isinstance(other, MapTemplate):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return replace(self._geometry, shape=self._shape), self._l2_promotion

    def at(self, driver: Driver, address: int) -> bytes:
        """Return the map of a tensor that begins at an address."""
        found = self._encoded.get(address)
        if found is None:
            if len(self._encoded) >= _MOST_ADDRESSES:
                self._encoded.clear()
            found = self._encoded[address] = self._encode(driver, address)
        return found

    def _encode(self, driver: Driver, address: int) -> bytes:
        room = (ctypes.c_uint8 * (facts.MAP_BYTES + facts.MAP_ALIGNMENT))()
        start = ctypes.addressof(room)
        skipped = -start % facts.MAP_ALIGNMENT
        driver.compute(
            self._function,
            ctypes.c_void_p(start + skipped),
            *self._before,
            ctypes.c_void_p(address),
            *self._after,
        )
        return bytes(room[skipped : skipped + facts.MAP_BYTES])


def template_of(map_: TensorMap) -> MapTemplate:
    """Return the template of a map, shared by all maps that differ only in their address."""
    return _template(map_.geometry, map_.l2_promotion)


def _template(geometry: BoxGeometry, l2_promotion: str) -> MapTemplate:
    key = (geometry, l2_promotion)
    found = _TEMPLATES.get(key)
    if found is None:
        if len(_TEMPLATES) >= _MOST_TEMPLATES:
            _TEMPLATES.clear()
        found = _TEMPLATES[key] = MapTemplate(*key)
    return found


def _integers(kind: Any, values: Sequence[int]) -> Any:
    """Reverse the axes: the driver counts from the innermost."""
    return (kind * len(values))(*values[::-1])
