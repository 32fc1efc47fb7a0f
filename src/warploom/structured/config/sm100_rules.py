"""Rules that a Blackwell configuration must fulfil, by itself and for a problem; each yields fields and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.fragments import MOVE_REGISTER_LIMIT, TENSOR_MOVES
from warploom.hardware.mma_shapes import TRANSPOSED_BYTE_N
from warploom.hardware.swizzles import GRANULE, SWIZZLES
from warploom.hardware.tensor_maps import BOX_ROW_ALIGNMENT, STRIDE_ALIGNMENT
from warploom.hardware.tmem import SCALE_CHUNK_ROWS, SMALLEST_ALLOCATION
from warploom.structured.config.base import ProblemRule, Rule, Violations
from warploom.structured.config.output import MACHINE
from warploom.structured.config.problem import Problem
from warploom.structured.config.shared_memory import ceil_div

if TYPE_CHECKING:
    from warploom.structured.config.sm100 import MatmulConfig
    from warploom.structured.config.sm100_scaled import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig

_MIXABLE: Mapping[str, frozenset[str]] = {
    "f8f6f4": frozenset({"e4m3", "e5m2"}),
    "mxf8f6f4": frozenset({"e4m3", "e5m2", "e2m1"}),
}
"""Types that may be multiplied with each other, by MMA kind."""
_PATTERN_ROWS = 8
_PER_K_TILE = "each K tile has its own accumulator and scale factors"
_SPLIT_FAMILIES = "K is split in dense and block-scaled GEMMs only"
_CLIPPED = "tiles are clipped to their group, which epilogue loads do not support"

FIXED: Mapping[str, Mapping[str, tuple[object, str]]] = {
    "gmm": {
        "num_split_k": (1, _SPLIT_FAMILIES),
        "use_tma_epilogue_load": (False, _CLIPPED),
        "scheduler": ("static", "group sizes are known on the device only"),
        "prefetch_tiles_n": (0, "the weights of a tile are known on the device only"),
    },
    "blockwise_fp8": {
        "num_split_k": (1, _SPLIT_FAMILIES),
        "k_group_size": (1, _PER_K_TILE),
        "use_tma_epilogue_load": (False, "the epilogue accumulates in registers and has none left"),
        "prefetch_tiles_n": (0, "a stage is filled as a whole"),
    },
    "tf32x3": {
        "a_type": ("f32", "TMA must not round the operands"),
        "k_group_size": (1, "each K tile has its own small parts"),
        "prefetch_tiles_n": (0, "a stage is filled as a whole"),
        "register_based_epilogue": (True, "a thread of 11 or 12 warps has too few registers to exchange values"),
    },
    "grouped_blockwise_fp8": {"AB_swapped": (False, "the scales of a group's rows are along M")},
}
"""Fields that have one value in a kernel family, and the reason."""

_FIXED_WHEN_STREAMED: Mapping[str, tuple[object, str]] = {
    "scheduler": ("static", "the CTAs that share a tile are known at launch"),
    "num_split_k": (1, "tiles are divided already"),
    "use_tma_epilogue_load": (False, "the part of a tile that writes it is not known before"),
    "prefetch_tiles_n": (0, "weights are loaded together with the rest"),
    "precision": ("tf32", "only dense GEMMs with one product are divided"),
}
_FIXED_WHEN_GATED: Mapping[str, tuple[object, str]] = {
    "epilogue_is_1d": (False, "a loaded row is as wide as the accumulator"),
}

_COMPOSED_FAMILIES = {
    "grouped_blockwise_fp8": ("gmm", "blockwise_fp8"),
    "grouped_block_scaled": ("gmm",),
}
"""Families that have the fixed fields of others."""


def _types(config: MatmulConfig) -> Violations:
    for name in ("a_type", "b_type"):
        if getattr(config, name) not in config.input_types:
            yield name, f"is not an operand type of {config.family}; supported: {', '.join(config.input_types)}"
    mixable = _MIXABLE.get(config.mma_kind, frozenset())
    if config.b_type != config.a_type and not {config.a_type, config.b_type} <= mixable:
        yield "b_type", f"must equal a_type, which is {config.a_type}; only e4m3 and e5m2 may be mixed"


def _majors(config: MatmulConfig) -> Violations:
    for operand in "ab":
        if getattr(config, f"{operand}_major") == "mn" and not config.mma.transpose:
            yield f"{operand}_major", f"is not supported: kind::{config.mma_kind} takes K-major operands only"
    tokens = "b_major" if config.AB_swapped else "a_major"
    if config.is_grouped and getattr(config, tokens) == "mn":
        reason = f"groups begin at any row, but TMA reads from multiples of {STRIDE_ALIGNMENT} bytes"
        yield tokens, f"is not supported in {config.family}: {reason}"


def _mma_shape(config: MatmulConfig) -> Violations:
    kind, group = config.mma, config.cta_group
    m, n, k = config.mma_shape
    where = f"kind::{kind.name} with cta_group {group}"
    if m not in kind.m[group]:
        yield "mma_shape", f"has M = {m}; {where} supports {', '.join(map(str, kind.m[group]))}"
    if config.instruction_n not in kind.n[group]:
        legal, n = kind.n[group], config.instruction_n
        yield "mma_shape", f"has N = {n}; {where} supports {legal[0]} to {legal[-1]} in steps of {legal[1] - legal[0]}"
    elif config.b_major == "mn" and kind.element_bits == 8 and n not in TRANSPOSED_BYTE_N[group]:
        yield "mma_shape", f"has N = {n}; an N-major 8-bit B needs a multiple of {TRANSPOSED_BYTE_N[group][0]}"
    if k != kind.k:
        yield "mma_shape", f"has K = {k}; {where} needs {kind.k}"


def _cluster(config: MatmulConfig) -> Violations:
    x, y, z = config.cluster_shape
    size, most = x * y * z, MACHINE.cluster_size_nonportable
    if z != 1:
        yield "cluster_shape", "must have z = 1: batches and splits share no operands"
    if size > most:
        yield "cluster_shape", f"has {size} CTAs; {MACHINE.target} supports at most {most}"
    if x % config.cta_group:
        yield "cluster_shape", f"must have an x that is a multiple of cta_group ({config.cta_group}): pairs are along x"
        return
    for operand, tile_rows, peers in (("a", config.BM, y), ("b", config.b_rows, x // config.cta_group)):
        major = getattr(config, f"{operand}_major")
        sliced = tile_rows if major == "k" else config.BK
        if sliced % peers:
            what = f"{sliced} {'rows' if major == 'k' else 'K elements'} of {operand.upper()}"
            yield "cluster_shape", f"cannot divide {what} equally among {peers} CTAs"
    if config.is_grouped and config.cluster_shape != (config.cta_group, 1, 1):
        yield "cluster_shape", f"must be {(config.cta_group, 1, 1)} in {config.family}: tiles of groups share nothing"


def _input_swizzles(config: MatmulConfig) -> Violations:
    for operand, rows in (("a", config.BM), ("b", config.b_rows)):
        name, swizzle = f"{operand}_swizzle", SWIZZLES[getattr(config, f"{operand}_swizzle")]
        is_mn_major = getattr(config, f"{operand}_major") == "mn"
        row_bytes = (rows if is_mn_major else config.BK) * config.mma.element_bits // 8
        if swizzle.sm100_code is None:
            yield name, "is not supported by the tensor core"
        elif (swizzle.name == "128B_32B_atom") != (is_mn_major and config.mma_kind == "tf32"):
            yield name, "does not match: MN-major 32-bit operands, and only they, need 128B_32B_atom"
        if row_bytes % (swizzle.span or GRANULE):
            yield name, f"does not divide a row of the tile, which has {row_bytes} bytes"


def _output_tile(config: MatmulConfig) -> Violations:
    epilogue, shape = config.epilogue, config.output_tile_shape
    name = "output_tile_shape"
    rows = shape[1 if config.AB_swapped else 0]
    wanted = MACHINE.tensor_lanes if config.cta_group == 2 else config.MMA_M
    most = MOVE_REGISTER_LIMIT // epilogue.fragment_size
    if rows != wanted:
        yield name, f"must have the accumulator's {wanted} rows"
    columns = config.accumulator_columns // (2 if config.gated else 1)
    if columns % config.stageN:
        yield name, f"does not divide the accumulator's {columns} columns"
    if epilogue.rep * 8 != config.stageN or epilogue.rep & (epilogue.rep - 1) or not 1 <= epilogue.rep <= most:
        yield name, f"has {config.stageN} columns; tcgen05.ld reads 8 times a power of two up to {most}"
    row_bytes = shape[1] * config.c_bytes
    if config.use_tma_store and row_bytes % BOX_ROW_ALIGNMENT:
        yield name, f"has rows of {row_bytes} bytes; TMA stores multiples of {BOX_ROW_ALIGNMENT}"
    if row_bytes % (SWIZZLES[config.c_swizzle].span or 1):
        yield "c_swizzle", f"does not divide a row of the output tile, which has {row_bytes} bytes"
    if not config.stages_outputs:
        yield "output_types", f"have rows of {shape[1]} elements; TMA stores multiples of {BOX_ROW_ALIGNMENT} bytes"
    if config.output_types and not config.use_tma_store:
        yield "output_types", "need use_tma_store=True: auxiliary outputs are stored together with C"
    part = config.epilogue_load_elements * config.c_bytes
    if config.epilogue_is_1d and part % GRANULE:
        yield "epilogue_is_1d", f"needs a tile's part of the row, {part} bytes, to be a multiple of {GRANULE}"
    loads_tiles = config.use_tma_epilogue_load and not config.epilogue_is_1d
    loaded = (config.BM if config.AB_swapped else config.stageN) * config.c_bytes
    if loads_tiles and loaded % (SWIZZLES[config.epi_load_swizzle].span or BOX_ROW_ALIGNMENT):
        yield "epi_load_swizzle", f"does not divide a row of the loaded tile, which has {loaded} bytes"


def _tmem(config: MatmulConfig) -> Violations:
    columns, least, most = config.tensor_memory_columns, SMALLEST_ALLOCATION, MACHINE.tensor_columns
    stages, used = config.num_accum_pipeline_stages, config.columns_used(config.num_pipeline_stages)
    if columns & (columns - 1) or not least <= columns <= most:
        yield "tensor_memory_columns", f"must be a power of two from {least} to {most}"
    if stages > 1 and config.stage_stride_cols < config.accumulator_columns:
        apart = f"{config.stage_stride_cols} columns apart"
        yield "num_accum_pipeline_stages", f"puts accumulators of {config.accumulator_columns} columns {apart}: overlap"
    elif used > columns:
        yield "num_accum_pipeline_stages", f"needs {used} columns of TMEM, but {columns} are allocated"


def _shared_memory(config: MatmulConfig) -> Violations:
    stages, most = config.num_pipeline_stages, MACHINE.shared_per_block
    if stages < 1:
        yield "num_pipeline_stages", "must be at least 1: no group of input stages fits into shared memory and TMEM"
    if stages % config.k_group_size:
        yield "num_pipeline_stages", f"must be a multiple of k_group_size, which is {config.k_group_size}"
    if config.shared_bytes > most:
        arrays = config.shared_arrays(stages, epilogue_load=config.use_tma_epilogue_load)
        largest = ", ".join(f"{array.name} {array.bytes}" for array in arrays if array.bytes >= 1024)
        needs = f"needs {config.shared_bytes} bytes of shared memory ({largest})"
        yield "num_pipeline_stages", f"{needs}; {MACHINE.target} has {most} per CTA"


def fixed_modes(config: MatmulConfig) -> dict[str, tuple[object, str]]:
    """Return the fields that have one value in the configuration's family, and the reason."""
    parts = (*_COMPOSED_FAMILIES.get(config.family, ()), config.family)
    return {name: row for part in parts for name, row in FIXED.get(part, {}).items()}


