"""The Blackwell launch of a call: tensor maps, grid and arguments of the kernel that a configuration selects."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from warploom.hardware.targets import machine
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.host.arrays import scratch
from warploom.host.launch import Launch, Triple
from warploom.host.tensor_map import TensorMap
from warploom.kernels.call import Call, Family, boxed
from warploom.kernels.sm100.block_scaled import block_scaled
from warploom.kernels.sm100.blockwise_fp8 import blockwise_fp8
from warploom.kernels.sm100.grouped import grouped, grouped_grid
from warploom.kernels.sm100.grouped_block_scaled import grouped_block_scaled
from warploom.kernels.sm100.grouped_blockwise_fp8 import grouped_blockwise_fp8
from warploom.kernels.sm100.matmul import matmul
from warploom.kernels.sm100.residual import residual
from warploom.kernels.sm100.split_k import split_k
from warploom.kernels.sm100.tf32x3 import tf32x3
from warploom.structured import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    MatmulConfig,
    OperandLayout,
    c_box,
    launch_grid,
    matrix_box,
    operand_layouts,
    split_k_workspace,
)
from warploom.structured.config.output import MACHINE
from warploom.structured.tensor_cores.block_scaled import scale_layouts

_Call = Call[MatmulConfig]


def bind(call: _Call, sms: int | None = None, *, target: str = MACHINE.target) -> Launch:
    """Create the launch of a call, for `sms` SMs, by default those of the target."""
    config, family = call.config, FAMILIES[family_of(call.config)]
    subtile = (config.stageN, config.BM) if config.transpose_c else (config.BM, config.stageN)
    return family.kernel.for_target(target).bind(
        *family.arguments(call),
        grid=family.grid(call, sms or machine(target).sms),
        block=(config.threads, 1, 1),
        cluster=config.cluster_shape,
        config=config,
        epilogue=call.epilogue,
        **call.auxiliary_arguments(subtile, call.swapped(*_layouts(config))[1]),
        **family.options(call),
    )


def family_of(config: MatmulConfig) -> str:
    """Return the key in `FAMILIES` of a configuration."""
    if config.family in ("gemm", "bmm"):
        if config.use_tma_epilogue_load:
            return "epilogue_load"
        if config.splits_k:
            return "split_k"
    return config.family


def _operand_maps(call: _Call) -> tuple[TensorMap, TensorMap]:
    """Return the tensor maps of A and B."""
    return call.operand_maps(*_layouts(call.config))


def _layouts(config: MatmulConfig) -> tuple[OperandLayout, OperandLayout]:
    """Return the layouts of each matrix: of a gate and up pair, each has half of a tile, or one CTA's whole tile."""
    a, b = operand_layouts(config)
    return a.halved if config.a_tile_rows > config.BM else a, b.halved if config.b_rows < config.BN else b


def _result(call: _Call) -> Any:
    """Return D as a tensor map, or as it is where threads store it."""
    config = call.config
    if config.use_tma_store and call.epilogue.store is None:
        return boxed(call.d, c_box(config), config.c_swizzle)
    return call.d


def _rest(call: _Call) -> tuple[Any, ...]:
    """Return the trailing arguments of most kernels: the sizes and the epilogue's operands."""
    problem = call.problem
    return (problem.m, problem.n, problem.k, problem.batch, dict(call.operands))


def _plain(call: _Call) -> tuple[Any, ...]:
    return (*_operand_maps(call), _result(call), *_rest(call))


def _source(call: _Call) -> Any:
    """Return the source of an epilogue load: a row as it is, or a tensor map of a matrix."""
    config = call.config
    return call.c if config.epilogue_is_1d else boxed(call.c, matrix_box(config), config.epi_load_swizzle)


def _loading(call: _Call) -> tuple[Any, ...]:
    return (*_operand_maps(call), _source(call), _result(call), *_rest(call))


def _workspace(call: _Call) -> dict[str, Any]:
    """Return the memory of a split K, if it is split."""
    if not call.config.splits_k:
        return {}
    needed = split_k_workspace(call.config, call.problem)
    workspace = scratch((needed.tiles, prod(needed.shape[1:])), np.float32)
    return {"workspace": workspace, "locks": scratch((needed.tiles,), np.int32, starts_at_zero=True)}


