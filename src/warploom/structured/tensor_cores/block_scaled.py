"""Scales for blocks of A and B that the tensor core applies: with the input stages, then in tensor memory.

Scales come in chunks of 128 rows times four blocks of K: 512 bytes that global memory, shared memory and the copy to
tensor memory all have in one order. A chunk takes four columns; chunks of one K lie side by side, as many as an operand
has rows, and the multiplications of a stage step from one K to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warploom.hardware.instruction_descriptors import encode_instruction_descriptor
from warploom.hardware.tensor_maps import SHARED_ALIGNMENT
from warploom.hardware.tmem import COPY_SHAPES, QUADRANT, SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.structured.cluster import Cluster
from warploom.structured.config import BlockScaledMatmulConfig
from warploom.structured.pipelines.input_pipeline import InputConsumerStage
from warploom.structured.pipelines.operand_tiles import copy_box
from warploom.structured.tensor_cores.tcgen05 import MmaOp
from warploom.structured.tensor_cores.tmem import TmemStage
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.control import when
from warploom.trace.language.descriptors import matrix_descriptor
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, literal, valued
from warploom.trace.language.views import View, shared
from warploom.trace.parameters import TensorMapArgument

CHUNK_BYTES = SCALE_CHUNK_ROWS * SCALE_CHUNK_FACTORS
CHUNK_COLUMNS = SCALE_CHUNK_ROWS // QUADRANT
_WORD = 4
_COPY = COPY_SHAPES["32x128b.warpx4"]
_EIGHT_ROWS = 8 * _COPY.row_bytes


@dataclass(frozen=True)
class ScaleFactorLayout:
    """The chunks of one stage: so many along the operand's rows, and along K."""

    across: int
    along: int

    @property
    def box(self) -> tuple[int, int, int]:
        """The box of one copy, of scales as (chunks of rows, chunks of K, 128 words of 32 bits)."""
        return (self.across, self.along, CHUNK_BYTES // _WORD)

    @property
    def bytes(self) -> int:
        return self.across * self.along * CHUNK_BYTES

    @property
    def columns(self) -> int:
        """Columns of tensor memory."""
        return self.across * self.along * CHUNK_COLUMNS

    def offset(self, across: int, along: int) -> int:
        """Bytes from a stage's first chunk to another."""
        return (across * self.along + along) * CHUNK_BYTES

    def column(self, across: int, along: int) -> int:
        """Columns from a stage's first chunk to another."""
        return (along * self.across + across) * CHUNK_COLUMNS


def scale_layouts(config: BlockScaledMatmulConfig) -> tuple[ScaleFactorLayout, ScaleFactorLayout]:
    """The chunks of A's and of B's scales; each CTA of a pair has those of its rows of A, and all of B's."""
    rows = (config.sfa_rows, config.sfb_rows)
    sfa, sfb = (ScaleFactorLayout(each // SCALE_CHUNK_ROWS, config.num_sf_k_tiles) for each in rows)
    return sfa, sfb


class ScaleFactors:
    """One operand's scales in the input stages, and on to tensor memory."""

    local = False

    def __init__(
        self,
        name: str,
        source: TensorMapArgument,
        layout: ScaleFactorLayout,
        count: int,
        row: Callable[[Any], Value],
        columns: int,
    ) -> None:
        """`row` is the operand's first row for a tile of work; `columns` where tensor memory has the first stage's."""
        self.source, self.layout, self._row, self._columns = source, layout, row, columns
        self.storage: View = shared("u8", (count, layout.bytes), name=name, align=SHARED_ALIGNMENT)

    @property
    def bytes(self) -> int:
        return self.layout.bytes

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None:
        """Copy the chunks of K tile `k`; those that the operand does not have are zero."""
        batch = (tile.batch,) if len(self.source.geometry.box) > len(self.layout.box) else ()
        chunk = (valued(self._row(tile), "s32") // SCALE_CHUNK_ROWS, k * self.layout.along, 0)
        copy_box(self.storage[index].place, self.source.at(*batch, *chunk), barrier, cluster)

    def to_tensor_memory(self, index: Value, base: Value, cta_group: int) -> Value:
        """Copy a stage's chunks, in the thread that multiplies; gives the first one's address."""
        layout = self.layout
        first = base + self._columns + index * layout.columns
        start = matrix_descriptor(
            self.storage[index].place, leading=_COPY.row_bytes, stride=_EIGHT_ROWS, swizzle="none"
        )
        for along in range(layout.along):
            for across in range(layout.across):
                place = At(first, layout.column(across, along))
                descriptor = start + layout.offset(across, along) // _COPY.row_bytes
                emit(f"tcgen05.cp.cta_group::{cta_group}.{_COPY.name}", place, descriptor)
        return first

    def skipped_columns(self, tile: Any) -> Value:
        """Columns of a stage in front of a tile's first row: a tile may begin in the middle of a chunk."""
        return (valued(self._row(tile), "s32") % SCALE_CHUNK_ROWS // QUADRANT).to("u32")


def scale_factors(
    sfa: TensorMapArgument,
    sfb: TensorMapArgument,
    config: BlockScaledMatmulConfig,
    a_row: Callable[[Any], Value] | None = None,
    b_row: Callable[[Any], Value] | None = None,
) -> tuple[ScaleFactors, ScaleFactors]:
    """The scales of A and of B, where the configuration's plan of tensor memory puts them."""
    rows = (a_row or (lambda tile: tile.m * config.BM), b_row or (lambda tile: tile.n * config.MMA_N))
    plan, stages, (of_a, of_b) = config.tmem, config.num_pipeline_stages, scale_layouts(config)
    return (
        ScaleFactors("sfa_tiles", sfa, of_a, stages, rows[0], plan.sfa(0)),
        ScaleFactors("sfb_tiles", sfb, of_b, stages, rows[1], plan.sfb(0)),
    )


class BlockScaledMmaOp(MmaOp):
    """The multiplications of one stage with the scales of its operands."""

    def __init__(self, config: BlockScaledMatmulConfig, role: Role, cluster: Cluster) -> None:
        super().__init__(config, role, cluster)
        self._config = config
        self._vectors = self._kind.k // config.vec_sf_size
        group = f"tcgen05.mma.cta_group::{cluster.cta_group}"
        self._opcode = f"{group}.kind::{self._kind.name}.block_scale.scale_vec::{self._vectors}X"

    def mma_scaled(self, stage: InputConsumerStage, acc: TmemStage, tile: Any, *, accumulate: Value | bool) -> None:
        """Multiply a stage of a tile into an accumulator, which the first product replaces unless told."""
        payload, index = stage.payload(), stage.tile()
        a, b, sfa, sfb = payload.a, payload.b, payload.sfa, payload.sfb
        skipped = sfb.skipped_columns(tile)
        with when(self._role.elected):
            of_a = sfa.to_tensor_memory(index, acc.base, self._cluster.cta_group)
            of_b = sfb.to_tensor_memory(index, acc.base, self._cluster.cta_group) + skipped
            left, right = a.descriptor(index), b.descriptor(index)
            for number, k in enumerate(range(0, a.layout.k_extent, self._kind.k)):
                along, factor = divmod(number * self._vectors, SCALE_CHUNK_FACTORS)
                operands = (left + a.layout.step(k), right + b.layout.step(k), self._descriptor(factor))
                factors = (At(of_a, sfa.layout.column(0, along)), At(of_b, sfb.layout.column(0, along)))
                adds: Any = accumulate if number == 0 else True
                emit(self._opcode, At(acc.offset), *operands, *factors, adds)

    def _descriptor(self, factor: int) -> Value:
        """Shape and types, and which of a chunk's scales come first."""
        config = self._config
        m, n, _ = config.mma_shape
        bits = encode_instruction_descriptor(
            config.mma_kind, m, n, config.a_type, config.b_type, scale_type=config.scale_type,
            transpose_a=config.a_major == "mn", transpose_b=config.b_major == "mn",
            scale_a_id=factor, scale_b_id=factor,
        )  # fmt: skip
        return literal(bits, "u32")
