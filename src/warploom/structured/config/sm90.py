"""`HopperConfig`: what distinguishes one Hopper matmul from another. Accumulators are registers of the consumers."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any, Self

from warploom.diagnostics import Diag
from warploom.hardware.dtypes import ELEMENT_TYPES
from warploom.hardware.mma_shapes import WGMMA, WGMMA_M
from warploom.hardware.swizzles import GRANULE, widest_swizzle
from warploom.hardware.synchronisation import BARRIER_BYTES
from warploom.hardware.targets import MACHINES
from warploom.hardware.threads import WARPGROUP_WARPS
from warploom.structured.config.output import FURTHER_BUFFERS, OutputPipelineConfig
from warploom.structured.config.sm90_subtiles import swizzled_strip, wide_strip
from warploom.structured.config.sm100_fields import CHOICES, INPUT_TYPES, LEAST, form_violations

MACHINE = MACHINES["sm_90a"]
ROW_BYTES = 128
MOST_ACCUMULATORS = 208
"""Registers of a thread that may hold sums: what ptxas places beside addresses without a spill, with 240 at hand."""
_STAGES_BESIDE_A_TILE = 5
"""Input stages that are worth more than a residual that comes all at once."""
_SUMS_BESIDE_WIDE_STRIPS = 176
"""Sums of a thread beside which the residual of a wide strip finds registers."""
_MOST_COLUMNS_OF_THREE = 192
"""Columns of a tile of three consumers: with 128 registers for each thread ptxas refuses wider multiplications."""
USUAL_STAGES = 8
"""Input stages, as far as they find room; more have to be asked for, as they take longer to set up."""
_TOGETHER = (("e4m3", "e5m2"), ("f32", "tf32"))
"""Types that may be multiplied with each other; others only with themselves."""
_DERIVED: Any = None
_CHOICES = {**CHOICES, "a_type": INPUT_TYPES, "b_type": INPUT_TYPES}
_LEAST = {**LEAST, "num_output_stages": 0}


@dataclass(frozen=True, kw_only=True)
class HopperConfig:
    """Tile, rings and schedule of a warp-specialised Hopper matmul; a field that is None is derived.

    Consumers are warpgroups: cooperative ones share a tile's rows, of ping-pong ones each has tiles of its own, so that
    one stores while the other multiplies. A and B are the kernel's: with `AB_swapped` A is the caller's B, and C is
    computed transposed.
    """

    a_type: str = "bf16"
    b_type: str = _DERIVED
    c_type: str = _DERIVED
    a_major: str = "k"
    b_major: str = "k"
    tile: tuple[int, int] = (128, 128)
    consumers: int = 2
    pingpong: bool = False
    num_pipeline_stages: int = _DERIVED
    cluster_shape: tuple[int, int, int] = (1, 1, 1)
    AB_swapped: bool = False
    num_split_k: int = 1
    split_in_cluster: bool = True
    """Whether the splits of a tile are a cluster that meets in shared memory; else they meet in global memory."""
    stream_k: bool = False
    """Whether all CTAs share the K tiles of what would be the last wave of tiles, with one whole wave."""
    num_output_stages: int = _DERIVED
    stage_columns: int = _DERIVED
    band: int = 16
    """Rows of tiles that are walked together before the next column of tiles: what shares operands in L2."""
    registers: tuple[int, int] | None = _DERIVED
    """Registers per thread of the load role and of the consumers; zeros for no reallocation."""
    depth: int = _DERIVED
    """Groups of multiplications that stay in flight when the stage before them is given back."""
    use_tma_store: bool = True
    residual_in_place: bool = False
    """Whether a residual comes into the buffers of C, which then hold a consumer's whole tile, or 64 rows of it."""
    paired: bool = False
    """Whether an element of C has two accumulators: half the rows of B's tiles are another matrix's."""
    output_types: tuple[str, ...] = ()
    """Types of the further outputs, where all of them go through shared memory as C does."""
    epilogue_dtype: str = "f32"
    dependent: bool = False
    """Whether the kernel may begin before the one in front of it has ended: it gains where kernels are short."""

    def __post_init__(self) -> None:
        wrong = list(form_violations({row.name: getattr(self, row.name) for row in fields(self)}, _CHOICES, _LEAST))
        if wrong:
            raise Diag.BAD_CONFIG.error(count=len(wrong), what="; ".join(wrong))
        missing = [name for name in _DERIVATIONS if getattr(self, name) is None]
        for name in missing:
            object.__setattr__(self, name, _DERIVATIONS[name](self))
        object.__setattr__(self, "derived", tuple((name, getattr(self, name)) for name in missing))

    @cached_property
    def derived(self) -> tuple[tuple[str, object], ...]:
        """The fields that were derived, and their values; none of them are known before they all are."""
        return ()

    def replace(self, **changes: Any) -> Self:
        """The configuration with other values: what was asked for stays, what was derived is derived anew."""
        asked = {row.name: getattr(self, row.name) for row in fields(self)} | dict.fromkeys(dict(self.derived))
        return type(self)(**asked | changes)

    @property
    def BM(self) -> int:
        return self.tile[0]

    @property
    def BN(self) -> int:
        return self.tile[1]

    @property
    def MMA_N(self) -> int:
        return self.tile[1]

    @property
    def tile_columns(self) -> int:
        """Columns of C that a tile has."""
        return self.BN // 2 if self.paired else self.BN

    @property
    def BK(self) -> int:
        return ROW_BYTES // self.a_bytes

    @property
    def a_bytes(self) -> int:
        return ELEMENT_TYPES[self.a_type].storage_bits // 8

    @property
    def c_bytes(self) -> int:
        return ELEMENT_TYPES[self.c_type].storage_bits // 8

    @property
    def element_bits(self) -> int:
        return 8 * self.a_bytes

    @property
    def multiplied(self) -> str:
        """A's type as the tensor core reads it."""
        return "tf32" if self.a_type == "f32" else self.a_type

    @property
    def mma_k(self) -> int:
        return WGMMA[self.multiplied].k

    @property
    def consumer_rows(self) -> int:
        """Rows of a tile that one warpgroup multiplies."""
        return self.BM if self.pingpong else self.BM // self.consumers

    @property
    def subtiles(self) -> int:
        """Multiplications of 64 rows that a warpgroup stacks."""
        return self.consumer_rows // WGMMA_M

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums."""
        return self.subtiles * self.BN // 2

    @property
    def accumulators_held(self) -> int:
        """Those of them that hold something while a tile is written."""
        return self.accumulators

    @property
    def usual_depth(self) -> int:
        """The depth, where none is given."""
        return 1

    @property
    def roles(self) -> dict[str, int]:
        """The warps of each role, in order."""
        return {"consume": WARPGROUP_WARPS * self.consumers, "load": WARPGROUP_WARPS if self.reallocates else 1}

    @property
    def reallocates(self) -> bool:
        return self.registers is not None and any(self.registers)

    @property
    def role_registers(self) -> dict[str, int]:
        if not self.reallocates or self.registers is None:
            return {}
        return dict(zip(("load", "consume"), self.registers, strict=True))

    @property
    def threads(self) -> int:
        return 32 * sum(self.roles.values())

    # As a `WriterConfig`: a consumer writes its tile in pieces of 64 rows.
    @property
    def accum_type(self) -> str:
        return "f32"

    @property
    def block_tile_shape(self) -> tuple[int, int, int]:
        return (WGMMA_M, self.BN, self.BK)

    @property
    def mma_shape(self) -> tuple[int, int, int]:
        return (WGMMA_M, self.BN, self.mma_k)

    @property
    def output(self) -> OutputPipelineConfig:
        return OutputPipelineConfig(1, self.BN, 1)

    @property
    def transpose_c(self) -> bool:
        return self.AB_swapped

    @property
    def stageN(self) -> int:
        return self.stage_columns

    @property
    def output_tile_shape(self) -> tuple[int, int]:
        return (self.stageN, WGMMA_M) if self.AB_swapped else (WGMMA_M, self.stageN)

    @property
    def c_swizzle(self) -> str:
        return widest_swizzle(self.output_tile_shape[1] * self.c_bytes)

    @property
    def epi_load_swizzle(self) -> str:
        return self.c_swizzle

    @property
    def register_based_epilogue(self) -> bool:
        return True

    @property
    def splits_units(self) -> bool:
        """Whether there are more splits than slices of eight columns, so that each has a few registers' sums."""
        return self.num_split_k > 1 and self.BN % (8 * self.num_split_k) != 0

    @property
    def split_unit(self) -> int:
        """Sums of a thread that splits exchange together."""
        return self.accumulators // self.num_split_k if self.splits_units else 4

    @property
    def sliced(self) -> Self:
        """What is written of a tile: of pairs one column for two, of one split its slice of the columns."""
        if self.paired:
            return replace(self, tile=(self.BM, self.tile_columns), paired=False, cluster_shape=(1, 1, 1))
        if self.num_split_k == 1 or self.splits_units:
            return self
        tile = (self.BM, self.BN // self.num_split_k)
        return replace(self, tile=tile, num_split_k=1, stage_columns=_DERIVED, cluster_shape=(1, 1, 1))

    @property
    def strips(self) -> int:
        """Strips of what is written of 64 rows."""
        written = self.sliced
        return written.BN // written.stage_columns

    @property
    def has_wide_strips(self) -> bool:
        """Whether strips may be as wide as they like: nothing comes into their buffers, and they are C's alone."""
        return self.c_bytes == 2 and self.use_tma_store and not (self.residual_in_place or self.output_types)

    @property
    def is_split(self) -> bool:
        """Whether several CTAs share the depth of a sum."""
        return self.num_split_k > 1 or self.stream_k

    @property
    def further_buffers(self) -> int:
        """Buffers of each further output."""
        return min(self.num_output_stages, FURTHER_BUFFERS)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one input stage."""
        return (self.BM + self.BN) * ROW_BYTES

    @property
    def staging_bytes(self) -> int:
        if not self.use_tma_store:
            return 0
        further = self.further_buffers * sum(ELEMENT_TYPES[each].storage_bits // 8 for each in self.output_types)
        strip = prod(self.sliced.output_tile_shape)
        return self.consumers * strip * (self.num_output_stages * self.c_bytes + further)

    @property
    def stages_outputs(self) -> bool:
        """Whether the copy engine can store the further outputs from strips as wide as C's."""
        columns = self.sliced.output_tile_shape[1] if self.output_types else 0
        return all(columns * ELEMENT_TYPES[each].storage_bits // 8 % GRANULE == 0 for each in self.output_types)

    @property
    def exchange_bytes(self) -> int:
        """Where the partial sums of the other splits of a cluster come."""
        if self.num_split_k == 1 or not self.split_in_cluster:
            return 0
        return 4 * self.BM * self.BN // self.num_split_k * (self.num_split_k - 1)

    def shared_bytes(self, stages: int) -> int:
        """What the kernel keeps in shared memory with so many stages."""
        return stages * (self.stage_bytes + 2 * BARRIER_BYTES) + self.staging_bytes + self.exchange_bytes

    def validated(self) -> Self:
        """The same, or `BAD_CONFIG` with everything that is wrong."""
        wrong = list(self.violations())
        if wrong:
            raise Diag.BAD_CONFIG.error(count=len(wrong), what="; ".join(wrong))
        return self

    def violations(self) -> list[str]:
        """Everything that is wrong with it."""
        row, x, y = WGMMA[self.multiplied], *self.cluster_shape[:2]
        limit, needed = MACHINE.shared_per_block, self.shared_bytes(self.num_pipeline_stages)
        columns = self.sliced.output_tile_shape[1] if self.use_tma_store else GRANULE
        strips = self.strips if self.residual_in_place else 0
        together = next((each for each in _TOGETHER if self.a_type in each), (self.a_type,))
        checks = (
            (self.b_type in together, f"b_type={self.b_type}: beside A of {self.a_type}, B is {' or '.join(together)}"),
            (self.BN in row.n, f"tile={self.tile}: wgmma of {self.a_type} has no N of {self.BN}"),
            (self.consumer_rows % WGMMA_M == 0, f"tile={self.tile}: a consumer has {self.consumer_rows} rows, not 64s"),
            (self.accumulators <= MOST_ACCUMULATORS, f"tile={self.tile}: {self.accumulators} sums in a thread"),
            (
                self.stage_columns % 8 == 0 == self.tile_columns % self.stage_columns or self.BN not in row.n,
                f"stage_columns={self.stage_columns}: not eights of which a tile of {self.tile_columns} consists",
            ),
            (self.num_pipeline_stages > self.depth, f"num_pipeline_stages={self.num_pipeline_stages}: too few"),
            (
                needed <= limit,
                f"num_pipeline_stages={self.num_pipeline_stages}: {needed} bytes of shared memory; a CTA has {limit}",
            ),
            (x * y <= MACHINE.cluster_size_nonportable, f"cluster_shape={self.cluster_shape}: more than a cluster has"),
            (self.BM % y == 0 and self.BN % x == 0, f"cluster_shape={self.cluster_shape}: tiles cannot be shared so"),
            (self.split_unit in (2, 4), f"num_split_k={self.num_split_k}: a thread has {self.accumulators} sums"),
            (
                not self.splits_units or not (self.split_in_cluster or self.use_tma_store),
                f"num_split_k={self.num_split_k}: so many splits meet in global memory and store from registers",
            ),
            (self.num_split_k == 1 or not self.pingpong, f"num_split_k={self.num_split_k}: not with ping-pong"),
            (not self.stream_k or self.num_split_k == 1, f"stream_k=True: not with num_split_k={self.num_split_k}"),
            (
                not self.paired or self.tile_columns % (8 * x) == 0,
                f"paired=True: {self.BN} columns are not two times eights for each CTA of cluster_shape[0]={x}",
            ),
            (
                not self.paired or (not self.AB_swapped and self.num_split_k == 1 and not self.stream_k),
                "paired=True: not with A and B swapped, splits or stream-K",
            ),
            (
                columns * self.c_bytes % GRANULE == 0,
                f"use_tma_store=True: strips of {columns} columns of {self.c_type} are no 16 bytes",
            ),
            (
                not self.output_types or self.use_tma_store,
                f"output_types={self.output_types}: they go with C, which is not stored by TMA",
            ),
            (
                self.stages_outputs,
                f"output_types={self.output_types}: rows of {columns} are no 16 bytes",
            ),
            (
                not self.residual_in_place or (self.use_tma_store and not self.splits_units),
                "residual_in_place=True: C does not go through shared memory",
            ),
            (
                not self.residual_in_place or self.num_output_stages in (strips, self.subtiles * strips),
                f"num_output_stages={self.num_output_stages}: a residual in place has {strips} for 64 rows",
            ),
            (not self.pingpong or self.consumers == 2, f"consumers={self.consumers}: ping-pong is for two"),
            (
                self.consumers < 3 or self.BN <= _MOST_COLUMNS_OF_THREE,
                f"consumers={self.consumers}: registers for {_MOST_COLUMNS_OF_THREE} columns, not for {self.BN}",
            ),
            (row.transposable or (self.a_major, self.b_major) == ("k", "k"), f"{self.a_type} is read K-major only"),
        )
        return [what for right, what in checks if not right]


def _stages(config: HopperConfig) -> int:
    room = MACHINE.shared_per_block - config.shared_bytes(0)
    return min(max(room // (config.stage_bytes + 2 * BARRIER_BYTES), 1), USUAL_STAGES)


def _output_stages(config: HopperConfig) -> int:
    """Two, or one where strips are few and the second buffer would cost an input stage.

    With a residual in place the strips of a tile, or of 64 rows where too few stages would be left.
    """
    if not config.residual_in_place:
        are_few = config.has_wide_strips and config.strips <= (2 if config.pingpong else 3)
        return 1 if are_few and _stages_beside(config, 1) > _stages_beside(config, 2) else 2
    whole, stages = config.subtiles * config.strips, config.num_pipeline_stages or _STAGES_BESIDE_A_TILE
    fits = config.replace(num_output_stages=whole, num_pipeline_stages=stages).shared_bytes(stages)
    return whole if fits <= MACHINE.shared_per_block else config.strips


def _stages_beside(config: HopperConfig, buffers: int) -> int:
    return _stages(replace(config, num_output_stages=buffers, num_pipeline_stages=1))


def _stage_columns(config: HopperConfig) -> int:
    """Columns of a strip, of those that divide the tile: wide ones, or the widest whose rows a swizzle spans."""
    if config.has_wide_strips:
        return wide_strip(config.tile_columns, swapped=config.AB_swapped, pingpong=config.pingpong)
    widest = (32 if config.c_bytes == 4 else 64) if config.c_bytes > 1 else 16
    if config.residual_in_place and config.accumulators > _SUMS_BESIDE_WIDE_STRIPS:
        widest = min(widest, 32)
    return swizzled_strip(config.tile_columns, widest)


_DERIVATIONS: dict[str, Any] = {
    "b_type": lambda c: c.a_type,
    "c_type": lambda c: {"f32": "f32", "tf32": "f32", "f16": "f16"}.get(c.a_type, "bf16"),
    "depth": lambda c: c.usual_depth,
    "stage_columns": _stage_columns,
    "num_output_stages": _output_stages,
    "num_pipeline_stages": _stages,
    "registers": lambda c: (24, 240) if c.accumulators > 64 and c.consumers == 2 else (0, 0),
}
