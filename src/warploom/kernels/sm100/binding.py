"""From arrays to a launch: tensor maps, grid and arguments of the kernel that a configuration names.

Arrays are NumPy's, or anything that `TensorMap` takes; batches stand in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from warploom.facts.swizzles import GRANULE
from warploom.facts.tensor_maps import ADDRESS_ALIGNMENT, STRIDE_ALIGNMENT, STRIDE_LIMIT
from warploom.kernels.sm100.block_scaled import block_scaled
from warploom.kernels.sm100.blockwise_fp8 import blockwise_fp8
from warploom.kernels.sm100.grouped import grouped, grouped_grid
from warploom.kernels.sm100.matmul import matmul
from warploom.kernels.sm100.parts import layouts
from warploom.kernels.sm100.residual import residual
from warploom.kernels.sm100.split_k import split_k
from warploom.ptx.arrays import Buffer, buffer_of
from warploom.ptx.launch import Launch, Triple
from warploom.ptx.tensor_map import TensorMap
from warploom.structured.block_scaled import scale_layouts
from warploom.structured.config import BlockScaledMatmulConfig, MatmulConfig, Problem
from warploom.structured.config.output import MACHINE
from warploom.structured.epilogue import Epilogue
from warploom.structured.epilogue_loads import matrix_box
from warploom.structured.operand import OperandLayout
from warploom.structured.split_k import split_k_workspace
from warploom.structured.tile_scheduler import launch_grid
from warploom.structured.writer_geometry import c_box
from warploom.trace.kernel import KernelFunction

_MAP_TYPES = {"tf32": "tf32", "e2m1": "16u4_align8b"}
"""What a map says of its elements, where the array does not: TMA rounds to tf32, and counts values of four bits."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A product D = epilogue(A·Bᵀ) as the caller sees it: A is (m, k), B is (n, k), D is (m, n).

    Groups have a matrix of B each. A and B are as `major_of` wants them; of 4-bit elements two are in a byte.
    """

    config: MatmulConfig
    problem: Problem
    a: Any
    b: Any
    d: Any
    epilogue: Epilogue = field(default_factory=Epilogue)
    operands: Mapping[str, Any] = field(default_factory=dict)
    """What the epilogue reads, by name."""
    c: Any = None
    """What the epilogue adds by a load of its own: a matrix, or a row where `epilogue_is_1d`."""
    a_scale: Any = None
    b_scale: Any = None
    """Blockwise: (K tiles, m) and (blocks of n, K tiles). Block-scaled: chunks as `interleave_scales` makes them."""
    ends: Any = None
    """Grouped: the rows behind each group."""


@dataclass(frozen=True)
class Family:
    """A kernel and how its arguments follow from a call."""

    kernel: KernelFunction
    arguments: Callable[[Call], tuple[Any, ...]]
    grid: Callable[[Call], Triple]


def bind(call: Call) -> Launch:
    """The launch of a call."""
    config, family = call.config, FAMILIES[family_of(call.config)]
    return family.kernel.bind(
        *family.arguments(call),
        grid=family.grid(call),
        block=(config.threads, 1, 1),
        cluster=config.cluster_shape,
        config=config,
        epilogue=call.epilogue,
    )


def family_of(config: MatmulConfig) -> str:
    """The row of `FAMILIES` that a configuration is of."""
    if config.family in ("gemm", "bmm"):
        if config.num_split_k > 1:
            return "split_k"
        if config.use_tma_epilogue_load:
            return "epilogue_load"
    return config.family


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


def _map(array: Any, box: tuple[int, ...], swizzle: str = "none", dtype: str | None = None) -> TensorMap:
    """A tensor map of a matrix, or of several: then a box is one of them deep."""
    buffer = buffer_of(array)
    front = len(buffer.shape) - len(box)
    strides = (*_strides(buffer)[:-1], buffer.item)
    return TensorMap(array, box=(*(1,) * front, *box), swizzle=swizzle, strides=strides, dtype=dtype)


def _operand_map(array: Any, layout: OperandLayout, element: str) -> TensorMap:
    return _map(_as_held(array, layout.major), layout.box, layout.swizzle, _MAP_TYPES.get(element))


def _swapped(call: Call, first: Any, second: Any) -> tuple[Any, Any]:
    """Something of A and of B, as the kernel sees them."""
    return (second, first) if call.config.AB_swapped else (first, second)


def _factors(call: Call) -> tuple[TensorMap, TensorMap]:
    """The maps of A and B."""
    config = call.config
    a, b = _swapped(call, call.a, call.b)
    a_layout, b_layout = layouts(config)
    return _operand_map(a, a_layout, config.a_type), _operand_map(b, b_layout, config.b_type)


def _result(call: Call) -> Any:
    """D as a tensor map, or itself where threads store it."""
    config = call.config
    if config.use_tma_store and call.epilogue.store is None:
        return _map(call.d, c_box(config), config.c_swizzle)
    return call.d


def _rest(call: Call) -> tuple[Any, ...]:
    """What most kernels take last: the sizes, and what the epilogue reads."""
    problem = call.problem
    return (problem.m, problem.n, problem.k, problem.batch, dict(call.operands))


def _plain(call: Call) -> tuple[Any, ...]:
    return (*_factors(call), _result(call), *_rest(call))


def _loading(call: Call) -> tuple[Any, ...]:
    config = call.config
    added = call.c if config.epilogue_is_1d else _map(call.c, matrix_box(config), config.epi_load_swizzle)
    return (*_factors(call), added, _result(call), *_rest(call))


def _split(call: Call) -> tuple[Any, ...]:
    needed, problem = split_k_workspace(call.config, call.problem), call.problem
    workspace = np.empty((needed.tiles, prod(needed.shape[1:])), np.float32)
    locks = np.zeros(needed.tiles, np.int32)
    sizes = (problem.m, problem.n, problem.k)
    return (*_factors(call), _result(call), workspace, locks, *sizes, dict(call.operands))


def _grouped(call: Call) -> tuple[Any, ...]:
    problem = call.problem
    return (*_factors(call), _result(call), call.d, call.ends, None, None, problem.n, problem.k, dict(call.operands))


def _blockwise(call: Call) -> tuple[Any, ...]:
    scales = (_map(call.a_scale, (1, call.config.BM)), call.b_scale)
    return (*_factors(call), *scales, _result(call), *_rest(call))


def _block_scaled(call: Call) -> tuple[Any, ...]:
    config = call.config
    assert isinstance(config, BlockScaledMatmulConfig)
    chunks = zip(_swapped(call, call.a_scale, call.b_scale), scale_layouts(config), strict=True)
    scales = (_map(each, layout.box) for each, layout in chunks)
    return (*_factors(call), *scales, _result(call), *_rest(call))


def _tiles(call: Call) -> Triple:
    return launch_grid(call.config, call.problem, MACHINE.sms)


def _tiles_of_groups(call: Call) -> Triple:
    return grouped_grid(call.config, call.problem.m, len(call.ends), call.problem.n, MACHINE.sms)


FAMILIES: Mapping[str, Family] = {
    "gemm": Family(matmul, _plain, _tiles),
    "bmm": Family(matmul, _plain, _tiles),
    "epilogue_load": Family(residual, _loading, _tiles),
    "split_k": Family(split_k, _split, _tiles),
    "gmm": Family(grouped, _grouped, _tiles_of_groups),
    "blockwise_fp8": Family(blockwise_fp8, _blockwise, _tiles),
    "block_scaled": Family(block_scaled, _block_scaled, _tiles),
}
"""Every kernel of the library, by family."""
