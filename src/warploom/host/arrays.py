"""Arrays of any library as warploom sees them: NumPy, PyTorch, `__cuda_array_interface__`, DLPack."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from warploom.diagnostics import Diag
from warploom.host.dlpack import read

Sizes = tuple[int, ...]
HOST = "cpu"


class Buffer(NamedTuple):
    """The memory of an array; strides in bytes, `span` is the number of bytes from its first element to its end.

    `address` is a device address; on the host it is the offset from the start of the allocation, which the emulator
    aligns.
    """

    shape: Sizes
    strides: Sizes
    dtype: str
    item: int
    span: int
    address: int
    device: str = HOST
    """`cpu`, `cuda:1`, or `cuda` if the index is known to the driver only."""

    @property
    def is_on_gpu(self) -> bool:
        return self.device.startswith("cuda")


def is_array(value: Any) -> bool:
    """Return True if a value is an array of a supported library."""
    if isinstance(value, type | int | float):
        return False
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def buffer_of(array: Any) -> Buffer:
    """Describe the memory of an array; no elements are read."""
    if isinstance(array, np.ndarray):
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        start = int(array.__array_interface__["data"][0]) - int(owner.__array_interface__["data"][0])
        return _buffer(array.shape, array.strides, array.dtype.name, array.itemsize, start)
    if hasattr(array, "data_ptr"):
        return _of_torch(array)
    if hasattr(array, "__cuda_array_interface__"):
        return _of_cuda_array(array)
    if hasattr(array, "__dlpack__"):
        return _of_dlpack(array)
    what = f"a {type(array).__name__} is not an array; pass an array of NumPy, PyTorch, CuPy or JAX"
    raise Diag.BAD_LAUNCH.error(what=what)


def place_of(array: Any) -> str:
    """The device of an array."""
    return _name_of(array.device) if hasattr(array, "data_ptr") else buffer_of(array).device


_name_of = functools.cache(str)
_type_of = functools.cache(lambda dtype: str(dtype).rpartition(".")[2])


def _of_torch(array: Any) -> Buffer:
    item, device = array.element_size(), _name_of(array.device)
    strides = tuple([stride * item for stride in array.stride()])
    address = array.storage_offset() * item if device == HOST else array.data_ptr()
    return _buffer(tuple(array.shape), strides, _type_of(array.dtype), item, address, device)


def _of_cuda_array(array: Any) -> Buffer:
    facts = array.__cuda_array_interface__
    dtype = np.dtype(getattr(array, "dtype", None) or facts["typestr"])
    shape = tuple(facts["shape"])
    strides = facts.get("strides") or _dense(shape, dtype.itemsize)
    return _buffer(shape, tuple(strides), dtype.name, dtype.itemsize, int(facts["data"][0]), "cuda")


def _of_dlpack(array: Any) -> Buffer:
    facts = read(array)
    item = np.dtype(getattr(ml_dtypes, facts.dtype, facts.dtype)).itemsize
    strides = tuple(stride * item for stride in facts.strides) if facts.strides else _dense(facts.shape, item)
    return _buffer(facts.shape, strides, facts.dtype, item, facts.address, facts.device)


def _dense(shape: Sizes, item: int) -> Sizes:
    strides, step = [], item
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _buffer(shape: Sizes, strides: Sizes, dtype: str, item: int, address: int, device: str = HOST) -> Buffer:
    steps = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True) if stride > 0]
    return Buffer(shape, strides, dtype, item, item + sum(steps) if all(shape) else 0, address, device)


def start_of(array: Any) -> int:
    """The address of an array's first element, in device or host memory."""
    if hasattr(array, "__array_interface__"):
        return int(array.__array_interface__["data"][0])
    return int(array.data_ptr()) if hasattr(array, "data_ptr") else buffer_of(array).address


def bounds_of(array: Any) -> range:
    """The addresses between which an array's elements lie."""
    return _bounds(buffer_of(array), start_of(array))


def _bounds(buffer: Buffer, start: int) -> range:
    if not all(buffer.shape):
        return range(start, start)
    steps = [(extent - 1) * stride for extent, stride in zip(buffer.shape, buffer.strides, strict=True)]
    low, high = (sum(step for step in steps if (step > 0) is is_up) for is_up in (False, True))
    return range(start + low, start + high + buffer.item)


