"""From arrays to a launch: tensor maps, grid and arguments of the kernel that a configuration names.

Arrays are NumPy's, or anything that `TensorMap` takes; batches stand in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from warploom.facts.tensor_maps import ADDRESS_ALIGNMENT, STRIDE_ALIGNMENT, STRIDE_LIMIT
from warploom.kernels.sm100.matmul import matmul
from warploom.kernels.sm100.parts import layouts
from warploom.ptx.launch import Launch
from warploom.ptx.tensor_map import Buffer, TensorMap, buffer_of
from warploom.structured.config import MatmulConfig, Problem
from warploom.structured.config.output import MACHINE
from warploom.structured.epilogue import Epilogue
from warploom.structured.operand import OperandLayout
from warploom.structured.tile_scheduler import launch_grid
from warploom.structured.writer_geometry import c_box
from warploom.trace.kernel import KernelFunction


@dataclass(frozen=True, kw_only=True)
class Call:
    """A product D = epilogue(A·Bᵀ) as the caller sees it: A is (m, k), B is (n, k), D is (m, n)."""

    config: MatmulConfig
    problem: Problem
    a: Any
    b: Any
    d: Any
    epilogue: Epilogue = field(default_factory=Epilogue)
    operands: Mapping[str, Any] = field(default_factory=dict)
    """What the epilogue reads, by name."""


Arguments = Callable[[Call], tuple[Any, ...]]


@dataclass(frozen=True)
class Family:
    """A kernel and how its arguments follow from a call."""

    kernel: KernelFunction
    arguments: Arguments


def bind(call: Call) -> Launch:
    """The launch of a call."""
    config, family = call.config, FAMILIES[family_of(call.config)]
    return family.kernel.bind(
        *family.arguments(call),
        grid=launch_grid(config, call.problem, MACHINE.sms),
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
    """Whether TMA can write rows of an array."""
    return _is_legal(buffer_of(array), -1)


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


def _map(array: Any, box: tuple[int, int], swizzle: str, dtype: str | None = None) -> TensorMap:
    """A tensor map of a matrix, or of several: then a box is one of them deep."""
    buffer = buffer_of(array)
    strides = (*_strides(buffer)[:-1], buffer.item)
    return TensorMap(array, box=(*(1,) * (len(buffer.shape) - 2), *box), swizzle=swizzle, strides=strides, dtype=dtype)


def _operand_map(array: Any, layout: OperandLayout, element: str) -> TensorMap:
    """The map of an operand; TMA rounds where tf32 is asked for, and cuts nothing off where f32 is."""
    return _map(_as_held(array, layout.major), layout.box, layout.swizzle, "tf32" if element == "tf32" else None)


def operand_maps(call: Call) -> tuple[TensorMap, TensorMap]:
    """A and B as the kernel sees them."""
    config = call.config
    first, second = (call.b, call.a) if config.AB_swapped else (call.a, call.b)
    a_layout, b_layout = layouts(config)
    return _operand_map(first, a_layout, config.a_type), _operand_map(second, b_layout, config.b_type)


def result(call: Call) -> Any:
    """D as a tensor map, or itself where threads store it."""
    config = call.config
    if config.use_tma_store and call.epilogue.store is None:
        return _map(call.d, c_box(config), config.c_swizzle)
    return call.d


def _plain(call: Call) -> tuple[Any, ...]:
    problem = call.problem
    sizes = (problem.m, problem.n, problem.k, problem.batch)
    return (*operand_maps(call), result(call), *sizes, dict(call.operands))


FAMILIES: Mapping[str, Family] = {
    "gemm": Family(matmul, _plain),
    "bmm": Family(matmul, _plain),
}
"""Every kernel of the library, by family."""
