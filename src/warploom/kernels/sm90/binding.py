"""The Hopper launch of a call: tensor maps, grid and arguments of the kernel that a configuration selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from warploom.hardware.targets import ctas_at_once
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.arrays import scratch
from warploom.host.launch import Launch, Triple
from warploom.host.tensor_map import TensorMap
from warploom.kernels.call import Call, Family, boxed
from warploom.kernels.sm90.blockwise_fp8 import blockwise_fp8
from warploom.kernels.sm90.grouped import grouped
from warploom.kernels.sm90.grouped_blockwise_fp8 import grouped_blockwise_fp8
from warploom.kernels.sm90.matmul import matmul
from warploom.kernels.sm90.split_k import matmul_split_k
from warploom.kernels.sm90.stream_k import matmul_stream_k
from warploom.kernels.sm90.tf32x3 import tf32x3
from warploom.structured import (
    HopperBlockwiseConfig,
    HopperConfig,
    OperandLayout,
    operand_layouts,
    persistent_grid,
    stream_grid,
)
from warploom.structured.config.sm90 import MACHINE
from warploom.structured.epilogue.staging import block_width

_Call = Call[HopperConfig]


def bind(call: _Call, sms: int | None = None) -> Launch:
    """Create the launch of a call, for `sms` SMs, by default those of the target."""
    config, family = call.config, FAMILIES[family_of(call)]
    launch = family.kernel.bind(
        *family.arguments(call),
        grid=_grid(call, sms),
        block=(config.threads, 1, 1),
        cluster=_cluster(config),
        config=config,
        epilogue=call.epilogue,
        **call.auxiliary_arguments(config.sliced.output_tile_shape, call.swapped(*_layouts(config))[1]),
        **family.options(call),
    )
    return _overlapping(launch) if config.dependent else launch


def _overlapping(launch: Launch) -> Launch:
    """Return a dependent launch, which takes more than half of an SM's shared memory if there is an SM for each CTA.

    Otherwise two of its CTAs could start on an SM that the previous grid leaves idle, while other SMs get none.
    """
    is_alone = prod(launch.grid) <= MACHINE.sms
    shared = max(launch.shared_bytes, MACHINE.shared_per_sm // 2) if is_alone else launch.shared_bytes
    return replace(launch, dependent=True, shared_bytes=shared)


def _grid(call: _Call, sms: int | None) -> Triple:
    at_once = ctas_at_once(sms or MACHINE.sms, prod(call.config.cluster_shape))
    return FAMILIES[family_of(call)].grid(call, at_once)


class RowSizes(NamedTuple):
    """The parts of a launch that depend on m, other than the rows of its arrays."""

    grid: Triple
    sizes: tuple[int, ...]
    scratch: tuple[Any, ...]


def resized(call: _Call, m: int, sms: int | None = None) -> RowSizes | None:
    """Return the parts of the launch of a call with m rows; None for calls that have more of them."""
    sizes = FAMILIES[family_of(call)].sizes
    if sizes is None or call.problem.batch > 1 or call.window or call.outputs or call.starts is not None:
        return None
    other = replace(call, problem=replace(call.problem, m=m))
    return RowSizes(_grid(other, sms), sizes(other), tuple(FAMILIES[family_of(call)].scratch(other).values()))


def family_of(call: _Call) -> str:
    """Return the key in `FAMILIES` of a call."""
    if call.ends is not None:
        return "grouped_blockwise_fp8" if isinstance(call.config, HopperBlockwiseConfig) else "grouped"
    if isinstance(call.config, HopperBlockwiseConfig):
        return "blockwise_fp8"
    if call.config.precision == "tf32x3":
        return "tf32x3"
    if call.config.stream_k:
        return "stream_k"
    return "split_k" if call.config.num_split_k > 1 else "matmul"


def tile_counts(config: HopperConfig, m: int, n: int) -> tuple[int, int]:
    """Return the tiles along M and N of the MMA, for D (m × n)."""
    rows, columns = (n, m) if config.AB_swapped else (m, n)
    return -(-rows // config.tile_rows), -(-columns // config.tile_columns)


def meeting_ctas(config: HopperConfig, m: int, n: int) -> int:
    """Return the number of CTAs that wait for each other outside a cluster: all must be resident at the same time."""
    if config.num_split_k == 1 or config.split_in_cluster:
        return 0
    down, along = tile_counts(config, m, n)
    return down * along * config.num_split_k


def _cluster(config: HopperConfig) -> Triple:
    if config.num_split_k == 1:
        return config.cluster_shape
    return (config.num_split_k, 1, 1) if config.split_in_cluster else (1, 1, 1)


def _tiles(call: _Call) -> tuple[int, int]:
    return tile_counts(call.config, call.problem.m, call.problem.n)


def _k_tiles(call: _Call) -> int:
    return -(-call.problem.k // call.config.BK)


def _staged(array: Any, config: HopperConfig) -> TensorMap:
    """Return the tensor map of a matrix that goes through the buffers of C."""
    config = config.sliced
    rows, columns = config.output_tile_shape
    return boxed(array, (rows, block_width(config.c_type, config.c_swizzle, columns)), config.c_swizzle)


def _result(call: _Call) -> Any:
    """Return D as a tensor map, or as it is where threads store it."""
    by_map = call.config.use_tma_store and call.epilogue.store is None
    return _staged(call.d, call.config) if by_map else call.d


def _operand_maps(call: _Call) -> tuple[TensorMap, TensorMap]:
    """Return the tensor maps of A and B."""
    return call.operand_maps(*_layouts(call.config))


def _layouts(config: HopperConfig) -> tuple[OperandLayout, OperandLayout]:
    """Return the layouts of each matrix: of a gate and up pair, each has half of the tile."""
    a, b = operand_layouts(config)
    return a.halved if config.gates_rows else a, b.halved if config.gated and not config.gates_rows else b


def _loads(call: _Call) -> dict[str, TensorMap]:
    """Return the tensor maps that TMA loads for the epilogue."""
    return {"residual": _staged(call.c, call.config)} if call.config.residual_in_place else {}


def _sizes(call: _Call) -> tuple[int, ...]:
    return (call.problem.m, call.problem.n, *_tiles(call), call.problem.batch, _k_tiles(call))


def _plain(call: _Call) -> tuple[Any, ...]:
    return (*_operand_maps(call), _result(call), *_sizes(call), _loads(call), dict(call.operands))


def _split_sizes(call: _Call) -> tuple[int, ...]:
    return (call.problem.m, call.problem.n, *_tiles(call), _k_tiles(call))


def _split_scratch(call: _Call) -> dict[str, Any]:
    """Return a workspace for the partial tiles of splits that meet in memory, and a counter for each tile."""
    config, tiles = call.config, prod(_tiles(call))
    if config.split_in_cluster:
        return {}
    return {
        "workspace": scratch((tiles * config.num_split_k * config.BM * config.BN,), np.float32),
        "counters": scratch((tiles,), np.uint32, starts_at_zero=True),
    }


def _split(call: _Call) -> tuple[Any, ...]:
    given = (*_operand_maps(call), _result(call), *_split_sizes(call))
    return (*given, _loads(call), _split_scratch(call), dict(call.operands))


def _stream_scratch(call: _Call) -> dict[str, Any]:
    """Return a workspace for the partial tile of each CTA, and a flag for each of its consumers."""
    config, ctas = call.config, prod(_streaming(call, MACHINE.sms))
    return {
        "workspace": scratch((ctas * config.BM * config.BN,), np.float32),
        "flags": scratch((ctas * config.consumers,), np.uint32, starts_at_zero=True),
    }


def _streamed(call: _Call) -> tuple[Any, ...]:
    *given, operands = _plain(call)
    return (*given, _stream_scratch(call), operands)


def _grouped(call: _Call) -> tuple[Any, ...]:
    places = (_result(call), call.d, call.ends, call.experts, call.expert_scales)
    return (*_operand_maps(call), *places, call.problem.n, _k_tiles(call), dict(call.operands))


def _grouped_options(call: _Call) -> dict[str, Any]:
    """Return the rows of a D to clear, weights that are allocated separately, and a tensor map per CTA and group."""
    found: dict[str, Any] = {} if call.cleared_rows is None else {"cleared_rows": call.cleared_rows}
    if call.weights is None:
        return found
    ctas = prod(_groups(call, 2 * MACHINE.sms))  # no GPU of this target has more
    return {**found, "weights": dict(call.weights), "maps": scratch((ctas * len(call.ends), MAP_BYTES), np.uint8)}


def _blockwise(call: _Call) -> tuple[Any, ...]:
    problem = call.problem
    scales = (boxed(call.a_scale, (1, call.config.BM)), call.b_scale)
    sizes = (problem.m, problem.n, *_tiles(call), problem.batch, _k_tiles(call))
    return (*_operand_maps(call), *scales, _result(call), *sizes, dict(call.operands))


def _grouped_blockwise(call: _Call) -> tuple[Any, ...]:
    scales = (boxed(call.a_scale, (1, call.config.BM)), call.b_scale)
    places = (_result(call), call.d, call.ends, call.experts, call.expert_scales)
    return (*_operand_maps(call), *scales, *places, call.problem.n, _k_tiles(call), dict(call.operands))


def _persistent(call: _Call, sms: int) -> Triple:
    return persistent_grid((*_tiles(call), call.problem.batch), call.config.cluster_shape[:2], sms)


def _streaming(call: _Call, sms: int) -> Triple:
    config, tiles = call.config, (*_tiles(call), call.problem.batch)
    return stream_grid(tiles, config.cluster_shape[:2], _k_tiles(call), min(sms, MACHINE.sms))


def _all_splits(call: _Call, sms: int) -> Triple:
    down, along = _tiles(call)
    return (call.config.num_split_k * down * along, 1, 1)


def _groups(call: _Call, sms: int) -> Triple:
    """Return a grid for the maximum number of tiles: every group may end inside one."""
    config, problem = call.config, call.problem
    x, y = config.cluster_shape[:2]
    shape = (x * config.tile_rows, y * config.tile_columns)
    tall, wide = (shape[1], shape[0]) if config.AB_swapped else shape
    tiles = (problem.m // tall + min(len(call.ends), problem.m)) * -(-problem.n // wide)
    return (x * max(min(tiles, sms // (x * y)), 1), y, 1)


FAMILIES: Mapping[str, Family[HopperConfig]] = {
    "matmul": Family(matmul, _plain, _persistent, sizes=_sizes),
    "split_k": Family(matmul_split_k, _split, _all_splits, sizes=_split_sizes, scratch=_split_scratch),
    "stream_k": Family(matmul_stream_k, _streamed, _streaming, sizes=_sizes, scratch=_stream_scratch),
    "tf32x3": Family(tf32x3, _plain, _persistent, sizes=_sizes),
    "grouped": Family(grouped, _grouped, _groups, _grouped_options),
    "grouped_blockwise_fp8": Family(grouped_blockwise_fp8, _grouped_blockwise, _groups),
    "blockwise_fp8": Family(blockwise_fp8, _blockwise, _persistent),
}
"""Every kernel for Hopper, by family."""
