"""A case of the corpus: a kernel, its launch as data, and a NumPy reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from .compile import Compiled

Array = NDArray[Any]
Arrays = dict[str, Array]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)


@dataclass(frozen=True)
class Buffer:
    """One array of a launch; without `fill` it is an output and starts poisoned."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fill: Callable[[np.random.Generator, tuple[int, ...]], Array] | None = None

    def make(self, rng: np.random.Generator) -> Array:
        """A fresh array: random, or filled with a byte that makes floats NaN and integers implausible."""
        if self.fill is not None:
            return np.ascontiguousarray(self.fill(rng, self.shape).astype(self.dtype))
        poison = 0xA5 if np.issubdtype(self.dtype, np.integer) else 0xFF
        size = math.prod(self.shape) * self.dtype.itemsize
        return np.full(size, poison, np.uint8).view(self.dtype).reshape(self.shape)


def output(dtype: DTypeLike, *shape: int) -> Buffer:
    """An array that the kernel must fill."""
    return Buffer(np.dtype(dtype), shape)


def zeros(dtype: DTypeLike, *shape: int) -> Buffer:
    """An array that the kernel adds to."""
    return Buffer(np.dtype(dtype), shape, lambda _, shape: np.zeros(shape))


def integers(dtype: DTypeLike, *shape: int, low: int = -3, high: int = 4) -> Buffer:
    """Whole numbers in [low, high): products and sums of few of them are exact in every accumulator."""
    return Buffer(np.dtype(dtype), shape, lambda rng, shape: rng.integers(low, high, shape))


def normal(dtype: DTypeLike, *shape: int, scale: float = 1.0) -> Buffer:
    """Normally distributed numbers."""
    return Buffer(np.dtype(dtype), shape, lambda rng, shape: rng.standard_normal(shape) * scale)


def drawn(dtype: DTypeLike, fill: Callable[[np.random.Generator, tuple[int, ...]], Array], *shape: int) -> Buffer:
    """An array drawn by a function."""
    return Buffer(np.dtype(dtype), shape, fill)


@dataclass(frozen=True)
class Map:
    """A tensor map over a whole buffer; the box in NumPy's axis order."""

    buffer: str
    box: tuple[int, ...]
    swizzle: str = "none"


@dataclass(frozen=True)
class Tile:
    """A Triton or Gluon descriptor argument: the buffer and its block shape; box and swizzle are the compiler's."""

    buffer: str
    block: tuple[int, ...]
    layout: str = ""


@dataclass(frozen=True)
class Pointers:
    """A buffer of the addresses of other buffers."""

    buffers: tuple[str | None, ...]


Argument = str | Map | Pointers | int | float


@dataclass(frozen=True)
class Prepared:
    """A launch with everything known: PTX, grid, arguments as data, arrays."""

    compiled: Compiled
    grid: tuple[int, int, int]
    args: tuple[Argument, ...]
    arrays: Arrays


@dataclass(frozen=True)
class Case:
    """One kernel of the corpus.

    `exact` means bit-exact against the reference (and the hardware); otherwise `rtol` and `atol` apply.
    `schedules` selects the schedules that the test tries: "all" for small kernels whose warps wait for each other, "few"
    by default, "one" for threads that hardly synchronise, "none" for PTX that is right only under the eager schedule.
    """

    name: str
    language: str
    arch: int
    build: Callable[[int | None], Compiled]
    buffers: Mapping[str, Buffer]
    args: tuple[str | Map | Tile | Pointers | int | float, ...]
    grid: tuple[int, ...]
    expected: Callable[[Arrays], Arrays]
    exact: bool = True
    rtol: float = 0.0
    atol: float = 0.0
    schedules: str = "few"

    def prepare(self, seed: int = 0, ptx_version: int | None = None) -> Prepared:
        """Compile the kernel (or fetch it) and draw the arrays."""
        compiled = self.build(ptx_version)
        rng = np.random.default_rng(seed)
        arrays = {name: buffer.make(rng) for name, buffer in self.buffers.items()}
        x, y, z = (*self.grid, 1, 1)[:3]
        grid = (x * compiled.cluster[0] if self.language != "cuda" else x, y, z)
        if self.language == "cuda":
            return Prepared(compiled, grid, tuple(a for a in self.args if not isinstance(a, Tile)), arrays)
        scratch: Argument = 0
        if compiled.scratch_bytes:
            arrays["scratch"] = np.zeros(math.prod(grid) * compiled.scratch_bytes, np.uint8)
            scratch = "scratch"
        return Prepared(compiled, grid, (*self._expand(compiled, arrays), scratch, 0), arrays)

    def _expand(self, compiled: Compiled, arrays: Arrays) -> list[Argument]:
        """Descriptors as Triton passes them: the map, the shape, the strides in elements."""
        descriptors = iter(compiled.descriptors)
        args: list[Argument] = []
        for argument in self.args:
            if not isinstance(argument, Tile):
                args.append(argument)
                continue
            array, chosen = arrays[argument.buffer], next(descriptors)
            args.append(Map(argument.buffer, chosen.box, chosen.swizzle))
            args.extend(array.shape)
            args.extend(stride // array.itemsize for stride in array.strides)
        return args

    def check(self, before: Arrays, after: Arrays) -> None:
        """Raise if an output differs from the reference, or if an input was written."""
        expected = self.expected(before)
        for name, want in expected.items():
            got = after[name]
            assert got.shape == want.shape, f"{self.name}: {name} has shape {got.shape}, the reference {want.shape}"
            left, right = comparable(got), comparable(want.astype(got.dtype))
            context = f"{self.name}: {name}"
            if self.exact:
                np.testing.assert_array_equal(left, right, err_msg=context)
            else:
                np.testing.assert_allclose(left, right, rtol=self.rtol, atol=self.atol, err_msg=context)
        for name in before.keys() - expected.keys() - {"scratch"}:
            assert before[name].tobytes() == after[name].tobytes(), f"{self.name}: the input {name} was written"


def comparable(array: Array) -> Array:
    """The array in a dtype that NumPy's own comparisons support."""
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)
