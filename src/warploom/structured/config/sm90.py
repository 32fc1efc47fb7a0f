"""`HopperConfig`: the configuration of a Hopper (sm_90a) GEMM kernel. Accumulators are registers of the consumers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Self

from warploom.hardware.mma_shapes import WGMMA, WGMMA_M
from warploom.hardware.swizzles import GRANULE, widest_swizzle
from warploom.hardware.synchronisation import BARRIER_BYTES
from warploom.hardware.threads import WARPGROUP_WARPS
from warploom.structured.config.base import COMMON_DERIVATIONS, DERIVED, Derivation, GemmConfig, Rule, element_bytes
from warploom.structured.config.deprecation import deprecated
from warploom.structured.config.fields import CHOICES, INPUT_TYPES, MINIMUMS
from warploom.structured.config.output import AUXILIARY_BUFFERS, OutputPipelineConfig
from warploom.structured.config.sm90_rules import HOPPER_RULES, MACHINE, MAX_ACCUMULATORS
from warploom.structured.config.sm90_subtiles import swizzled_subtile, wide_subtile

__all__ = ["MACHINE", "MAX_ACCUMULATORS", "ROW_BYTES", "USUAL_STAGES", "HopperConfig"]

ROW_BYTES = 128
USUAL_STAGES = 8
"""Input stages that are derived at most, if they fit; more take longer to set up and have to be given."""
_STAGES_WITH_INBOX = 4
"""Input stages that must be left for partial accumulators of other splits to have memory of their own."""
_STAGES_WITH_WHOLE_RESIDUAL = 5
"""Input stages that must be left for a residual to be loaded as a whole tile."""
_MAX_ACCUMULATORS_OF_WIDE_RESIDUAL = 176
"""Accumulators per thread up to which the residual of a wide subtile fits into registers."""


def _input_stages(config: HopperConfig) -> int:
    room = MACHINE.shared_per_block - config.shared_bytes(0)
    return min(max(room // (config.stage_bytes + 2 * BARRIER_BYTES), 1), USUAL_STAGES)


def _input_stages_with(config: HopperConfig, buffers: int) -> int:
    return _input_stages(config.exactly(num_output_stages=buffers, num_pipeline_stages=1))


def _output_stages(config: HopperConfig) -> int:
    """Choose two, or one if subtiles are few and the second buffer would cost an input stage.

    With a residual in place: the subtiles of a consumer's tile, or of 64 rows if too few input stages would be left.
    """
    if not config.residual_in_place:
        are_few = config.has_wide_subtiles and config.row_subtiles <= (2 if config.pingpong else 3)
        return 1 if are_few and _input_stages_with(config, 1) > _input_stages_with(config, 2) else 2
    whole, stages = config.blocks * config.row_subtiles, config.num_pipeline_stages or _STAGES_WITH_WHOLE_RESIDUAL
    needed = config.exactly(num_output_stages=whole, num_pipeline_stages=stages).shared_bytes(stages)
    return whole if needed <= MACHINE.shared_per_block else config.row_subtiles


def _stage_columns(config: HopperConfig) -> int:
    """Choose the columns of a subtile, a divisor of the tile: a wide one, or the widest that a swizzle spans."""
    if config.has_wide_subtiles:
        return wide_subtile(config.tile_columns, swapped=config.AB_swapped, pingpong=config.pingpong)
    widest = (32 if config.c_bytes == 4 else 64) if config.c_bytes > 1 else 16
    if config.residual_in_place and config.accumulators > _MAX_ACCUMULATORS_OF_WIDE_RESIDUAL:
        widest = min(widest, 32)
    return swizzled_subtile(config.tile_columns, widest)


def _registers(config: HopperConfig) -> tuple[int, int]:
    if config.precision == "tf32x3":
        return (40, 200) if config.consumers == 2 else (0, 0)
    return (24, 240) if config.accumulators > 64 and config.consumers == 2 else (0, 0)


_SPLIT_REGISTERS = 56
"""Registers per thread of the role that splits float32, where roles reallocate them."""
_DERIVATIONS: Mapping[str, Derivation] = {
    **COMMON_DERIVATIONS,
    "mmas_in_flight": lambda config: config.default_mmas_in_flight,
    "stage_columns": _stage_columns,
    "num_output_stages": _output_stages,
    "num_pipeline_stages": _input_stages,
    "registers": _registers,
}


@dataclass(frozen=True, kw_only=True, repr=False)
class HopperConfig(GemmConfig):
    """The tile, pipelines and schedule of a Hopper GEMM kernel; a field that is left out is derived.

    Consumers are warpgroups. Cooperative consumers share the rows of a tile; ping-pong consumers have their own tiles,
    so that one stores while the other multiplies.
    """

    tile: tuple[int, int] = (128, 128)
    consumers: int = 2
    pingpong: bool = False
    cluster_shape: tuple[int, int, int] = (1, 1, 1)
    split_in_cluster: bool = True
    """The splits of a tile are one cluster and reduce through distributed shared memory; else through global memory."""
    stream_k: bool = False
    """All CTAs share the K tiles of the last, partial wave of tiles together with one whole wave."""
    stage_columns: int = DERIVED
    swizzle_size: int = 16
    """Tile swizzle: rows of tiles that are processed together before the next column, to share operands in L2.

    It is Triton's GROUP_SIZE_M, and the purpose of CUTLASS's `max_swizzle_size`.
    """
    registers: tuple[int, int] | None = DERIVED
    """Registers per thread of the load role and of the consumers; zeros for no reallocation."""
    mmas_in_flight: int = DERIVED
    """wgmma groups that are still in flight when the previous stage is released."""
    residual_in_place: bool = False
    """A residual is loaded into the buffers of C, which then hold a consumer's whole tile or 64 rows of it."""
    dependent: bool = False
    """Programmatic dependent launch: the kernel may start before the previous one has ended."""

    choices: ClassVar[Mapping[str, Collection[object]]] = {**CHOICES, "a_type": INPUT_TYPES, "b_type": INPUT_TYPES}
    minimums: ClassVar[Mapping[str, int]] = {**MINIMUMS, "num_output_stages": 0}
    derivations: ClassVar[Mapping[str, Derivation]] = _DERIVATIONS
    rules: ClassVar[tuple[Rule, ...]] = HOPPER_RULES
    renamed: ClassVar[Mapping[str, str]] = {**GemmConfig.renamed, "band": "swizzle_size", "depth": "mmas_in_flight"}

    band = deprecated("band", "swizzle_size")
    depth = deprecated("depth", "mmas_in_flight")

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
    def BK(self) -> int:
        return ROW_BYTES // self.a_bytes

    @property
    def a_bytes(self) -> int:
        return element_bytes(self.a_type)

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
    def gates_rows(self) -> bool:
        """True if the first half of a tile's rows is of the gate matrix and the second half of up."""
        return self.gated and self.AB_swapped

    @property
    def tile_rows(self) -> int:
        """Rows of C, or of its transpose with `AB_swapped`, in a tile."""
        return self.BM // 2 if self.gates_rows else self.BM

    @property
    def consumer_rows(self) -> int:
        """Rows of a tile that one consumer multiplies."""
        return self.BM if self.pingpong else self.BM // self.consumers

    @property
    def written_rows(self) -> int:
        """Rows of C, or of its transpose with `AB_swapped`, that one consumer writes."""
        return self.consumer_rows // 2 if self.gates_rows else self.consumer_rows

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows that a consumer writes."""
        return self.written_rows // WGMMA_M

    def block_row(self, number: int) -> int:
        """Return the row of a consumer's MMA from its first one; those of up follow those of gate."""
        if self.gates_rows and number >= self.blocks:
            return self.tile_rows + (number - self.blocks) * WGMMA_M
        return number * WGMMA_M

    @property
    def subtiles(self) -> int:
        """MMAs of 64 rows that a consumer stacks."""
        return self.consumer_rows // WGMMA_M

    @property
    def accumulators(self) -> int:
        """Accumulator registers per thread."""
        return self.subtiles * self.BN // 2

    @property
    def accumulators_held(self) -> int:
        """Accumulator registers per thread that are live while a tile is written."""
        return self.accumulators

    @property
    def default_mmas_in_flight(self) -> int:
        """The value that is derived for `mmas_in_flight`."""
        return 0 if self.precision == "tf32x3" else 1

    @property
    def roles(self) -> dict[str, int]:
        roles = {"consume": WARPGROUP_WARPS * self.consumers, "load": WARPGROUP_WARPS if self.reallocates else 1}
        return roles | ({"split": WARPGROUP_WARPS} if self.precision == "tf32x3" else {})

    @property
    def reallocates(self) -> bool:
        """True if the roles reallocate registers by `setmaxnreg`."""
        return self.registers is not None and any(self.registers)

    @property
    def role_registers(self) -> dict[str, int]:
        if not self.reallocates or self.registers is None:
            return {}
        found = dict(zip(("load", "consume"), self.registers, strict=True))
        return found | ({"split": _SPLIT_REGISTERS} if self.precision == "tf32x3" else {})

    # Properties of a `WriterConfig`: a consumer writes its tile 64 rows at a time.
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
        """True if there are more splits than slices of eight columns, so that each reduces units of a few registers."""
        return self.num_split_k > 1 and self.tile_columns % (8 * self.num_split_k) != 0

    @property
    def split_unit(self) -> int:
        """Accumulators of a thread that splits exchange together."""
        return self.accumulators // self.num_split_k if self.splits_units else 4

    @property
    def sliced(self) -> Self:
        """The part of a tile that is written: with `gated` half of it, with split-K one split's slice."""
        slices = 1 if self.splits_units else self.num_split_k
        if slices == 1 and not self.gated:
            return self
        tile = (self.tile_rows, self.tile_columns // slices)
        columns = self.stage_columns if slices == 1 else DERIVED
        return self.exactly(tile=tile, gated=False, num_split_k=1, stage_columns=columns, cluster_shape=(1, 1, 1))

    @property
    def row_subtiles(self) -> int:
        """Epilogue subtiles in 64 rows of what is written."""
        written = self.sliced
        return written.BN // written.stage_columns

    @property
    def has_wide_subtiles(self) -> bool:
        """True if subtiles may have any width: nothing is loaded into their buffers, and only C uses them."""
        return self.c_bytes == 2 and self.use_tma_store and not (self.residual_in_place or self.output_types)

    @property
    def is_split(self) -> bool:
        """True if several CTAs share the K extent of a tile."""
        return self.num_split_k > 1 or self.stream_k

    @property
    def auxiliary_buffers(self) -> int:
        """Buffers of each auxiliary output."""
        return min(self.num_output_stages, AUXILIARY_BUFFERS)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one input stage; of float32 in two parts, those of both."""
        return (self.BM + self.BN) * ROW_BYTES * (2 if self.precision == "tf32x3" else 1)

    @property
    def staging_bytes(self) -> int:
        """Bytes of the buffers through which C and the auxiliary outputs are stored."""
        if not self.use_tma_store:
            return 0
        auxiliary = self.auxiliary_buffers * sum(map(element_bytes, self.output_types))
        elements = prod(self.sliced.output_tile_shape)
        return self.consumers * elements * (self.num_output_stages * self.c_bytes + auxiliary)

    @property
    def stages_outputs(self) -> bool:
        """True if TMA can store the auxiliary outputs from subtiles as wide as C's."""
        columns = self.sliced.output_tile_shape[1] if self.output_types else 0
        return all(columns * element_bytes(each) % GRANULE == 0 for each in self.output_types)

    @property
    def partial_bytes(self) -> int:
        """Bytes of the partial accumulators that a CTA receives from the other splits of a cluster."""
        if self.num_split_k == 1 or not self.split_in_cluster:
            return 0
        return 4 * self.BM * self.BN // self.num_split_k * (self.num_split_k - 1)

    @property
    def receives_in_stages(self) -> bool:
        """True if partial accumulators are received in the memory of an operand, when all CTAs have read their stages.

        Large tiles would have too few stages otherwise; a CTA waits for the others before it sends.
        """
        room = MACHINE.shared_per_block - self.staging_bytes - self.partial_bytes
        return self.partial_bytes > 0 and room < _STAGES_WITH_INBOX * (self.stage_bytes + 2 * BARRIER_BYTES)

    def shared_bytes(self, stages: int) -> int:
        """Return the bytes of shared memory with so many input stages."""
        inbox = 0 if self.receives_in_stages else self.partial_bytes
        return stages * (self.stage_bytes + 2 * BARRIER_BYTES) + self.staging_bytes + inbox
