"""From arrays to the arguments of kernels: what a call is, whichever machine it is for, and how arrays become maps.

Arrays are NumPy's, or anything that `TensorMap` takes; batches stand in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from warploom.hardware.swizzles import GRANULE, widest_swizzle
from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT, STRIDE_ALIGNMENT, STRIDE_LIMIT
from warploom.host.arrays import Buffer, buffer_of
from warploom.host.launch import Triple
from warploom.host.tensor_map import TensorMap
from warploom.structured.config import MatmulConfig, Problem
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.staging import block_width
from warploom.structured.pipelines.operand_tiles import OperandLayout
from warploom.trace.kernel import KernelFunction
from warploom.trace.language.types import OF_NUMPY, TYPES

_MAP_TYPES = {"tf32": "tf32", "e2m1": "16u4_align8b"}
"""What a map says of its elements, where the array does not: TMA rounds to tf32, and counts values of four bits."""

Config = TypeVar("Config", MatmulConfig, HopperConfig)


@dataclass(frozen=True, kw_only=True)
class Call(Generic[Config]):
    """A product D = epilogue(A·Bᵀ) as the caller sees it: A is (m, k), B is (n, k), D is (m, n).

    Groups have a matrix of B each. A and B are as `major_of` wants them; of 4-bit elements two are in a byte.
    """

    config: Config
    problem: Problem
    a: Any
    b: Any
    d: Any
    epilogue: Epilogue = field(default_factory=Epilogue)
    operands: Mapping[str, Any] = field(default_factory=dict)
    """What the epilogue reads, by name."""
    up: Any = None
    """The second B, of pairs."""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """Where the epilogue's further outputs go, by name, in their order."""
    c: Any = None
    """What the epilogue adds by a load of its own: a matrix, or a row where a configuration says so."""
    a_scale: Any = None
    b_scale: Any = None
    """Blockwise: (K tiles, m) and (blocks of n, K tiles). Block-scaled: chunks as `interleave_scales` makes them."""
    ends: Any = None
    """Grouped: the rows behind each group."""
    starts: Any = None
    """Batches with a depth of their own: the K tile with which each begins, and the one behind the last."""

    def swapped(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Something of A and of B, as the kernel sees them."""
        return (second, first) if self.config.AB_swapped else (first, second)

    def operand_maps(self, a_layout: OperandLayout, b_layout: OperandLayout) -> tuple[TensorMap, TensorMap]:
        """The maps of the kernel's A and B."""
        a, b = self.swapped(self.a, self.b)
        return operand_map(a, a_layout, self.config.a_type), operand_map(b, b_layout, self.config.b_type)

    def auxiliary_arguments(self, subtile: tuple[int, int], b_layout: OperandLayout) -> dict[str, Any]:
        """What some calls have: outputs beside D, staged in strips of some rows and columns, a second B, and depths.

        Of groups a tile may be cut where only the device knows: there threads store to the outputs themselves.
        """
        found: dict[str, Any] = {}
        if self.outputs:
            found["auxiliary"] = self._output_maps(subtile) if self.config.output_types else dict(self.outputs)
        if self.ends is not None and self.config.output_types:
            found["auxiliary_arrays"] = dict(self.outputs)
        if self.up is not None:
            found["up"] = operand_map(self.up, b_layout, self.config.b_type)
        if self.starts is not None:
            found["starts"] = self.starts
        return found

    def _output_maps(self, subtile: tuple[int, int]) -> dict[str, TensorMap]:
        return {name: _staged_map(each, *subtile) for name, each in self.outputs.items()}


@dataclass(frozen=True)
class Family(Generic[Config]):
    """A kernel and how its arguments follow from a call."""

    kernel: KernelFunction
    arguments: Callable[[Call[Config]], tuple[Any, ...]]
    grid: Callable[[Call[Config], int], Triple]
    """Of a call, and of the multiprocessors that it may have."""


def major_of(array: Any) -> str | None:
    """Which dimension of an operand (…, rows, k) lies contiguous, "k" or "mn"; None if TMA cannot step through it."""
    buffer = buffer_of(array)
    if 0 in buffer.shape:
        return None
    return next((major for major, inner in (("k", -1), ("mn", -2)) if _is_legal(buffer, inner)), None)


def is_storable(array: Any) -> bool:
    """Whether TMA can write, or load, rows of an array."""
    return _is_legal(buffer_of(array), -1)


def is_row(array: Any) -> bool:
    """Whether threads can load the last axis of an array by 16 bytes."""
    buffer = buffer_of(array)
    aligned = all(stride % GRANULE == 0 for stride in buffer.strides[:-1])
    return aligned and buffer.strides[-1] == buffer.item and buffer.address % GRANULE == 0


def row_stride(array: Any, major: str = "k") -> int:
    """Elements from one row, or where the rows are contiguous from one k, to the next."""
    buffer = buffer_of(_as_held(array, major))
    return _strides(buffer)[-2] // buffer.item


def _as_held(array: Any, major: str) -> Any:
    """An operand with its contiguous axis last."""
    return array if major == "k" else array.mT


def _is_legal(buffer: Buffer, inner: int) -> bool:
    """Whether an array obeys the copy engine's rules with an axis as the innermost, and no two rows overlap."""
    outer = -3 - inner
    extent, stride = buffer.shape[inner], buffer.strides[inner]
    steps = [step for axis, step in enumerate(_strides(buffer)) if axis - len(buffer.shape) != inner]
    return (
        (stride == buffer.item or extent <= 1)
        and all(step % STRIDE_ALIGNMENT == 0 and 0 <= step < STRIDE_LIMIT for step in steps)
        and (buffer.shape[outer] <= 1 or buffer.strides[outer] >= extent * buffer.item)
        and buffer.address % ADDRESS_ALIGNMENT == 0
    )


def _strides(buffer: Buffer) -> tuple[int, ...]:
    """The strides, with those that nobody steps along as the rules want them."""
    row = -(-buffer.shape[-1] * buffer.item // STRIDE_ALIGNMENT) * STRIDE_ALIGNMENT
    return tuple(stride if extent > 1 else row for extent, stride in zip(buffer.shape, buffer.strides, strict=True))


def boxed(array: Any, box: tuple[int, ...], swizzle: str = "none", dtype: str | None = None) -> TensorMap:
    """A tensor map of a matrix, or of several: then a box is one of them deep."""
    buffer = buffer_of(array)
    front = len(buffer.shape) - len(box)
    strides = (*_strides(buffer)[:-1], buffer.item)
    return TensorMap(array, box=(*(1,) * front, *box), swizzle=swizzle, strides=strides, dtype=dtype)


def _staged_map(array: Any, rows: int, columns: int) -> TensorMap:
    """The map of an output that is stored from strips of some rows and columns, in the widest swizzle."""
    type_ = OF_NUMPY[buffer_of(array).dtype]
    swizzle = widest_swizzle(columns * TYPES[type_].bytes)
    return boxed(array, (rows, block_width(type_, swizzle, columns)), swizzle)


def operand_map(array: Any, layout: OperandLayout, element: str) -> TensorMap:
    """The map of an operand that lies in shared memory by a layout."""
    return boxed(_as_held(array, layout.major), layout.box, layout.swizzle, _MAP_TYPES.get(element))
