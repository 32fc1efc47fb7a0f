"""What the MMA role and the epilogue do when they begin and end: tensor memory from its allocation to its return."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from warploom.diagnostics import Diag
from warploom.structured.input_pipeline import InputTilePipeline
from warploom.structured.output_pipeline import (
    EpilogueKContext,
    EpilogueStage,
    MmaKStage,
    MmaStage,
    OutputTilePipeline,
)
from warploom.structured.tensor_memory import TmemAllocation
from warploom.structured.tmem_dealloc import TmemDeallocBarrier
from warploom.structured.warp_group_barrier import WarpGroupBarrier
from warploom.trace.builder import here
from warploom.trace.instructions import emit


class _WarpContext:
    """The parts that both contexts share: made once for a kernel, used by both roles."""

    Dealloc = TmemDeallocBarrier
    Pipeline = OutputTilePipeline
    Tmem = TmemAllocation

    def __init__(self, output_pipeline: OutputTilePipeline) -> None:
        self.output_pipeline = output_pipeline
        self.dealloc_barrier = output_pipeline.dealloc
        self._entered = False

    @classmethod
    def create(
        cls,
        output_pipeline: OutputTilePipeline,
        *,
        tmem_addr_storage: Any = None,
        accum_barriers_ptr: Any = None,
        dealloc_mbar: Any = None,
        mma_complete_mask: int | None = None,
    ) -> Self:
        """A context with everything it needs; parts that are given must be those of the pipeline."""
        made = cls(output_pipeline)
        expected = {
            "tmem_addr_storage": (tmem_addr_storage, output_pipeline.address),
            "accum_barriers_ptr": (accum_barriers_ptr, output_pipeline.pipeline.full),
            "dealloc_mbar": (dealloc_mbar, made.dealloc_barrier.barriers),
            "mma_complete_mask": (mma_complete_mask, (1 << output_pipeline.cta_group) - 1),
        }
        wrong = [name for name, (given, own) in expected.items() if given is not None and given != own]
        if wrong:
            what = f"{' and '.join(f'`{name}`' for name in wrong)} given to {cls.__name__}.create"
            raise Diag.BAD_KERNEL.error(here(), what=f"{what} belong to another pipeline than `{output_pipeline.name}`")
        return made

    @property
    def tmem(self) -> TmemAllocation:
        return self.output_pipeline.tmem

    @property
    def Sync(self) -> WarpGroupBarrier:
        """Where the MMA role hands the address of tensor memory to the epilogue."""
        return _Sync(self.output_pipeline)

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


class _Sync(WarpGroupBarrier):
    """The hand-over of the address: the epilogue's explicit wait and that of entering its context are one wait."""

    def __init__(self, outputs: OutputTilePipeline) -> None:
        super().__init__(outputs.sync.num_threads, outputs.sync.id)
        self._outputs = outputs

    def wait(self) -> None:
        self._outputs.wait_for_address()

    sync = wait


class MmaWarpContext(_WarpContext):
    """The MMA role: entering allocates tensor memory and tells the epilogue, leaving waits for it and gives it back."""

    def _begin(self) -> None:
        outputs = self.output_pipeline
        outputs.provide(TmemAllocation.allocate(outputs.address, outputs.cta_group, outputs.columns))
        emit("tcgen05.fence::before_thread_sync")
        outputs.sync.arrive()

    def _end(self) -> None:
        self.dealloc_barrier.complete_dealloc(self.tmem)

    def per_k_stage(self) -> MmaKStage:
        """An accumulator for one K step; leaving it commits."""
        return self.output_pipeline.per_k().produce()


class EpilogueWarpContext(_WarpContext):
    """The epilogue: entering waits for the address of tensor memory, leaving says that nobody reads it any more."""

    def _begin(self) -> None:
        outputs = self.output_pipeline
        outputs.wait_for_address()
        outputs.provide(TmemAllocation.from_shared(outputs.address, outputs.cta_group, outputs.columns))

    def _end(self) -> None:
        emit("tcgen05.fence::before_thread_sync")
        self.dealloc_barrier.signal_complete()

    def per_k_stage(self, input_pipeline: InputTilePipeline) -> EpilogueKContext:
        """An accumulator of one K step and its input stage; leaving it signals both."""
        return self.output_pipeline.per_k_epilogue(input_pipeline.pipeline)


class MmaWarp(MmaWarpContext):
    """The linear form: created where the role begins, released where it ends."""

    @classmethod
    def create(cls, *arguments: Any, **parts: Any) -> Self:
        return super().create(*arguments, **parts).__enter__()

    def acquire_k_stage_linear(self) -> MmaStage:
        return self.output_pipeline.acquire_mma_linear()

    def release(self) -> None:
        self._end()


class EpilogueWarp(EpilogueWarpContext):
    """The linear form of the epilogue's context."""

    @classmethod
    def create(cls, *arguments: Any, **parts: Any) -> Self:
        return super().create(*arguments, **parts).__enter__()

    def acquire_k_stage_linear(self) -> EpilogueStage:
        return self.output_pipeline.acquire_epilogue_linear()

    def release(self) -> None:
        self._end()
