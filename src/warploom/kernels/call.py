"""From arrays to kernel arguments: `Call`, the same for every target, and the tensor maps of its arrays.

Arrays are NumPy's, or anything that `TensorMap` accepts; batches are leading axes.
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
from warploom.kernels.convolution import Window
from warploom.structured.config import MatmulConfig, Problem
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.staging import block_width
from warploom.structured.pipelines.operand_tiles import OperandLayout
from warploom.trace.kernel import KernelFunction
from warploom.trace.language.types import OF_NUMPY, TYPES

_MAP_TYPES = {("tf32", 32): "tf32", ("e2m1", 4): "16u4_align8b", ("e2m1", 8): "16u4_align16b"}
"""Element types of tensor maps that differ from the array's, by the bits of an element in shared memory.

TMA rounds to tf32, and packs or pads 4-bit elements.
"""

Config = TypeVar("Config", MatmulConfig, HopperConfig)


@dataclass(frozen=True, kw_only=True)
class Call(Generic[Config]):
    """A GEMM D = epilogue(A·Bᵀ) as the caller sees it: A is (m, k), B is (n, k), D is (m, n).

    In a grouped GEMM B has a matrix per group. A and B satisfy `major_of`; 4-bit elements are packed two to a byte.
    """

    config: Config
    problem: Problem
    a: Any
    b: Any
    d: Any
    epilogue: Epilogue = field(default_factory=Epilogue)
    operands: Mapping[str, Any] = field(default_factory=dict)
    """The operands of the epilogue, by name."""
    up: Any = None
    """The second B of a gated GEMM."""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """The destinations of the epilogue's auxiliary outputs, by name, in order."""
    c: Any = None
    """The source of the epilogue load: a matrix, or a row where `epilogue_is_1d`."""
    a_scale: Any = None
    b_scale: Any = None
    """Blockwise: (K tiles, m) and (blocks of n, K tiles). Block-scaled: chunks as `interleave_scales` returns them."""
    up_scale: Any = None
    """Block-scaled: that of `up`."""
    ends: Any = None
    """Grouped: the end row of each group."""
    experts: Any = None
    """Grouped: the index in B of each group's matrix, negative for a group that is not computed; None for its own."""
    expert_scales: Any = None
    """Grouped: a factor of the accumulators for each matrix of B."""
    weights: Mapping[str, Any] | None = None
    """Grouped: the matrices of B, where they are allocated separately; `b` then repeats the first."""
    cleared_rows: int | None = None
    """Grouped: the rows of a new D, where the kernel sets those of no group to zero; None where it leaves them."""
    starts: Any = None
    """Batches with their own K ranges: the first K tile of each, and the end of the last."""
    trace: Any = None
    """The buffer of time stamps."""
    window: Window | None = None
    """Of a convolution: A are images (N, H, W, C), B are filters (K, R, S, C)."""

    def swapped(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Return two values that belong to A and B in the kernel's order."""
        return (second, first) if self.config.AB_swapped else (first, second)

    def operand_maps(self, a_layout: OperandLayout, b_layout: OperandLayout) -> tuple[TensorMap, TensorMap]:
        """Return the tensor maps of the kernel's A and B."""
        layouts = (a_layout, self.config.a_type), (b_layout, self.config.b_type)
        if self.window is not None:
            of_images, of_filters = self.swapped(*layouts)
            return self.swapped(pixel_map(self.a, self.window, *of_images), filter_map(self.b, *of_filters))
        a, b = self.swapped(self.a, self.b)
        return operand_map(a, *layouts[0]), operand_map(b, *layouts[1])

    def auxiliary_arguments(self, subtile: tuple[int, int], weights: OperandLayout) -> dict[str, Any]:
        """Return the optional arguments: auxiliary outputs, staged in subtiles of some shape, a second B, and K ranges.

        In a grouped GEMM a tile may end inside a box, at a row that only the device knows: there threads store to the
        arrays of the outputs.
        """
        found: dict[str, Any] = {}
        if self.outputs:
            found["auxiliary"] = self._output_maps(subtile) if self.config.output_types else dict(self.outputs)
        if self.ends is not None and self.config.output_types:
            found["auxiliary_arrays"] = dict(self.outputs)
        if self.up is not None:
            found["up"] = operand_map(self.up, weights, self.swapped(self.config.a_type, self.config.b_type)[1])
        if self.starts is not None:
            found["starts"] = self.starts
        if self.trace is not None:
            found["trace"] = self.trace
        if self.window is not None:
            found["window"] = self.window.arguments(self.config.k_tiles(buffer_of(self.a).shape[-1]))
        return found

    def _output_maps(self, subtile: tuple[int, int]) -> dict[str, TensorMap]:
        return {name: _staged_map(each, *subtile) for name, each in self.outputs.items()}


@dataclass(frozen=True)
class Family(Generic[Config]):
    """A kernel, and its arguments and grid as functions of a call."""

    kernel: KernelFunction
    arguments: Callable[[Call[Config]], tuple[Any, ...]]
    grid: Callable[[Call[Config], int], Triple]
    """The grid of a call on a number of SMs."""
    options: Callable[[Call[Config]], dict[str, Any]] = field(default=lambda _: {})
    """The optional arguments of a call that only this kernel has."""
    sizes: Callable[[Call[Config]], tuple[int, ...]] | None = None
    """The arguments after A, B and D, where a launch can be resized: only these, workspaces and rows depend on m."""
    scratch: Callable[[Call[Config]], dict[str, Any]] = field(default=lambda _: {})
    """The workspaces of a launch, by name."""


def major_of(array: Any) -> str | None:
    """Return the contiguous dimension of an operand (…, rows, k), "k" or "mn"; None if its strides are not for TMA."""
    buffer = buffer_of(array)
    if 0 in buffer.shape:
        return None
    return next((major for major, inner in (("k", -1), ("mn", -2)) if _is_legal(buffer, inner)), None)


def is_storable(array: Any) -> bool:
    """Return whether TMA can store or load an array by rows."""
    return _is_legal(buffer_of(array), -1)


def is_row(array: Any) -> bool:
    """Return whether threads can load the last axis of an array with 16-byte copies."""
    buffer = buffer_of(array)
    aligned = all(stride % GRANULE == 0 for stride in buffer.strides[:-1])
    return aligned and buffer.strides[-1] == buffer.item and buffer.address % GRANULE == 0


def row_stride(array: Any, major: str = "k") -> int:
    """Return the stride between rows, or between K indices if rows are contiguous, in elements."""
    buffer = buffer_of(_as_held(array, major))
    return _strides(buffer)[-2] // buffer.item


def _as_held(array: Any, major: str) -> Any:
    """Return an operand with its contiguous axis last."""
    return array if major == "k" else array.mT


def _is_legal(buffer: Buffer, inner: int) -> bool:
    """Return whether an array satisfies TMA's rules with `inner` as innermost axis, without overlapping rows."""
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
    """Return the strides; strides of axes of extent 1 are replaced by valid ones."""
    row = -(-buffer.shape[-1] * buffer.item // STRIDE_ALIGNMENT) * STRIDE_ALIGNMENT
    return tuple(stride if extent > 1 else row for extent, stride in zip(buffer.shape, buffer.strides, strict=True))


def boxed(array: Any, box: tuple[int, ...], swizzle: str = "none", dtype: str | None = None) -> TensorMap:
    """Create a tensor map of a matrix, or of a batch of matrices with boxes of one matrix."""
    buffer = buffer_of(array)
    front = len(buffer.shape) - len(box)
    strides = (*_strides(buffer)[:-1], buffer.item)
    return TensorMap(array, box=(*(1,) * front, *box), swizzle=swizzle, strides=strides, dtype=dtype)


def _staged_map(array: Any, rows: int, columns: int) -> TensorMap:
    """Create the tensor map of an output that is staged in subtiles of some shape, with the widest swizzle."""
    type_ = OF_NUMPY[buffer_of(array).dtype]
    swizzle = widest_swizzle(columns * TYPES[type_].bytes)
    return boxed(array, (rows, block_width(type_, swizzle, columns)), swizzle)


def operand_map(array: Any, layout: OperandLayout, element: str) -> TensorMap:
    """Create the tensor map of an operand for a layout in shared memory."""
    return boxed(
        _as_held(array, layout.major), layout.box, layout.swizzle, _MAP_TYPES.get((element, layout.element_bits))
    )


def pixel_map(images: Any, window: Window, layout: OperandLayout, element: str) -> TensorMap:
    """Create the im2col map of images for a layout in shared memory: the positions of a filter's first tap."""
    buffer, (lower, upper) = buffer_of(images), window.corners
    return TensorMap(
        images,
        box=layout.box,
        swizzle=layout.swizzle,
        strides=(*_strides(buffer)[:-1], buffer.item),
        dtype=_MAP_TYPES.get((element, layout.element_bits)),
        element_strides=(1, *window.stride, 1),
        mode="im2col",
        lower_corner=lower,
        upper_corner=upper,
    )


def filter_map(filters: Any, layout: OperandLayout, element: str) -> TensorMap:
    """Create the tensor map of filters for a layout in shared memory: boxes of one tap."""
    rows, channels = layout.box
    return boxed(filters, (rows, 1, 1, channels), layout.swizzle, _MAP_TYPES.get((element, layout.element_bits)))
