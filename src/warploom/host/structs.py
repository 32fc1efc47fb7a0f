"""Structures passed by value whose bytes hold addresses and tensor maps, as CUTLASS and CuTe pass their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.hardware.tensor_maps import MAP_ALIGNMENT, MAP_BYTES
from warploom.host.arrays import Pointers, is_array
from warploom.host.tensor_map import TensorMap

POINTER_BYTES = 8
Part = tuple[int, Any]


class Struct:
    """An argument that is a structure passed by value: bytes, with other values at their offsets.

    The first argument is the bytes, or the size of a structure of zeros. The values are arrays (their addresses),
    tensor maps (128 bytes, at a multiple of 64), `Pointers` (the address of the table), None (a null pointer), NumPy
    scalars, bytes and structures. Addresses are filled in at the launch.
    """

    def __init__(self, data: bytes | int, fields: Mapping[int, Any] | None = None) -> None:
        if isinstance(data, bool) or not isinstance(data, bytes | bytearray | int):
            what = f"a structure is made from bytes or a size, not from a {type(data).__name__}"
            raise Diag.BAD_LAUNCH.error(what=what)
        if isinstance(data, int) and data < 1:
            raise Diag.BAD_LAUNCH.error(what=f"a structure has at least one byte, not {data}")
        self._data = bytes(data)
        self.fields = dict(fields or {})
        problems = list(self._problems())
        if problems:
            raise Diag.BAD_LAUNCH.error(notes=problems, what=f"`Struct` has {len(problems)} invalid field(s)")

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Struct of {len(self)} bytes, {len(self.fields)} fields"

    def _problems(self) -> Iterator[str]:
        end = 0
        for at, value in sorted(self.fields.items()):
            size = _size(value)
            if size is None:
                kinds = "an array, a TensorMap, Pointers, a NumPy scalar, bytes, a Struct or None"
                yield f"byte {at}: a {type(value).__name__} is not {kinds}"
                continue
            if at < 0 or at + size > len(self):
                yield f"byte {at}: {size} bytes do not fit into {len(self)}"
            if at < end:
                yield f"byte {at}: it overlaps the field before it, which ends at byte {end}"
            if isinstance(value, TensorMap) and at % MAP_ALIGNMENT:
                yield f"byte {at}: a tensor map begins at a multiple of {MAP_ALIGNMENT}"
            end = at + size

    def arrays(self) -> Iterator[Any]:
        """The arrays whose addresses it holds, directly, in tensor maps or in tables."""
        for value in self.fields.values():
            if isinstance(value, Struct):
                yield from value.arrays()
            elif isinstance(value, TensorMap):
                yield value.array
            elif isinstance(value, Pointers):
                yield from (each for each in value.arrays if is_array(each))
            elif is_array(value):
                yield value

    def encoded(self, place: Callable[[Any, str], bytes], name: str = "") -> bytes:
        """The bytes at a launch; `place` gives those of an array, a tensor map or a table that has a name."""
        raw = bytearray(self._data)
        for at, value in self.fields.items():
            label = f"{name}[{at}]"
            if value is None:
                part = bytes(POINTER_BYTES)
            elif isinstance(value, Struct):
                part = value.encoded(place, label)
            elif isinstance(value, bytes | bytearray):
                part = bytes(value)
            elif isinstance(value, np.generic):
                part = value.tobytes()
            else:
                part = place(value, label)
            raw[at : at + len(part)] = part
        return bytes(raw)


def _size(value: Any) -> int | None:
    """The bytes that a value takes; None if it cannot be a field."""
    if isinstance(value, TensorMap):
        return MAP_BYTES
    if isinstance(value, np.generic):
        return int(value.dtype.itemsize)
    if isinstance(value, bytes | bytearray | Struct):
        return len(value)
    return POINTER_BYTES if value is None or isinstance(value, Pointers) or is_array(value) else None


def check_room(size: int, given: Struct) -> None:
    """Raise an error unless a parameter has the size of a structure."""
    if size != len(given):
        raise ValueError(f"a structure of {len(given)} bytes, the parameter has {size}")
