"""The Hopper launch of a call: tensor maps, grid and arguments of the kernel that a configuration selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from warploom.hardware.targets import ctas_at_once
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.arrays import scratch
from warploom.host.launch import Launch, Triple
from warploom.host.tensor_map import TensorMap
from warploom.kernels.call import Call, Family, boxed
from warploom.kernels.sm90.blockwise_fp8 import blockwise_fp8
from warploom.kernels.sm90.grouped import grouped
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
        grid=family.grid(call, ctas_at_once(sms or MACHINE.sms, prod(config.cluster_shape))),
        block=(config.threads, 1, 1),
        cluster=_cluster(config),
        config=config,
        epilogue=call.epilogue,
        **call.auxiliary_arguments(config.sliced.output_tile_shape, _layouts(config)[1]),
        **family.options(call),
    )
    return replace(launch, dependent=config.dependent)


def family_of(call: _Call) -> str:
    """Return the key in `FAMILIES` of a call."""
    if call.ends is not None:
        return "grouped"
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
    return -(-rows // config.BM), -(-columns // config.tile_columns)


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
    return a, b.halved if config.gated else b


def _loads(call: _Call) -> dict[str, TensorMap]:
    """Return the tensor maps that TMA loads for the epilogue."""
    return {"residual": _staged(call.c, call.config)} if call.config.residual_in_place else {}


def _plain(call: _Call) -> tuple[Any, ...]:
    problem = call.problem
    sizes = (problem.m, problem.n, *_tiles(call), problem.batch, _k_tiles(call))
    return (*_operand_maps(call), _result(call), *sizes, _loads(call), dict(call.operands))


def _split(call: _Call) -> tuple[Any, ...]:
    problem, config, (down, along) = call.problem, call.config, _tiles(call)
    held: dict[str, Any] = {}
    if not config.split_in_cluster:
        elements = down * along * config.num_split_k * config.BM * config.BN
        held["workspace"] = scratch((elements,), np.float32)
        held["counters"] = scratch((down * along,), np.uint32, starts_at_zero=True)
    sizes = (problem.m, problem.n, down, along, _k_tiles(call))
    return (*_operand_maps(call), _result(call), *sizes, _loads(call), held, dict(call.operands))


def _streamed(call: _Call) -> tuple[Any, ...]:
    """Return the arguments of a plain GEMM, with a workspace for the partial tile of each CTA."""
    config, (*given, operands) = call.config, _plain(call)
    ctas = prod(_streaming(call, MACHINE.sms))
    held = {
        "workspace": scratch((ctas * config.BM * config.BN,), np.float32),
        "flags": scratch((ctas * config.consumers,), np.uint32, starts_at_zero=True),
    }
    return (*given, held, operands)


def _grouped(call: _Call) -> tuple[Any, ...]:
    places = (_result(call), call.d, call.ends, call.experts, call.expert_scales)
    return (*_operand_maps(call), *places, call.problem.n, _k_tiles(call), dict(call.operands))


def _separate_weights(call: _Call) -> dict[str, Any]:
    """Return weights that are allocated separately, and room for a tensor map per CTA and group."""
    if call.weights is None:
        return {}
    ctas = prod(_groups(call, 2 * MACHINE.sms))  # no GPU of this target has more
    return {"weights": dict(call.weights), "maps": scratch((ctas * len(call.ends), MAP_BYTES), np.uint8)}


def _blockwise(call: _Call) -> tuple[Any, ...]:
    problem = call.problem
    scales = (boxed(call.a_scale, (1, call.config.BM)), call.b_scale)
    sizes = (problem.m, problem.n, *_tiles(call), problem.batch, _k_tiles(call))
    return (*_operand_maps(call), *scales, _result(call), *sizes, dict(call.operands))


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
    shape = (x * config.BM, y * config.tile_columns)
    tall, wide = (shape[1], shape[0]) if config.AB_swapped else shape
    tiles = (problem.m // tall + min(len(call.ends), problem.m)) * -(-problem.n // wide)
    return (x * max(min(tiles, sms // (x * y)), 1), y, 1)


FAMILIES: Mapping[str, Family[HopperConfig]] = {
    "matmul": Family(matmul, _plain, _persistent),
    "split_k": Family(matmul_split_k, _split, _all_splits),
    "stream_k": Family(matmul_stream_k, _streamed, _streaming),
    "tf32x3": Family(tf32x3, _plain, _persistent),
    "grouped": Family(grouped, _grouped, _groups, _separate_weights),
    "blockwise_fp8": Family(blockwise_fp8, _blockwise, _persistent),
}
"""Every kernel for Hopper, by family."""