def _modes(config: MatmulConfig) -> Violations:
    for name, (only, reason) in fixed_modes(config).items():
        if getattr(config, name) != only:
            yield name, f"must be {only!r} in {config.family}: {reason}"
    for name, (only, reason) in _FIXED_WHEN_STREAMED.items() if config.stream_k else ():
        if getattr(config, name) != only:
            yield name, f"must be {only!r} with stream_k=True: {reason}"
    if config.stream_k and config.family not in ("gemm", "bmm", "tf32x3"):
        yield "stream_k", f"is not supported in {config.family}: only tiles of dense GEMMs are divided"
    if config.scheduler == "static" and config.num_clc_pipeline_stages:
        yield "num_clc_pipeline_stages", "must be 0: a static scheduler requests no work"
    if config.prefetch_tiles_n > config.num_group_stages:
        stages = f"the input pipeline has {config.num_group_stages} stages"
        yield "prefetch_tiles_n", f"is too large: {stages}, and the load role would wait for itself"
    if config.epilogue_is_1d and not config.use_tma_epilogue_load:
        yield "epilogue_is_1d", "needs use_tma_epilogue_load=True"
    if config.family == "tf32x3" and config.gemm_kind not in ("gemm", "bmm"):
        yield "precision", f"must be 'tf32' in {config.gemm_kind}: only dense GEMMs split float32"
    if config.family == "block_scaled_1d2d_fp8":  # a BlockwiseFP8MatmulConfig reports another family
        yield "gemm_kind", "needs a BlockwiseFP8MatmulConfig"


