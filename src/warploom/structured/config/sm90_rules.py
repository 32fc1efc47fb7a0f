"""Rules that a Hopper configuration must fulfil; each yields fields and reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warploom.hardware.mma_shapes import WGMMA, WGMMA_M
from warploom.hardware.swizzles import GRANULE
from warploom.hardware.targets import MACHINES
from warploom.structured.config.base import Rule, Violations

if TYPE_CHECKING:
    from warploom.structured.config.sm90 import HopperConfig
    from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig

MACHINE = MACHINES["sm_90a"]
MAX_ACCUMULATORS = 208
"""Accumulator registers per thread that ptxas can allocate next to addresses without a spill, with 240 available."""
_MAX_N_OF_THREE = 192
"""Columns of a tile with three consumers: with 128 registers per thread ptxas rejects wider MMAs."""
_MIXABLE = (("e4m3", "e5m2"), ("f32", "tf32"))
"""Types that may be multiplied with each other; others only with themselves."""
_COLUMN_STEP = 8


def _types(config: HopperConfig) -> Violations:
    mixable = next((each for each in _MIXABLE if config.a_type in each), (config.a_type,))
    if config.b_type not in mixable:
        yield "b_type", f"must be {' or '.join(mixable)} with a_type={config.a_type!r}"


def _majors(config: HopperConfig) -> Violations:
    for operand in "ab":
        if getattr(config, f"{operand}_major") == "mn" and not WGMMA[config.multiplied].transposable:
            yield f"{operand}_major", f"is not supported: wgmma reads {config.a_type} K-major only"


def _tile(config: HopperConfig) -> Violations:
    legal = WGMMA[config.multiplied].n
    if config.BN not in legal:
        yield "tile", f"has N = {config.BN}; wgmma of {config.a_type} supports {legal[0]} to {legal[-1]} in steps of 8"
    if config.consumer_rows % WGMMA_M:
        yield "tile", f"gives a consumer {config.consumer_rows} rows; they must be a multiple of {WGMMA_M}"
    if config.accumulators > MAX_ACCUMULATORS:
        yield "tile", f"needs {config.accumulators} accumulator registers per thread (max {MAX_ACCUMULATORS})"


def _consumers(config: HopperConfig) -> Violations:
    if config.pingpong and config.consumers != 2:
        yield "consumers", "must be 2 with pingpong=True"
    if config.consumers > 2 and config.BN > _MAX_N_OF_THREE:
        yield "consumers", f"supports tiles of at most {_MAX_N_OF_THREE} columns, but the tile has {config.BN}"


def _cluster(config: HopperConfig) -> Violations:
    x, y, z = config.cluster_shape
    most = MACHINE.cluster_size_nonportable
    if z != 1:
        yield "cluster_shape", "must have z = 1: batches share no operands"
    if x * y > most:
        yield "cluster_shape", f"has {x * y} CTAs; {MACHINE.target} supports at most {most}"
    if config.BM % y or config.BN % x:
        yield "cluster_shape", f"cannot divide a tile of {config.BM} × {config.BN} equally among its CTAs"


def _stages(config: HopperConfig) -> Violations:
    stages, limit = config.num_pipeline_stages, MACHINE.shared_per_block
    if stages <= config.mmas_in_flight:
        yield "num_pipeline_stages", f"must be more than mmas_in_flight, which is {config.mmas_in_flight}"
    operand = max(config.BM, config.BN) * config.BK * config.a_bytes
    if config.receives_in_stages and stages * operand < config.partial_bytes:
        least = -(-config.partial_bytes // operand)
        yield "num_pipeline_stages", f"must be at least {least} to receive the partial accumulators of the other splits"
    needed = config.shared_bytes(stages)
    if needed > limit:
        yield "num_pipeline_stages", f"needs {needed} bytes of shared memory; {MACHINE.target} has {limit} per CTA"


def _splits(config: HopperConfig) -> Violations:
    splits = config.num_split_k
    if config.split_unit not in (2, 4):
        yield "num_split_k", f"cannot divide the {config.accumulators} accumulators of a thread into units of 2 or 4"
    if config.splits_units and (config.split_in_cluster or config.use_tma_store):
        yield "num_split_k", "needs split_in_cluster=False and use_tma_store=False: it exceeds the 8-column slices"
    if splits > 1 and config.pingpong:
        yield "num_split_k", "is not supported with pingpong=True"
    if splits > 1 and config.stream_k:
        yield "stream_k", f"is not supported with num_split_k={splits}"


def _gated(config: HopperConfig) -> Violations:
    if not config.gated:
        return
    x = 1 if config.AB_swapped else config.cluster_shape[0]
    if config.tile_columns % (_COLUMN_STEP * x):
        step = 2 * _COLUMN_STEP * x
        yield "gated", f"needs a tile width that is a multiple of {step} with cluster x = {x}, but it is {config.BN}"
    if config.gates_rows and config.consumer_rows % (2 * WGMMA_M):
        rows, step = config.consumer_rows, 2 * WGMMA_M
        yield "gated", f"gives a consumer {rows} rows; with AB_swapped they must be a multiple of {step}"
    if config.splits_units:
        columns, step = config.tile_columns, _COLUMN_STEP * config.num_split_k
        yield "num_split_k", f"needs a multiple of {step} columns of gate and of up, but a tile has {columns}"


def _precision(config: HopperConfig) -> Violations:
    if config.precision != "tf32x3":
        return
    if (config.a_type, config.b_type) != ("f32", "f32"):
        yield "a_type", "must be 'f32', as b_type, with precision='tf32x3': TMA must not round the operands"
    for name, only in (("pingpong", False), ("stream_k", False), ("gated", False), ("num_split_k", 1)):
        if getattr(config, name) != only:
            yield name, f"must be {only} with precision='tf32x3'"
    if config.mmas_in_flight:
        yield "mmas_in_flight", "must be 0 with precision='tf32x3': a stage and its small parts are released together"


def _subtiles(config: HopperConfig) -> Violations:
    columns = config.stage_columns
    if config.BN in WGMMA[config.multiplied].n and (columns % _COLUMN_STEP or config.tile_columns % columns):
        yield "stage_columns", f"must be a multiple of 8 that divides the tile's {config.tile_columns} columns"
    if not config.use_tma_store:
        return
    row_bytes = config.sliced.output_tile_shape[1] * config.c_bytes
    if row_bytes % GRANULE:
        yield "use_tma_store", f"needs subtile rows of a multiple of {GRANULE} bytes, but they have {row_bytes}"


def _auxiliary_outputs(config: HopperConfig) -> Violations:
    if config.output_types and not config.use_tma_store:
        yield "output_types", "need use_tma_store=True: auxiliary outputs are stored together with C"
    if not config.stages_outputs:
        columns = config.sliced.output_tile_shape[1]
        yield "output_types", f"have subtile rows of {columns} elements; TMA stores multiples of {GRANULE} bytes"


def _residual(config: HopperConfig) -> Violations:
    if not config.residual_in_place:
        return
    if not config.use_tma_store or config.splits_units:
        yield "residual_in_place", "needs C to be stored through shared memory"
    subtiles = config.row_subtiles
    if config.num_output_stages not in (subtiles, config.blocks * subtiles):
        legal = f"{subtiles} or {config.blocks * subtiles}" if config.blocks > 1 else str(subtiles)
        yield "num_output_stages", f"must be {legal} with residual_in_place=True: 64 rows, or the consumer's tile"


HOPPER_RULES: tuple[Rule, ...] = (
    _types,
    _majors,
    _tile,
    _consumers,
    _cluster,
    _stages,
    _splits,
    _gated,
    _precision,
    _subtiles,
    _auxiliary_outputs,
    _residual,
)
"""Rules of every Hopper configuration."""


def _scaled_types(config: HopperBlockwiseConfig) -> Violations:
    if config.a_bytes != 1:
        yield "a_type", "is not supported: block scales are for 8-bit types"
    if config.scale_granularity % _COLUMN_STEP:
        yield "scale_granularity", "must be a multiple of 8"


def _scaled_modes(config: HopperBlockwiseConfig) -> Violations:
    if config.AB_swapped:
        yield "AB_swapped", "must be False: row scales belong to A"
    if config.pingpong:
        yield "pingpong", "must be False: the consumers share a tile, so that one promotes while the other multiplies"
    if config.num_split_k > 1:
        yield "num_split_k", "must be 1 with block scales"


def _scaled_registers(config: HopperBlockwiseConfig) -> Violations:
    if config.mmas_in_flight != config.default_mmas_in_flight:
        yield "mmas_in_flight", f"must be {config.default_mmas_in_flight} for a consumer of {config.consumer_rows} rows"
    accumulators, scales = config.accumulators, config.scale_registers
    if accumulators <= MAX_ACCUMULATORS < accumulators + scales:
        needs = f"needs {accumulators} accumulator and {scales} scale registers per thread"
        yield "tile", f"{needs} (max {MAX_ACCUMULATORS}) with scale_granularity={config.scale_granularity}"


HOPPER_BLOCKWISE_RULES: tuple[Rule, ...] = (_scaled_types, _scaled_modes, _scaled_registers)
"""Rules of `HopperBlockwiseConfig` in addition."""