def may_share(one: Buffer, start: int, other: Buffer, other_start: int) -> bool:
    """Return True if two arrays at these addresses may share memory of an element; disjoint columns do not."""
    mine, theirs = _bounds(one, start), _bounds(other, other_start)
    if max(mine.start, theirs.start) >= min(mine.stop, theirs.stop):
        return False
    row, other_row = _row(one), _row(other)
    if row is None or other_row is None or row[1] != other_row[1]:
        return True
    (width, step), (other_width, _) = row, other_row
    return not width <= (other_start - start) % step <= step - other_width


def _row(buffer: Buffer) -> tuple[int, int] | None:
    """The bytes of a row, and its stride; None for an array without gaps between its rows."""
    width = buffer.item
    steps = sorted((step, extent) for step, extent in zip(buffer.strides, buffer.shape, strict=True) if extent > 1)
    for number, (step, extent) in enumerate(steps):
        if step > width:
            return (width, step) if all(outer % step == 0 for outer, _ in steps[number:]) else None
        if step <= 0:
            return None
        width += (extent - 1) * step
    return None


def numpy_of(array: Any) -> np.ndarray[Any, Any]:
    """A host array as a NumPy array that shares its memory."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "untyped_storage"):
        return np.asarray(array) if hasattr(array, "__array__") else np.from_dlpack(array)
    if problem := _unreadable(array):
        raise Diag.BAD_LAUNCH.error(what=f"a tensor, {array.dtype} {tuple(array.shape)}, {problem}")
    buffer, storage = buffer_of(array), array.untyped_storage()
    held = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr() or 1)
    held.owner = storage  # an array over its memory keeps it
    dtype = np.dtype(getattr(ml_dtypes, buffer.dtype, buffer.dtype))
    whole = np.frombuffer(held, np.uint8)
    return np.ndarray(buffer.shape, dtype, whole, buffer.address, buffer.strides)


def _unreadable(tensor: Any) -> str:
    """The reason why a PyTorch tensor's memory cannot be used directly; empty if it can."""
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
        return "is not dense: its elements are not contiguous"
    if tensor.is_neg() or tensor.is_conj():
        return "has the lazy negative or conjugate bit set: pass `.resolve_neg().resolve_conj()`"
    storage = tensor.untyped_storage()
    if storage.device.type != HOST or (storage.nbytes() and not storage.data_ptr()):
        return f"on {tensor.device}, has no elements on the host"
    return ""


class Pointers:
    """An argument that points to a table of array addresses, 64 bits each; None is 0, an integer is taken as it is.

    The addresses are filled in at the launch: the emulator uses its own.
    """

    def __init__(self, arrays: Iterable[Any]) -> None:
        self.arrays = tuple(arrays)
        faults = [f"element {number}: {fault}" for number, each in enumerate(self.arrays) if (fault := _no_place(each))]
        if faults:
            raise Diag.BAD_LAUNCH.error(notes=faults, what=f"`Pointers` has {len(faults)} invalid element(s)")

    def __repr__(self) -> str:
        return f"Pointers of {len(self.arrays)}"

    def words(self, place: Callable[[int, Any], int]) -> bytes:
        """The addresses as bytes; `place` returns the address of an array, given its index."""
        addresses = [
            place(number, each) if is_array(each) else int(each or 0) for number, each in enumerate(self.arrays)
        ]
        return np.array(addresses, "<u8").tobytes()


def _no_place(value: Any) -> str:
    """The reason why a value is not an address and has none; empty if it is valid."""
    if value is None or is_array(value):
        return ""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return f"a {type(value).__name__} is not an array, None or an integer"
    return "" if 0 <= value < 1 << 64 else f"{value} is not a 64-bit address"


class Scratch(np.ndarray[Any, Any]):
    """Workspace of a launch: not passed or read by the caller, and on a GPU allocated there."""

    starts_at_zero: bool

    def __array_finalize__(self, of: Any) -> None:
        self.starts_at_zero = getattr(of, "starts_at_zero", False)


def scratch(shape: Sizes, dtype: Any, *, starts_at_zero: bool = False) -> Scratch:
    """Allocate workspace for a launch.

    With `starts_at_zero` the first launch finds zeros, and every later one what the previous launch in the stream has
    left; otherwise the contents are undefined.
    """
    made = np.zeros(shape, dtype).view(Scratch)
    made.starts_at_zero = starts_at_zero
    return made