def _split(call: _Call) -> tuple[Any, ...]:
    return (*_operand_maps(call), _result(call), *_workspace(call).values(), *_rest(call))


def _split_and_source(call: _Call) -> dict[str, Any]:
    return _workspace(call) | ({"c": _source(call)} if call.config.use_tma_epilogue_load else {})


def _grouped(call: _Call) -> tuple[Any, ...]:
    problem = call.problem
    return (
        *_operand_maps(call),
        _result(call),
        call.d,
        call.ends,
        call.experts,
        call.expert_scales,
        problem.n,
        problem.k,
        dict(call.operands),
    )


def _separate_weights(call: _Call) -> dict[str, Any]:
    """Return weights that are allocated separately, and room for a tensor map per CTA and group."""
    if call.weights is None:
        return {}
    ctas = prod(_tiles_of_groups(call, 2 * MACHINE.sms))  # no GPU of this target has more
    return {"weights": dict(call.weights), "maps": scratch((ctas * len(call.ends), MAP_BYTES), np.uint8)}


def _blockwise_config(call: _Call) -> BlockwiseFP8MatmulConfig:
    assert isinstance(call.config, BlockwiseFP8MatmulConfig)
    return call.config


def _blockwise(call: _Call) -> tuple[Any, ...]:
    scales = (boxed(call.a_scale, (1, _blockwise_config(call).scaled_rows)), call.b_scale)
    return (*_operand_maps(call), *scales, _result(call), *_rest(call))


def _block_scaled(call: _Call) -> tuple[Any, ...]:
    config = call.config
    assert isinstance(config, BlockScaledMatmulConfig)
    chunks = zip(call.swapped(call.a_scale, call.b_scale), scale_layouts(config), strict=True)
    scales = (boxed(each, layout.box) for each, layout in chunks)
    return (*_operand_maps(call), *scales, _result(call), *_rest(call))


def _grouped_block_scaled(call: _Call) -> tuple[Any, ...]:
    config, problem = call.config, call.problem
    assert isinstance(config, BlockScaledMatmulConfig)
    of_a, of_b = scale_layouts(config)
    of_b = of_b.halved if config.gated else of_b
    sfa, sfb = call.swapped(call.a_scale, call.b_scale)
    up = None if call.up_scale is None else boxed(call.up_scale, of_b.box)
    scales = (boxed(sfa, of_a.box), boxed(sfb, of_b.box), up)
    groups = (call.ends, call.experts, call.expert_scales)
    places = (_result(call), call.d, *groups, problem.n, problem.k)
    return (*_operand_maps(call), *scales, *places, dict(call.operands))


def _grouped_blockwise(call: _Call) -> tuple[Any, ...]:
    problem, scales = call.problem, (boxed(call.a_scale, (1, _blockwise_config(call).scaled_rows)), call.b_scale)
    groups = (call.ends, call.experts, call.expert_scales)
    places = (_result(call), call.d, *groups, problem.n, problem.k)
    return (*_operand_maps(call), *scales, *places, dict(call.operands))


def _tiles(call: _Call, sms: int) -> Triple:
    return launch_grid(call.config, call.problem, sms)


def _tiles_of_groups(call: _Call, sms: int) -> Triple:
    return grouped_grid(call.config, call.problem.m, len(call.ends), call.problem.n, sms)


FAMILIES: Mapping[str, Family[MatmulConfig]] = {
    "gemm": Family(matmul, _plain, _tiles),
    "bmm": Family(matmul, _plain, _tiles),
    "epilogue_load": Family(residual, _loading, _tiles, _workspace),
    "split_k": Family(split_k, _split, _tiles),
    "gmm": Family(grouped, _grouped, _tiles_of_groups, _separate_weights),
    "blockwise_fp8": Family(blockwise_fp8, _blockwise, _tiles),
    "tf32x3": Family(tf32x3, _plain, _tiles, _split_and_source),
    "block_scaled": Family(block_scaled, _block_scaled, _tiles, _split_and_source),
    "grouped_blockwise_fp8": Family(grouped_blockwise_fp8, _grouped_blockwise, _tiles_of_groups),
    "grouped_block_scaled": Family(grouped_block_scaled, _grouped_block_scaled, _tiles_of_groups),
}
"""Every kernel for Blackwell, by family."""
