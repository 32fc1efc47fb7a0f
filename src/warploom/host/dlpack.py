"""DLPack: the description of another library's array, read from its capsule.

Source: dlpack.h 1.1 (DLTensor, DLDataType, DLDeviceType).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from warploom.diagnostics import Diag

_DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 13: "cuda"}
"""Device types of the host and of CUDA, pinned and managed memory included."""
_TYPES = {
    0: "int{}",
    1: "uint{}",
    2: "float{}",
    4: "bfloat16",
    6: "bool",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}
"""NumPy and ml_dtypes names by type code; the bits fill the braces."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor as its owner describes it: strides in elements, None if it is dense."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    address: int
    device: str


def read(array: Any) -> Described:
    """Read the capsule without consuming it, so that ownership of the array stays with its library."""
    capsule = array.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Tensor.from_address(pointer(capsule, b"dltensor"))
    kind, name = _DEVICES.get(tensor.device_type), _TYPES.get(tensor.code)
    if kind is None or name is None or tensor.lanes != 1:
        what = f"device type {tensor.device_type}" if kind is None else f"type code {tensor.code}, {tensor.lanes} lanes"
        raise Diag.BAD_LAUNCH.error(what=f"a {type(array).__name__} cannot be passed to a kernel: {what} (DLPack)")
    return Described(
        tuple(tensor.shape[: tensor.rank]),
        tuple(tensor.strides[: tensor.rank]) if tensor.strides else (),
        name.format(tensor.bits),
        (tensor.data or 0) + tensor.byte_offset,
        kind if kind == "cpu" else f"{kind}:{tensor.device_id}",
    )
