"""Whether the machine and our kernels can do what a configuration says: every rule that it breaks, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from warploom.diagnostics import Diag
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.fragments import MOVE_REGISTER_LIMIT, TENSOR_MOVES
from warploom.hardware.mma_shapes import TRANSPOSED_BYTE_N
from warploom.hardware.swizzles import GRANULE, SWIZZLES
from warploom.hardware.synchronisation import REGISTERS_PER_THREAD
from warploom.hardware.tensor_maps import BOX_ROW_ALIGNMENT, STRIDE_ALIGNMENT
from warploom.hardware.tmem import SMALLEST_ALLOCATION
from warploom.structured.config.output import MACHINE
from warploom.structured.config.problem import Problem
from warploom.structured.config.shared_memory import ceil_div
from warploom.structured.config.sm100 import MatmulConfig
from warploom.structured.config.sm100_fields import INPUT_TYPES, SCALED_INPUT_TYPES, said
from warploom.structured.config.sm100_scaled import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig

Broken = Iterator[tuple[str, str]]
"""Fields and why their values cannot be."""

_NARROW = ("e4m3", "e5m2")
_WHOLE_ROWS_OF_SCALES = (64, 128, 192, 256)
_SCALES_THROUGH_REGISTERS = (8, 16, 32)
_PER_K = "every K tile has an accumulator and scale factors of its own"
_SUMMED = "only plain matmul sums splits up"
_OWN_ROWS = "tiles are clipped to their group, which an epilogue load knows nothing of"

FIXED: Mapping[str, Mapping[str, tuple[object, str]]] = {
    "bmm": {"num_split_k": (1, "batches and splits are both counted along z of the grid")},
    "gmm": {
        "num_split_k": (1, _SUMMED),
        "use_tma_epilogue_load": (False, _OWN_ROWS),
        "scheduler": ("static", "groups are known on the device only"),
        "prefetch_tiles_n": (0, "which weights a tile needs is known on the device only"),
    },
    "blockwise_fp8": {
        "num_split_k": (1, _SUMMED),
        "AB_swapped": (False, "scales of A go with rows of the accumulator"),
        "k_group_size": (1, _PER_K),
        "use_tma_epilogue_load": (False, "the epilogue sums up in registers and has none left"),
        "prefetch_tiles_n": (0, "a stage is filled as a whole"),
    },
    "block_scaled": {
        "num_split_k": (1, _SUMMED),
        "k_group_size": (1, "every K tile has scale factors of its own"),
        "use_tma_epilogue_load": (False, "only plain matmul loads for its epilogue"),
        "prefetch_tiles_n": (0, "a stage is filled as a whole"),
    },
}
"""What the modes of a family must be, and why."""

_OF_PAIRS: Mapping[str, tuple[object, str]] = {
    "AB_swapped": (False, "both accumulators of a pair are in one thread along N"),
    "num_split_k": (1, _SUMMED),
    "use_tma_epilogue_load": (False, "an epilogue load brings tiles as wide as the accumulator"),
}
"""What the modes of pairs must be, and why."""
_PATTERN_ROWS = 8

_FAMILIES = {
    "grouped_blockwise_fp8": ("gmm", "blockwise_fp8"),
    "grouped_block_scaled": ("gmm", "block_scaled"),
}
"""Families that are two at once."""


def _types(config: MatmulConfig) -> Broken:
    scaled = isinstance(config, BlockScaledMatmulConfig)
    blockwise = isinstance(config, BlockwiseFP8MatmulConfig)
    allowed = SCALED_INPUT_TYPES if scaled else _NARROW if blockwise else INPUT_TYPES
    for name in ("a_type", "b_type"):
        if getattr(config, name) not in allowed:
            yield name, f"{config.family} multiplies {', '.join(allowed)}"
    if config.b_type != config.a_type and not {config.a_type, config.b_type} <= set(_NARROW):
        yield "b_type", f"must be A's, which is {config.a_type}; only e4m3 and e5m2 go together"


def _majors(config: MatmulConfig) -> Broken:
    for operand in "ab":
        if getattr(config, f"{operand}_major") == "mn" and not config.mma.transpose:
            yield f"{operand}_major", f"kind::{config.mma_kind} takes K-major operands only"
    tokens = "b_major" if config.AB_swapped else "a_major"
    if config.is_grouped and getattr(config, tokens) == "mn":
        yield tokens, f"groups begin at any row, and TMA copies rows from multiples of {STRIDE_ALIGNMENT} bytes on"


def _mma_shape(config: MatmulConfig) -> Broken:
    kind, group = config.mma, config.cta_group
    m, n, k = config.mma_shape
    where = f"kind::{kind.name} with cta_group {group}"
    if m not in kind.m[group]:
        yield "mma_shape", f"M is {m}; {where} has {', '.join(map(str, kind.m[group]))}"
    if n not in kind.n[group]:
        legal = kind.n[group]
        yield "mma_shape", f"N is {n}; {where} has {legal[0]} to {legal[-1]} in steps of {legal[1] - legal[0]}"
    elif config.b_major == "mn" and kind.element_bits == 8 and n not in TRANSPOSED_BYTE_N[group]:
        yield "mma_shape", f"N is {n}; an N-major 8-bit B has multiples of {TRANSPOSED_BYTE_N[group][0]}"
    if k != kind.k:
        yield "mma_shape", f"K is {k}; {where} has {kind.k}"


def _cluster(config: MatmulConfig) -> Broken:
    columns, rows, depth = config.cluster_shape
    size, most = columns * rows * depth, MACHINE.cluster_size_nonportable
    if depth != 1:
        yield "cluster_shape", "z must be 1: batches and splits share no operands"
    if size > most:
        yield "cluster_shape", f"has {size} CTAs; {MACHINE.target} has clusters of {most} at most"
    if columns % config.cta_group:
        yield "cluster_shape", f"x must be a multiple of cta_group, which is {config.cta_group}: pairs lie along x"
        return
    for operand, tile_rows, peers in (("a", config.BM, rows), ("b", config.b_rows, columns // config.cta_group)):
        major = getattr(config, f"{operand}_major")
        sliced = tile_rows if major == "k" else config.BK
        if sliced % peers:
            what = f"{sliced} {'rows' if major == 'k' else 'of K'} of {operand.upper()}"
            yield "cluster_shape", f"{peers} CTAs cannot load equal parts of {what}"
    if config.is_grouped and config.cluster_shape != (config.cta_group, 1, 1):
        yield "cluster_shape", f"must be {(config.cta_group, 1, 1)}: groups end where they end, and share no tiles"


def _input_swizzles(config: MatmulConfig) -> Broken:
    for operand, rows in (("a", config.BM), ("b", config.b_rows)):
        name, swizzle = f"{operand}_swizzle", SWIZZLES[getattr(config, f"{operand}_swizzle")]
        across = getattr(config, f"{operand}_major") == "mn"
        row_bytes = (rows if across else config.BK) * config.mma.element_bits // 8
        if swizzle.sm100_code is None:
            yield name, "the tensor core has no such mode"
        elif (swizzle.name == "128B_32B_atom") != (across and config.mma_kind == "tf32"):
            yield name, "128B_32B_atom is for MN-major 32-bit operands, which have no other"
        if row_bytes % (swizzle.span or GRANULE):
            yield name, f"a row of the tile has {row_bytes} bytes, which is not whole patterns"


def _output_tile(config: MatmulConfig) -> Broken:
    epilogue, shape = config.epilogue, config.output_tile_shape
    name = "output_tile_shape"
    rows = shape[1 if config.AB_swapped else 0]
    wanted = MACHINE.tensor_lanes if config.cta_group == 2 else config.MMA_M
    most = MOVE_REGISTER_LIMIT // epilogue.fragment_size
    if rows != wanted:
        yield name, f"must have the accumulator's {wanted} rows"
    columns = config.accumulator_columns // (2 if config.paired else 1)
    if columns % config.stageN:
        yield name, f"strips of {config.stageN} columns do not divide the accumulator's {columns}"
    if epilogue.rep * 8 != config.stageN or epilogue.rep & (epilogue.rep - 1) or not 1 <= epilogue.rep <= most:
        yield name, f"a strip of {config.stageN} columns is no tcgen05.ld: 8 times a power of two up to {most}"
    row_bytes = shape[1] * config.c_bytes
    if config.use_tma_store and row_bytes % BOX_ROW_ALIGNMENT:
        yield name, f"a row has {row_bytes} bytes; TMA stores multiples of {BOX_ROW_ALIGNMENT}"
    if row_bytes % (SWIZZLES[config.c_swizzle].span or 1):
        yield "c_swizzle", f"a row of the output tile has {row_bytes} bytes, which is not whole patterns"
    if not config.stages_outputs:
        yield "output_types", f"a row of {shape[1]} elements; TMA stores multiples of {BOX_ROW_ALIGNMENT} bytes"
    if config.output_types and not config.use_tma_store:
        yield "output_types", "they go with C, which is not stored by TMA"
    part = config.epilogue_load_elements * config.c_bytes
    if config.epilogue_is_1d and part % GRANULE:
        yield "epilogue_is_1d", f"a tile's part of the row has {part} bytes; threads load {GRANULE} at a time"
    loads_tiles = config.use_tma_epilogue_load and not config.epilogue_is_1d
    loaded = (config.BM if config.AB_swapped else config.stageN) * config.c_bytes
    if loads_tiles and loaded % (SWIZZLES[config.epi_load_swizzle].span or BOX_ROW_ALIGNMENT):
        yield "epi_load_swizzle", f"a row of the loaded tile has {loaded} bytes, which is not whole patterns"


def _tensor_memory(config: MatmulConfig) -> Broken:
    columns, least, most = config.tensor_memory_columns, SMALLEST_ALLOCATION, MACHINE.tensor_columns
    stages, used = config.num_accum_pipeline_stages, config.columns_used(config.num_pipeline_stages)
    if columns & (columns - 1) or not least <= columns <= most:
        yield "tensor_memory_columns", f"an allocation is a power of two from {least} to {most}"
    if stages > 1 and config.stage_stride_cols < config.accumulator_columns:
        what = f"{config.stage_stride_cols} columns apart, accumulators of {config.accumulator_columns} overlap"
        yield "num_accum_pipeline_stages", what
    elif used > columns:
        yield "num_accum_pipeline_stages", f"{used} columns of tensor memory are used and {columns} allocated"


def _shared_memory(config: MatmulConfig) -> Broken:
    stages, most = config.num_pipeline_stages, MACHINE.shared_per_block
    if stages < 1:
        yield "num_pipeline_stages", "not one group of input stages fits into shared and tensor memory"
    if stages % config.k_group_size:
        yield "num_pipeline_stages", f"must be a multiple of k_group_size, which is {config.k_group_size}"
    if config.shared_bytes > most:
        arrays = config.shared_arrays(stages, epilogue_load=config.use_tma_epilogue_load)
        largest = ", ".join(f"{array.name} {array.bytes}" for array in arrays if array.bytes >= 1024)
        what = f"{config.shared_bytes} bytes of shared memory are needed ({largest}) and {MACHINE.target} has {most}"
        yield "num_pipeline_stages", what


def fixed_modes(config: MatmulConfig) -> dict[str, tuple[object, str]]:
    """The fields that have one value only in this family, and why."""
    parts = _FAMILIES.get(config.family, (config.family,))
    return {name: row for part in parts for name, row in FIXED.get(part, {}).items()}


def _modes(config: MatmulConfig) -> Broken:
    for name, (only, reason) in fixed_modes(config).items():
        if getattr(config, name) != only:
            yield name, f"must be {only!r} in {config.family}: {reason}"
    if config.scheduler == "static" and config.num_clc_pipeline_stages:
        yield "num_clc_pipeline_stages", "a static scheduler asks for no work: must be 0"
    if config.prefetch_tiles_n > config.num_group_stages:
        what = f"the input pipeline has {config.num_group_stages} stages; the load role would wait for itself"
        yield "prefetch_tiles_n", what
    if config.num_split_k > 1 and config.use_tma_epilogue_load:
        yield "use_tma_epilogue_load", "only the last split stores; the others would leave loaded tiles behind"
    if config.epilogue_is_1d and not config.use_tma_epilogue_load:
        yield "epilogue_is_1d", "there is no epilogue load; set use_tma_epilogue_load"
    if config.gemm_kind == "block_scaled_1d2d_fp8" and not isinstance(config, BlockwiseFP8MatmulConfig):
        yield "gemm_kind", "needs a BlockwiseFP8MatmulConfig"


def _pairs(config: MatmulConfig) -> Broken:
    if not config.paired:
        return
    if config.family not in ("gemm", "bmm", "gmm"):
        yield "paired", f"{config.family} has no pairs"
    for name, (only, reason) in _OF_PAIRS.items():
        if getattr(config, name) != only:
            yield name, f"must be {only!r} with pairs: {reason}"
    if config.epilogue.is_folded:
        yield "mma_shape", f"M is {config.MMA_M} of two CTAs: the columns of a pair would be in different lanes"
    if config.tile_columns % _PATTERN_ROWS:
        yield "mma_shape", f"N is {config.MMA_N}; two matrices of pairs have multiples of {_PATTERN_ROWS} each"


def _block_scales(config: MatmulConfig) -> Broken:
    if not isinstance(config, BlockScaledMatmulConfig):
        return
    kind, m, n = config.mma, config.MMA_M, config.MMA_N
    if (config.a_type == "e2m1") != (kind.element_bits == 4):
        yield "scaling_kind", f"kind::{kind.name} does not hold {config.a_type} as shared memory does"
    vectors = (kind.scale_vectors or {}).get(config.scale_type, ())
    if not vectors:
        yield "scale_type", f"kind::{kind.name} has {', '.join(kind.scale_vectors or ())}"
    elif config.vec_sf_size not in {kind.k // count for count in vectors}:
        blocks = ", ".join(str(kind.k // count) for count in vectors)
        yield "vec_sf_size", f"kind::{kind.name} with {config.scale_type} has blocks of {blocks}"
    if m != 128 * config.cta_group:
        yield "mma_shape", f"M is {m}; scale factors come for 128 rows of each CTA: {128 * config.cta_group}"
    legal = (*(_SCALES_THROUGH_REGISTERS if config.is_gmm else ()), *_WHOLE_ROWS_OF_SCALES)
    if n not in legal:
        yield "mma_shape", f"N is {n}; scale factors of {config.family} reach it for {', '.join(map(str, legal))}"
    if config.is_gmm and config.cta_group == 2 and not config.AB_swapped:
        yield "AB_swapped", "a pair of CTAs shares the rows of weights, not of a group's tokens: must be True"
    if config.is_gmm and config.cta_group == 2 and config.is_small_bn:
        yield "mma_shape", f"N is {n}; scale factors that go through registers serve one CTA"


def _blockwise_scales(config: MatmulConfig) -> Broken:
    if not isinstance(config, BlockwiseFP8MatmulConfig):
        return
    if config.scale_type not in ("f32", "bf16"):
        yield "scale_type", "must be f32 or bf16"
    if config.scale_granularity % TENSOR_MOVES["16x256b"].columns:
        yield "scale_granularity", "must be a multiple of 8: columns that are loaded together have one scale"
    registers = config.promotion_registers
    if registers > REGISTERS_PER_THREAD:
        what = f"the epilogue sums up in registers: {registers} of each thread, which has {REGISTERS_PER_THREAD}"
        yield "mma_shape", what


CONFIG_RULES: tuple[Callable[[MatmulConfig], Broken], ...] = (
    _types,
    _majors,
    _mma_shape,
    _cluster,
    _input_swizzles,
    _output_tile,
    _tensor_memory,
    _shared_memory,
    _modes,
    _pairs,
    _block_scales,
    _blockwise_scales,
)


def _sizes(config: MatmulConfig, problem: Problem) -> Broken:
    for name in ("m", "n", "k", "batch"):
        if getattr(problem, name) < 1:
            yield name, "must be at least 1"


def _strides(config: MatmulConfig, problem: Problem) -> Broken:
    """TMA steps from row to row by whole 16 bytes."""
    owners = ("b", "a") if config.AB_swapped else ("a", "b")
    rows = {"a": "m", "b": "n"}
    moved = [
        (owner, "k" if getattr(config, f"{operand}_major") == "k" else rows[owner], config.mma.element_bits)
        for operand, owner in zip("ab", owners, strict=True)
    ]
    if config.use_tma_store or (config.use_tma_epilogue_load and not config.epilogue_is_1d):
        moved.append(("c", "n", ELEMENT_TYPES[config.c_type].storage_bits))
    for owner, dimension, bits in moved:
        asked = getattr(problem, f"{owner}_stride")
        name = dimension if asked is None else f"{owner}_stride"
        stride = getattr(problem, name)
        if asked is not None and asked < getattr(problem, dimension):
            yield name, f"rows of {owner.upper()} have {getattr(problem, dimension)} elements and would overlap"
        if stride * bits % (STRIDE_ALIGNMENT * 8):
            what = f"rows of {owner.upper()} are {stride * bits / 8:g} bytes apart; TMA needs a multiple of"
            yield name, f"{what} {STRIDE_ALIGNMENT}"


def _k_tiles(config: MatmulConfig, problem: Problem) -> Broken:
    groups = ceil_div(config.k_tiles(problem.k), config.k_group_size)  # the copy engine fills up the last with zeros
    if groups < config.num_split_k:
        yield "k", f"has {groups} groups of tiles; each of {config.num_split_k} splits (num_split_k) needs one"
    if isinstance(config, BlockScaledMatmulConfig) and problem.k % config.vec_sf_size:
        yield "k", f"must be a multiple of vec_sf_size, which is {config.vec_sf_size}"


def _grid(config: MatmulConfig, problem: Problem) -> Broken:
    if problem.batch > 1 and config.num_split_k > 1:
        yield "batch", f"batches and splits (num_split_k={config.num_split_k}) are both counted along z of the grid"
    if problem.batch > 1 and config.is_grouped:
        yield "batch", "groups are the batch already"
    if config.scheduler == "static":  # a CTA for each place on the GPU counts through the tiles
        return
    across = ("n", "m", "batch") if config.AB_swapped else ("m", "n", "batch")
    for name, blocks, most in zip(across, config.grid(problem), MACHINE.largest_grid, strict=True):
        if blocks > most:
            yield name, f"needs {blocks} CTAs along one dimension of the grid, which has {most}"


PROBLEM_RULES: tuple[Callable[[MatmulConfig, Problem], Broken], ...] = (_strides, _k_tiles, _grid)


def violations(config: MatmulConfig, problem: Problem | None = None) -> list[str]:
    """Every rule that a configuration breaks, by itself and for a problem: `field=value: reason`."""
    found = [_told(config, broken) for rule in CONFIG_RULES for broken in rule(config)]
    if problem is not None:
        sizes = [_told(problem, broken) for broken in _sizes(config, problem)]
        rules = () if sizes else PROBLEM_RULES
        found += sizes + [_told(problem, broken) for rule in rules for broken in rule(config, problem)]
    return found


def _told(owner: Any, broken: tuple[str, str]) -> str:
    name, reason = broken
    return said(name, getattr(owner, name), reason)


def validate(config: MatmulConfig, problem: Problem | None = None) -> None:
    """Raise `BAD_CONFIG` with every violation, if there is one."""
    found = violations(config, problem)
    if found:
        raise Diag.BAD_CONFIG.error(count=len(found), what="; ".join(found))
