"""The arrays of a launch file: their sizes, and their contents before the kernel runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from warploom.launch_file.reading import Unreadable, file_inside
from warploom.launch_file.schema import Json

Array = NDArray[Any]

# Every bit set: NaN in the floating-point types, the least likely answer in the others.
POISON = 0xFF

LARGEST_INTEGER = 1 << 64
ELEMENTS_AT_ONCE = 1 << 20


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of a NumPy or ml_dtypes name that the schema allows."""
    return np.dtype(getattr(ml_dtypes, name, name))


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Return True for integer and boolean types; every other type here is a floating-point one, with a NaN."""
    return dtype.kind in "iub"


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The smallest and the largest value of an integer type."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


@dataclass(frozen=True, slots=True)
class Buffer:
    """One named array. `strides` are bytes, as in NumPy; `init` is as in the schema, or None for the default."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    output: bool = False
    init: Json = None
    folder: Path = Path()
    """The folder of the file of an `init` from a file."""

    @staticmethod
    def read(name: str, spec: dict[str, Any], folder: Path = Path()) -> Buffer:
        """The buffer of a specification that the schema has accepted."""
        shape, dtype = tuple(map(int, spec["shape"])), dtype_of(spec["dtype"])
        strides = tuple(map(int, spec["strides"])) if "strides" in spec else dense_strides(shape, dtype.itemsize)
        return Buffer(name, dtype, shape, strides, spec.get("output", False), spec.get("init"), folder)

    @property
    def size(self) -> int:
        """The number of elements of the array."""
        return math.prod(self.shape)

    @property
    def span_bytes(self) -> int:
        """Bytes of memory from the first element to the last, gaps included."""
        reach = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=False))
        return reach + self.dtype.itemsize if self.size else 0

    def violations(self) -> Iterator[str]:
        """Problems that the schema cannot express."""
        if len(self.strides) != len(self.shape):
            yield f"has {len(self.shape)} axes and {len(self.strides)} strides"
            return
        if any(stride % self.dtype.itemsize for stride in self.strides):
            yield f"strides {self.strides} are not multiples of the {self.dtype.itemsize} bytes of an element"
        reach = self.dtype.itemsize
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True)):
            if extent > 1 and stride < reach:
                yield f"stride {stride} lets two elements share one address"
                break
            reach += stride * max(extent - 1, 0)
        yield from self._init_violations()

    def _init_violations(self) -> Iterator[str]:
        kind, numbers = self._chosen_init()
        if kind == "file":
            try:
                if (size := file_inside(self.folder, numbers[0]).stat().st_size) != self.span_bytes:
                    yield f"init: `{numbers[0]}` has {size} bytes; the buffer has {self.span_bytes}"
            except Unreadable as reason:
                yield f"init: {reason}"
            return
        if kind == "values" and len(numbers) != self.size:
            yield f"init: has {len(numbers)} values; the buffer has {self.size} elements"
        if any(isinstance(number, int) and abs(number) >= LARGEST_INTEGER for number in numbers):
            yield f"init: a number of {kind} is too large"
        elif kind == "uniform" and math.isinf(numbers[1] - numbers[0]):
            yield "init: uniform spans more than float64 can"
        elif kind == "integers" and numbers[0] < 0 and numbers[1] >= LARGEST_INTEGER // 2:
            yield "init: integers span more than 64 bits"
        elif kind in ("uniform", "integers") and numbers[0] > numbers[1]:
            yield f"init: {kind} from {numbers[0]} to {numbers[1]} is empty"
        elif kind == "normal" and numbers[1] < 0:
            yield "init: a standard deviation cannot be negative"
        elif is_integer(self.dtype) and kind in ("nan", "uniform", "normal"):
            yield f"init: {kind} does not fit {self.dtype.name}, which holds integers"
        elif is_integer(self.dtype):
            if kind == "arange":
                numbers = [numbers[0], numbers[0] + numbers[1] * max(self.size - 1, 0)]
            low, high = integer_range(self.dtype)
            outside = [number for number in numbers if not low <= number <= high or number != int(number)]
            if outside:
                yield f"init: {outside[0]} is not a value of {self.dtype.name}"

    def _chosen_init(self) -> tuple[str, list[Any]]:
        """The name and the parameters of the initialiser."""
        match self.init:
            case str(name):
                return name, [0, 1] if name == "arange" else []
            case dict(spec):
                name, numbers = next(iter(spec.items()))
                return name, numbers if isinstance(numbers, list) else [numbers]
        if self.output:
            return "poison", []
        if is_integer(self.dtype):
            low, high = integer_range(self.dtype)
            return "integers", [max(low, -8), min(high, 7)]
        if self.dtype == ml_dtypes.float8_e8m0fnu:  # it has neither sign nor zero
            return "uniform", [0.125, 8]
        return "normal", [0, 1]

    def blank(self) -> Array:
        """A writable array of this kind with its own, uninitialised memory."""
        memory = np.empty(self.span_bytes, np.uint8)
        return np.ndarray(self.shape, self.dtype, memory, strides=self.strides)

    def allocate(self, seed: int) -> Array:
        """A fresh array; its numbers depend on the seed and the buffer's name only. Inputs are read-only."""
        array = self.blank()
        memory = memory_of(array)
        memory[...] = 1 if self.dtype.kind == "b" else POISON
        kind, numbers = self._chosen_init()
        if kind == "file":
            read = np.fromfile(file_inside(self.folder, numbers[0]), np.uint8, memory.size)
            memory[: read.size] = read
            kind = "poison"
        with np.errstate(all="ignore"):  # a number outside a small float's range becomes its infinity or NaN
            _fill(array, kind, numbers, np.random.default_rng([seed, *self.name.encode()]))
        memory.flags.writeable = array.flags.writeable = self.output
        return array