def _gated(config: MatmulConfig) -> Violations:
    if not config.gated:
        return
    if config.family not in ("gemm", "bmm", "gmm", "grouped_block_scaled"):
        yield "gated", f"is not supported in {config.family}"
    for name, (only, reason) in _FIXED_WHEN_GATED.items():
        if getattr(config, name) != only:
            yield name, f"must be {only!r} with gated=True: {reason}"
    if config.AB_swapped and config.family == "grouped_block_scaled":
        yield "AB_swapped", f"must be False with gated=True in {config.family}: scale factors of both are along N"
    if config.tile_columns % _PATTERN_ROWS:
        yield "mma_shape", f"has N = {config.MMA_N}; with gated=True it must be a multiple of {2 * _PATTERN_ROWS}"


CONFIG_RULES: tuple[Rule, ...] = (
    _types,
    _majors,
    _mma_shape,
    _cluster,
    _input_swizzles,
    _output_tile,
    _tmem,
    _shared_memory,
    _modes,
    _gated,
)
"""Rules of every Blackwell configuration."""


def _scaling_kind(config: BlockScaledMatmulConfig) -> Violations:
    kind = config.mma
    if (config.a_type == config.b_type == "e2m1") != (kind.element_bits == 4):
        yield "scaling_kind", f"does not support {config.a_type} times {config.b_type}"
    vectors = (kind.scale_vectors or {}).get(config.scale_type, ())
    if not vectors:
        yield "scale_type", f"is not supported: kind::{kind.name} has {', '.join(kind.scale_vectors or ())}"
    elif config.vec_sf_size not in {kind.k // count for count in vectors}:
        blocks = ", ".join(str(kind.k // count) for count in vectors)
        yield "vec_sf_size", f"is not supported: kind::{kind.name} with {config.scale_type} has blocks of {blocks}"


def _scale_tiles(config: BlockScaledMatmulConfig) -> Violations:
    m, n = config.MMA_M, config.MMA_N
    if m != SCALE_CHUNK_ROWS * config.cta_group:
        yield "mma_shape", f"has M = {m}; scale factors need 128 rows of each CTA: {128 * config.cta_group}"
    if config.is_gmm and config.is_askew:
        yield "mma_shape", f"has N = {n}; scale factors of {config.family} support 8, 16 and multiples of 32"
    if config.is_askew and n > SCALE_CHUNK_ROWS:
        yield "mma_shape", f"has N = {n}; scale factors support multiples of 8 up to 128, and of 32"
    if config.gated and config.tile_columns % SCALE_CHUNK_ROWS:
        yield "mma_shape", f"has N = {n}; with gated=True scale factors support 256"


BLOCK_SCALE_RULES: tuple[Rule, ...] = (_scaling_kind, _scale_tiles)
"""Rules of `BlockScaledMatmulConfig` in addition."""


def _blockwise_scales(config: BlockwiseFP8MatmulConfig) -> Violations:
    if config.scale_type not in ("f32", "bf16"):
        yield "scale_type", "must be f32 or bf16"
    if config.scale_granularity % TENSOR_MOVES["16x256b"].columns:
        yield "scale_granularity", "must be a multiple of 8: columns that are loaded together share a scale"


BLOCKWISE_RULES: tuple[Rule, ...] = (_blockwise_scales,)
"""Rules of `BlockwiseFP8MatmulConfig` in addition."""


def _strides(config: MatmulConfig, problem: Problem) -> Violations:
    """TMA needs row strides that are multiples of 16 bytes."""
    owners = ("b", "a") if config.AB_swapped else ("a", "b")
    rows = {"a": "m", "b": "n"}
    copied = [
        (owner, "k" if getattr(config, f"{operand}_major") == "k" else rows[owner], config.stored_bits(operand))
        for operand, owner in zip("ab", owners, strict=True)
    ]
    if config.use_tma_store or (config.use_tma_epilogue_load and not config.epilogue_is_1d):
        copied.append(("c", "n", ELEMENT_TYPES[config.c_type].storage_bits))
    for owner, dimension, bits in copied:
        given = getattr(problem, f"{owner}_stride")
        name = dimension if given is None else f"{owner}_stride"
        stride = getattr(problem, name)
        if given is not None and given < getattr(problem, dimension):
            yield name, f"makes rows of {owner.upper()} overlap, which have {getattr(problem, dimension)} elements"
        if stride * bits % (STRIDE_ALIGNMENT * 8):
            apart = f"{stride * bits / 8:g} bytes apart"
            yield name, f"puts rows of {owner.upper()} {apart}; TMA needs a multiple of {STRIDE_ALIGNMENT}"


def _k_tiles(config: MatmulConfig, problem: Problem) -> Violations:
    groups = ceil_div(config.k_tiles(problem.k), config.k_group_size)  # TMA fills the last one up with zeros
    if groups < config.num_split_k:
        yield "k", f"has {groups} groups of K tiles; each of {config.num_split_k} splits (num_split_k) needs one"


def _grid(config: MatmulConfig, problem: Problem) -> Violations:
    if problem.batch > 1 and config.is_grouped:
        yield "batch", "must be 1: the groups are the batch"
    if config.scheduler == "static":  # one CTA for each SM loops over the tiles
        return
    across = ("n", "m", "batch") if config.AB_swapped else ("m", "n", "batch")
    for name, blocks, most in zip(across, config.grid(problem), MACHINE.largest_grid, strict=True):
        if blocks > most:
            yield name, f"needs {blocks} CTAs along one dimension of the grid (max {most})"


PROBLEM_RULES: tuple[ProblemRule, ...] = (_strides, _k_tiles, _grid)
"""Rules of every Blackwell configuration for a problem."""


def _scale_blocks(config: BlockScaledMatmulConfig, problem: Problem) -> Violations:
    if problem.k % config.vec_sf_size:
        yield "k", f"must be a multiple of vec_sf_size, which is {config.vec_sf_size}"
    along = "m" if config.AB_swapped else "n"
    if config.is_askew and getattr(problem, along) > config.MMA_N:
        where = "only the first tile has its scale factors in place"
        yield along, f"must be at most {config.MMA_N}, the N of mma_shape, unless that is a multiple of 32: {where}"


BLOCK_SCALE_PROBLEM_RULES: tuple[ProblemRule, ...] = (_scale_blocks,)
"""Rules of `BlockScaledMatmulConfig` for a problem in addition."""
