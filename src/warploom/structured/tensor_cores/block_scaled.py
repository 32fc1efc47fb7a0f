"""Block scales that the tensor core applies: scale factors of A and B in the input stages, then in TMEM.

Scale factors come in chunks of 128 rows × four blocks of K: 512 bytes, in the same order in global memory, in shared
memory and in the copy to TMEM. A chunk takes four TMEM columns. The chunks of one K block are adjacent, one for every
128 rows of the operand, and the MMAs of a stage step from one K block to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from warploom.hardware.instruction_descriptors import encode_instruction_descriptor
from warploom.hardware.tensor_maps import SHARED_ALIGNMENT
from warploom.hardware.tmem import COPY_SHAPES, QUADRANT, SCALE_CHUNK_FACTORS, SCALE_CHUNK_ROWS
from warploom.structured.cluster import Cluster
from warploom.structured.config import BlockScaledMatmulConfig
from warploom.structured.pipelines.input_pipeline import InputConsumerStage, TilePayload
from warploom.structured.pipelines.operand_tiles import copy_box
from warploom.structured.pipelines.start_up import start_up
from warploom.structured.tensor_cores.tcgen05 import MmaOp, check_accumulates
from warploom.structured.tensor_cores.tmem import TmemStage
from warploom.trace import isa
from warploom.trace.isa.emit import At
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
_WORDS_PER_ROW = _COPY.row_bytes // _WORD


@dataclass(frozen=True)
class ScaleFactorLayout:
    """The chunks of one stage: `across` the operand's rows, and `along` K."""

    across: int
    along: int

    @property
    def box(self) -> tuple[int, int, int]:
        """The TMA box of one copy, for scales of shape (row chunks, K chunks, 128 words of 32 bits)."""
        return (self.across, self.along, CHUNK_BYTES // _WORD)

    @property
    def halved(self) -> ScaleFactorLayout:
        """The layout of half of the rows."""
        return replace(self, across=self.across // 2)

    @property
    def bytes(self) -> int:
        return self.across * self.along * CHUNK_BYTES

    @property
    def columns(self) -> int:
        """TMEM columns of a stage."""
        return self.across * self.along * CHUNK_COLUMNS

    def offset(self, across: int, along: int) -> int:
        """Return the byte offset of a chunk in a stage."""
        return (across * self.along + along) * CHUNK_BYTES

    def column(self, across: int, along: int) -> int:
        """Return the TMEM column offset of a chunk in a stage."""
        return (along * self.across + across) * CHUNK_COLUMNS


def scale_layouts(config: BlockScaledMatmulConfig) -> tuple[ScaleFactorLayout, ScaleFactorLayout]:
    """Return the layouts of A's and B's scales; each CTA of a pair has those of its rows of A, and all of B's."""
    rows = (config.sfa_rows, config.sfb_rows)
    sfa, sfb = (ScaleFactorLayout(each // SCALE_CHUNK_ROWS, config.num_sf_k_tiles) for each in rows)
    return sfa, sfb


class ScaleFactors:
    """The scale factors of one operand, in the input stages and in TMEM.

    The scales of a gate and up pair are from two sources, with the same rows of each.
    """

    local = False

    def __init__(
        self,
        name: str,
        source: TensorMapArgument | tuple[TensorMapArgument, TensorMapArgument],
        layout: ScaleFactorLayout,
        count: int,
        row: Callable[[Any], Value],
        columns: int,
        *,
        is_narrow: bool = False,
        is_whole: bool = False,
    ) -> None:
        """`row` maps a tile of work to its first row; `columns` is the TMEM column of the first stage's scales.

        If `is_narrow`, a tile may start at any multiple of 8 rows, inside a group of 32, and ends in that group; if
        `is_whole`, every tile starts with a chunk.
        """
        self._sources = source if isinstance(source, tuple) else (source,)
        self.source, self.layout, self._row, self._columns = self._sources[0], layout, row, columns
        self._is_narrow, self._is_whole = is_narrow, is_whole
        start_up().maps.extend(self._sources[1:])
        self.storage: View = shared("u8", (count, layout.bytes), name=name, align=SHARED_ALIGNMENT)

    @property
    def bytes(self) -> int:
        return self.layout.bytes

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None:
        """Issue the copies of the chunks of K tile `k`; chunks outside the operand are filled with zeros.

        A tile that starts inside a group of 32 rows is loaded from its first row on, so that this row is in lane 0 of
        TMEM; the end of the chunk is filled with zeros.
        """
        batch = (tile.batch,) if len(self.source.geometry.box) > len(self.layout.box) else ()
        row = valued(self._row(tile), "s32")
        skipped = row % QUADRANT * _WORDS_PER_ROW if self._is_narrow else 0
        chunk = (row // SCALE_CHUNK_ROWS, k * self.layout.along, skipped)
        part = self.layout.bytes // len(self._sources)
        for number, source in enumerate(self._sources):
            place = self.storage[index].window((number * part,), (part,)).place
            copy_box(place, source.at(*batch, *chunk), barrier, cluster)

    def to_tmem(self, index: Value, base: Value, tile: Any, cta_group: int) -> Value:
        """Copy a stage's chunks to TMEM, in the thread that issues the MMAs; return the address of a tile's first row.

        A tile may start inside a chunk, by groups of 32 rows in the next column.
        """
        layout, row = self.layout, valued(self._row(tile), "s32")
        first = base + self._columns + index * layout.columns
        start = matrix_descriptor(
            self.storage[index].place, leading=_COPY.row_bytes, stride=_EIGHT_ROWS, swizzle="none"
        )
        for along in range(layout.along):
            for across in range(layout.across):
                place = At(first, layout.column(across, along))
                descriptor = start + layout.offset(across, along) // _COPY.row_bytes
                isa.tcgen05.cp(place, descriptor, cta_group=cta_group, shape="32x128b", multicast="warpx4")
        return first if self._is_whole else first + (row % SCALE_CHUNK_ROWS // QUADRANT).to("u32")


def scale_factors(
    sfa: TensorMapArgument,
    sfb: TensorMapArgument | tuple[TensorMapArgument, TensorMapArgument],
    config: BlockScaledMatmulConfig,
    a_row: Callable[[Any], Value] | None = None,
    b_row: Callable[[Any], Value] | None = None,
) -> tuple[ScaleFactors, ScaleFactors]:
    """Create the scale factors of A and of B, at the TMEM columns that the configuration assigns.

    `a_row` and `b_row` map a scheduler's tile to the first row of an operand's scales.
    """
    rows = (a_row or (lambda tile: tile.m * config.BM), b_row or (lambda tile: tile.n * config.MMA_N))
    plan, stages, (of_a, of_b) = config.tmem, config.num_pipeline_stages, scale_layouts(config)
    return (
        ScaleFactors("sfa_tiles", sfa, of_a, stages, rows[0], plan.sfa(0), is_whole=True),
        ScaleFactors(
            "sfb_tiles",
            sfb,
            of_b,
            stages,
            rows[1],
            plan.sfb(0),
            is_narrow=config.is_narrow,
            is_whole=config.tile_columns % SCALE_CHUNK_ROWS == 0,
        ),
    )


class BlockScaledMmaOp(MmaOp):
    """Issues the block-scaled MMAs of a stage."""

    def __init__(self, config: BlockScaledMatmulConfig, role: Role, cluster: Cluster) -> None:
        super().__init__(config, role, cluster)
        self._config = config
        self._vectors = self._kind.k // config.vec_sf_size
        self._words: dict[str, Any] = {
            "cta_group": cluster.cta_group,
            "kind": self._kind.name,
            "vector": f"scale_vec::{self._vectors}X",
        }

    def mma_scaled(self, stage: InputConsumerStage, acc: TmemStage, tile: Any, *, accumulate: Value | bool) -> None:
        """Issue the MMAs of a stage; `accumulate` applies to the first, which otherwise overwrites the accumulator."""
        check_accumulates(acc, accumulate)
        with when(self._role.elected):
            for j in range(self._config.k_group_size):
                self._k_tile(stage.payload(), stage.tile(j), acc, tile, accumulate if j == 0 else True)

    def _k_tile(self, payload: TilePayload, index: Value, acc: TmemStage, tile: Any, accumulate: Value | bool) -> None:
        """Copy the scale factors of a K tile to TMEM and issue its MMAs, in one thread."""
        a, b, sfa, sfb = payload.a, payload.b, payload.sfa, payload.sfb
        of_a = sfa.to_tmem(index, acc.base, tile, self._cluster.cta_group)
        of_b = sfb.to_tmem(index, acc.base, tile, self._cluster.cta_group)
        left, right = a.descriptor(index), b.descriptor(index)
        for number, k in enumerate(range(0, a.layout.k_extent, self._kind.k)):
            along, scale_id = divmod(number * self._vectors, SCALE_CHUNK_FACTORS)
            operands = (left + a.layout.step(k), right + b.layout.step(k), self._descriptor(scale_id))
            scales = (At(of_a, sfa.layout.column(0, along)), At(of_b, sfb.layout.column(0, along)))
            adds: Any = accumulate if number == 0 else True
            isa.tcgen05.mma_scaled(At(acc.offset), *operands, *scales, adds, **self._words)

    def _descriptor(self, scale_id: int) -> Value:
        """Return the instruction descriptor: shape, types, and the index of the first scale factor in its chunk."""
        config = self._config
        m, n, _ = config.mma_shape
        bits = encode_instruction_descriptor(
            config.mma_kind, m, n, config.a_type, config.b_type, scale_type=config.scale_type,
            transpose_a=config.a_major == "mn", transpose_b=config.b_major == "mn",
            scale_a_id=scale_id, scale_b_id=scale_id,
        )  # fmt: skip
        return literal(bits, "u32")