def memory_of(array: Array) -> Array:
    """The bytes of memory of a buffer's array."""
    assert isinstance(array.base, np.ndarray)
    return array.base


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of an array in C order."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


@dataclass(frozen=True, slots=True)
class _Draw:
    """A range of consecutive elements, in C order, to be generated."""

    start: int
    count: int
    dtype: np.dtype[Any]
    rng: np.random.Generator
    numbers: list[Any]


def _integers(draw: _Draw) -> Array:
    low, high = map(int, draw.numbers)
    wide = np.uint64 if high >= LARGEST_INTEGER // 2 else np.int64
    return draw.rng.integers(low, high, draw.count, dtype=wide, endpoint=True)


def _arange(draw: _Draw) -> Array:
    first, step = draw.numbers
    places = np.arange(draw.start, draw.start + draw.count)
    if not is_integer(draw.dtype):
        return np.asarray(first + step * places.astype(np.float64))
    wrapped = [np.uint64(int(number) % LARGEST_INTEGER) for number in (first, step)]
    return np.asarray(wrapped[0] + wrapped[1] * places.astype(np.uint64))


def _values(draw: _Draw) -> Array:
    """A part of a flat list; a list of one number is repeated."""
    numbers = draw.numbers * draw.count if len(draw.numbers) == 1 else draw.numbers[draw.start :][: draw.count]
    return np.array(numbers, draw.dtype if is_integer(draw.dtype) else np.float64)


_DRAWS: dict[str, Callable[[_Draw], Array]] = {
    "uniform": lambda draw: draw.rng.uniform(draw.numbers[0], draw.numbers[1], draw.count),
    "normal": lambda draw: draw.rng.normal(draw.numbers[0], draw.numbers[1], draw.count),
    "integers": _integers,
    "arange": _arange,
    "constant": _values,
    "values": _values,
}
_CONSTANTS = {"zeros": 0, "ones": 1, "nan": math.nan}


def _fill(array: Array, kind: str, numbers: list[Any], rng: np.random.Generator) -> None:
    """Fill an array in pieces of bounded size, so that wide numbers for a narrow type take little memory."""
    if kind in _CONSTANTS:
        kind, numbers = "constant", [_CONSTANTS[kind]]
    if kind == "poison":
        return
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for start in range(0, array.size, ELEMENTS_AT_ONCE):
        count = min(ELEMENTS_AT_ONCE, array.size - start)
        flat[start : start + count] = _DRAWS[kind](_Draw(start, count, array.dtype, rng, numbers)).astype(array.dtype)
