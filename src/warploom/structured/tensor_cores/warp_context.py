"""The warp contexts of the MMA role and the epilogue: the lifetime of TMEM, from allocation to deallocation."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from warploom.diagnostics import Diag
from warploom.structured.pipelines.input_pipeline import InputTilePipeline
from warploom.structured.pipelines.output_pipeline import (
    EpilogueKContext,
    MmaKStage,
    OutputTilePipeline,
)
from warploom.structured.tensor_cores.tmem import TmemAllocation
from warploom.trace import isa
from warploom.trace.builder import here


class WarpContext:
    """The common part of both contexts."""

    def __init__(self, output_pipeline: OutputTilePipeline, *, tmem: TmemAllocation | None = None) -> None:
        """`tmem` is TMEM that the role has already allocated, or whose address it has read."""
        self.output_pipeline = output_pipeline
        self.dealloc_barrier = output_pipeline.dealloc
        self._known = output_pipeline.checked(tmem) or output_pipeline.given
        self._entered = False

    @property
    def tmem(self) -> TmemAllocation:
        return self.output_pipeline.tmem

    def __enter__(self) -> Self:
        if self._entered:
            raise Diag.BAD_KERNEL.error(here(), what=f"a {type(self).__name__} is entered twice")
        self._entered = True
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._end()

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


class MmaWarpContext(WarpContext):
    """The MMA role: entering allocates TMEM and publishes its address, leaving frees it after the last read."""

    def _begin(self) -> None:
        outputs = self.output_pipeline
        outputs.pipeline.producer_side.declared()
        slot = (outputs.address, outputs.cta_group, outputs.columns)
        outputs.provide(self._known or TmemAllocation.allocate(*slot))
        outputs.publish_address()

    def _end(self) -> None:
        self.dealloc_barrier.complete_dealloc(self.tmem)

    def per_k_stage(self) -> MmaKStage:
        """Return a context of an accumulator for one K tile; leaving it commits."""
        return self.output_pipeline.per_k().produce()


class EpilogueWarpContext(WarpContext):
    """The epilogue role: entering waits for the address of TMEM, leaving signals that it is no longer read."""

    def _begin(self) -> None:
        outputs = self.output_pipeline
        if self._known is not outputs.given and outputs.consumer_role.name not in outputs.met:
            what = "the TMEM address is read before it has been published; call `Sync.wait()` first"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        outputs.wait_for_address()
        slot = (outputs.address, outputs.cta_group, outputs.columns)
        outputs.provide(self._known or TmemAllocation.from_shared(*slot))

    def _end(self) -> None:
        isa.tcgen05.fence.before_thread_sync()
        self.dealloc_barrier.signal_complete()

    def per_k_stage(self, input_pipeline: InputTilePipeline) -> EpilogueKContext:
        """Return a context of the accumulator of one K tile and its input stage; leaving it releases both."""
        return self.output_pipeline.per_k_epilogue(input_pipeline.pipeline)
