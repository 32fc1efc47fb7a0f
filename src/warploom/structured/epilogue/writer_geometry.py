"""The shapes of a tile writer, and what is derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from warploom.diagnostics import Diag
from warploom.hardware.swizzles import GRANULE, SWIZZLES
from warploom.hardware.threads import WARPGROUP_WARPS
from warploom.structured.config import EpilogueConfig, MatmulConfig, OutputPipelineConfig
from warploom.structured.config.fields import OUTPUT_TYPES
from warploom.structured.epilogue.staging import SharedLayout, block_width
from warploom.structured.epilogue.subtiles import RowMajor
from warploom.structured.epilogue.writer_protocols import WriterConfig
from warploom.structured.tensor_cores.tmem import MOVE, TmemArrayType
from warploom.trace.builder import here
from warploom.trace.language.types import TYPES
from warploom.trace.language.views import View
from warploom.trace.parameters import TensorMapArgument

OF_CONFIG: Mapping[str, Callable[[WriterConfig], Any]] = {
    "a_type": lambda config: config.a_type,
    "c_type": lambda config: config.c_type,
    "accum_type": lambda config: config.accum_type,
    "block_tile_shape": lambda config: config.block_tile_shape,
    "mma_shape": lambda config: config.mma_shape,
    "opc": lambda config: config.output,
    "c_swizzle": lambda config: config.c_swizzle,
    "transpose_c": lambda config: config.transpose_c,
    "c_smem_dim0": lambda config: config.output_tile_shape[0],
    "c_smem_dim1": lambda config: config.output_tile_shape[1],
    "num_output_stages": lambda config: config.num_output_stages,
    "register_based_epilogue": lambda config: config.register_based_epilogue,
    "epi_load_swizzle": lambda config: config.epi_load_swizzle,
    "default_dtype": lambda config: config.epilogue_dtype,
}
"""Keywords by the configuration field that they are taken from."""
DEFAULTS: Mapping[str, Any] = {
    "accum_type": "f32",
    "num_output_stages": 2,
    "register_based_epilogue": True,
    "epi_load_swizzle": "none",
    "default_dtype": "f32",
    "batched": False,
    "problem_n": 0,
}


@dataclass(frozen=True)
class StagedOutput:
    """An auxiliary output that TMA stores: its tensor map, its type, and its buffers, allocated if not given."""

    tensor: TensorMapArgument
    dtype: str
    tiles: View | None = None
    array: View | None = None
    """The output as an array, which threads write where a tile ends inside a box."""


def c_box(config: MatmulConfig) -> tuple[int, int]:
    """Return the box of C's tensor map, in NumPy's order of axes without batches; its swizzle is `c_swizzle`."""
    contiguous = config.BM if config.transpose_c else config.stageN
    rows = config.stageN if config.transpose_c else config.BM
    return (rows, block_width(config.c_type, config.c_swizzle, contiguous))


class WriterGeometry:
    """The shapes of a writer, and what is derived from them."""

    a_type: str
    c_type: str
    accum_type: str
    block_tile_shape: tuple[int, int, int]
    mma_shape: tuple[int, int, int]
    opc: OutputPipelineConfig
    c_swizzle: str
    transpose_c: bool
    c_smem_dim0: int
    c_smem_dim1: int
    num_output_stages: int
    num_output_warps: int
    register_based_epilogue: bool
    epi_load_swizzle: str
    default_dtype: str
    batched: bool
    problem_n: int

    map_keywords: ClassVar[tuple[str, ...]] = ("c_rank", "c_desc_shape")
    """Keywords that follow from C's tensor map."""

    def __init__(
        self,
        config: WriterConfig | None,
        *,
        c: TensorMapArgument | View,
        warps: int,
        role_first: int,
        **given: Any,
    ) -> None:
        known = {name: of(config) for name, of in OF_CONFIG.items()} if config is not None else {}
        if isinstance(c, View):
            known.setdefault("c_type", c.dtype)
        known["num_output_warps"] = warps
        of_c = {name: given.pop(name) for name in self.map_keywords if name in given}
        values = {**DEFAULTS, **known, **given}
        self._box = c.geometry.box if isinstance(c, TensorMapArgument) else None
        problems = [
            *(
                f"{name} is {value}; the configuration says {known[name]}"
                for name, value in given.items()
                if known.get(name, value) != value
            ),
            *(f"unknown keyword `{name}`" for name in given if name not in {**OF_CONFIG, **DEFAULTS, **known}),
            *(f"{name} is missing" for name in OF_CONFIG if name not in values),
        ]
        if not problems:
            for name, value in values.items():
                setattr(self, name, value)
            problems = [*self._shape_problems(role_first), *self._c_problems(c)]
            problems += [
                f"{name} is {value}; C's tensor map says {getattr(self, name)}"
                for name, value in of_c.items()
                if value != getattr(self, name)
            ]
        if problems:
            raise Diag.BAD_WRITER.error(here(), count=len(problems), what="; ".join(problems))

    def _shape_problems(self, role_first: int) -> Iterator[str]:
        if self.num_output_warps != WARPGROUP_WARPS or role_first % WARPGROUP_WARPS:
            yield f"its role has {self.num_output_warps} warps from warp {role_first}; it must be one aligned warpgroup"
        if self.stageN % MOVE.columns:
            yield f"stageN is {self.stageN}, which is not a multiple of {MOVE.columns}"
        elif self.epc.accumulator_columns % self.stageN:
            yield f"subtiles of {self.stageN} columns do not divide an accumulator of {self.epc.accumulator_columns}"
        if self.c_type not in OUTPUT_TYPES:
            yield f"C is .{self.c_type}; it must be one of {', '.join(OUTPUT_TYPES)}"
        rows = self.BM * self.epc.num_col_warp_groups
        if (self.c_smem_dim1 if self.transpose_c else self.c_smem_dim0) != rows:
            yield f"C is staged in {self.c_smem_dim0} × {self.c_smem_dim1}; an accumulator has {rows} rows"

    def _c_problems(self, c: TensorMapArgument | View) -> Iterator[str]:
        """Yield mismatches between C and the buffers in which it is staged."""
        if isinstance(c, View):
            if c.dtype != self.c_type:
                yield f"C is a view of .{c.dtype}; c_type is .{self.c_type}"
            return
        box, size = c.geometry.box[-2:], TYPES[self.c_type].bytes
        if self.batched and self.c_rank < 3:
            yield f"C is batched, but its tensor map has {self.c_rank} axes"
        if c.geometry.element.shared_bytes != size:
            yield f"C's tensor map has elements of {c.geometry.element.shared_bytes} bytes, .{self.c_type} has {size}"
        if c.geometry.swizzle.name != self.c_swizzle:
            yield f"C's tensor map has swizzle {c.geometry.swizzle.name}, C is staged with {self.c_swizzle}"
        whole = (self.stageN, self.BM) if self.transpose_c else (self.BM, self.stageN)
        if any(extent % part for extent, part in zip(whole, box, strict=True)):
            yield f"boxes of {box[0]} × {box[1]} do not divide {whole[0]} × {whole[1]} of C"
        elif c.geometry.pitch != box[1] * size or (box[1] * size) % GRANULE:
            yield f"a row of a box takes {box[1] * size} bytes, which swizzle {self.c_swizzle} does not pack"

    @property
    def BM(self) -> int:
        return self.block_tile_shape[0]

    @property
    def BN(self) -> int:
        return self.block_tile_shape[1]

    @property
    def MMA_M(self) -> int:
        return self.mma_shape[0]

    @property
    def MMA_N(self) -> int:
        return self.mma_shape[1]

    @property
    def cta_group(self) -> int:
        return self.opc.cta_group

    @property
    def stageN(self) -> int:
        """Columns of a subtile."""
        return self.c_smem_dim0 if self.transpose_c else self.c_smem_dim1

    @cached_property
    def epc(self) -> EpilogueConfig:
        return EpilogueConfig.create(
            MMA_M=self.MMA_M,
            MMA_N=self.MMA_N,
            stageN=self.stageN,
            cta_group=self.cta_group,
            transpose_c=self.transpose_c,
            BM=self.BM,
            BN=self.BN,
        )

    @property
    def num_stages(self) -> int:
        """The number of subtiles of an accumulator."""
        return self.epc.num_stages

    @property
    def is_lower_frag_required(self) -> bool:
        return self.epc.is_lower_frag_required

    @property
    def rep(self) -> int:
        return self.epc.rep

    @property
    def accum_tile_layout(self) -> RowMajor:
        """The shape of a subtile of an accumulator."""
        return RowMajor(self.BM, self.stageN)

    @property
    def AccumTmemArray(self) -> TmemArrayType:
        """The subtiles of an accumulator in TMEM."""
        return TmemArrayType(self.accum_type, self.accum_tile_layout, self.num_stages, self.cta_group)

    @property
    def c_smem_layout(self) -> RowMajor:
        return RowMajor(self.c_smem_dim0, self.c_smem_dim1)

    @property
    def c_desc_shape(self) -> tuple[int, ...]:
        """The box of C's tensor map."""
        return self._box or ()

    @property
    def c_rank(self) -> int:
        return len(self.c_desc_shape)

    @cached_property
    def staged(self) -> SharedLayout:
        """The layout of a subtile in shared memory: blocks as wide as a box."""
        rows, columns = self.c_smem_layout
        contiguous = self.BM if self.transpose_c else columns
        width = self._box[-1] if self._box is not None else block_width(self.c_type, self.c_swizzle, contiguous)
        return SharedLayout(self.c_type, rows, columns, width, SWIZZLES[self.c_swizzle], self.transpose_c)

    def staged_as(self, output: StagedOutput) -> SharedLayout:
        """Return the layout of a subtile of an auxiliary output, which follows from its tensor map."""
        geometry, (rows, columns) = output.tensor.geometry, self.c_smem_layout
        return SharedLayout(output.dtype, rows, columns, geometry.box[-1], geometry.swizzle, self.transpose_c)
